"""The choice of the short loops of linear models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.idle_runners import BoundRunners
from onnxsgd.engine.step.linear_adam import LinearAdamRunner, LinearBlocks, build_linear_adam, fits_table
from onnxsgd.engine.step.linear_layer import LinearLayer
from onnxsgd.engine.step.linear_scan import LinearScanRunner, build_linear_scan
from onnxsgd.engine.step.step_spec import StepSpec, is_plain_sgd
from onnxsgd.graph.reading.first_layers import FirstLayer
from onnxsgd.losses import CLASSIFICATION_LOSSES, REGRESSION_LOSSES, CrossEntropy
from onnxsgd.optimizers import RATE, BlockAdam

__all__ = ["LinearLoop", "choose_linear_loop", "is_one_layer"]

#: The most numbers of a batch, without those of its first row, under plain SGD and BlockAdam: with more,
#: copies outweigh the operators saved. ``benchmarks/constants.py``, plain SGD, 20 features: 0.66 of the time
#: with 1 row, 0.84 with 8, 0.95 with 16, 1.08 with 32; BlockAdam, batches of 32: 0.69 of the time with 20
#: features, 0.80 with 64, 0.94 with 150, 1.06 with 200.
_MOST_NUMBERS, _MOST_NUMBERS_OF_BLOCKS = 300, 4000
#: The least decay rate of the second moment, which is above zero in the loop from one update to the next.
_LEAST_BETA_2 = 0.5
#: The losses whose gradient has a closed form; one of a user need not have one.
_LOSSES = frozenset({*REGRESSION_LOSSES.values(), *CLASSIFICATION_LOSSES.values(), CrossEntropy})
#: The operators of a graph that is one layer.
_ONE_LAYER = (["Gemm"], ["MatMul"], ["MatMul", "Add"])


@dataclass(frozen=True)
class LinearLoop:
    """A short loop that makes the updates of a linear model.

    Attributes
    ----------
    layer : LinearLayer
        The only layer of the model.
    blocks : LinearBlocks or None
        The blocks of BlockAdam; None for plain SGD.
    spec : StepSpec
        The specification of the general step.
    """

    layer: LinearLayer
    blocks: LinearBlocks | None
    spec: StepSpec

    @property
    def key(self) -> tuple[Any, ...]:
        """The cache key of the loop, beside that of the general step."""
        blocks = self.blocks
        if blocks is None:
            return ()
        angle = blocks.steering, blocks.with_penalties, blocks.with_sizes, blocks.rests, blocks.inertia
        return blocks.beta_1, blocks.beta_2, *angle, blocks.has_table

    def build(self, tail: ir.Model) -> bytes:
        """Return the graph of the loop."""
        return (
            build_linear_scan(self.layer, tail)
            if self.blocks is None
            else build_linear_adam(self.blocks, tail)
        )

    def runner(
        self, session: Callable[[], Any], runners: BoundRunners, batches: Batches
    ) -> LinearScanRunner | LinearAdamRunner:
        """Return a runner on the buffers of these runners; `session` returns the session of the loop."""
        layer, blocks = self.layer, self.blocks
        if blocks is None:
            columns = {name: number for number, name in enumerate(self.spec.scalars)}
            return LinearScanRunner(session(), layer, runners.buffers, batches, lambda: runners.loop, columns)
        return runners.short(
            self.key, lambda: LinearAdamRunner(session(), blocks, self.spec, runners.buffers, batches)
        )


def choose_linear_loop(
    tail: ir.Model, spec: StepSpec, layers: Sequence[FirstLayer], batches: Batches
) -> LinearLoop | None:
    """Return the short loop that makes the updates of a linear model, else None.

    Cases: one layer, all of it trained; plain SGD on the data as they are, with averages, or an l1 penalty of
    single coefficients, or neither, or BlockAdam; no update that needs all gradients; small batches of dense
    tables; the portable engine, whose gradient the formula of the loop is.
    """
    if len(layers) != 1 or not _has_formula(spec, batches):
        return None
    (layer,) = layers
    rows_and_columns = batches.features[layer.feature].shape
    if len(rows_and_columns) != 2:
        return None
    n_features = rows_and_columns[1]
    optimizer = spec.optimizer
    most = _MOST_NUMBERS_OF_BLOCKS if isinstance(optimizer, BlockAdam) else _MOST_NUMBERS
    if (spec.batch_size - 1) * n_features > most or not is_one_layer(tail):
        return None
    trained = {layer.weight, layer.intercept} - {None}
    read = {str(value.name) for node in tail.graph for value in node.inputs if value is not None}
    if spec.l1 and layer.intercept in spec.penalised:
        return None
    if set(spec.weights) != trained or read & set(tail.graph.initializers) != trained:
        return None
    linear = LinearLayer(
        layer.feature, layer.weight, layer.intercept, layer.is_transposed,
        n_features, spec.n_outputs, spec.batch_size,
        spec.l2 and layer.weight in spec.penalised, spec.l1 and layer.weight in spec.penalised, spec.average,
        spec.loss,
    )  # fmt: skip
    blocks = _blocks(linear, spec, optimizer, batches) if isinstance(optimizer, BlockAdam) else None
    return LinearLoop(linear, blocks, spec)


def is_one_layer(tail: ir.Model) -> bool:
    """Tell whether a graph is one linear layer."""
    return [node.op_type for node in tail.graph] in _ONE_LAYER


def _blocks(layer: LinearLayer, spec: StepSpec, optimizer: BlockAdam, batches: Batches) -> LinearBlocks:
    scaled = dict(spec.rate_scales)
    by_output = layer.weight in scaled and max(scaled[layer.weight]) > 1
    has_table = fits_table(batches, layer.n_features)
    places = {name: place for place, name in enumerate(spec.scalars)}
    rates = {spec.numbers_of(name, places)[RATE] for name in spec.weights}
    return LinearBlocks(
        layer, by_output, optimizer.first_decay or 0.0, optimizer.beta_2, optimizer.steering, has_table,
        has_one_rate=len(rates) == 1 and not spec.rate_scales, is_preconditioned=bool(spec.preconditioned),
        with_penalties=optimizer.with_penalties, with_sizes=optimizer.with_sizes, rests=optimizer.rests,
        inertia=optimizer.share_of_moment,
    )  # fmt: skip


def _has_formula(spec: StepSpec, batches: Batches) -> bool:
    """Tell whether the updates are those of plain SGD or BlockAdam in small batches of dense data."""
    optimizer = spec.optimizer
    is_block_adam = type(optimizer) is BlockAdam and optimizer.beta_2 >= _LEAST_BETA_2
    if not is_plain_sgd(optimizer) and not is_block_adam:
        return False
    further: list[object] = [
        spec.norm_axes, spec.products, spec.gradient_factors, batches.is_sparse, spec.needs_general_step,
        spec.groups,
    ]  # fmt: skip
    if is_plain_sgd(optimizer):
        # on standardised data it takes the general loop
        scales = (spec.output_weights, spec.rate_scales, spec.penalty_scales, batches.standards)
        further += [*scales, spec.l1 and spec.average]
    else:
        further += [spec.l1, spec.average]
    if any(further):
        return False
    return type(spec.loss) in _LOSSES and spec.engine == "portable"
