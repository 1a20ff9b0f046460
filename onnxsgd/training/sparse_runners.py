"""Runners of the updates on sparse data, which touch the columns of a batch only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from onnxsgd.engine.sparse_products import is_sparse_table
from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.deferred_losses import build_deferred
from onnxsgd.engine.step.row_update_graph import RowUpdateGraph, build_row_update
from onnxsgd.engine.step.single_step import make_buffers
from onnxsgd.engine.step.sparse_block_adam import SparseBlockAdam, WholeBlockAdam
from onnxsgd.engine.step.sparse_rows import SparseRowUpdates
from onnxsgd.engine.step.sparse_sgd import SparseSGD
from onnxsgd.engine.step.sparse_step import SparseBuffers, SparseLayer, SparseStepRunner, SparseUpdate
from onnxsgd.engine.step.step_spec import StepSpec, is_plain_sgd
from onnxsgd.engine.step.training_step import CompiledStep, build_step
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.graph.reading.first_layers import FirstLayer
from onnxsgd.graph.reading.product_inputs import with_product_inputs
from onnxsgd.learner.learner import Parts
from onnxsgd.optimizers import SGD, Adagrad, Adam, AdamW, BlockAdam, Lion, RMSProp
from onnxsgd.runtime.cache import cached
from onnxsgd.runtime.sessions import make_session, resolve_threads
from onnxsgd.training.epochs import Runners
from onnxsgd.training.fit_plan import FitPlan

__all__ = ["centres_products", "intercept_factors", "make_sparse_runners", "trains_sparse"]

#: The factor of the rate of intercepts on sparse data in scikit-learn, ``SPARSE_INTERCEPT_DECAY``.
_INTERCEPT_FACTOR = 0.01
#: Columns for each entry of a batch up to which each update of block Adam makes a pass over all of them, and
#: columns in any case. Updates of one output by 8,000 entries of words in 25,000 columns take 0.8 of the time
#: then, in 40,000 0.95 and in 60,000 1.2; by 2,000 entries 0.95 in 20,000 columns; by 27,000 entries 0.9 in
#: 85,000 and 1.1 in 140,000.
_FEW_COLUMNS, _FEW_IN_ANY_CASE = 4.0, 10_000
#: The same of several outputs. With 0.4 columns for an entry updates of ten outputs take 0.95 of the time,
#: with 0.8 1.1; of three outputs 0.96 with 0.8, and 1.07 with 1.6.
_FEW_OF_SEVERAL = 0.7
#: The mean of a column, by its deviation, above which it is centred in the data: products in float32 lose the
#: difference from its centre. Nine of ten rows have an entry then. 4,000 rows of 60,000 columns, one of which
#: has a mean of 200 deviations: 29 epochs in place of 202; of 10,000: R2 0.93 in place of 0.
_FAR_CENTRE = 3.0
#: The optimizers whose formula holds for some rows of a weight. That of a user's optimizer need not.
_BY_ROW = (SGD, Adam, AdamW, BlockAdam, RMSProp, Adagrad, Lion)


def intercept_factors(plan: FitPlan) -> tuple[tuple[str, float], ...]:
    """Return the factor of the intercepts' gradient on sparse data, where updates follow scikit-learn's.

    Cases: linear models, plain SGD at a named rate, and batches of one row.
    """
    linear, optimizer = plan.learner.linear, plan.recipe.optimizer
    follows = plan.batch_size * plan.n_accumulated == 1 and is_plain_sgd(optimizer)
    if linear is None or linear[1] is None or not follows:
        return ()
    return ((linear[1], _INTERCEPT_FACTOR),)


def trains_sparse(spec: StepSpec, layers: Sequence[FirstLayer], features: Mapping[str, Any]) -> bool:
    """Tell whether the updates can work on the entries of the data.

    The data must be one sparse table that first layers alone read, and the optimizer one of the package.
    Averages are left to dense batches, except those of plain SGD without the l1 penalty, and so are both
    penalties at once, except proximal ones, updates that need all gradients or statistics of batches, and
    weights that are frozen for a time, except under plain SGD.
    """
    tables = list(features.values())
    is_sparse = len(tables) == 1 and is_sparse_table(tables[0]) and tables[0].shape[1] > 1
    if not layers or not is_sparse or spec.needs_general_step:
        return False
    return _is_plain(spec) or _updates_rows(spec)


def centres_products(spec: StepSpec, layers: Sequence[FirstLayer]) -> bool:
    """Tell whether the updates can subtract the means of columns from products, and leave the data sparse."""
    return all(_has_factors(spec, layer) for layer in layers)


def _has_factors(spec: StepSpec, layer: FirstLayer) -> bool:
    """Tell whether the updates of a first layer are those of block Adam by factors."""
    return type(spec.optimizer) is BlockAdam and not (spec.l1 and layer.weight in spec.penalised)


def _is_plain(spec: StepSpec) -> bool:
    """Tell whether the updates are those of plain SGD without the l1 penalty."""
    return is_plain_sgd(spec.optimizer) and not spec.l1


def _updates_rows(spec: StepSpec) -> bool:
    """Tell whether rows without gradient may wait: no average of them, no decay before a truncation."""
    is_elastic = spec.l1 and spec.l2 and not spec.optimizer.is_proximal
    can_freeze = any(group.can_freeze for group in spec.groups)
    return type(spec.optimizer) in _BY_ROW and not (spec.average or is_elastic or can_freeze)


def make_sparse_runners(
    plan: FitPlan,
    parts: Parts,
    spec: StepSpec,
    layers: Sequence[FirstLayer],
    tensors: Mapping[tuple[str, str], np.ndarray],
    batches: Batches,
) -> Runners:
    """Return runners with new buffers; equal steps share one session.

    Parameters
    ----------
    plan : FitPlan
        The settings of the fit.
    parts : Parts
        The parts of the graph.
    spec : StepSpec
        The specification of the step on dense data.
    layers : sequence of FirstLayer
        The first layers, which read sparse data.
    tensors : dict of ndarray
        Weights and states.
    batches : Batches
        The data.
    """
    outside = {layer.weight for layer in layers}
    inside = tuple(name for name in spec.weights if name not in outside)
    work = 3 * spec.batch_size * sum(array.size for (name, _), array in tensors.items() if name in inside)
    n_threads = resolve_threads(plan.n_threads, work)

    # the step depends on no number of columns, nor does its key
    inner = replace(
        spec, weights=inside, row_shapes=(),
        penalty_scales=_of_weights(spec.penalty_scales, inside),
        rate_scales=_of_weights(spec.rate_scales, inside),
    )  # fmt: skip

    def build() -> tuple[Any, CompiledStep]:
        model, products = with_product_inputs(parts.split.tail, layers)
        step = build_step(model, replace(inner, products=products))
        graphs = build_deferred(step, spec.loss)
        return tuple(make_session(graph, n_threads) for graph in graphs), step

    nbytes = sum(array.nbytes for (name, _), array in tensors.items() if name in inside)
    key = ("sparse step", parts.tail.key, inner.key, n_threads)
    sessions, step = cached(key, build, nbytes, n_threads=n_threads)
    weights = {name: tensors[name, WEIGHT] for name in inside}
    buffers = make_buffers(inner, weights)
    opsets = parts.split.tail.graph.opset_imports
    n_entries = _entries_of_batch(batches)
    centre = _centre(batches) if centres_products(spec, layers) else None
    own = [
        _sparse_layer(layer, names, spec, step, tensors[layer.weight, WEIGHT], opsets, n_entries, centre)
        for layer, names in zip(layers, step.products, strict=True)
    ]
    runner = SparseStepRunner(sessions, step, buffers, own, batches, centre)
    return Runners(SparseBuffers(buffers, own, spec.weights), runner, lambda: runner, is_sparse=True)


def _of_weights(
    shapes: Sequence[tuple[str, tuple[int, ...]]], names: Sequence[str]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the shapes of these weights alone."""
    return tuple((name, shape) for name, shape in shapes if name in names)


def _centre(batches: Batches) -> np.ndarray | None:
    """Return the means of scaled columns that the updates subtract; None: all are centred in the data."""
    ((name, _),) = batches.features.items()
    standard = batches.standards.get(name)
    if standard is None:
        return None
    centre: np.ndarray = standard.shift * standard.factor
    centre[np.abs(centre) > _FAR_CENTRE] = 0
    return centre if centre.any() else None


def _entries_of_batch(batches: Batches) -> float:
    """Return the mean number of entries of a batch."""
    (table,) = batches.features.values()
    return batches.batch_size * table.nnz / max(1, table.shape[0])


def _sparse_layer(
    layer: FirstLayer,
    names: tuple[str, str],
    spec: StepSpec,
    step: CompiledStep,
    weight: np.ndarray,
    opsets: Mapping[str, int],
    n_entries: float,
    centre: np.ndarray | None,
) -> SparseLayer:
    columns = {name: column for column, name in enumerate(step.scalars)}
    numbers = spec.numbers_of(layer.weight, columns)
    if _is_plain(spec):
        updates = _plain_update(layer, spec, weight)
    else:
        updates = _row_update(layer, spec, weight, opsets, n_entries, centre)
    return SparseLayer(layer.weight, layer.is_transposed, *names, numbers, updates)


def _plain_update(layer: FirstLayer, spec: StepSpec, weight: np.ndarray) -> SparseUpdate:
    n_columns, n_outputs = weight.shape[::-1] if layer.is_transposed else weight.shape
    decays = spec.l2 and layer.weight in spec.penalised
    return SparseSGD((n_columns, n_outputs), weight.dtype, decays=decays, average=spec.average)


def _row_update(
    layer: FirstLayer,
    spec: StepSpec,
    weight: np.ndarray,
    opsets: Mapping[str, int],
    n_entries: float,
    centre: np.ndarray | None,
) -> SparseUpdate:
    shapes = {WEIGHT: weight.shape}
    shapes |= {kind: spec.state_shape(layer.weight, kind, weight.shape) for kind in spec.states(layer.weight)}
    turned = {kind: shape[::-1] if layer.is_transposed else shape for kind, shape in shapes.items()}
    if _has_factors(spec, layer):
        decays = spec.l2 and layer.weight in spec.penalised
        optimizer = cast("BlockAdam", spec.optimizer)
        n_columns, n_outputs = turned[WEIGHT]
        few = _FEW_OF_SEVERAL * n_entries
        if n_outputs == 1:
            few = _FEW_COLUMNS * n_entries + _FEW_IN_ANY_CASE
        if n_columns <= few:
            return WholeBlockAdam(turned, weight.dtype, decays=decays, optimizer=optimizer, centre=centre)
        size = spec.batch_size
        return SparseBlockAdam(turned, weight.dtype, size, decays=decays, optimizer=optimizer, centre=centre)

    def build() -> tuple[Any, RowUpdateGraph]:
        graph = build_row_update(spec, layer.weight, turned, weight.dtype, opsets)
        return make_session(graph.model, 1), graph

    key = ("rows", spec.key, layer.weight, tuple(turned.items()), str(weight.dtype), tuple(opsets.items()))
    session, graph = cached(key, build)
    return SparseRowUpdates(session, graph, turned, weight.dtype)
