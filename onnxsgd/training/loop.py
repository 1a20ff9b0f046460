"""The training loop: epochs under a rule, with observers and scores."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from onnxsgd.engine.step.batches import Batches
from onnxsgd.runtime.events import decided
from onnxsgd.schedules import Schedule
from onnxsgd.training.checkpoints import Checkpoints, ResumableEpochs
from onnxsgd.training.coordinates import StandardisedBuffers, share_of_columns
from onnxsgd.training.epochs import Epochs, Runners, penalty_value
from onnxsgd.training.fit_kind import FitKind
from onnxsgd.training.fit_plan import FitPlan
from onnxsgd.training.gain import Gain
from onnxsgd.training.kept_state import KeptState
from onnxsgd.training.layer_balance import LayerBalance, RectifiedLayers
from onnxsgd.training.rules import DescentRule, PlateauRule, Rule, StreamRule
from onnxsgd.training.start import (
    ENOUGH_ROWS,
    LEAST_SHARE,
    NoiseFinder,
    Objective,
    StartFinder,
    is_due,
    share_of_calls,
)  # fmt: skip
from onnxsgd.training.state import TARGET, FitState, has_comparable_losses
from onnxsgd.training.stopping import Stopping
from onnxsgd.training.waiting_variances import WaitingVariances
from onnxsgd.training.zeros import ZeroFinder

__all__ = ["Observer", "run_epochs", "train"]

#: The most samples of epochs that are made at once: a bound of memory. The fits of 10 epochs of
#: ``benchmarks/network_fits.py`` on 10,240 rows, batches of 10 and 256: 0.96 and 0.93 of the time of single
#: epochs, 0.96 and 0.92 with twice the bound.
_TOGETHER = 1 << 16
#: The same of data on a device, where the host draws the order of an epoch while the one before it is
#: trained, and their most batches, whose numbers take 120 bytes each under Adam.
_TOGETHER_ON_DEVICE, _BATCHES_ON_DEVICE = 1 << 22, 1 << 16


#: Dense data with more updates an epoch have no end at the objective that they support with fewer epochs than
#: the second number: 1,200 rows of 700 columns take 18 to 49 epochs to it, and score less after 1 to 8.
_MANY_UPDATES, _FEWEST_EPOCHS = 16, 20


class Model(Protocol):
    """The trained graph, such as :class:`onnxsgd.training.program.Program`."""

    @property
    def is_linear(self) -> bool:
        """True if the last layer is also a first one."""

    @property
    def rectified_layers(self) -> RectifiedLayers:
        """The layers with rectified values between them."""

    def raw_predictions(self, features: dict[str, Any], weights: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return raw predictions."""

    def sample_losses(self, target: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """Return the loss of each sample from its raw predictions."""

    def surprise(self, batches: Batches) -> Callable[[np.ndarray], np.ndarray] | None:
        """Return the loss of each sample less the one that a right model has, from raw predictions."""

    def mean_loss(self, batches: Batches, weights: Mapping[str, np.ndarray]) -> float:
        """Return the mean loss of all samples."""

    def mean_loss_without_knowledge(self, batches: Batches, weights: Mapping[str, np.ndarray]) -> float:
        """Return the mean loss of the mean of the target, or of raw predictions of zero."""

    def noise(self, batches: Batches, some: Batches) -> NoiseFinder | None:
        """Return the noise that the model could fit, if it is a linear one; `some` has rows of `batches`."""

    def best_constant(self, batches: Batches, unit: np.ndarray | None = None) -> np.ndarray:
        """Return the raw predictions of the best constant, zeros if unknown.

        `unit` : the deviations of the targets of a stream so far; see :func:`~.start.best_constant`.
        """


class Observer:
    """A callback of each epoch, whose methods do nothing unless they are overridden."""

    @property
    def is_active(self) -> bool:
        """True if it must be called; epochs without an active observer may be made together."""
        return True

    def epoch_begins(self, state: FitState) -> None:
        """Handle the beginning of an epoch."""

    def epoch_ends(self, state: FitState) -> bool:
        """Handle the end of an epoch; return whether training should stop."""
        return False

    def training_ends(self) -> None:
        """Handle the end of all epochs, also by an error, before any warning about them."""


def train(
    runners: Runners,
    batches: Batches,
    plan: FitPlan,
    stopping: Stopping,
    state: FitState,
    observers: Sequence[Observer] = (),
    score: Callable[[dict[str, np.ndarray]], float] | None = None,
    *,
    model: Model,
    checkpoints: Checkpoints | None = None,
    kept: KeptState | None = None,
    kind: Callable[..., Passes] = Epochs,
) -> int:
    """Train until the loss, or the score, stops improving, or an observer asks to stop.

    Returns the number of epochs, which `kind` makes of the same arguments as :class:`Epochs`.

    `state` is changed in place. After Ctrl-C it is that of the last updates; after other errors that is the
    state in `kept`. KeyboardInterrupt is raised if there were none.
    """
    kept = KeptState() if kept is None else kept
    epochs = kind(runners, batches, plan, state, stopping.max_iter, checkpoints, kept)
    # observers, scores and checkpoints have seen each epoch
    is_seen = observers or score or checkpoints
    put_back = epochs.put_back if isinstance(epochs, Epochs) and not is_seen else None
    rule = _make_rule(runners, batches, plan, stopping, state, score, model, put_back, kept)
    return run_epochs(
        epochs, rule, stopping, state, plan.recipe.average_from, observers, score, checkpoints, kept
    )


class Passes(ResumableEpochs, Protocol):
    """Epochs over the data, such as :class:`onnxsgd.training.epochs.Epochs`."""

    @property
    def has_next(self) -> bool:
        """True if there are data for a further epoch."""

    def run(self, count: int = 1, *, limit: float | None = None, rates: np.ndarray | None = None) -> None:
        """Make epochs of updates; record their objectives."""


def run_epochs(
    epochs: Passes,
    rule: Rule,
    stopping: Stopping,
    state: FitState,
    average_from: int,
    observers: Sequence[Observer] = (),
    score: Callable[[dict[str, np.ndarray]], float] | None = None,
    checkpoints: Checkpoints | None = None,
    kept: KeptState | None = None,
) -> int:
    """Make epochs until the rule, an observer, or the end of the data stops; return their number."""
    kept = KeptState() if kept is None else kept
    n_epochs, n_before = 0, len(state.loss_curve)
    stops, was_asked, is_interrupted = False, False, False
    try:
        if checkpoints is None or not checkpoints.continues:
            rule.begin()
        if checkpoints is not None:
            n_epochs, stops, was_asked = checkpoints.begin(rule, epochs, state)
        while n_epochs < stopping.max_iter and not stops and epochs.has_next:
            # observers, scores and checkpoints need the weights after each epoch
            is_single = observers or score or checkpoints
            count = 1 if is_single else min(rule.n_epochs, stopping.max_iter - n_epochs)
            n_epochs += count
            for observer in observers:
                observer.epoch_begins(state)
            epochs.run(count, limit=rule.limit, rates=rule.rates(count))
            if score is not None:
                state.validation_scores.append(score(state.weights(average_from)))
            if observers:
                # they may copy the estimator
                kept.keep(state)
            votes = [observer.epoch_ends(state) for observer in observers]
            was_asked = any(votes)
            losses = state.loss_curve[-count:] if state.of_batches is None else []
            has_ended = rule.after_epochs(losses, state.validation_scores[-1] if score else None)
            n_epochs -= rule.n_taken_back
            stops = has_ended or was_asked
            if n_epochs < stopping.max_iter and not stops:
                kept.keep(state)
            if checkpoints is not None:
                checkpoints.after_epoch(state, n_epochs, stops=stops, was_asked=was_asked)
    except KeyboardInterrupt:
        if stopping.in_epoch or kept.is_empty:
            raise
        kept.restore(state)
        is_interrupted, n_epochs = True, len(state.loss_curve) - n_before
    finally:
        for observer in observers:
            observer.training_ends()
    is_reported = True
    if is_interrupted:
        warnings.warn("Training interrupted by user.", stacklevel=4)
    elif n_epochs < stopping.max_iter and not stops:
        warnings.warn(
            f"The batches ended with epoch {n_epochs} of max_iter={stopping.max_iter}: an iterator is read "
            "once. Give an iterable that begins anew, such as a list or a DataLoader.",
            ConvergenceWarning,
            stacklevel=4,
        )
    elif stopping.tol is not None and not rule.has_converged and not was_asked:
        warnings.warn(
            "Maximum number of iteration reached before convergence. Consider increasing max_iter "
            "to improve the fit.",
            ConvergenceWarning,
            stacklevel=4,
        )
    else:
        is_reported = False
    rule.end(is_reported=is_reported)
    kept.keep(state)
    if checkpoints is not None and not is_interrupted:
        checkpoints.end(state)
    return n_epochs


def _make_rule(
    runners: Runners,
    batches: Batches,
    plan: FitPlan,
    stopping: Stopping,
    state: FitState,
    score: Callable[[dict[str, np.ndarray]], float] | None,
    model: Model,
    put_back: Callable[[], None] | None,
    kept: KeptState,
) -> Rule:
    schedule = plan.recipe.schedule
    if not plan.recipe.is_auto:
        n_together = _epochs_together(batches, plan, stopping)
        gain = None if stopping.in_parts else _make_gain(batches, plan, stopping, state, score, model, kept)
        first_epoch = max((m.from_epoch for m in plan.multipliers.values() if m.factor), default=1)
        return PlateauRule(
            stopping, schedule, state, n_together=n_together, gain=gain, first_epoch=first_epoch
        )
    if stopping.in_parts:
        _begin_part(runners, batches, plan, state, model)
        if stopping.in_epoch:
            return PlateauRule(stopping, schedule, state)
        return StreamRule(
            stopping,
            schedule,
            state,
            load=runners.buffers.load,
            loss=lambda some_state: model.mean_loss(batches, some_state.weights()),
            penalty=partial(penalty_value, plan),
            unit=lambda: model.mean_loss_without_knowledge(batches.some(), state.weights()),
            has_scale=has_comparable_losses(plan, len(batches.target)),
            give_up=kept.forget,
        )
    # scores, and an exact number of epochs, have ends of their own
    may_end = stopping.tol is not None and not (score and stopping.on_score)
    if batches.n_updates > _MANY_UPDATES and not batches.is_sparse:
        may_end &= stopping.max_iter >= _FEWEST_EPOCHS
    finder = _make_finder(runners, batches, plan, state, model, finds_noise=may_end)
    spec = plan.step_spec
    kind = FitKind(
        n_batches=batches.n_updates, n_rows=len(batches.target), is_sparse=runners.is_sparse,
        is_linear=finder.is_linear, is_open=plan.loss_unit is not None,
        is_other=spec.draws or bool(spec.statistics), draws=spec.draws, is_regression=plan.is_regression,
        is_shuffled=plan.recipe.shuffle, has_margins=not plan.is_likelihood, n_hinges=plan.n_hinges,
        has_scale=plan.loss_has_scale, is_exponential=plan.loss.link == "log",
        most_share=finder.most,
        tells_rare_classes=bool if finder.noise is None else finder.noise.tells_rare_classes,
    )  # fmt: skip
    if plan.device.keeps_data or spec.draws or batches.is_long:
        put_back = None
    variances = WaitingVariances.of(runners.buffers, plan, state, finder, model.sample_losses)

    def objective() -> float:
        return finder.objective().total

    zeros = ZeroFinder.of(runners.buffers, plan, objective, is_linear=finder.is_linear)
    balance = LayerBalance.of(model.rectified_layers, batches, plan)
    return DescentRule(
        stopping, state, kind, finder.find, objective, runners.buffers.load, score, put_back, variances,
        zeros, balance,
    )  # fmt: skip


def _make_gain(
    batches: Batches,
    plan: FitPlan,
    stopping: Stopping,
    state: FitState,
    score: Callable[[dict[str, np.ndarray]], float] | None,
    model: Model,
    kept: KeptState,
) -> Gain:
    """Return the comparison of the end of a fit at a named rate with its first weights."""

    def pairs(
        first: Mapping[str, np.ndarray], last: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[float, float]]:
        some = batches.some()
        for part in (some, batches) if len(some.target) < len(batches.target) else (batches,):
            yield (
                _objective_of(model, part, plan, state, first).total,
                _objective_of(model, part, plan, state, last).total,
            )

    of_scores = score if stopping.on_score else None
    first = state.weights() if kept.first is None else kept.first
    return Gain(
        state, first, stopping.tol, plan.recipe.average_from, pairs, of_scores, plan.loss_unit,
        is_noisy=plan.step_spec.draws,
    )  # fmt: skip


def _epochs_together(batches: Batches, plan: FitPlan, stopping: Stopping) -> int:
    """Return the number of epochs that are made at once: several if nothing depends on what they result in.

    No loss then ends the fit or changes the rate, and the objectives are losses alone, which the weights
    between the epochs are not needed for. Random numbers within epochs follow those of their order.
    """
    schedule, spec = plan.recipe.schedule, plan.step_spec
    is_fixed = schedule.has_formula and type(schedule).after_epoch is Schedule.after_epoch
    is_penalised = any(penalty.l1 or penalty.l2 for penalty, _ in plan.strengths)
    if stopping.tol is not None or not is_fixed or is_penalised or spec.draws:
        return 1
    n_samples = len(batches.target)
    if plan.device.keeps_data:
        return max(1, min(_TOGETHER_ON_DEVICE // n_samples, _BATCHES_ON_DEVICE // batches.n_batches))
    return max(1, _TOGETHER // n_samples)


def _make_finder(
    runners: Runners,
    batches: Batches,
    plan: FitPlan,
    state: FitState,
    model: Model,
    *,
    finds_noise: bool = False,
) -> StartFinder:
    buffers, some = runners.buffers, batches.some()
    moments = state.moments.get(TARGET) if plan.recipe.in_parts else None
    return StartFinder(
        layer=plan.output_layer,
        intercepts=plan.learner.intercepts,
        is_linear=model.is_linear,
        constant=model.best_constant(batches, None if moments is None else moments.deviation()),
        target=some.target if plan.has_target_units else None,
        sample_weight=some.sample_weight,
        objective=partial(_objective, model, batches, plan, state),
        raw_predictions=partial(model.raw_predictions, dict(some.features)),
        for_standard_data=buffers.raw if isinstance(buffers, StandardisedBuffers) else None,
        unit=plan.loss_unit,
        most=min(plan.first_share(model.is_linear), _share_of_columns(batches, state, model)),
        noise=model.noise(batches, some) if finds_noise else None,
        has_scale=plan.loss_has_scale,
        quantile=plan.quantile,
    )


def _share_of_columns(batches: Batches, state: FitState, model: Model) -> float:
    return share_of_columns(batches.standards, state.moments, is_linear=model.is_linear)


def _begin_part(runners: Runners, batches: Batches, plan: FitPlan, state: FitState, model: Model) -> None:
    """Set the rate of a part of a stream, whose steering begins with the first one, anew, or after a fit.

    After a fit, parts of few rows tell together whether the data have changed.
    """
    columns = _share_of_columns(batches, state, model)
    state.eta = plan.rate_of_stream(model.is_linear, columns)
    unit, n_rows = state.eta / plan.recipe.schedule.initial, len(batches.target)
    if not state.is_steered:
        finder = _make_finder(runners, batches, plan, state, model)
        if state.t in (0, state.forgotten_at):
            surprise = model.surprise(batches.some()) if model.is_linear and not runners.is_sparse else None
            share = finder.find_in_part(state, surprise, is_sparse=runners.is_sparse)
        elif n_rows < ENOUGH_ROWS:
            share = LEAST_SHARE
            if plan.loss_unit is None and plan.loss_has_scale:
                state.judged_from = len(state.loss_curve)
        else:
            some = batches.some()
            share = finder.share_after_fit(state, partial(model.sample_losses, some.target))
        balance = LayerBalance.of(model.rectified_layers, batches, plan)
        if balance is not None:
            of_constant = model.mean_loss_without_knowledge(batches.some(), state.weights())
            balance.apply(state, lambda: _objective(model, batches, plan, state).total, of_constant)
    elif is_due(state, n_rows):
        share, state.judged_from = share_of_calls(state, n_rows), 0
        if min(share, columns) <= state.factor * unit:
            return
    else:
        return
    state.start_steering(min(1.0, min(share, columns) / unit))
    decided("rate", "found: the stream begins with %.4g", state.eta * state.factor)
    runners.buffers.load(state.tensors)


def _objective(model: Model, batches: Batches, plan: FitPlan, state: FitState) -> Objective:
    """Return the objective of the weights that the state would return."""
    return _objective_of(model, batches, plan, state, state.weights(plan.recipe.average_from))


def _objective_of(
    model: Model, batches: Batches, plan: FitPlan, state: FitState, weights: Mapping[str, np.ndarray]
) -> Objective:
    """Return the objective of given weights."""
    return Objective(model.mean_loss(batches, weights), penalty_value(plan, state, weights))
