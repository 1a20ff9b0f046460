"""Runners of the updates on sparse data, which touch the columns of a batch only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onnxsgd.engine.sparse_products import is_sparse_table
from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.deferred_losses import build_deferred
from onnxsgd.engine.step.single_step import make_buffers
from onnxsgd.engine.step.sparse_sgd import SparseSGD
from onnxsgd.engine.step.sparse_step import SparseBuffers, SparseLayer, SparseStepRunner, SparseUpdate
from onnxsgd.engine.step.step_spec import StepSpec
from onnxsgd.engine.step.training_step import CompiledStep, build_step
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.graph.reading.first_layers import FirstLayer
from onnxsgd.graph.reading.product_inputs import with_product_inputs
from onnxsgd.learner.learner import Parts
from onnxsgd.optimizers import SGD
from onnxsgd.runtime.cache import cached
from onnxsgd.runtime.sessions import make_session, resolve_threads
from onnxsgd.training.epochs import Runners
from onnxsgd.training.fit_plan import FitPlan

__all__ = ["intercept_factors", "make_sparse_runners", "trains_sparse"]

#: The factor of the rate of intercepts on sparse data in scikit-learn, ``SPARSE_INTERCEPT_DECAY``.
_INTERCEPT_FACTOR = 0.01


def intercept_factors(plan: FitPlan) -> tuple[tuple[str, float], ...]:
    """Return the factor of the intercepts' gradient on sparse data, where updates follow scikit-learn's.

    Cases: linear models, plain SGD at a named rate, and batches of one row.
    """
    linear, optimizer = plan.learner.linear, plan.recipe.optimizer
    follows = plan.batch_size == 1 and type(optimizer) is SGD and not optimizer.slots
    if linear is None or linear[1] is None or not follows:
        return ()
    return ((linear[1], _INTERCEPT_FACTOR),)


def trains_sparse(spec: StepSpec, layers: Sequence[FirstLayer], batches: Batches) -> bool:
    """Tell whether the updates can work on the entries of the data.

    The data must be one sparse table, not centred, that first layers alone read, and the optimizer plain SGD
    without the l1 penalty.
    """
    tables = list(batches.features.values())
    is_sparse = len(tables) == 1 and is_sparse_table(tables[0])
    is_centred = any(standard.shift.any() for standard in batches.standards.values())
    optimizer = spec.optimizer
    is_plain = type(optimizer) is SGD and not optimizer.slots and not spec.l1
    return bool(layers) and is_sparse and not is_centred and is_plain


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

    def build() -> tuple[Any, CompiledStep]:
        model, products = with_product_inputs(parts.split.tail, layers)
        step = build_step(model, replace(spec, weights=inside, products=products))
        graphs = build_deferred(step, spec.loss)
        return tuple(make_session(graph, n_threads) for graph in graphs), step

    nbytes = sum(array.nbytes for (name, _), array in tensors.items() if name in inside)
    sessions, step = cached(("sparse step", parts.tail.key, spec.key, n_threads), build, nbytes)
    buffers = make_buffers(sessions[0], step)
    own = [
        _sparse_layer(layer, names, spec, step, tensors[layer.weight, WEIGHT])
        for layer, names in zip(layers, step.products, strict=True)
    ]
    runner = SparseStepRunner(sessions, step, buffers, own, batches)
    return Runners(SparseBuffers(buffers, own, spec.weights), runner)


def _sparse_layer(
    layer: FirstLayer, names: tuple[str, str], spec: StepSpec, step: CompiledStep, weight: np.ndarray
) -> SparseLayer:
    numbers = {name: column for column, name in enumerate(step.scalars)}
    return SparseLayer(
        layer.weight,
        layer.is_transposed,
        *names,
        spec.numbers_of(layer.weight, numbers),
        _update(layer, spec, weight),
    )


def _update(layer: FirstLayer, spec: StepSpec, weight: np.ndarray) -> SparseUpdate:
    n_columns, n_outputs = weight.shape[::-1] if layer.is_transposed else weight.shape
    decays = spec.l2 and layer.weight in spec.penalised
    return SparseSGD((n_columns, n_outputs), weight.dtype, decays=decays, average=spec.average)
