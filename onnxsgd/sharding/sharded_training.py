"""The parts of a fit on shards, as the training loop takes them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from onnxsgd.data.row_tables import as_array, evenly
from onnxsgd.engine.step.batches import Batches, Standard
from onnxsgd.engine.step.divided_step import of_rows
from onnxsgd.exceptions import UnsupportedError
from onnxsgd.runtime.events import decided
from onnxsgd.sharding.client_step import client_step
from onnxsgd.sharding.rounds import GradientRounds, HeldTensors, LocalRounds, OuterStep, TasksOfShards
from onnxsgd.sharding.shard_tasks import ShardEstimator, ShardFit, standardised_shard
from onnxsgd.sharding.shards import ClientBatches, Shards, merged_moments
from onnxsgd.training.coordinates import make_standards
from onnxsgd.training.epochs import Epochs, Runners
from onnxsgd.training.fit_plan import FitPlan
from onnxsgd.training.program import Program
from onnxsgd.training.sparse_runners import trains_sparse
from onnxsgd.training.start import ENOUGH_ROWS
from onnxsgd.training.state import TARGET, FitState

__all__ = ["TrainingParts", "check_gradients", "make_parts", "updates_of_round"]

#: The updates of a round unless they are named, and the fewest rounds of a fit: with fewer, training ends
#: above the loss of one machine.
_SYNC_EVERY, _ROUNDS = 16, 40


@dataclass(frozen=True)
class TrainingParts:
    """The parts of a fit on shards.

    Attributes
    ----------
    program : Program
        The graph on the client.
    shards : Shards
        The shards of the fit, standardised.
    batches : ClientBatches
        The batches that the loop counts: of all shards together, or of the largest.
    runners : Runners
        The state on the client, and the runner of updates that all shards make together.
    epochs : callable
        Makes the epochs, from the same arguments as :class:`~onnxsgd.training.epochs.Epochs`.
    """

    program: Program
    shards: Shards
    batches: ClientBatches
    runners: Runners
    epochs: Callable[..., Any]


def updates_of_round(named: int | None, plan: FitPlan, n_rows: int, max_iter: int | None) -> int:
    """Return the updates of a shard of so many rows, the largest, in a round; None epochs: in a stream."""
    most = _SYNC_EVERY
    if max_iter is not None:
        most = max(1, max_iter * -(-n_rows // plan.rows_of_update(n_rows)) // _ROUNDS)
    if named is None:
        found = min(_SYNC_EVERY, most)
        return found if found > 1 or _has_gradients(plan) else 2
    if max_iter is not None and named > most:
        warnings.warn(
            f"sync_every={named} leaves max_iter={max_iter} fewer than {_ROUNDS} rounds, after which the "
            f"loss is above that of one machine: give at most {most}, or raise max_iter.",
            ConvergenceWarning,
            stacklevel=6,
        )
    return named


def _has_gradients(plan: FitPlan) -> bool:
    """Tell whether the gradient is the sum of those of shards."""
    try:
        check_gradients(plan)
    except UnsupportedError:
        return False
    return True


def check_gradients(plan: FitPlan) -> None:
    """Refuse losses and graphs whose gradient is not the sum of those of shards.

    Raises
    ------
    UnsupportedError
        If the plan has one.
    """
    of_rows(plan.step_spec, 1)
    if not plan.loss.is_formula:
        raise UnsupportedError(
            f"sync_every=1 needs a loss that is a formula, and {type(plan.loss).__name__} is a function of "
            "Python: give sync_every a number above 1."
        )


def make_parts(
    read: Shards, estimator: ShardEstimator, plan: FitPlan, state: FitState, sync_every: int
) -> TrainingParts:
    """Return the parts of a fit.

    Parameters
    ----------
    read : Shards
        The shards as they were read, which are released.
    estimator : OnnxSGDRegressor or OnnxSGDClassifier
        The estimator of the tasks.
    plan : FitPlan
        The settings of the fit.
    state : FitState
        The state before it; its moments of the data become those of all shards.
    sync_every : int
        Updates of the largest shard in a round; 1: gradients are averaged at each update.
    """
    few, recipe = read.some_rows(), plan.recipe
    is_sparse = any(not isinstance(table, np.ndarray) for table in few.features.values())
    parts = plan.learner.sparse_parts() if is_sparse else plan.learner.divided
    program = Program(plan, parts)
    n_rows = sum(read.n_rows) if sync_every == 1 else max(read.n_rows)
    trains_columns = is_sparse and trains_sparse(plan.step_spec, program.first_layers, few.features)
    is_sparse_fit, is_linear_fit = (it and not recipe.in_parts for it in (trains_columns, program.is_linear))
    size = plan.rows_of_update(n_rows, is_sparse_fit=is_sparse_fit, is_linear_fit=is_linear_fit)
    program = Program(replace(plan, batch_size=size, n_accumulated=1, is_exact=True), parts)
    standards, has_extremes = _add_moments(program, read, few, state)
    weight_unit = state.mean_weight if recipe.is_auto else None
    settings = ShardFit(
        estimator, recipe.in_parts, is_sparse, size, standards, dict(state.moments), weight_unit, has_extremes
    )
    shards = _standardised(read, settings)
    found = client_step(program, few, standards, state)
    runner: Any = None
    held: Any
    epochs: Callable[..., Any]
    if sync_every == 1:
        decided("shards", "%d, whose gradients are averaged at each update", len(shards.handles))
        update = found.update_runner()
        tasks = TasksOfShards(shards, size)
        runner = GradientRounds(shards.executor, tasks, update, found.spec.scalars)
        held, epochs = update.buffers, Epochs
    else:
        decided("shards", "%d, rounds of %d updates of the largest", len(shards.handles), sync_every)
        # a round ends with the epoch
        n_together = min(sync_every, -(-n_rows // size))
        outer = OuterStep.of(recipe, [summary.weight for summary in shards.summaries], n_together)
        held = HeldTensors(outer.places(found.buffers().sets[0], found.spec.weights))
        epochs = partial(LocalRounds, shards, sync_every, outer)
    buffers = found.loaded(held, state)
    batches = ClientBatches(
        {}, np.broadcast_to(np.zeros((), few.target.dtype), (n_rows, few.target.shape[1])),
        shards.sample_weight() if sync_every == 1 else evenly(1.0, n_rows), size, is_mean=size > 1,
        standards=standards, weight_unit=weight_unit, in_windows=True, is_even=program.divides_evenly,
        few=few,
    )  # fmt: skip
    runners = Runners(buffers, runner, lambda: runner, is_sparse=is_sparse_fit)
    return TrainingParts(program, shards, batches, runners, epochs)


def _add_moments(
    program: Program, read: Shards, few: Batches, state: FitState
) -> tuple[dict[str, Standard], bool]:
    """Add the moments of all shards to those of the state.

    Return the standardisation of features, and whether some rows are far from the others.
    """
    plan, n_rows = program.plan, sum(read.n_rows)
    if plan.recipe.is_auto and program.has_usual_unit(is_sparse=few.is_sparse):
        # of more rows than the client has, the unit is that of a sample
        program.add_target(state.moments, as_array(few.target), few.sample_weight)
    elif plan.scaled_layer.weights:
        known = state.moments.get(TARGET)
        of_bulk = plan.is_bounded and plan.recipe.is_auto
        moments = read.moments_of_bulk(TARGET, few.target)[0] if of_bulk else read.moments(TARGET)
        state.moments[TARGET] = merged_moments(known, moments, may_change=False)
    if not plan.recipe.is_auto:
        return {}, False
    state.count_rows(evenly(read.weight / n_rows, n_rows))
    may_change = plan.recipe.in_parts and n_rows >= ENOUGH_ROWS
    has_extremes = False
    for name, _, _ in program.columns_of_layers:
        known, some = state.moments.get(name), few.features[name]
        if plan.is_bounded and isinstance(some, np.ndarray) and some.ndim == 2:
            moments, has_some = read.moments_of_bulk(name, some, program.least_width)
            has_extremes |= has_some
        else:
            moments = read.moments(name)
        state.moments[name] = merged_moments(known, moments, may_change=may_change)
    data = None if plan.recipe.in_parts else few
    standards = make_standards(
        program.columns_of_layers, few.features, state.moments, data, n_rows, program.penalty_of_linear,
        row_weight=state.mean_weight if plan.recipe.in_parts else None,
    )  # fmt: skip
    return standards, has_extremes


def _standardised(read: Shards, settings: ShardFit) -> Shards:
    """Return the shards with the batches of a fit; those that were read are released."""
    executor = read.executor
    fit = executor.source(settings)
    handles = tuple(executor.submit(standardised_shard, fit, shard) for shard in read.handles)
    executor.release([*read.handles, read.fit])
    return replace(read, fit=fit, handles=handles, has_extremes=settings.has_extremes)
