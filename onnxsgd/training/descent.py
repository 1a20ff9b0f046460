"""The control of the learning rate by windows of updates: growth, cuts, a decay, the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

__all__ = ["Descent", "Verdict"]

#: A window whose loss exceeds the best by this share, and by this share of the unit, is undone.
_WORSE, _WORSE_OF_UNIT = 0.25, 1e-3
#: The divisor of the rate then, and the number of divisions before training stops.
_CUT, _MOST_CUTS = 4.0, 12
#: A loss below this share of the unit counts as large as this when gains are compared with it.
_SMALL = 0.05
#: A window whose updates gain this share of the loss each multiplies the rate by the second number, up to the
#: largest one. A rate that was cut does not grow again, but for the first one: the first updates overshoot.
#: 30 sets of 4,000 to 20,000 texts, where its cut is common if rare words tell the class, have an accuracy of
#: 0.8070 with 0.85 of the updates (log_loss), and 0.8070 with 0.92 (hinge); without growth 0.8059 and 0.8067.
_BOLD, _GROWTH = 1 / 1600, 1.5
#: The shape of the decay: the exponent of the share of it that is left.
_SHAPE = 1.5
#: The short windows that are made before the next decision while the rate grows. With three, a rate that grew
#: too early is undone more often.
_GROWING = 2
#: The updates of windows that are made at once where each of them could begin the decay: a call takes as long
#: as some 24 updates.
_AT_ONCE = 24
#: The share of the best loss by which windows without gain exceed it, all of them, if the rate is too large.
#: 344 counts of real tables, scaled, 3 splits each: the explained deviance is higher by 0.0028 than without,
#: for one by 0.46, and lower by 0.026 at most; with 0.01 and 0.03 by 0.0024 and 0.0019.
_RISEN = 0.001
#: The fewest windows whose mean loss is compared with that of others.
_TREND = 3
#: The share of the windows so far that the decay has.
_DECAY = 1 / 3
#: The share of the windows after which the decay begins at the latest.
_LATEST_DECAY = 2 / 3
#: The most updates of several windows that are made before their losses are judged one after the other.
_TOGETHER = 64


class Verdict(Enum):
    """The judgement of a window."""

    #: The best loss so far: its weights are worth a copy.
    BETTER = "better"
    #: Not the best loss, but near.
    KEPT = "kept"
    #: The loss grew: the weights of the last copy are to be restored.
    UNDONE = "undone"


@dataclass
class Descent:
    """The state of the control.

    The loss of a window is compared with the best so far. Large gains raise the rate. Windows without gain
    begin a decay to zero, whose end is the end of training.

    Parameters
    ----------
    start : float
        The objective before the first window; infinite: that of the first window takes its place.
    unit : float
        The loss of weights that know nothing; 0: that of the first window takes its place.
    tol : float or None
        The gain that counts, as a share of the best loss; None: only the number of windows ends training.
    patience : int
        Windows in a row without such a gain that begin the decay.
    n_windows : int
        The largest number of windows.
    n_updates : int
        Updates of a window.
    share : float
        The share of the first rate to begin with.
    most : float
        The largest rate, as a multiple of the first one.
    haste : float
        The decay begins after windows that gained less than this many times the gain that counts.
    is_open : bool
        Whether the loss has no least value: the unit is then its size.
    guesses : bool
        Whether the rate is taken to grow after the first window, as it does where weights know nothing. The
        caller asks :meth:`bears_out` before the windows are judged, and makes them anew where that is wrong.
    sure : float
        The same after a window whose gain is so many times the one that raises the rate.
    shortest_decay : int
        The fewest windows of the decay.
    still : float
        Training continues after a decay whose last window gained this many times the gain that counts.
    level : float
        The loss of a window at which training ends.
    trend : float
        The decay waits while the mean loss of the last windows, three or more, is lower than that of as many
        before them by this many times the gain that counts.
    is_cut_last : bool
        Whether the decay begins with the cut of a rate that grew, as larger rates gain no more.
    may_rise : bool
        Whether the loss may rise slowly at too large a rate: windows without gain that all exceed the best
        loss are undone then, in place of a decay.
    looks_ahead : bool
        Whether several windows may be made before the next decision.
    decays_in_window : bool
        Whether the last of one or two windows is a decay; more windows end with one in any case.

    Attributes
    ----------
    best : float
        The lowest loss of a window, or that of the start.
    has_converged : bool
        Whether the decay began because the loss gained no more, or no rate was small enough for a gain.
    has_ended : bool
        Whether training is to stop.
    """

    start: float
    unit: float
    tol: float | None
    patience: int
    n_windows: int
    n_updates: int
    share: float = 1.0
    most: float = 1.0
    haste: float = 1.0
    is_open: bool = False
    guesses: bool = False
    sure: float = math.inf
    shortest_decay: int = 6
    still: float = 100.0
    trend: float = math.inf
    level: float = -math.inf
    is_cut_last: bool = False
    may_rise: bool = False
    looks_ahead: bool = True
    decays_in_window: bool = False
    best: float = field(init=False)
    has_converged: bool = field(default=False, init=False)
    has_ended: bool = field(default=False, init=False)
    _base: float = field(init=False)
    _n_done: int = field(default=0, init=False)
    _n_cuts: int = field(default=0, init=False)
    _mark: float = field(init=False)
    _last: float = field(default=math.inf, init=False)
    _n_idle: int = field(default=0, init=False)
    _is_growing: bool = field(default=True, init=False)
    _decay: tuple[int, int] | None = field(default=None, init=False)
    _is_last_decay: bool = field(default=False, init=False)
    _is_sure: bool = field(default=False, init=False)
    _recent: list[float] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.best = self._mark = self.start
        self._base = self.share
        self._end_in_time()

    @classmethod
    def resumed(cls, known: Mapping[str, object]) -> Descent:
        """Return the control with the attributes of another one."""
        descent = cls.__new__(cls)
        vars(descent).update(known)
        return descent

    @property
    def highest(self) -> float:
        """The loss of a window above which it is undone."""
        if math.isinf(self.best):
            return math.inf
        size = self.unit if self.is_open else abs(self.best)
        return self.best + _WORSE * size + _WORSE_OF_UNIT * self.unit

    @property
    def is_decaying(self) -> bool:
        """True if the rate falls from update to update."""
        return self._decay is not None

    @property
    def is_moving(self) -> bool:
        """True if the rate changes before the next decision."""
        return self.is_decaying or (self._may_grow and self.n_ahead > 1)

    @property
    def _may_grow(self) -> bool:
        """True if the last window gained much, and the rate is not the largest."""
        return self._is_growing and self._base < self.most

    @property
    def factor(self) -> float:
        """The rate at the beginning of the next window, as a share of the first one."""
        return self._base if self._decay is None else float(self.factors(np.zeros(1))[0])

    def factors(self, windows: np.ndarray) -> np.ndarray:
        """Return the factors after so many further windows: in a decay they fall from update to update."""
        if self._decay is None:
            if self.is_moving:
                return np.minimum(self._base * _GROWTH ** np.floor(windows), self.most)
            return np.full(len(windows), self._base)
        number, length = self._decay
        return self._base * (1.0 - np.minimum(1.0, (number - 1 + windows) / max(1, length))) ** _SHAPE

    @property
    def n_ahead(self) -> int:
        """The windows up to the next decision.

        All that are left of a decay. If windows are short, those that begin one if none of them gains, or a
        few if any of them may; while the rate grows two, the second at the rate that the first leads to if it
        gains as much, and on a guess those of the decision after it too. Else one.
        """
        if self._decay is None:
            if self.is_guess:
                return self._n_before + _GROWING
            if self._n_done == 0 or self.tol is None or self.level > -math.inf or not self.looks_ahead:
                return 1
            at_once = _AT_ONCE // self.n_updates if self.patience == 1 else self.patience - self._n_idle
            wanted = _GROWING if self._may_grow else at_once
            most = min(_TOGETHER // self.n_updates, math.ceil(_LATEST_DECAY * self.n_windows) - self._n_done)
            return max(1, min(wanted, most))
        number, length = self._decay
        return max(1, length - number + 1)

    @property
    def is_guess(self) -> bool:
        """True if the next windows are made on the guess that the rate grows until the next decision."""
        if not (
            self.guesses and self.looks_ahead and (self._n_done == 0 or self._is_sure) and self._may_grow
        ):
            return False
        if self.tol is None or self._decay is not None or not (self.unit > 0 and math.isfinite(self.best)):
            return False
        grows_on = self._base * _GROWTH**self._n_before < self.most
        n_windows = self._n_before + _GROWING
        is_short = n_windows * self.n_updates <= _TOGETHER
        is_early = self._n_done + n_windows < _LATEST_DECAY * self.n_windows
        return grows_on and is_short and is_early

    @property
    def _n_before(self) -> int:
        """The windows up to the next decision while the rate grows, without a guess."""
        return _GROWING if self._n_done else 1

    @property
    def ends_at_best(self) -> bool:
        """True if a whole decay has ended, and no window has a lower loss than its last one.

        At the large rates of other windows the loss may be far from the mean at their end.
        """
        done, length = self._decay or (1, 0)
        return done > length >= self.shortest_decay and self._last == self.best

    def bears_out(self, losses: Sequence[float]) -> bool:
        """Tell whether the losses of windows made on a guess lead to their rates, and are no signs of others.

        The windows before the first decision have gained much, and the later ones are better than these.
        """
        trial, n_before = copy(self), self._n_before
        for loss in losses[:n_before]:
            trial.judge(loss, is_last=False)
        has_grown = trial._base > self._base * _GROWTH ** (n_before - 0.5) and trial._may_grow
        return has_grown and all(loss < trial.best for loss in losses[n_before:])

    @property
    def is_at_level(self) -> bool:
        """True if the last window reached the loss at which training ends."""
        return self._last <= self.level

    def _is_large(self, gain: float) -> bool:
        """Tell whether a gain of a window raises the rate."""
        return 0 < gain < math.inf and _BOLD * self.n_updates * self._scale < gain

    @property
    def least_gain(self) -> float:
        """The gain that counts."""
        return (self.tol or 0.0) * self._scale

    @property
    def _scale(self) -> float:
        """The loss that gains are compared with."""
        if self.is_open:
            return self.unit
        return min(self.unit, max(abs(self._mark), _SMALL * self.unit))

    def judge(self, loss: float, *, is_last: bool = True, has_fallen: bool = False) -> Verdict:
        """Record the loss of a window, which may be infinite or no number.

        The decay begins after the last of the windows that were made together. A window is not undone whose
        loss has fallen within them, as that at the beginning of a decay does.
        """
        self._n_done += 1
        if not (math.isfinite(loss) and (has_fallen or loss <= self.highest)):
            self._recent = []
            has_grown = self._base > self.share
            self._cut(loss)
            if has_grown and self.is_cut_last and self.tol is not None:
                self._converge()
            return Verdict.UNDONE
        self.unit = self.unit or abs(loss)
        gain = self.best - loss
        self._is_growing = self._is_large(gain) and self._base < self.most
        self._is_sure = self._is_growing and self._is_large(gain / self.sure)
        if self._is_growing and self._decay is None:
            self._base = max(self._base, min(_GROWTH * self._base, self.most))
        self._recent = [*self._recent, loss][-2 * self._of_trend :]
        self._count_idle(loss)
        if is_last and self._has_risen:
            self._recent, self._n_idle = [], 0
            self._cut(loss)
            return Verdict.UNDONE
        self._advance(loss, is_last=is_last)
        self._last = loss
        if self.is_at_level:
            self.has_converged = self.has_ended = True
        if loss >= self.best:
            return Verdict.KEPT
        self.best = loss
        return Verdict.BETTER

    def correct(self, objective: float) -> None:
        """Correct the best loss by the exact objective of the weights that have been restored.

        The mean loss of a window is that of weights before its end, which may be worse, as those of a
        perceptron are: all further windows would be undone.
        """
        if self.best < objective < math.inf:
            self.best = objective
            self._mark = max(self._mark, objective)

    def begin_decay(self) -> None:
        """Begin the last decay, unless one has begun: another criterion has converged."""
        self._is_last_decay = True
        self._converge()

    def _converge(self) -> None:
        self.has_converged = True
        if self._decay is None:
            length = max(self.shortest_decay, int(_DECAY * self._n_done))
            self._decay = (1, max(0, min(length, self.n_windows - self._n_done)))
            self.has_ended = self._decay[1] == 0

    def _cut(self, loss: float) -> None:
        is_overshot = self._n_done == 1 and math.isfinite(loss)
        self.most = self._base if is_overshot else self._base / _CUT
        self._base /= _CUT
        self._is_growing = False
        self._n_cuts += 1
        self.has_converged |= self._n_cuts > _MOST_CUTS
        self.has_ended |= self._n_cuts > _MOST_CUTS or self._n_done >= self.n_windows
        self._end_in_time()

    def _count_idle(self, loss: float) -> None:
        if self.tol is None:
            return
        least = self.haste * self.least_gain
        # the first windows may rise above the start, and fall to it
        falls = self.best == self.start and loss < self._last - least < math.inf
        if loss < self._mark - least:
            self._mark, self._n_idle = loss, 0
        elif not falls:
            self._n_idle += 1

    @property
    def _of_trend(self) -> int:
        """The windows whose mean loss is compared with that of as many before them."""
        return max(_TREND, self.patience)

    @property
    def _has_risen(self) -> bool:
        """True if the windows without gain that would begin a decay are all worse than the best one."""
        if not self.may_rise or self._decay is not None or self._n_idle < self.patience:
            return False
        idle = self._recent[-self.patience :]
        return len(idle) == self.patience and min(idle) > self.best + _RISEN * abs(self.best)

    @property
    def _still_falls(self) -> bool:
        """True if the loss falls from window to window, on average, though noise hides it."""
        if len(self._recent) < 2 * self._of_trend or not self.least_gain > 0:
            return False
        before, last = self._recent[: self._of_trend], self._recent[self._of_trend :]
        return sum(before) - sum(last) > self.trend * self.least_gain * self._of_trend

    def _end_or_continue(self, loss: float) -> None:
        """End training, unless the last window of the decay still gained: then continue at a lower rate."""
        has_gained = self._last - loss > self.still * self.least_gain
        if not has_gained or self._is_last_decay or self._n_done >= self.n_windows:
            self.has_ended = True
            return
        self._base /= _CUT
        self._decay, self._n_idle, self._mark = None, 0, loss
        self.has_converged = False
        self._end_in_time()

    def _advance(self, loss: float, *, is_last: bool) -> None:
        if self._decay is not None:
            done, length = self._decay
            self._decay = (done + 1, length)
            if done >= length:
                self._end_or_continue(loss)
        elif self._n_idle < self.patience or not is_last:
            self._end_in_time()
        elif self._still_falls:
            # the next window without gain asks again
            self._n_idle = self.patience - 1
            self._end_in_time()
        else:
            self._converge()
        self.has_ended |= self._n_done >= self.n_windows

    def _end_in_time(self) -> None:
        """Begin the decay where it would end too late otherwise."""
        latest = math.ceil(_LATEST_DECAY * self.n_windows)
        if self.decays_in_window:
            latest = min(latest, self.n_windows - 1)
        if self._decay is None and self._n_done >= latest:
            self._decay = (1, max(0, self.n_windows - self._n_done))
