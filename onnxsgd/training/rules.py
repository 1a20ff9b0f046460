"""Rules of a fit: the learning rate after each epoch, the end, the weights that are returned."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypedDict

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from onnxsgd._declared_types import Count, Finite
from onnxsgd._records import record
from onnxsgd.data.generators import position, put_back
from onnxsgd.engine.step.buffers import Tensors
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.exceptions import ConvergenceError
from onnxsgd.runtime.events import decided
from onnxsgd.schedules import Schedule
from onnxsgd.training.checkpoints import Progress
from onnxsgd.training.descent import Descent, Verdict
from onnxsgd.training.fit_kind import FitKind
from onnxsgd.training.gain import Gain, GainProgress
from onnxsgd.training.kept_state import cut_histories, lengths_of_histories
from onnxsgd.training.layer_balance import LayerBalance
from onnxsgd.training.progress_forms import check_tensors, require
from onnxsgd.training.start import LEAST_SHARE, Start
from onnxsgd.training.state import FitState, is_far_above
from onnxsgd.training.stopping import Plateau, Stopping
from onnxsgd.training.waiting_variances import WaitingVariances
from onnxsgd.training.zeros import ZeroFinder

__all__ = ["REMEDY", "DescentRule", "PlateauRule", "Rule", "StreamRule"]

#: The end of warnings of fits that find the rate.
REMEDY = "Unless these are the best, raise max_iter or n_iter_no_change, lower tol, or name a learning_rate."
#: Advice for fits that the data ended: no other limit did.
_LEARN_ALL = "To learn all of the data nevertheless, name a learning_rate, or set tol=None."

#: The updates to an objective that the data support, or those of a window, whichever are more. 72 regressions
#: of 60 to 400 rows with 18 to 800 columns: R2 is 0.28 with 40 and with 160 updates, and -0.02 at the usual
#: rate.
_UPDATES_TO_LEVEL = 40
#: The updates that are made at once, unless an epoch has more: a call takes as long as some 15 of them.
_TOGETHER = 1024
#: The share of the first epoch's objective by which that of the last one exceeds it, if it rose: not noise.
_RISEN = 0.02
#: A part of a window diverged with this many times the growth that undoes a whole window: parts differ.
_DIVERGED = 40.0
#: A part of a stream diverged where its objective grew by more than this share of the loss before it, and
#: that without knowledge.
_GROWTH_OF_PART = 0.5
#: The divisor of the rate then, and the number of divisions before the part is left out.
_CUT_OF_PART, _MOST_CUTS_OF_PART = 10.0, 4
#: The fewest windows of a fit in which variances wait until the means have been learned.
_TWO_DESCENTS = 12
#: The copies of weights in the progress of a :class:`DescentRule`.
_COPIES = ("_first", "_copy", "_best")


class Rule(Protocol):
    """The control of a fit."""

    @property
    def has_converged(self) -> bool:
        """True if the loss, or the score, improves no more."""

    @property
    def limit(self) -> float | None:
        """The mean loss of many updates that is divergence; None: divergence is an error."""

    @property
    def n_epochs(self) -> int:
        """The number of epochs up to the next decision, or fewer."""

    def rates(self, n_epochs: int) -> np.ndarray | None:
        """Return the rate of each update of the next epochs; None: the schedule has them."""

    def begin(self) -> None:
        """Handle the beginning of training."""

    def after_epochs(self, losses: Sequence[float], score: float | None) -> bool:
        """Handle the end of some epochs, with the mean loss of each; return whether training stops.

        An infinite loss: training diverged. There is a score only after single epochs.
        """

    @property
    def n_taken_back(self) -> int:
        """The number of epochs that the last call to :meth:`after_epochs` has undone, to be made anew."""

    def end(self, *, is_reported: bool = False) -> None:
        """Handle the end of training: choose the weights; `is_reported`: a warning has told of it already."""

    @property
    def form(self) -> type:
        """The form of the progress."""

    def progress(self) -> Progress:
        """Return what the rule knows of the fit so far."""

    def resume(self, progress: Progress) -> None:
        """Continue from a progress, in place of :meth:`begin`."""


class PlateauProgress(TypedDict):
    """The progress of a :class:`PlateauRule`."""

    _has_converged: bool
    _improved_at: int
    _best: tuple[Count, Tensors, dict[str, Finite], dict[str, Count]] | None
    _best_value: float
    _losses: tuple[float, float] | None
    plateau: Plateau
    gain: GainProgress | None


class PlateauRule:
    """Stops, or lowers the rate, when the loss or the score stops improving.

    Parameters
    ----------
    stopping : Stopping
        The end of the fit.
    schedule : Schedule
        Gives the rate after a plateau.
    state : FitState
        The state of the fit.
    least_updates : int
        The fewest updates without improvement that make a plateau.
    n_together : int
        The epochs that are made at once; more than one where no loss ends the fit or changes the rate.
    gain : Gain or None
        Compares the end with the first weights; None: of a part of a stream, nothing does.
    first_epoch : int
        The number, from 1 on, of the first epoch in which all weights learn: no plateau ends before.
    """

    form = PlateauProgress
    #: No epochs are undone.
    n_taken_back = 0

    def __init__(
        self,
        stopping: Stopping,
        schedule: Schedule,
        state: FitState,
        least_updates: int = 0,
        n_together: int = 1,
        gain: Gain | None = None,
        first_epoch: int = 1,
    ) -> None:
        self._gain, self._first_epoch = gain, first_epoch
        self._has_converged, self._n_together = False, n_together
        self._least_updates, self._improved_at = least_updates, state.t
        self._on_score, self._in_epoch = stopping.on_score, stopping.in_epoch
        self._plateau = Plateau(stopping.tol, stopping.n_iter_no_change)
        self.schedule = schedule
        self._state = state
        #: The weights that scored best, and the negative of their score.
        self._best: tuple[int, Tensors, dict[str, float], dict[str, int]] | None = None
        self._best_value = math.inf
        self._losses: tuple[float, float] | None = None

    @property
    def has_converged(self) -> bool:
        """True if the loss, or the score, improves no more, or the schedule is at its end."""
        return self._has_converged or self._n_left == 0

    @property
    def _n_left(self) -> int | None:
        """The number of updates up to the end of the schedule; None: it has no end."""
        last = self.schedule.last_update
        return None if last is None else max(0, last - self._state.t)

    @property
    def limit(self) -> float | None:
        """None: divergence is an error."""
        return None

    @property
    def n_epochs(self) -> int:
        """The number of epochs that are made at once."""
        return self._n_together

    def rates(self, n_epochs: int) -> None:
        """Return None: the schedule has the rates."""

    def begin(self) -> None:
        """Do nothing."""

    def after_epochs(self, losses: Sequence[float], score: float | None) -> bool:
        """Handle the end of an epoch, or of several; return whether training stops."""
        if self._in_epoch:
            return False
        value = loss = losses[-1]
        self._losses = (losses[0] if self._losses is None else self._losses[0], loss)
        if self._on_score and score is not None:
            value = -score
            if value < self._best_value:
                state = self._state
                self._best = (state.t, state.tensors, state.l1_totals, state.missed)
                self._best_value = value
        if self._gain is not None:
            self._gain.record(losses, score if self._on_score else None)
        state, schedule = self._state, self.schedule
        if state.t <= schedule.n_warm_up or len(state.loss_curve) < self._first_epoch:
            return False
        before = state.eta
        state.eta, state.rate_memory = schedule.after_epoch(value, before, state.rate_memory)
        if self._n_left and not self._on_score:
            # losses at large rates do not tell what the fall of the rate will gain
            return False
        has_plateau = self._plateau.reached(value)
        if not self._plateau.count:
            self._improved_at = state.t
        has_plateau &= state.t - self._improved_at >= self._least_updates
        if has_plateau and state.eta == before:
            eta = schedule.after_plateau(before)
            if eta is None:
                self._has_converged = True
                decided("rate", "update %d: no more gain, training ends", state.t)
                return True
            state.eta = eta
            decided("rate", "update %d: no more gain, the rate is lowered to %.4g", state.t, eta)
        if has_plateau or state.eta != before:
            self._plateau.count = 0
        return False

    def progress(self) -> Progress:
        """Return what the rule knows of the fit so far."""
        gain = None if self._gain is None else self._gain.progress()
        return _known(self, PlateauProgress) | {"plateau": vars(self._plateau), "gain": gain}

    def resume(self, progress: Progress) -> None:
        """Continue from a progress, in place of :meth:`begin`."""
        if progress["_best"] is not None:
            _check_copy(self._state, progress["_best"][1], "rule._best")
        if self._gain is not None:
            require(progress["gain"] is not None, "rule.gain", "a table")
            self._gain.resume(progress["gain"])
        vars(self).update(_known_in(progress), _plateau=_resumed(self._plateau, progress["plateau"]))

    def end(self, *, is_reported: bool = False) -> None:
        """Restore the weights that scored best, if scores decide.

        Report an objective that rose, or, unless `is_reported`, an end next to the beginning.
        """
        if self._best is not None:
            state = self._state
            t, state.tensors, state.l1_totals, state.missed = self._best
            # all updates remain counted, and slots and averages have seen those before t
            state.slots_from += state.t - t
            state.averages_from += state.t - t
        elif self._losses is not None and self._losses[1] > self._losses[0] + _RISEN * abs(self._losses[0]):
            first, last = self._losses
            warnings.warn(
                f"The objective rose from {first:.6g} in the first epoch to {last:.6g} in the last. Lower "
                "the learning rate, scale the data, or let learning_rate='auto' find the rate.",
                ConvergenceWarning,
                stacklevel=5,
            )
            is_reported = True
        n_epochs = len(self._state.loss_curve)
        if self._gain is not None and n_epochs < self._first_epoch and self._first_epoch > 1:
            warnings.warn(
                f"The fit ended after {n_epochs} epochs, before epoch {self._first_epoch}, from which some "
                "weights were to learn (from_epoch in learning_rate_multipliers): they have not changed. "
                "Raise max_iter, or lower from_epoch.",
                ConvergenceWarning,
                stacklevel=5,
            )
            is_reported = True
        if self._gain is not None and not is_reported:
            self._gain.report()


class StreamRule(PlateauRule):
    """A part of a stream that finds its rate: where training diverges, it is made anew at smaller rates.

    Parameters
    ----------
    stopping, schedule, state : Stopping, Schedule, FitState
        As those of :class:`PlateauRule`.
    load : callable
        Copies weights and states into the buffers of the training step.
    loss : callable
        Returns the mean loss of the part with the weights of a state.
    penalty : callable
        Returns the penalty of the weights of a state.
    unit : callable
        Returns the loss without knowledge of the features.
    has_scale : bool
        Whether losses can be compared with it.
    give_up : callable
        Lets an error leave the estimator as it was before the call.
    """

    def __init__(
        self,
        stopping: Stopping,
        schedule: Schedule,
        state: FitState,
        load: Callable[[Tensors], None],
        loss: Callable[[FitState], float],
        penalty: Callable[[FitState], float],
        unit: Callable[[], float],
        has_scale: bool,
        give_up: Callable[[], None],
    ) -> None:
        super().__init__(stopping, schedule, state)
        self._has_scale = has_scale
        self._load, self._loss, self._unit, self._give_up = load, loss, unit, give_up
        self._penalty = penalty
        self._n_cuts = 0

    @property
    def limit(self) -> float:
        """Infinity: divergence is undone, and a loss that is large may be that of other data."""
        return math.inf

    def begin(self) -> None:
        """Keep the state."""
        self._before, self._lengths = self._state.copy(), lengths_of_histories(self._state)
        self._place = position(self._state.random_state)

    def after_epochs(self, losses: Sequence[float], score: float | None) -> bool:
        """Handle the end of the part; return whether training stops.

        Raises
        ------
        ConvergenceError
            If the loss is not finite before any update.
        """
        state, self.n_taken_back = self._state, 0
        if not self._has_diverged():
            if self._n_cuts:
                # the factors remain for later parts, and the rate is theirs
                state.cut_steering(_CUT_OF_PART**self._n_cuts)
                state.eta = self._before.eta
            return super().after_epochs(losses, score)
        eta, generator = state.eta, state.random_state
        vars(state).update(vars(self._before.copy()), random_state=generator)
        cut_histories(state, self._lengths)
        loss = self._loss(state)
        if not math.isfinite(loss):
            put_back(generator, self._place)
            self._give_up()
            raise ConvergenceError(
                f"The loss of this call is {loss} before any update: predictions, or the target, are too "
                f"large for {self._dtype}. The estimator is as it was before the call. Look for extreme "
                "values in X and y, or scale the data."
            )
        if self._n_cuts == _MOST_CUTS_OF_PART:
            state.record(np.array([loss + self._penalty(state)]), np.zeros(1))
            _warn(
                f"Training diverged in this call, also with a learning rate of {eta * state.factor:.3g}: it "
                "changes no weight.",
                "Look for extreme values in X and y, scale the data, or name a learning_rate.",
            )
            return True
        self._n_cuts += 1
        state.eta = eta / _CUT_OF_PART
        self._load(state.tensors)
        self.n_taken_back = 1
        decided("rate", "training diverged: the call is made anew with %.4g", state.eta * state.factor)
        return False

    @property
    def _dtype(self) -> np.dtype[Any]:
        """The type of the weights."""
        return next(array.dtype for (_, kind), array in self._state.tensors.items() if kind == WEIGHT)

    def _has_diverged(self) -> bool:
        """Tell whether the loss is not finite, or unusually large, and the objective has grown."""
        curve, penalty = self._state.loss_curve, self._penalty(self._state)
        if not math.isfinite(curve[-1]):
            return True
        if not (self._has_scale and is_far_above(curve[-1] - penalty, curve[: self._lengths[0]], penalty)):
            return False
        before = self._loss(self._before)
        allowed = _GROWTH_OF_PART * before + self._unit()
        return not self._loss(self._state) + penalty <= before + self._penalty(self._before) + allowed


@record
class _Copy:
    """Weights and states, and the number of updates that they had."""

    tensors: Tensors
    t: Count

    @classmethod
    def of(cls, state: FitState) -> _Copy:
        return cls(dict(state.tensors), state.t)

    def weights(self) -> dict[str, np.ndarray]:
        return {name: array for (name, kind), array in self.tensors.items() if kind == WEIGHT}

    def restore(self, state: FitState) -> None:
        state.tensors, state.t = dict(self.tensors), self.t


class DescentProgress(TypedDict):
    """The progress of a :class:`DescentRule` that has begun."""

    _n_left: int
    _losses: list[float]
    _has_begun: bool
    _has_better_score: bool
    _score_has_converged: bool
    _n_waited: Count | None
    _least: Finite
    _start: float
    _first: _Copy
    _copy: _Copy
    _best: _Copy
    plateau: Plateau
    descent: Descent


class DescentRule:
    """Finds the rate by windows of updates, and never returns weights worse than the first ones.

    Parameters
    ----------
    stopping : Stopping
        The end of the fit.
    state : FitState
        The state of the fit.
    kind : FitKind
        The model and the data.
    find_start : callable
        Chooses the first weights, and judges them.
    objective : callable
        Returns the exact objective of the weights of the state.
    load : callable
        Copies weights and states into the buffers of the training step.
    score : callable or None
        Returns the score of weights, if scores decide.
    put_back : callable or None
        Returns the order of the epochs that were made last to those that come next; None: epochs cannot be
        made anew, and each decision waits for the one before.
    variances : WaitingVariances or None
        Those that wait until the means have been learned.
    zeros : ZeroFinder or None
        Sets coefficients to zero at the end of a fit whose end no score decides.
    balance : LayerBalance or None
        The scales of the layers of a network with rectified values.
    """

    form = DescentProgress
    #: The epochs that the last call to :meth:`after_epochs` has undone, to be made anew.
    n_taken_back = 0

    def __init__(
        self,
        stopping: Stopping,
        state: FitState,
        kind: FitKind,
        find_start: Callable[[FitState], Start],
        objective: Callable[[], float],
        load: Callable[[Tensors], None],
        score: Callable[[dict[str, np.ndarray]], float] | None,
        put_back: Callable[[], None] | None = None,
        variances: WaitingVariances | None = None,
        zeros: ZeroFinder | None = None,
        balance: LayerBalance | None = None,
    ) -> None:
        self._stopping, self._state, self._eta = stopping, state, state.eta
        self._variances, self._zeros, self._balance = variances, zeros, balance
        #: The epochs for which variances have waited; None: they still do.
        self._n_waited: int | None = 0
        #: The loss of the target as the means while variances wait; that of others is compared by the rest.
        self._least = 0.0
        self._find_start, self._objective, self._load = find_start, objective, load
        self._score = score if stopping.on_score else None
        self._kind, self._put_back = kind, put_back
        self._length = kind.window(stopping.max_iter)
        self._n_left, self._losses = stopping.max_iter, list[float]()
        self._most_epochs = max(1, _TOGETHER // kind.n_batches)
        self._plateau = Plateau(stopping.tol, stopping.n_iter_no_change)
        self._has_begun = self._has_better_score = self._score_has_converged = False

    @property
    def has_converged(self) -> bool:
        """True if the loss, or the score, improves no more."""
        return self._descent.has_converged

    @property
    def limit(self) -> float:
        """The mean loss of many updates that is divergence, which is undone."""
        best, highest = self._descent.best, self._descent.highest
        return math.inf if math.isinf(best) else self._least + best + _DIVERGED * (highest - best)

    @property
    def n_epochs(self) -> int:
        """The number of epochs up to the next decision, but not many updates at once."""
        return min(self._window - len(self._losses), self._most_epochs)

    def rates(self, n_epochs: int) -> np.ndarray:
        """Return the rate of each update of the next epochs."""
        descent, n_updates = self._descent, n_epochs * self._kind.n_batches
        if not descent.is_moving:
            rates = np.empty(n_updates)
            rates.fill(self._eta * descent.factor)
            return rates
        n_together = self._window * self._kind.n_batches
        first = len(self._losses) * self._kind.n_batches
        done = np.arange(first, first + n_updates)
        return self._eta * descent.factors(done * self._n_ahead / n_together)

    def begin(self) -> None:
        """Choose the first weights; compute their objective and their score.

        Raises
        ------
        ConvergenceError
            If the objective is not finite.
        """
        given, tensors_given = _Copy.of(self._state), self._state.tensors
        start = self._find_start(self._state)
        if not math.isfinite(start.unit) or (start.is_model and not math.isfinite(start.objective)):
            raise ConvergenceError(
                f"The objective of the first weights is {start.objective}: predictions for the training data "
                "are not finite, or too large for their type. Scale the data, or change the initial weights."
            )
        kept, objective = self._state.tensors is tensors_given, start.objective
        self._first = _Copy.of(self._state)
        if self._balance is not None:
            balanced = self._balance.apply(self._state, self._objective, start.unit)
            objective = objective if balanced is None else balanced
        if self._variances is not None and self._may_wait and self._variances.begin(self._state):
            self._n_waited, self._least = None, self._variances.least_loss(self._state)
            objective = self._objective()
        self._load(self._state.tensors)
        self._copy = self._best = _Copy.of(self._state)
        replaced = (
            "worse than a constant, replaced" if start.is_model else "zeros, begin as the best constant"
        )
        decided("start", "first weights: %s", "those of the model" if kept else replaced)
        if self._score is not None and start.is_model:
            self._best = given
            self._plateau.reached(-self._score(given.weights()))
        most = self._kind.largest_rate
        has_level = start.level > -math.inf
        # 83 of 104 guesses on sparse texts were wrong, and lost 45 updates; a call takes as long as 9
        may_guess = self._put_back is not None and not (start.is_model or has_level or self._kind.is_sparse)
        if has_level:
            n_epochs = max(-(-_UPDATES_TO_LEVEL // self._kind.n_batches), self._length)
            n_updates = min(n_epochs, self._stopping.max_iter) * self._kind.n_batches
            most = min(most, max(LEAST_SHARE**2, start.length / (n_updates * self._eta)))
            decided("start", "the data support an objective of %.6g, where training ends", start.level)
        self._start = start.objective
        self._descent = Descent(
            # losses of another function are compared with each other alone
            start=math.inf if self._kind.is_other else objective - self._least,
            unit=start.unit,
            share=min(start.share, most),
            most=most,
            guesses=may_guess,
            level=start.level,
            **self._settings(),
        )
        self._state.eta = self._eta * self._descent.factor
        self._look_ahead()
        decided("rate", "found: training begins with %.4g, objective %.6g", self._state.eta, start.objective)
        self._has_begun = True

    @property
    def _waiting(self) -> WaitingVariances | None:
        """The variances that wait until the means have been learned; None: all learn."""
        return self._variances if self._n_waited is None else None

    @property
    def _may_wait(self) -> bool:
        """True if there are windows enough for two descents."""
        return self._stopping.max_iter >= _TWO_DESCENTS * self._length

    def _settings(self) -> dict[str, Any]:
        """Return the parameters of the control that do not depend on the first weights."""
        settings, max_iter = self._kind.settings(self._stopping), self._stopping.max_iter
        settings["tol"] = None if self._score else self._stopping.tol
        if self._n_waited is None:
            settings |= {"n_windows": max_iter // 2 // self._length, "is_open": False}
        elif self._n_waited:
            settings["n_windows"] = max(1, (max_iter - self._n_waited) // self._length)
        return settings

    def _end_waiting(self, variances: WaitingVariances) -> None:
        """Begin a second descent, in which the variances learn that have waited."""
        self._n_waited, self._least = self._stopping.max_iter - self._n_left, 0.0
        if self._has_better_score:
            self._best.restore(self._state)
        variances.release(self._state)
        self._load(self._state.tensors)
        self._copy = _Copy.of(self._state)
        if self._has_better_score:
            self._best = self._copy
        self._plateau.count, self._score_has_converged = 0, False
        first = self._descent
        self._descent = Descent(
            start=math.inf if self._kind.is_other else self._objective(),
            unit=first.unit,
            share=first.share,
            most=first.most,
            **self._settings(),
        )
        decided("rate", "update %d: no more gain by the means, the variances learn", self._state.t)

    def after_epochs(self, losses: Sequence[float], score: float | None) -> bool:
        """Handle the end of some epochs; return whether training stops."""
        if self._score is not None and score is not None:
            self._record_score(score)
        self._losses.extend([loss - self._least for loss in losses])
        self.n_taken_back = 0
        if len(self._losses) < self._window and math.isfinite(losses[-1]):
            return False
        if self._is_guess and not self._descent.bears_out(self._losses_of_windows()):
            self._take_back()
            return False
        self._n_left -= len(self._losses)
        was_decaying = self._descent.is_decaying
        verdict = self._judge()
        self._losses.clear()
        if self._score_has_converged:
            self._descent.begin_decay()
        if verdict is Verdict.BETTER or self._is_guess:
            self._copy = _Copy.of(self._state)
        elif verdict is Verdict.UNDONE:
            self._copy.restore(self._state)
            self._load(self._state.tensors)
            if not self._kind.is_other:
                self._descent.correct(self._objective() - self._least)
        if self._waiting is not None and (self._descent.is_decaying or self._descent.has_ended):
            self._end_waiting(self._waiting)
        before, self._state.eta = self._state.eta, self._eta * self._descent.factor
        self._look_ahead()
        self._report(verdict, before, was_decaying)
        return self._descent.has_ended

    def _report(self, verdict: Verdict, before: float, was_decaying: bool) -> None:
        """Report the decisions after a window."""
        t, eta, descent = self._state.t, self._state.eta, self._descent
        if verdict is Verdict.UNDONE:
            decided("rate", "the loss grew: back to update %d, the rate is cut to %.4g", t, eta)
        elif eta > before:
            decided("rate", "update %d: large gains, the rate grows to %.4g", t, eta)
        if descent.has_ended:
            reason = "no more gain" if descent.has_converged else "max_iter is near"
            reason = "the data support no more" if descent.is_at_level else reason
            decided("rate", "update %d: training ends: %s", t, reason)
        elif descent.is_decaying and not was_decaying:
            reason = "no more gain" if descent.has_converged else "max_iter is near"
            decided("rate", "update %d: %s, the rate falls from %.4g to 0", t, reason, eta)

    def _take_back(self) -> None:
        """Make the windows anew that were made on a wrong guess, with a decision after the first one."""
        before, lengths = self._begun
        vars(self._state).update(vars(before))
        cut_histories(self._state, lengths)
        self._load(self._state.tensors)
        if self._put_back is not None:
            self._put_back()
        self.n_taken_back = len(self._losses)
        self._losses.clear()
        self._descent.guesses = False
        self._look_ahead()

    def _losses_of_windows(self) -> list[float]:
        """Return the loss of each window that was made since the last decision."""
        length = self._length
        n_windows = max(1, min(self._n_ahead, len(self._losses) // length))
        starts = [number * length for number in range(n_windows)]
        parts = [self._losses[first:end] for first, end in zip(starts, [*starts[1:], None], strict=True)]
        # the last epoch of a window may have left the others' way
        return [max(math.fsum(part) / len(part), part[-1]) for part in parts]

    def _judge(self) -> Verdict:
        """Return the judgement of the last window, or of the first one that is undone."""
        descent, losses = self._descent, self._losses_of_windows()
        # noise at the rate before a decay is none at its end
        has_fallen = descent.is_decaying and losses[-1] <= descent.highest
        for number, loss in enumerate(losses, start=1):
            verdict = descent.judge(loss, is_last=number == len(losses), has_fallen=has_fallen)
            if verdict is Verdict.UNDONE:
                break
        return verdict

    def _look_ahead(self) -> None:
        """Count the windows up to the next decision, and their epochs; the last one has the remainder.

        Before windows that are made on a guess, keep the state.
        """
        self._n_ahead, self._is_guess = self._descent.n_ahead, self._descent.is_guess
        n_epochs = self._n_ahead * self._length
        self._window = n_epochs if self._n_left >= n_epochs + self._length else self._n_left
        if self._is_guess:
            self._begun = self._state.copy(), lengths_of_histories(self._state)

    def progress(self) -> Progress:
        """Return what the rule knows of the fit so far."""
        known = _known(self, DescentProgress)
        copies = {name: vars(known[name]) for name in _COPIES}
        return known | copies | {"plateau": vars(self._plateau), "descent": vars(self._descent)}

    def resume(self, progress: Progress) -> None:
        """Continue from a progress, in place of :meth:`begin`."""
        for name in _COPIES:
            _check_copy(self._state, progress[name]["tensors"], f"rule.{name}.tensors")
        copies = {name: _Copy(**progress[name]) for name in _COPIES}
        vars(self).update(
            _known_in(progress), **copies, _plateau=_resumed(self._plateau, progress["plateau"])
        )
        if self._waiting is not None:
            self._waiting.set_waiting(True)
            self._load(self._state.tensors)
        # fits with checkpoints make no windows on a guess
        self._descent = Descent.resumed(progress["descent"] | self._settings() | {"guesses": False})
        self._look_ahead()

    def end(self, *, is_reported: bool = False) -> None:
        """Choose the last weights, those that scored best if scores decide, or the first ones.

        An end next to the beginning is reported in any case: the first weights may be returned.
        """
        if not self._has_begun:
            # interrupted before the first update
            return
        if self._score is not None:
            self._best.restore(self._state)
            if self._waiting is not None and self._has_better_score:
                self._waiting.settle(self._state)
            if not self._has_better_score and self._plateau.best < math.inf:
                _warn("No weights scored better on the validation data than the first ones, which are kept.")
            return
        if self._waiting is not None:
            self._waiting.settle(self._state)
        start, objective = self._start, self._objective_in_the_end()
        if self._zeros is not None:
            objective = self._zeros.find(self._state)
        if not objective <= start:
            self._first.restore(self._state)
        if math.isinf(self._descent.level) and self._descent.level > 0:
            _warn("The data support no coefficients: noise would explain as much of the target.", _LEARN_ALL)
            return
        # nothing is below a loss of zero
        if not (objective < start or objective == start == 0):
            _warn(f"Training did not lower the objective, {start:.6g}: the first weights are kept.")
        elif 0 <= start - objective < self._descent.least_gain:
            _warn(f"Training lowered the objective only from {start:.6g} to {objective:.6g}.")

    def _objective_in_the_end(self) -> float:
        """Return the exact objective of the last weights, or of the copy, if that has a lower one.

        A linear model whose decay ends with the best window, below half the first objective, has the mean of
        that window: a call for the exact one takes 3 percent of a small fit, and changes nothing.
        """
        best = self._descent.best + self._least
        is_known = (
            self._kind.is_linear
            and not self._kind.is_other
            and self._descent.ends_at_best
            and not self._losses
        )
        if is_known and 0 <= best < self._start / 2 < math.inf:
            return best
        objective, last = self._objective(), _Copy.of(self._state)
        if objective <= best:
            return objective
        self._copy.restore(self._state)
        of_copy = self._objective()
        if not of_copy < objective:
            last.restore(self._state)
        return min(objective, of_copy) if math.isfinite(objective) else of_copy

    def _record_score(self, score: float) -> None:
        if -score < self._plateau.best:
            self._best, self._has_better_score = _Copy.of(self._state), True
        self._score_has_converged |= self._plateau.reached(-score)


def _known(rule: PlateauRule | DescentRule, form: type) -> Progress:
    """Return the attributes of a rule that its progress has under their own names."""
    return {name: value for name, value in vars(rule).items() if name in form.__annotations__}


def _known_in(progress: Progress) -> Progress:
    """Return the entries of a progress that are attributes of the rule under their own names."""
    return {name: value for name, value in progress.items() if name.startswith("_")}


def _resumed(plateau: Plateau, progress: Progress) -> Plateau:
    """Return a plateau with the same parameters that has seen as much as that of a progress."""
    return Plateau(**{**progress, "tol": plateau.tol, "patience": plateau.patience})


def _check_copy(state: FitState, tensors: Tensors, entry: str) -> None:
    """Refuse weights and states that are none of this fit."""
    check_tensors(tensors, state.weights(), state.optimizer, entry)


def _warn(message: str, remedy: str = REMEDY) -> None:
    warnings.warn(f"{message} {remedy}", ConvergenceWarning, stacklevel=6)
