"""Kinds of fits that find their rate, and the windows, the largest rates and the ends that suit them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from onnxsgd._records import record
from onnxsgd.training.stopping import Stopping

__all__ = ["FitKind"]

#: The fewest updates of a window, those for linear models and for the larger batches of sparse data, that
#: tell a trend from noise.
_WINDOW, _LINEAR_WINDOW, _SPARSE_WINDOW = 16, 12, 8
#: The largest rates as multiples of that of the schedule. Networks begin with a tenth of it.
_MOST_OF_LINEAR, _MOST_OF_NETWORK = 16.0, 1.0
#: The same with dropout, whose gradients are mostly noise: a network of 100 units on 1,347 digits,
#: with a fifth of the inputs and half of the units dropped, ends at an accuracy of 0.97, with 1.0 at 0.82.
_MOST_OF_DROPOUT = 0.25
#: A gain of so many times the one that raises the rate, after which a classifier is taken to gain much in the
#: next windows too. Fits of 58 data sets with three seeds: 204 of 240 such guesses were right, and all but 3
#: of the 351 at the start; of regressions, which are left out, 18 of 51.
_SURE = 10.0
#: Linear models whose epochs have fewer than so many updates end sooner than others,
_FEW_UPDATES = 32
#: and on sparse data classifiers of fewer rows than these.
_FEW_SPARSE_ROWS = 4096


class _End(NamedTuple):
    """The end of a fit: the patience before the decay, and its length.

    Attributes
    ----------
    share : float
        The decay begins after windows without gain that last this share of `n_iter_no_change` epochs,
    n_windows : int
        and after so many of them at least.
    shortest_decay : int
        The fewest windows of the decay.
    still : float
        Training continues after a decay whose last window gained this many times the gain that counts.
    haste : float
        A window that gained less than this many times the gain that counts is one without gain.
    is_cut_last : bool
        The decay begins where a rate that grew is cut.
    """

    share: float
    n_windows: int
    shortest_decay: int
    still: float
    haste: float = 1.0
    is_cut_last: bool = False


#: The ends of other models, of dense linear models with few updates in an epoch, and of such classifiers on
#: rows in random order. 52 data sets of 380 to 900 rows with four seeds: the mean score is the same to 0.0001
#: with 1/3 as with 1/2, with 0.86 of the updates. 20 data sets of 100 to 800 rows, 16 fits each: classifiers
#: have an accuracy of 0.829 with 1/5 and one window, and 0.828 with 1/3 and two, with 0.75 of the updates;
#: regressors, with 0.88 of them, end further from the minimum where there is no noise. With 38 updates an
#: epoch, as on digits, scores fall by 0.001. 400 digits sorted by class, without a shuffle, have an accuracy
#: of 1.000 with 1/3 and two windows, of 0.96 with 1/5 and one. With a decay of four windows linear regressors
#: make up to 0.15 fewer updates, and end at higher objectives; classifiers on 34 data sets, 72 fits each,
#: have the same accuracy to 0.0003 with five as with six, and make 0.94 of the updates; to 0.0001, and the
#: same log loss, where log_loss continues after gains of 1000 times the one that counts as of 100 times.
#: Networks on few samples overfit with less than 100. Where windows that gain less than 10 times the gain
#: that counts are those without gain, classifiers on the same 34 data sets make 0.86 (log_loss) and 0.96
#: (hinge) of the updates, with the same accuracy to 0.0004; with 30 times 0.8 and 0.9, but 19 sets of
#: strongly correlated columns with little noise have 0.9253, 0.9248, 0.9242 with 1, 10 and 30 times. 34
#: generated and bundled sets of classes, raw and scaled, 6 splits each: where the decay begins with the cut
#: of a rate that grew, fits make 0.96 of the updates, with the same accuracy and log loss to 0.0004.
#: 24 sets of 10 to 200 classes of 3 to 6 rows have a log loss of 1.12 where those that the columns tell have
#: the end of regressors, and of 1.21 with that of other classes, an accuracy of 0.742 and 0.733
#: (``benchmarks/support.py --only rare``).
_USUAL, _OF_FEW = _End(1 / 2, 2, 6, 100), _End(1 / 3, 2, 6, 100)
_OF_FEW_LABELS = _End(1 / 5, 1, 5, 1000, 10, is_cut_last=True)
#: The ends on sparse data, of other models and of linear classifiers of few rows in random order. 90 data
#: sets of 300 to 4,000 generated texts or one-hot codes, 6 fits each: with 1/5 of the epochs and windows that
#: gain 30 times as much, fits make 0.86 (log_loss) and 0.88 (hinge) of the updates, with the same accuracy to
#: 0.0004. After one window in place of two, texts whose words are mostly of one text alone lose 0.01, and
#: 0.03 with unequal weights. 101 sets of 150 to 8,000 rows, some with words of one text alone, a rare class,
#: or unequal weights, 3 fits each: where training goes on after a decay whose last window gains 150 times as
#: much as counts, in place of 80, fits make 0.94 of the updates with log_loss, with the same accuracy; hinges
#: of 400 texts in 5 classes have 0.85 in place of 0.89, and other losses of margins lose 0.0002 to 0.0007.
#: Many rows tell the effects of rare words, which takes time: 10,000 texts whose classes they alone tell lose
#: 0.013 (log_loss) and 0.010 (hinge) by the end for few rows. 104 of these and of larger sets with two
#: classes, 3 fits each: where the decay begins with the cut of a rate that grew, log_loss makes 0.97 of the
#: updates with the same accuracy. A hinge, whose gradient does not vanish near the margin, gains by each
#: decay: where training goes on after gains of 400 times alone, it makes 0.66 with the same accuracy. So do
#: the hinges of several classes: 109 sets of 150 to 6,000 rows end after 24.9 epochs in place of 30.8, 1e5
#: columns after 16.1 in place of 27.9, with the same accuracy to 0.0003; where the decay began with the cut
#: of a rate that grew, texts with rare words lost 0.007. Other losses of margins lose 0.002 to 0.01 of 400
#: rows, and perceptrons of several classes 0.003.
#: 90 sets of 800 to 12,000 texts and one-hot codes, 6 fits each: with a decay of four windows in place of
#: six, log_loss and hinges make 0.84 of the updates, with an accuracy of 0.7727 and 0.7726 (log_loss), of
#: 0.7629 and 0.7626 (hinge), and a log loss of 0.5583 and 0.5579. Of 24 regressions under huber R2 is 0.264
#: and 0.265, and perceptrons of one of 24 sets lose 0.08.
_OF_SPARSE, _OF_SPARSE_LABELS = _End(1 / 2, 2, 6, 100, 10), _End(1 / 2, 2, 4, 100, 10)
_OF_SPARSE_HINGE, _OF_SPARSE_HINGES = _End(1 / 2, 2, 4, 400, 10, is_cut_last=True), _End(1 / 2, 2, 4, 400, 10)
_OF_FEW_SPARSE_LABELS = _End(1 / 5, 2, 4, 150, 30, is_cut_last=True)
_OF_FEW_SPARSE_MARGINS = _End(1 / 5, 2, 6, 80, 30)
_OF_FEW_SPARSE_HINGE = _End(1 / 5, 2, 4, 400, 30, is_cut_last=True)
_OF_FEW_SPARSE_HINGES = _End(1 / 5, 2, 4, 400, 30)
#: The updates of a fit from which on the last of one or two windows is a decay, of dense linear regressors
#: and of other linear models; of more than 32 dense columns, whose first rate is smaller, more in
#: proportion. 112 sets of 1,000 to 60,000 rows of 30 to 200 columns with noise of 0.1 to 3 times the signal:
#: with one or two epochs R2 is 0.61 in place of 0.56 (`SGDRegressor` 0.58), the accuracy where this holds
#: 0.80 in place of 0.78 (`SGDClassifier` 0.76). With 10 updates R2 falls from 0.58 to 0.53, with 34 updates
#: and 200 columns from 0.94 to 0.71, and networks lose by it.
_DECAY_OF_REGRESSORS, _DECAY_OF_OTHERS = 32, 128
#: Hinges on sparse data, whose losses may rise after large gains at the same rate, have a decision after each
#: window of so many updates or more: a decision takes less time than these. 36 sets of 4,100 to 14,000 texts
#: and one-hot codes, 2 fits each: they make 0.95 of the updates in 0.99 of the time, with an accuracy of
#: 0.7695 and 0.7692; 10,000 texts of 10 topics with 1e6 columns take 0.85 of the time. With log_loss times
#: are the same.
_LONG_WINDOW = 16
#: The decay of a linear regressor on dense data waits while windows gain so many times the gain that counts
#: on average. 12 sets of 60 or 150 strongly correlated columns, 3 fits each: R2 is 0.933 in place of 0.925,
#: after 1.33 of the epochs, with 40 times 0.930; 26 other sets, 6 fits each, have the same R2 to 0.0001,
#: after 1.03 of the updates.
_TREND = 10.0


@record
class FitKind:
    """The model and the data of a fit, as far as they decide its windows, its largest rate and its end.

    Attributes
    ----------
    n_batches : int
        Updates of an epoch.
    n_rows : int
        The samples of an epoch.
    is_sparse : bool
        Whether the updates are those of sparse data.
    is_linear : bool
        Whether the model is linear.
    is_open : bool
        Whether the loss has no least value.
    is_other : bool
        Whether training sees another function than predictions: statistics of batches, or dropout.
    draws : bool
        Whether that is dropout.
    is_regression : bool
        Whether the target is one of real numbers.
    is_shuffled : bool
        Whether each epoch has an order of its own; the losses of a fixed order may grow for a while.
    has_margins : bool
        Whether the loss of a classifier is one of margins, not the likelihood of classes.
    is_exponential : bool
        Whether predictions are exponentials of scores: at too large a rate the loss may rise slowly.
    n_hinges : int
        The hinge losses of a sample, whose gradients do not vanish near the margin; 0: another loss.
    has_scale : bool
        Whether losses can be compared with that of a constant: not those of a perceptron.
    most_share : float
        The largest share of the first rate to begin with, which the number of columns allows.
    tells_rare_classes : callable
        Tells whether the loss is that of one class against the rest, of many classes with few rows each,
        which the columns know from each other.
    """

    n_batches: int
    n_rows: int = 0
    is_sparse: bool = False
    is_linear: bool = False
    is_open: bool = False
    is_other: bool = False
    draws: bool = False
    is_regression: bool = False
    is_shuffled: bool = True
    has_margins: bool = False
    is_exponential: bool = False
    n_hinges: int = 0
    has_scale: bool = True
    most_share: float = 1.0
    tells_rare_classes: Callable[[], bool] = bool

    def window(self, max_iter: int) -> int:
        """Return the epochs of a window: there are three at least, one at the full rate, and a decay."""
        n_updates = _SPARSE_WINDOW if self.is_sparse else _LINEAR_WINDOW if self.is_linear else _WINDOW
        return max(1, min(-(-n_updates // self.n_batches), max_iter // 3))

    @property
    def largest_rate(self) -> float:
        """The largest rate, as a multiple of the first one."""
        if self.draws:
            return _MOST_OF_DROPOUT
        return _MOST_OF_LINEAR if self.is_linear else _MOST_OF_NETWORK

    def settings(self, stopping: Stopping) -> dict[str, Any]:
        """Return the parameters of the control that do not depend on the first weights.

        Parameters
        ----------
        stopping : Stopping
            The end of the fit.
        """
        end, length = self._end, self.window(stopping.max_iter)
        patience = max(end.n_windows, math.ceil(end.share * stopping.n_iter_no_change / length))
        is_dense_regressor = self.is_linear and self.is_regression and not self.is_sparse
        n_updates_of_all = stopping.max_iter * self.n_batches
        least = _DECAY_OF_REGRESSORS if is_dense_regressor else _DECAY_OF_OTHERS
        # more patience asks for more
        gains = end if patience == end.n_windows else self._usual_end
        return {
            "patience": patience,
            "shortest_decay": end.shortest_decay if self.has_scale else _USUAL.shortest_decay,
            "still": gains.still,
            "n_windows": max(1, stopping.max_iter // length),
            "n_updates": length * self.n_batches,
            "decays_in_window": self.is_linear and n_updates_of_all * self.most_share >= least,
            "haste": gains.haste,
            "is_cut_last": gains.is_cut_last,
            "looks_ahead": not (self.is_sparse and self.n_hinges and length * self.n_batches >= _LONG_WINDOW),
            "is_open": self.is_open,
            "may_rise": self.is_linear and self.is_exponential,
            "sure": math.inf if self.is_regression else _SURE,
            "trend": _TREND if is_dense_regressor else math.inf,
        }

    @property
    def _end(self) -> _End:
        """The end that suits the model and the data."""
        has_labels = self.is_linear and self.is_shuffled and not self.is_regression
        if self.is_sparse and has_labels and self.n_rows < _FEW_SPARSE_ROWS:
            if self.n_hinges:
                return _OF_FEW_SPARSE_HINGE if self.n_hinges == 1 else _OF_FEW_SPARSE_HINGES
            return _OF_FEW_SPARSE_MARGINS if self.has_margins else _OF_FEW_SPARSE_LABELS
        if not self.is_sparse and self.is_linear and self.n_batches < _FEW_UPDATES:
            return _OF_FEW_LABELS if has_labels and not self.tells_rare_classes() else _OF_FEW
        return self._usual_end

    @property
    def _usual_end(self) -> _End:
        """The end of models that are not linear, or trained on many rows."""
        if not self.is_sparse:
            return _USUAL
        if not self.is_linear or self.is_regression or (self.has_margins and not self.n_hinges):
            return _OF_SPARSE
        if not self.n_hinges:
            return _OF_SPARSE_LABELS
        return _OF_SPARSE_HINGE if self.n_hinges == 1 else _OF_SPARSE_HINGES
