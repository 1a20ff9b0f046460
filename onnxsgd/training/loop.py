"""The training loop: epochs of updates over explicit state."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from onnxsgd.engine.step.batches import Batches, EpochPlan
from onnxsgd.engine.step.buffers import Tensors
from onnxsgd.engine.step.update import AVERAGE_RATE, L1_TOTAL
from onnxsgd.exceptions import ConvergenceError
from onnxsgd.optimizers import L1_STRENGTH
from onnxsgd.schedules import Schedule
from onnxsgd.training.fit_plan import FitPlan, Recipe
from onnxsgd.training.state import FitState
from onnxsgd.training.stopping import Plateau, Stopping

__all__ = ["Observer", "Runners", "run_epoch", "train"]


class Buffers(Protocol):
    """Weights and states, such as :class:`onnxsgd.engine.step.buffers.Buffers`."""

    def load(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> None:
        """Copy these values into the buffers."""

    def snapshot(self) -> Tensors:
        """Return a copy of the present values."""


class Runner(Protocol):
    """A runner of updates, such as :class:`onnxsgd.engine.step.single_step.StepRunner`."""

    n_done: int

    def run(self, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray) -> None:
        """Make one update for each batch."""


@dataclass(frozen=True)
class Runners:
    """The runners of the updates of a fit.

    Attributes
    ----------
    buffers : Buffers
        Weights and states, shared by the two.
    step : Runner
        One batch in a call.
    epoch : Runner or None
        Many batches in a call, if that is faster.
    """

    buffers: Buffers
    step: Runner
    epoch: Runner | None = None

    @property
    def fastest(self) -> Runner:
        """The runner to use."""
        return self.epoch or self.step


class Observer(Protocol):
    """A callback of each epoch."""

    def epoch_begins(self) -> None:
        """Handle the beginning of an epoch."""

    def epoch_ends(self, state: FitState) -> bool:
        """Handle the end of an epoch; return whether training should stop."""


def train(
    runners: Runners,
    batches: Batches,
    plan: FitPlan,
    stopping: Stopping,
    state: FitState,
    observers: Sequence[Observer] = (),
    score: Callable[[dict[str, np.ndarray]], float] | None = None,
) -> int:
    """Train until the loss, or the score, stops improving, or an observer asks to stop.

    Returns the number of epochs.

    `state` is changed in place. However the loop ends, it is usable and holds the last finite weights.
    """
    recipe = plan.recipe
    plateau = Plateau(stopping.tol, stopping.n_iter_no_change)
    best: tuple[Tensors, float] | None = None
    n_epochs = 0
    try:
        for _ in range(stopping.max_iter):
            n_epochs += 1
            for observer in observers:
                observer.epoch_begins()
            loss = run_epoch(runners, batches, plan, state)
            value = loss
            if score is not None:
                state.validation_scores.append(score(state.weights(recipe.average_from)))
                if stopping.on_score:
                    value = -state.validation_scores[-1]
                    best = (state.tensors, state.l1_total) if value < plateau.best else best
            votes = [observer.epoch_ends(state) for observer in observers]
            if any(votes):
                break
            if plateau.reached(value) and not _lower_rate(recipe.schedule, state, plateau):
                break
        else:
            if stopping.tol is not None:
                warnings.warn(
                    "Maximum number of iteration reached before convergence. Consider increasing max_iter "
                    "to improve the fit.",
                    ConvergenceWarning,
                    stacklevel=4,
                )
    except KeyboardInterrupt:
        warnings.warn("Training interrupted by user.", stacklevel=4)
    if best is not None:
        state.tensors, state.l1_total = best
    return n_epochs


def run_epoch(runners: Runners, batches: Batches, plan: FitPlan, state: FitState) -> float:
    """Make one update for each batch; return the objective: mean loss plus penalty.

    Raises
    ------
    ConvergenceError
        If the loss or a weight is no longer finite. `state` then holds the last finite weights.
    """
    recipe, n_samples = plan.recipe, len(batches.target)
    numbers = _numbers(recipe, state, batches.n_batches)
    order = _shuffled(n_samples, state.random_state) if recipe.shuffle else np.arange(n_samples)
    epoch = batches.plan(order)
    if recipe.optimizer.takes_scaled_gradient:
        epoch = epoch.descending(numbers.rates)
    losses = np.full(batches.n_batches, math.nan)
    try:
        runners.fastest.run(epoch, numbers.table, losses)
    finally:
        n_done = runners.fastest.n_done
        tensors = runners.buffers.snapshot()
        is_finite = _all_finite(tensors) and bool(np.isfinite(losses[:n_done]).all())
        if is_finite:
            state.tensors = tensors
            numbers.move(state, n_done)
    if not is_finite:
        _restore_last_finite(runners, epoch, numbers, state)
    objective = epoch.mean_loss(losses) + _penalty(plan, state)
    state.loss_curve.append(objective)
    return objective


def _shuffled(n: int, random_state: np.random.RandomState) -> np.ndarray:
    """Return the numbers below `n` in random order.

    It sorts random keys with the numbers in their lower halves: numpy has vector instructions for sorting,
    but not for its permutation. One pair of keys in four billion is equal and keeps its order.
    """
    keys = random_state.randint(0, 1 << 32, n, np.uint32).astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= np.arange(n, dtype=np.uint64)
    keys.sort()
    return keys.astype(np.uint32)


@dataclass(frozen=True)
class _Numbers:
    """The numbers of the next updates.

    Attributes
    ----------
    table : ndarray of shape [n_updates, n_scalars]
        The scalar inputs of each step.
    rates, l1_totals : ndarray of shape [n_updates]
        The learning rate, and the l1 penalty received so far.
    """

    table: np.ndarray
    rates: np.ndarray
    l1_totals: np.ndarray

    def move(self, state: FitState, n_updates: int) -> None:
        """Advance `state` by `n_updates` updates."""
        if n_updates:
            state.t += n_updates
            state.eta = float(self.rates[n_updates - 1])
            state.l1_total = float(self.l1_totals[n_updates - 1])


def _numbers(recipe: Recipe, state: FitState, count: int) -> _Numbers:
    """Return the numbers of the next `count` updates."""
    t = np.arange(state.t + 1, state.t + 1 + count, dtype=np.float64)
    rates = recipe.schedule.rates(state.t + 1, state.eta, count)
    l1_totals = state.l1_total + np.cumsum(rates * (recipe.penalty.l1 or 0.0))
    scalars = dict(recipe.optimizer.scalars(t, rates, recipe.penalty.l2 or 0.0))
    l1 = recipe.penalty.l1
    if l1 is not None:
        scalars |= {L1_STRENGTH: l1} if recipe.optimizer.is_proximal else {L1_TOTAL: l1_totals}
    if recipe.average_from:
        scalars[AVERAGE_RATE] = 1.0 / np.maximum(1.0, t - recipe.average_from + 1)
    table = np.empty((count, len(scalars)))
    for number, column in enumerate(scalars.values()):
        table[:, number] = column
    return _Numbers(table, rates, l1_totals)


def _restore_last_finite(runners: Runners, epoch: EpochPlan, numbers: _Numbers, state: FitState) -> None:
    """Repeat the epoch from its start up to the last finite weights, then raise.

    Repeating costs time only when training has failed anyway; keeping a copy of the weights at each
    update would cost time always.
    """
    loss = np.full(1, math.nan)
    n_finite = n_done = 0
    runners.buffers.load(state.tensors)
    for number in range(len(epoch.totals)):
        part = slice(number, number + 1)
        runners.step.run(epoch.part(part), numbers.table[part], loss)
        n_done = number + 1
        tensors = runners.buffers.snapshot()
        if not math.isfinite(loss[0]) or not _all_finite(tensors):
            break
        state.tensors, n_finite = tensors, n_done
    failed_at, rate = state.t + n_done, numbers.rates[n_done - 1]
    numbers.move(state, n_finite)
    raise ConvergenceError(
        f"The loss or the weights are no longer finite at update {failed_at}, with learning rate {rate:.6g}. "
        f"The estimator keeps the last finite weights, those of update {state.t}. Scale the data, or lower "
        "the learning rate."
    )


def _lower_rate(schedule: Schedule, state: FitState, plateau: Plateau) -> bool:
    eta = schedule.after_plateau(state.eta)
    if eta is None:
        return False
    state.eta, plateau.count = eta, 0
    return True


def _penalty(plan: FitPlan, state: FitState) -> float:
    weights = state.weights()
    return plan.recipe.penalty.value(weights[name] for name in plan.penalised)


def _all_finite(tensors: Tensors) -> bool:
    return all(np.isfinite(array).all() for array in tensors.values())
