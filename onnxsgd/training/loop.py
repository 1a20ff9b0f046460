"""The training loop: epochs under a rule, with observers and scores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from onnxsgd.engine.step.batches import Batches
from onnxsgd.schedules import Still
from onnxsgd.training.epochs import Runners, run_epochs
from onnxsgd.training.fit_plan import FitPlan
from onnxsgd.training.rules import DescentRule, PlateauRule, Rule
from onnxsgd.training.state import FitState
from onnxsgd.training.stopping import Stopping

__all__ = ["Observer", "rate_of_parts", "train"]


class Observer(Protocol):
    """A callback of each epoch."""

    @property
    def is_active(self) -> bool:
        """True if it must be called; epochs without an active observer may be made together."""

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
    rule = _make_rule(runners, batches, plan, stopping, state, score)
    n_epochs, n_before = 0, len(state.loss_curve)
    stops, votes = False, [False]
    try:
        rule.begin()
        while n_epochs < stopping.max_iter and not stops:
            # observers and scores need the weights after each epoch
            count = 1 if observers or score else min(rule.n_epochs, stopping.max_iter - n_epochs)
            n_epochs += count
            for observer in observers:
                observer.epoch_begins()
            loss = run_epochs(runners, batches, plan, state, count, limit=rule.limit)
            if score is not None:
                state.validation_scores.append(score(state.weights(plan.recipe.average_from)))
            votes = [observer.epoch_ends(state) for observer in observers]
            has_ended = rule.after_epochs(loss, count, state.validation_scores[-1] if score else None)
            stops = has_ended or any(votes)
        if stopping.tol is not None and not rule.has_converged and not any(votes):
            warnings.warn(
                "Maximum number of iteration reached before convergence. Consider increasing max_iter "
                "to improve the fit.",
                ConvergenceWarning,
                stacklevel=4,
            )
    except KeyboardInterrupt:
        warnings.warn("Training interrupted by user.", stacklevel=4)
        n_epochs = min(n_epochs, len(state.loss_curve) - n_before + 1)
    rule.end()
    return n_epochs


def _make_rule(
    runners: Runners,
    batches: Batches,
    plan: FitPlan,
    stopping: Stopping,
    state: FitState,
    score: Callable[[dict[str, np.ndarray]], float] | None,
) -> Rule:
    schedule = plan.recipe.schedule
    if not plan.recipe.is_auto or stopping.in_parts:
        state.eta = rate_of_parts(plan, state)
        return PlateauRule(stopping, schedule, state)
    objective = partial(_objective, runners, batches, plan, state)
    return DescentRule(stopping, state, batches.n_batches, objective, runners.buffers.load, score)


#: The share of the rate for networks in a stream, which has no decay, and the least share of all. Digits and
#: diabetes: with the whole rate a fitted network loses up to 0.6 of accuracy and 4.7 of R2; with these shares
#: 0.02 and 0.05. Linear models have the whole rate: with a quarter a drifting stream loses 0.08 of accuracy.
_SHARE_OF_NETWORKS, _LEAST_SHARE = 1 / 8, 1 / 64


def rate_of_parts(plan: FitPlan, state: FitState) -> float:
    """Return the rate of the next call with a part of a stream, for "auto" as small as a fit needed."""
    if not plan.recipe.is_auto:
        return state.eta
    is_network = len(plan.penalised) > 1
    share = state.rate_share * (_SHARE_OF_NETWORKS if is_network else 1.0)
    return plan.recipe.schedule.initial * max(share, _LEAST_SHARE)


def _objective(runners: Runners, batches: Batches, plan: FitPlan, state: FitState) -> float:
    """Return the objective at the present weights: that of an epoch at rates of zero, which is undone."""
    still = replace(plan, recipe=replace(plan.recipe, schedule=Still(), shuffle=False))
    copy = replace(state, loss_curve=[], learning_rates=[])
    try:
        return run_epochs(runners, batches, still, copy, limit=math.inf)
    finally:
        runners.buffers.load(state.tensors)
