"""The training loop: epochs of updates over explicit state."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from onnxsgd._batches import Batches, EpochPlan
from onnxsgd._stopping import Plateau
from onnxsgd.engine.runner import StepRunner, Tensors
from onnxsgd.engine.update import AVERAGE, AVERAGE_RATE, L1_TOTAL, WEIGHT
from onnxsgd.exceptions import ConvergenceError
from onnxsgd.optimizers import Optimizer
from onnxsgd.penalties import Penalty
from onnxsgd.schedules import Schedule

__all__ = ["FitState", "Recipe", "fresh_generator", "run_epoch", "train"]


@dataclass(frozen=True)
class Recipe:
    """What stays the same during a fit.

    Attributes
    ----------
    optimizer, schedule, penalty : objects
        How weights change.
    average_from : int
        The update at which averaging starts; 0: never.
    shuffle : bool
        Whether each epoch has an order of its own.
    penalised : frozenset of str
        The weights that the penalty applies to.
    """

    optimizer: Optimizer
    schedule: Schedule
    penalty: Penalty
    average_from: int
    shuffle: bool
    penalised: frozenset[str]


@dataclass
class FitState:
    """What changes during a fit, and what a later fit or ``partial_fit`` goes on from.

    Attributes
    ----------
    tensors : dict of ndarray
        Weights and their states.
    eta : float
        The learning rate in force.
    random_state : numpy.random.RandomState
        Draws the order of the samples.
    t : int
        Updates made.
    l1_total : float
        The l1 penalty that each weight could have received so far.
    loss_curve : list of float
        The objective of each epoch.
    validation_scores : list of float
        The score of each epoch on the validation data, if there are any.
    """

    tensors: Tensors
    eta: float
    random_state: np.random.RandomState
    t: int = 0
    l1_total: float = 0.0
    loss_curve: list[float] = field(default_factory=list)
    validation_scores: list[float] = field(default_factory=list)

    def weights(self, average_from: int = 0) -> dict[str, np.ndarray]:
        """Return the weights, averaged ones once averaging has started."""
        kind = AVERAGE if 0 < average_from <= self.t else WEIGHT
        return {name: array for (name, k), array in self.tensors.items() if k == kind}


def train(
    runner: StepRunner,
    batches: Batches,
    recipe: Recipe,
    state: FitState,
    *,
    max_iter: int,
    tol: float | None,
    n_iter_no_change: int,
    score: Callable[[dict[str, np.ndarray]], float] | None,
    stop_on_score: bool,
    verbose: int,
) -> int:
    """Train until the loss, or the score, stops improving; return the number of epochs.

    `state` is changed in place. It is left usable, with the last finite weights, whatever ends the loop.
    """
    plateau = Plateau(tol, n_iter_no_change)
    best: Tensors | None = None
    epoch = 0
    try:
        for epoch in range(1, max_iter + 1):
            loss = run_epoch(runner, batches, recipe, state)
            value = loss
            if score is not None:
                state.validation_scores.append(score(state.weights()))
                if stop_on_score:
                    value = -state.validation_scores[-1]
                    best = state.tensors if value < plateau.best else best
            if verbose:
                _report(epoch, state, score is not None)
            if plateau.reached(value) and not _go_on_slower(recipe.schedule, state, plateau):
                break
        else:
            if tol is not None:
                warnings.warn(
                    "Maximum number of iteration reached before convergence. Consider increasing max_iter "
                    "to improve the fit.",
                    ConvergenceWarning,
                    stacklevel=4,
                )
    except KeyboardInterrupt:
        warnings.warn("Training interrupted by user.", stacklevel=4)
    if best is not None:
        state.tensors = best
    return epoch


def run_epoch(runner: StepRunner, batches: Batches, recipe: Recipe, state: FitState) -> float:
    """Make one update for each batch; return the objective: mean loss plus penalty.

    Raises
    ------
    ConvergenceError
        If the loss or a weight is no longer finite. `state` then holds the last finite weights.
    """
    n_samples = len(batches.target)
    order = state.random_state.permutation(n_samples) if recipe.shuffle else np.arange(n_samples)
    plan = batches.plan(order)
    losses = np.full(batches.n_batches, math.nan)
    start = (state.t, state.l1_total)
    try:
        for number in batches.fill(plan, runner.features, runner.target, runner.sample_weight):
            _set_scalars(runner, recipe, state)
            losses[number] = runner.run()
            state.t += 1
            if not math.isfinite(losses[number]):
                break
    finally:
        tensors = runner.snapshot()
        if _all_finite(tensors) and np.isfinite(losses[: state.t - start[0]]).all():
            state.tensors = tensors
            diverged = False
        else:
            diverged = True
    if diverged:
        _restore_last_finite(runner, batches, plan, recipe, state, start)
    objective = plan.mean_loss(losses) + _penalty(recipe, state)
    state.loss_curve.append(objective)
    return objective


def _set_scalars(runner: StepRunner, recipe: Recipe, state: FitState) -> None:
    """Give the runner the numbers of the next update."""
    t = state.t + 1
    state.eta = recipe.schedule.rate(t, state.eta)
    scalars = runner.scalars
    for name, value in recipe.optimizer.scalars(t, state.eta, recipe.penalty.l2 or 0.0).items():
        scalars[name][0] = value
    if L1_TOTAL in scalars:
        state.l1_total += state.eta * (recipe.penalty.l1 or 0.0)
        scalars[L1_TOTAL][0] = state.l1_total
    if AVERAGE_RATE in scalars:
        scalars[AVERAGE_RATE][0] = 1.0 / max(1, t - recipe.average_from + 1)


def _restore_last_finite(
    runner: StepRunner,
    batches: Batches,
    plan: EpochPlan,
    recipe: Recipe,
    state: FitState,
    start: tuple[int, float],
) -> None:
    """Repeat the epoch from its start up to the last finite weights, then raise.

    Repeating costs time only when training has failed anyway; keeping a copy of the weights at each
    update would cost time always.
    """
    failed_at, failed_eta = state.t, state.eta
    runner.load(state.tensors)
    state.t, state.l1_total = start
    for _ in batches.fill(plan, runner.features, runner.target, runner.sample_weight):
        before = (state.t, state.l1_total)
        _set_scalars(runner, recipe, state)
        loss = runner.run()
        tensors = runner.snapshot()
        if not math.isfinite(loss) or not _all_finite(tensors):
            state.t, state.l1_total = before
            break
        state.tensors = tensors
        state.t += 1
    raise ConvergenceError(
        f"The loss or the weights are no longer finite at update {failed_at}, with learning rate "
        f"{failed_eta:.6g}. The estimator keeps the last finite weights, those of update {state.t}. "
        "Scale the data, or lower eta0."
    )


def _go_on_slower(schedule: Schedule, state: FitState, plateau: Plateau) -> bool:
    eta = schedule.after_plateau(state.eta)
    if eta is None:
        return False
    state.eta, plateau.count = eta, 0
    return True


def _penalty(recipe: Recipe, state: FitState) -> float:
    weights = state.weights()
    return recipe.penalty.value(weights[name] for name in recipe.penalised)


def _all_finite(tensors: Tensors) -> bool:
    return all(np.isfinite(array).all() for array in tensors.values())


def _report(epoch: int, state: FitState, scored: bool) -> None:
    line = f"Epoch {epoch}: loss {state.loss_curve[-1]:.6g}, learning rate {state.eta:.4g}"
    print(line + (f", validation score {state.validation_scores[-1]:.6g}" if scored else ""))


def fresh_generator(seed: Any) -> np.random.RandomState:
    """Return a generator of its own, which draws from the caller's once at most."""
    generator = check_random_state(seed)
    return np.random.RandomState(generator.randint(np.iinfo(np.int32).max))
