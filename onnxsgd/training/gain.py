"""The gain of a fit over its first weights, and the warning of a fit that has next to none."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TypedDict

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from onnxsgd._declared_types import Count
from onnxsgd.engine.step.buffers import Tensors
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.training.checkpoints import Progress
from onnxsgd.training.progress_forms import check_tensors
from onnxsgd.training.state import FitState

__all__ = ["Gain", "GainProgress", "Pairs"]

#: The largest share of the first objective, or of a score of 1, that is next to no gain; with a smaller `tol`
#: that is the share. 1,171 fits of linear models and small networks on 15 data sets, three schedules, rates
#: from 1e-9 to 0.1, 1,064 of them ended by the plateau: of the 351 from untrained weights that gain less than
#: 0.001, 339 gain less than a twentieth of the gain of "auto" and none half of it; of the 81 that gain 0.001
#: to 0.01, 48 and 19, which are fits of targets that are nearly noise.
_SHARE = 1e-3
#: The share without a `tol`: more than the rounding of float32.
_ROUNDING = 1e-6
#: The gain over the first epoch, in gains that count, after which a fit is not looked at. Of those fits none
#: that gains a tenth over its first weights, and 1 of 44 that gain 0.03 to 0.1, has less than ten. Fits of
#: good weights at sensible rates, whose first epochs have more noise than their last ones, mostly have.
_CLEAR = 10.0
#: The same with dropout, as a share of the first objective: of 64 rows, epochs in which nothing is learned
#: differ by up to 0.23.
_CLEAR_OF_NOISE = 0.5
#: The share of the first epoch's objective in which all others stay where nothing moved. An epoch that learns
#: differs from later ones by its first batch at least.
_STILL = 1e-5

#: Weights by their names.
Weights = Mapping[str, np.ndarray]
#: Returns the objectives of two sets of weights, on some of the data and then on all.
Pairs = Callable[[Weights, Weights], Iterable[tuple[float, float]]]


class GainProgress(TypedDict):
    """The progress of a :class:`Gain`."""

    first: Tensors | None
    n_epochs: Count
    epochs: tuple[float, float, float]
    scores: tuple[float, float]


class Gain:
    """The gain of a fit over its first weights.

    The objectives of epochs are compared with the first one. Only where no epoch gained over it, those of the
    first and of the last weights are computed: other fits make no further pass over the data, and do not keep
    the first weights. Where scores decide, they are compared in the same way. An objective that falls is a
    gain there too: a constant prediction may have the score of a good one, as that of a frequent class.

    Parameters
    ----------
    state : FitState
        The state of the fit.
    first : mapping of str to ndarray
        Its first weights, which nothing changes.
    tol : float or None
        The least improvement of an epoch that counts.
    average_from : int
        The update at which averaging starts; 0: never.
    objectives : callable or None
        Returns the exact objectives of the first and of the last weights; None: the data come batch by batch,
        and are not read again. A fit whose epochs all have the same objective is then reported.
    score : callable or None
        Returns the score of weights, if scores decide.
    unit : float or None
        The difference of objectives that counts as large; None: the first objective is.
    remedy : str or None
        The sentence after each message; None: that of a named rate.
    is_noisy : bool
        Whether objectives of epochs have noise of their own, that of dropout.
    """

    def __init__(
        self,
        state: FitState,
        first: Weights,
        tol: float | None,
        average_from: int = 0,
        objectives: Pairs | None = None,
        score: Callable[[dict[str, np.ndarray]], float] | None = None,
        unit: float | None = None,
        remedy: str | None = None,
        is_noisy: bool = False,
    ) -> None:
        self._state, self._objectives, self._score = state, objectives, score
        self._average_from, self._is_noisy = average_from, is_noisy
        self._share, self._unit, self._remedy = min(max(tol or 0.0, _ROUNDING), _SHARE), unit, remedy
        self._first: Tensors | None = {(name, WEIGHT): array for name, array in first.items()}
        self._n_epochs = 0
        #: The objective of the first epoch, the lowest one and the highest one.
        self._epochs = (0.0, 0.0, 0.0)
        #: The score after the first epoch, and the best one.
        self._scores = (0.0, 0.0)

    def record(self, objectives: Iterable[float], score: float | None = None) -> None:
        """Record the objective of each of the next epochs, or that of one and the score after it."""
        if score is not None:
            first, best = self._scores if self._n_epochs else (score, score)
            self._scores = first, max(best, score)
        for value in objectives:
            first, lowest, highest = self._epochs if self._n_epochs else (value, value, value)
            self._epochs = first, min(lowest, value), max(highest, value)
            self._n_epochs += 1
        first, lowest, highest = self._epochs
        if self._compares:
            is_clear = first - lowest > self._clear(first)
            is_clear |= self._scores[1] - self._scores[0] > _CLEAR * self._share
        else:
            is_clear = not highest - lowest <= _STILL * self._scale(first)
        if is_clear:
            self._first = None

    @property
    def _compares(self) -> bool:
        """True if the first weights are compared with others, otherwise the epochs alone."""
        return self._score is not None or self._objectives is not None

    def _scale(self, value: float) -> float:
        """Return the difference of objectives that counts as large."""
        return abs(value) if self._unit is None else self._unit

    def _least(self, value: float) -> float:
        """Return the gain over an objective that counts."""
        return self._share * self._scale(value)

    def _clear(self, value: float) -> float:
        """Return the gain over the objective of the first epoch after which a fit is not looked at."""
        return _CLEAR_OF_NOISE * self._scale(value) if self._is_noisy else _CLEAR * self._least(value)

    def report(self) -> None:
        """Warn if the fit ends next to where it began."""
        if self._first is None or self._n_epochs < 2:
            return
        first = {name: array for (name, _), array in self._first.items()}
        if self._score is not None:
            self._report_score(self._score(first), self._scores[1])
        elif self._objectives is not None:
            before, after = 0.0, 0.0
            for before, after in self._objectives(first, self._state.weights(self._average_from)):
                # a loss of zero has no meaning, as that of a perceptron of zeros, or cannot be lowered
                if not before - after < self._least(before) or 0 in (before, after):
                    return
            self._report_objective(before, after)
        elif self._epochs[0]:
            self._warn(f"The objective of all {self._n_epochs} epochs is {self._epochs[0]:.6g}.")

    def _report_objective(self, before: float, after: float) -> None:
        if after > before + self._least(before):
            self._warn(f"Training raised the objective from {before:.6g} to {after:.6g}.", verb="lower")
        elif after < before and f"{after:.6g}" != f"{before:.6g}":
            self._warn(f"Training lowered the objective only from {before:.6g} to {after:.6g}.")
        else:
            self._warn(
                f"Training did not lower the objective: {before:.6g} before the first update, {after:.6g} "
                "after the last one."
            )

    def _report_score(self, before: float, best: float) -> None:
        if best <= before:
            self._warn(
                f"No epoch scored better on the validation data than the first weights: {before:.6g} before "
                f"the first update, {best:.6g} after the best epoch."
            )
        elif best - before < self._share:
            self._warn(
                f"Training raised the score on the validation data only from {before:.6g} to {best:.6g}."
            )

    def _warn(self, message: str, verb: str = "raise") -> None:
        rate = max(self._state.learning_rates, default=self._state.eta)
        remedy = self._remedy or (
            f"Unless the first weights are the best, {verb} the learning rate (at most {rate:.3g} in "
            "these epochs), or let learning_rate='auto' find it."
        )
        warnings.warn(f"{message} {remedy}", ConvergenceWarning, stacklevel=7)

    def progress(self) -> Progress:
        """Return the first weights, if they are still needed, and the values of epochs."""
        return {
            "first": self._first, "n_epochs": self._n_epochs, "epochs": self._epochs, "scores": self._scores,
        }  # fmt: skip

    def resume(self, progress: Progress) -> None:
        """Continue from a progress."""
        first, present = progress["first"], self._state.weights()
        if first is not None:
            check_tensors(first, present, self._state.optimizer, "rule.gain.first")
            first = {key: array.astype(present[key[0]].dtype, copy=False) for key, array in first.items()}
        self._first, self._n_epochs = first, progress["n_epochs"]
        self._epochs, self._scores = progress["epochs"], progress["scores"]
