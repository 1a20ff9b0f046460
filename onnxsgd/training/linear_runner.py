"""The choice of the short loop for linear models under plain SGD."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.linear_scan import LinearLayer
from onnxsgd.engine.step.step_spec import StepSpec, is_plain_sgd
from onnxsgd.graph.reading.first_layers import FirstLayer
from onnxsgd.losses import CLASSIFICATION_LOSSES, REGRESSION_LOSSES, CrossEntropy

__all__ = ["only_layer"]

#: The most numbers of a batch, without those of its first row: with more, copies outweigh the operators
#: saved. ``benchmarks/constants.py``, 20 features: 0.66 of the time with 1 row, 0.84 with 8, 0.95 with 16,
#: 1.08 with 32.
_MOST_NUMBERS = 300
#: The losses whose gradient has a closed form; one of a user need not have one.
_LOSSES = frozenset({*REGRESSION_LOSSES.values(), *CLASSIFICATION_LOSSES.values(), CrossEntropy})
#: The operators of a graph that is one layer.
_ONE_LAYER = (["Gemm"], ["MatMul"], ["MatMul", "Add"])


def only_layer(
    tail: ir.Model, spec: StepSpec, layers: Sequence[FirstLayer], batches: Batches
) -> LinearLayer | None:
    """Return the layer of a linear model whose updates the short loop can make, else None.

    Cases: one layer, all of it trained; plain SGD on the data as they are, without l1 penalty and averages;
    small batches; the portable engine, whose gradient the formula of the loop is.
    """
    if len(layers) != 1 or not _is_plain(spec, batches):
        return None
    (layer,) = layers
    trained = {layer.weight, layer.intercept} - {None}
    read = {str(value.name) for node in tail.graph for value in node.inputs if value is not None}
    is_whole = [node.op_type for node in tail.graph] in _ONE_LAYER and set(spec.weights) == trained
    n_features = batches.features[layer.feature].shape[1]
    is_short = (spec.batch_size - 1) * n_features <= _MOST_NUMBERS
    if not is_short or not is_whole or read & set(tail.graph.initializers) != trained:
        return None
    return LinearLayer(
        layer.feature, layer.weight, layer.intercept, layer.is_transposed,
        n_features, spec.n_outputs, spec.batch_size,
        spec.l2 and layer.weight in spec.penalised, spec.loss,
    )  # fmt: skip


def _is_plain(spec: StepSpec, batches: Batches) -> bool:
    """Tell whether the updates are those of plain SGD in small batches of dense data."""
    further = (
        spec.l1, spec.average, spec.output_weights, spec.rate_scales, spec.penalty_scales, spec.products,
        spec.gradient_factors, batches.standards, batches.is_sparse,
    )  # fmt: skip
    has_formula = type(spec.loss) in _LOSSES and spec.engine == "portable"
    return is_plain_sgd(spec.optimizer) and has_formula and not any(further)
