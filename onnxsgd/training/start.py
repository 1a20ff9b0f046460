"""The first weights of a fit that finds its rate: those given, or better ones that need no training."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from onnxsgd._records import record
from onnxsgd.data.evidence import EvidenceRidge, NormalRidge, QuadratureRidge
from onnxsgd.data.moments import factor_of_few
from onnxsgd.data.one_thread import one_thread
from onnxsgd.data.row_tables import are_many, as_array, row_blocks, some_rows
from onnxsgd.engine.step.buffers import Tensors
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.graph.reading.first_layers import FirstLayer
from onnxsgd.graph.reading.output_layer import OutputLayer, OutputWeight
from onnxsgd.losses import Loss, Quantile
from onnxsgd.optimizers import LEAST_FACTOR
from onnxsgd.training.state import FitState

__all__ = [
    "ENOUGH_ROWS", "LEAST_SHARE", "NoiseFinder", "Objective", "Start", "StartFinder", "best_constant",
    "is_due", "share_of_calls",
]  # fmt: skip

#: The least share of the first rate, for a start of good weights: a stream cannot have less.
LEAST_SHARE = LEAST_FACTOR
#: The fewest rows of a part of a stream whose loss is compared with a constant's.
ENOUGH_ROWS = 32
#: The fewest rows that tell a given linear model for data of another unit or level: its predictions have so
#: many times the mean square of the target, and their squared correlation with it exceeds the next number
#: over itself and the rows; or the mean of its errors is so many times their deviation, and its square more
#: than this share of that mean square. The loss of scores of labels is so many times that of zeros.
_FEW_ROWS, _FAR_OF_VARIANCE, _CLEAR_CORRELATION = 8, 1000.0, 16.0
_FAR_OF_MEAN, _LEAST_OF_MEAN, _FAR_OF_LABELS = 5.0, 0.1, 30.0
#: The standard errors by which the loss of a part exceeds that of a fit if the data have changed; the rows of
#: which the worst one is left out. Regressions with a third of the noise for signal, continued on the same
#: data, have R2 0.07 with them and -0.01 without.
_ERRORS, _LEFT_OUT = 3.0, 50
#: The same of losses that exceed, or fall short of, those of a right model; the largest share of the rate of
#: a given linear model where they do not, or where these are unknown: it may be the best for its rows, or
#: know few; and the loss in units of a constant's beyond which it is wrong. A ridge regression of 2,000 rows
#: whose noise is three times the signal, continued on 600 like them in calls of 100, has R2 0.839 of the
#: signal with these and 0.422 without, before it 0.840, a logistic regression of five noisy classes an
#: accuracy of 0.471, 0.463 and 0.467; a ridge regression of 60 rows has 0.897, 0.892 and 0.388
#: (``benchmarks/streams.py --kinds regression --calls 100 --seeds 10``). With a share of 0.03, targets with
#: other coefficients, 1,200 rows in one call, have 0.50 in place of 0.85.
_ERRORS_OF_SURPRISE, _OF_GIVEN, _MUCH_WORSE = 2.0, 0.07, 2.0
#: The share of a given linear model in calls of few sparse rows, whose gradients agree too little to raise a
#: smaller one. A ridge regression of 100 rows of 2,000 columns, continued on 4,000 in calls of 8, has R2
#: 0.42 in place of 0.10 (``benchmarks/streams.py --kinds "regression, sparse"``), one of 2,000 rows after
#: 2,000 more 0.42 in place of 0.24; texts in 8 topics have 0.930 in place of 0.925.
_OF_FEW_SPARSE = 0.3
#: The share of a constant's loss by which weights on raw data must be better than the same on standardised
#: data: a random network of large predictions may correlate a little with a target of larger ones, and its
#: first steps then diverge. Poor networks on friedman's data with columns of 0 to 100: R2 is 0.87 to 0.91,
#: and 0.17 to 0.19 with a share of 0.1. Networks of another task on columns with means of 2 deviations, 15
#: cases, four seeds: 0.95 in place of 0.94; of 40 rows of a task that is nearly the same 0.88 in place of
#: 0.93.
_CLEAR = 0.5
#: Predictions of a network with more than so many times the deviation of the target begin with the latter:
#: steps are made in its units, and many would be needed from there.
_LARGE = 4.0


#: The level and the length of training on data all of which is to be learned.
_ALL = -math.inf, math.inf
#: The scales of the slopes of scores that are tried, up to the first that is worse.
_SCALES = tuple(2.0 ** (number / 2) for number in range(-4, 11))
#: The least scale that is taken: with small ones the score of the most frequent class is largest everywhere.
#: 60 sets of 20 and 40 rows in three classes have a mean accuracy of 0.49 with scales of 1/4 or more, 0.54
#: with 1, 0.55 with 2, and 0.56 where all is learned.
_LEAST_SCALE = 2.0
#: The share of a constant's loss below which that of rows left out is small. 91 sets of 60 to 400 rows and 6
#: to 800 columns: accuracy is 0.805, log loss 0.43, with 0, 0.4 and 0.6; 0.789 and 0.95 where all of the data
#: is learned. 150 digits have a log loss of 0.17 where all is learned, of 0.58 with 0.
_SMALL_LOSS = 0.5
#: The most of the gain of the loss that the penalty may be at the supported coefficients, and the same with
#: an l1 part, or a loss of sizes. 24 kinds of sets of 100 and 200 rows and 40 to 200 columns, l1, l2 and
#: both, of strength 0.001 to 1: where few of 200 columns count, l1 and 0.03, R2 is 0.32 without a bound, 0.72
#: with 0.02 to 0.2; of noise alone, l2 and 0.3, it is -0.14, 0.01 and 0.01 with 0.05, 0.1 and 0.2. 20,000
#: rows of two categories of 5,000 levels, mostly noise, have 0.04 with 0.1, and 0.10 with 0.2. 36 regressions
#: of many columns, most of which do not count, with an l1 penalty of 0.01 have 0.43 with 0.1, and 0.35 with
#: 0.2; 2,000 sparse rows with a few outliers and a huber loss 0.99 and 0.95.
_MOST_OF_GAIN, _LESS_OF_GAIN = 0.2, 0.1


class Objective(NamedTuple):
    """The mean loss of all training data, and the penalty."""

    loss: float
    penalty: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.loss + self.penalty


class Start(NamedTuple):
    """The judgement of the first weights.

    Attributes
    ----------
    objective : float
        Their objective; infinite if it has no meaning, as that of a perceptron before training: it is in
        proportion to the intercept.
    unit : float
        The loss that gains are compared with: that of the best constant prediction, if known.
    share : float
        The share of the first rate to begin with: the better the weights, the smaller.
    is_model : bool
        Whether they are those of a model, not a constant in place of weights of zeros.
    level : float
        The objective down to which the data support training; infinite: they support no coefficients.
    length : float
        The root mean square of the coefficients there, in units of the rate.
    """

    objective: float
    unit: float
    share: float
    is_model: bool = True
    level: float = -math.inf
    length: float = math.inf


class NoiseFinder(NamedTuple):
    """Noise that a linear model could fit.

    Attributes
    ----------
    layer : FirstLayer
        The only layer of the model.
    ridges : callable
        Returns the ridge regressions of the data, of which that with the lower objective counts: one, and one
        without outliers for a robust loss; means and variances are one. None where all of the data is to be
        learned.
    loss_of_scores : callable
        Returns the mean loss of raw predictions of all rows, an ndarray of shape [n_samples, n_outputs].
    has_l1 : bool
        Whether the penalty has an l1 part: many coefficients of its minimum are zero, as none of ridge are.
    tells_rare_classes : callable
        Tells whether the columns know classes of few rows from each other.
    """

    layer: FirstLayer
    ridges: Callable[[], Sequence[EvidenceRidge | NormalRidge | QuadratureRidge] | None]
    loss_of_scores: Callable[[np.ndarray], float]
    has_l1: bool = False
    tells_rare_classes: Callable[[], bool] = bool


@record
class StartFinder:
    """The choice of the first weights.

    Parameters
    ----------
    layer : OutputLayer
        The last layer, if known.
    intercepts : collection of str
        The intercepts of all layers.
    is_linear : bool
        Whether the last layer is also a first one.
    constant : ndarray of shape [n_outputs] or [1]
        The raw predictions of the best constant, zeros if unknown.
    target : ndarray of shape [n_samples, n_outputs] or None
        The target, if raw predictions have its units.
    sample_weight : ndarray of shape [n_samples]
        Weights of the samples.
    objective : callable
        Returns the objective of the weights of the state.
    raw_predictions : callable
        Returns the raw predictions of given weights, of shape [n_samples, n_outputs].
    for_standard_data : callable or None
        Returns the weights that treat data as given ones treat standardised data, if any layer has such.
    unit : float or None
        The difference of losses that counts as large; None: losses are positive, and their ratios count.
    most : float
        The largest share of the first rate to begin with.
    noise : NoiseFinder or None
        Finds noise that a linear model could fit.
    has_scale : bool
        Whether losses can be compared with that of a constant: not those in proportion to the scores.
    quantile : float or None
        The quantile of the target near which a constant has the least loss, whatever outliers there are;
        None: that is the mean.
    """

    layer: OutputLayer
    intercepts: Collection[str]
    is_linear: bool
    constant: np.ndarray
    target: np.ndarray | None
    sample_weight: np.ndarray
    objective: Callable[[], Objective]
    raw_predictions: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    for_standard_data: Callable[[Tensors], Tensors] | None = None
    unit: float | None = None
    most: float = 1.0
    noise: NoiseFinder | None = None
    has_scale: bool = True
    quantile: float | None = None

    def find(self, state: FitState) -> Start:
        """Put the best of the known first weights into `state`.

        A last layer of zeros starts at the best constant. Weights that are worse than the best constant are
        replaced: those of a linear model by the constant, or the same with predictions scaled and shifted to
        the target; those of a network by the same with predictions shifted, or by the same on standardised
        data, for which random weights are made.
        """
        given = state.tensors
        if self._is_constant(given):
            first = self._at_constant(state)
            has_meaning = self.has_scale and (first.loss > 0 or self.unit is not None)
            start = first.total if has_meaning else math.inf
            level, length = self._support(state, first) if has_meaning else _ALL
            # 0: that of the first window
            of_constant = self._unit(first) if self.has_scale else 0.0
            return Start(start, of_constant, self.most, False, level, length)
        first, constant = self._judge(state)
        best, tensors = first, given
        if constant is not None and not first.total <= constant.total:
            best, tensors = self._replace(state, given, first, constant)
        state.tensors = tensors
        unit = first if constant is None else constant
        return Start(best.total, self._unit(unit), min(self.most, self._share(best, constant)))

    def with_raw_predictions(self, tensors: Tensors, scale: np.ndarray, shift: np.ndarray) -> Tensors:
        """Return weights whose raw predictions, each by its own numbers, are multiplied and then shifted."""
        offset = 0.0 if self.layer.offset is None else np.array(self.layer.offset)
        return self._with_last_layer(tensors, scale, shift + (scale - 1.0) * offset)

    def _support(self, state: FitState, constant: Objective) -> tuple[float, float]:
        """Return the least objective that the data support, and the size of the coefficients there.

        It is the objective of the ridge regression of the greatest evidence. The probability of a class has a
        slope of its variance in the target, times a scale: that of the least loss where each row is predicted
        from all others, or 2. If that loss is less than half of a constant's, there is more signal than
        noise, which labels as numbers do not describe.
        """
        convert, noise = self.for_standard_data, self.noise
        if convert is None or noise is None or (ridges := noise.ridges()) is None:
            return _ALL
        ridges = [ridge for ridge in ridges if ridge.ratio]
        if not ridges:
            return math.inf, 0.0
        levels = [self._level(state, constant, ridge, noise, convert) for ridge in ridges]
        return min((level for level in levels if level != _ALL), default=_ALL)

    def _level(
        self,
        state: FitState,
        constant: Objective,
        ridge: EvidenceRidge | NormalRidge | QuadratureRidge,
        noise: NoiseFinder,
        convert: Callable[[Tensors], Tensors],
    ) -> tuple[float, float]:
        """Return the same of a ridge regression that has coefficients."""
        with one_thread(len(self.sample_weight), state.tensors[noise.layer.weight, WEIGHT].size):
            if self.target is not None or not isinstance(ridge, EvidenceRidge):
                # numbers: labels have no estimate
                units = scales = ridge.deviations
            else:
                scale = self._scale_of_scores(ridge, noise.loss_of_scores)
                if scale is None:
                    return _ALL
                units = np.ones(1)
                scales = scale / np.where(ridge.deviations > 0, ridge.deviations, 1.0)
            coefficients = ridge.coefficients() * scales
        tensors, key = state.tensors, (noise.layer.weight, WEIGHT)
        weight = coefficients.T if noise.layer.is_transposed else coefficients
        candidate = convert(tensors | {key: weight.astype(tensors[key].dtype, order="C")})
        quantile = self.quantile
        shift = -ridge.offsets(coefficients) if quantile is None else self._quantiles(candidate, quantile)
        found = self._evaluate(state, self._with_last_layer(candidate, 1.0, shift))
        state.tensors = tensors
        if not found.loss < constant.loss:
            # margins of a rare class gain nothing from small scores, which tell it all the same
            return _ALL
        most = _MOST_OF_GAIN if self.quantile is None and not noise.has_l1 else _LESS_OF_GAIN
        if found.penalty - constant.penalty > most * (constant.loss - found.loss):
            # training lowers the sum of both, and a large penalty prevents overfitting by itself
            return _ALL
        moved = coefficients[coefficients.any(axis=1)] / np.where(units > 0, units, 1.0)
        return found.total, math.sqrt(float(np.mean(moved * moved)))

    def _at_constant(self, state: FitState) -> Objective:
        """Put the best constant into `state`, the mean or a quantile; return its objective."""
        given = state.tensors
        mean = self._evaluate(state, self._with_constant(given))
        if self.quantile is None or self.target is None:
            return mean
        at_mean, shift = state.tensors, self._quantiles(state.tensors, self.quantile)
        found = self._evaluate(state, self._with_last_layer(at_mean, 1.0, shift))
        if found.total < mean.total:
            return found
        state.tensors = at_mean
        return mean

    def _quantiles(self, tensors: Tensors, quantile: float) -> np.ndarray:
        """Return the weighted quantile of the residuals of each output."""
        weights = {name: array for (name, kind), array in tensors.items() if kind == WEIGHT}
        raw = np.asarray(self.raw_predictions(weights), np.float64).reshape(len(self.sample_weight), -1)
        residual, loss = np.asarray(self.target, np.float64) - raw, Quantile(quantile)
        columns = np.split(residual, residual.shape[1], axis=1)
        return np.array([loss.score_offsets(column, self.sample_weight) for column in columns])

    def _scale_of_scores(
        self, ridge: EvidenceRidge, loss_of_scores: Callable[[np.ndarray], float]
    ) -> float | None:
        """Return the scale of slopes of scores with the least loss of rows left out.

        None: that is small, or several classes have few errors.
        """
        if ridge.tells_classes:
            return None
        slopes = ridge.from_others() / np.where(ridge.deviations > 0, ridge.deviations, 1.0)
        least, best = loss_of_scores(self.constant + np.zeros_like(slopes)), 0.0
        large = _SMALL_LOSS * least
        for scale in _SCALES:
            loss = loss_of_scores(self.constant + scale * slopes)
            if not loss < least:
                break
            least, best = loss, scale
        return None if least < large else max(best, _LEAST_SCALE)

    def find_in_part(
        self,
        state: FitState,
        surprise: Callable[[np.ndarray], np.ndarray] | None = None,
        *,
        is_sparse: bool = False,
    ) -> float:
        """Return the share of the rate for the first part of a stream, or of one that begins anew.

        Given weights of a linear model are kept in the first part, unless they are for columns, or a target,
        of another unit or level: predictions are then scaled and shifted, or shifted. Those of a network that
        are worse than the best constant, or of any model because the data changed, are replaced as in
        :meth:`find`. Parts of few rows do not tell good weights from bad ones: the share is small. So is that
        of a given linear model, which may be the best for its rows, unless it is much worse than the
        constant, or has other losses than a right model.

        Parameters
        ----------
        state : FitState
            The state before the part.
        surprise : callable or None
            Returns the loss of each sample, less the one that a right model has, from raw predictions; None:
            that is unknown.
        is_sparse : bool
            Whether the data are sparse, whose gradients agree little: a small rate would not grow.
        """
        if self._is_constant(state.tensors):
            self._at_constant(state)
            return 1.0
        n_rows, is_given_linear = len(self.sample_weight), self.is_linear and state.t == 0
        share_of_few = _OF_FEW_SPARSE if is_sparse and is_given_linear else LEAST_SHARE
        if n_rows < (_FEW_ROWS if is_given_linear else ENOUGH_ROWS):
            return share_of_few
        best, constant = self._judge(state)
        moved = self._moved(state, best, constant) if is_given_linear else None
        if moved is None and n_rows < ENOUGH_ROWS:
            return share_of_few
        best = best if moved is None else moved
        if state.t and constant is None:
            return LEAST_SHARE
        may_replace = not is_given_linear
        if constant is not None and may_replace and not best.total <= constant.total:
            best, state.tensors = self._replace(state, state.tensors, best, constant)
        # the square: the rate of a stream grows again where gradients agree
        share = self._share(best, constant) ** 2
        if state.t == 0 and self.is_linear and not is_sparse and constant is not None:
            share = min(share, self._share_of_given(state, best, constant, surprise))
        return max(LEAST_SHARE, share)

    def _moved(self, state: FitState, given: Objective, constant: Objective | None) -> Objective | None:
        """Put a given linear model for data of another unit or level right, and return its objective.

        Predictions of an output that vary far more than the target, and with it, are scaled and shifted to
        it; others are shifted, if their errors are mostly one number. Scores of labels, whose loss is far
        beyond that of zeros, are replaced as in :meth:`find`. None: nothing has changed.
        """
        n_rows, tensors = len(self.sample_weight), state.tensors
        if self.target is None:
            if constant is None or self.unit is not None:
                return None
            zeros = self._with_last_layer(tensors, 0.0, -np.array(self.layer.offset))
            unknown = self._evaluate(state, zeros)
            state.tensors = tensors
            if given.loss <= _FAR_OF_LABELS * unknown.loss:
                return None
            best, state.tensors = self._replace(state, tensors, given, constant)
            return best
        raw = np.asarray(self.raw_predictions(state.weights()), np.float64).reshape(n_rows, -1)
        if raw.shape != self.target.shape or not self._has_constant:
            return None
        share = self.sample_weight.astype(np.float64) / self.sample_weight.sum()
        with np.errstate(all="ignore"):
            means, of_target = share @ raw, share @ self.target
            centred, wanted = raw - means, self.target - of_target
            variance, product = share @ (centred * centred), share @ (centred * wanted)
            squares = share @ (self.target * self.target)
            correlation = product * product / (variance * (share @ (wanted * wanted)))
            is_wide = variance > _FAR_OF_VARIANCE * squares
            is_wide &= correlation > _CLEAR_CORRELATION / (_CLEAR_CORRELATION + n_rows)
            bias, of_errors = of_target - means, share @ (wanted - centred) ** 2
            is_biased = bias * bias > np.maximum(_FAR_OF_MEAN**2 * of_errors, _LEAST_OF_MEAN * squares)
            if not (is_wide | is_biased).any():
                return None
            scale = np.where(is_wide, product / variance, 1.0)
            shift = np.where(is_wide | is_biased, of_target - scale * means, 0.0)
            shift += (scale - 1.0) * np.array(self.layer.offset)
        if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
            return None
        state.tensors = self._with_last_layer(tensors, scale, shift)
        return self._evaluate(state, state.tensors)

    def _share_of_given(
        self,
        state: FitState,
        given: Objective,
        constant: Objective,
        surprise: Callable[[np.ndarray], np.ndarray] | None,
    ) -> float:
        """Return the largest share of the rate for a given model."""
        if self._ratio(given, constant) ** 2 > _MUCH_WORSE:
            return 1.0
        known = 0.0 if surprise is None else self._surprising(state, given, constant, surprise)
        return max(_OF_GIVEN, known)

    def _surprising(
        self,
        state: FitState,
        given: Objective,
        constant: Objective,
        surprise: Callable[[np.ndarray], np.ndarray],
    ) -> float:
        """Return the mean surprise beyond its errors, as a share of the expected gain over a constant."""
        weight = self.sample_weight.astype(np.float64)
        weight /= weight.sum()
        with np.errstate(all="ignore"):
            of_rows = surprise(self.raw_predictions(state.weights()).reshape(len(weight), -1))
            mean = float(weight.dot(of_rows))
            error = math.sqrt(float((weight * weight).dot((of_rows - mean) ** 2)))
        gain = constant.loss - given.loss + mean
        beyond = abs(mean) - _ERRORS_OF_SURPRISE * error
        return beyond / gain if gain > 0 else 1.0

    def share_after_fit(self, state: FitState, losses: Callable[[np.ndarray], np.ndarray]) -> float:
        """Return the share of the rate for the first part of a stream after a fit, whose weights are kept.

        It is the gain that the part leaves to make, its loss beyond the objective at the end of the fit, as a
        share of the gain over a constant. A few rows, which may be extreme, are left out. Where a constant is
        no worse than the end of the fit, the part has few of its targets, and tells nothing; nor does a loss
        without a least value, of which a fit of few rows has far less than new ones.

        Parameters
        ----------
        state : FitState
            The state after the fit.
        losses : callable
            Returns the loss of each sample of the part from its raw predictions.
        """
        weight = self.sample_weight
        if len(weight) < ENOUGH_ROWS or not state.loss_curve or self.unit is not None:
            return LEAST_SHARE
        given, constant = self._judge(state)
        known = state.loss_curve[-1]
        if constant is None or not constant.total > known:
            return LEAST_SHARE
        of_rows = losses(self.raw_predictions(state.weights()).reshape(len(weight), -1))
        kept = np.argsort(of_rows)[: -max(1, len(weight) // _LEFT_OUT)]
        loss, weight = of_rows[kept], weight[kept].astype(np.float64)
        total = float(weight.sum())
        if not total > 0:
            return LEAST_SHARE
        mean = float((weight * loss).sum()) / total + given.penalty
        excess = _excess(mean, known, total * total / float((weight * weight).sum()))
        share = excess / (constant.total - known)
        return min(1.0, share) if share > LEAST_SHARE else LEAST_SHARE

    def _unit(self, weights: Objective) -> float:
        """Return the loss that gains are compared with, given that of weights that know nothing."""
        is_known = self.unit is not None and math.isfinite(weights.loss)
        return self.unit if is_known else weights.loss  # type: ignore[return-value]

    def _share(self, weights: Objective, constant: Objective | None) -> float:
        """Return the share of the first rate for weights: the root of their loss in units of the constant's.

        Half a logarithm of squared errors, as the loss of a normal distribution, is a ratio in an exponent.
        """
        if constant is None:
            return 1.0
        return min(1.0, max(LEAST_SHARE, self._ratio(weights, constant)))

    def _ratio(self, weights: Objective, constant: Objective) -> float:
        """Return the root of the loss of weights in units of a constant's."""
        if self.unit is None:
            return math.sqrt(weights.loss / constant.loss)
        return math.exp(min(1.0, (weights.loss - constant.loss) / (2.0 * self.unit)))

    def _judge(self, state: FitState) -> tuple[Objective, Objective | None]:
        """Return the objectives of given weights and of the best constant.

        The latter is None if it is unknown, or has no scale: if the target is constant, or the loss is that
        of a perceptron.
        """
        given = state.tensors
        first = self._evaluate(state, given)
        if not (self._has_constant and self.has_scale):
            return first, None
        constant = self._evaluate(state, self._with_constant(given))
        state.tensors = given
        has_scale = math.isfinite(constant.loss) and (constant.loss > 0 or self.unit is not None)
        return first, constant if has_scale else None

    def _is_constant(self, tensors: Tensors) -> bool:
        return self._has_constant and not any(tensors[part.name, WEIGHT].any() for part in self._coefficients)

    @property
    def _has_constant(self) -> bool:
        """True if predictions are constant where the coefficients of the last layer are zero."""
        return bool(self._coefficients) and self.layer.offset is not None

    @property
    def _coefficients(self) -> list[OutputWeight]:
        return [part for part in self.layer.weights if part.name not in self.intercepts]

    def _evaluate(self, state: FitState, tensors: Tensors) -> Objective:
        state.tensors = tensors
        return self.objective()

    def _with_constant(self, tensors: Tensors) -> Tensors:
        """Return weights that predict the best constant."""
        return self._with_last_layer(tensors, 0.0, self.constant - np.array(self.layer.offset))

    def _replace(
        self, state: FitState, given: Tensors, first: Objective, constant: Objective
    ) -> tuple[Objective, Tensors]:
        """Return the best of given weights that are worse than the constant, and of others in their place.

        Layers before the last one determine the size of its input, and with it the effect of an update: a
        network keeps its coefficients, but for those of outputs that are much wider than the target.
        """
        if self.is_linear:
            pairs = [(first, given), (constant, self._with_constant(given)), self._scaled(state, given)]
            return min(pairs, key=_total)
        best = self._shifted(state, first, given)
        if self.for_standard_data is None:
            return best
        standard = self.for_standard_data(given)
        other = self._shifted(state, self._evaluate(state, standard), standard)
        is_clear = _total(best) < _total(other) - _CLEAR * abs(self._unit(constant))
        return best if is_clear or not other[0].total <= _total((first, given)) else other

    def _shifted(self, state: FitState, objective: Objective, tensors: Tensors) -> tuple[Objective, Tensors]:
        """Return the best of weights of a network, and of the same with predictions shifted to the target."""
        pairs = [(objective, tensors)]
        if self.target is not None:
            pairs.append(self._scaled(state, tensors))
        return min(pairs, key=_total)

    def _scaled(self, state: FitState, tensors: Tensors) -> tuple[Objective, Tensors]:
        """Return weights with predictions scaled and shifted to the target, and their objective."""
        scaled = self._with_last_layer(tensors, *self._fitted_scale(tensors))
        return self._evaluate(state, scaled), scaled

    def _fitted_scale(self, tensors: Tensors) -> tuple[float | np.ndarray, np.ndarray]:
        """Return a factor of the raw predictions, or one for each, and the intercepts that are added then.

        Least squares where there is a target in their units; otherwise predictions of unit root mean square.
        A network keeps its predictions, or gets those of the deviation of the target.
        """
        weights = {name: array for (name, kind), array in tensors.items() if kind == WEIGHT}
        raw = np.asarray(self.raw_predictions(weights), np.float64).reshape(len(self.sample_weight), -1)
        with np.errstate(all="ignore"):
            if self.target is None:
                return 1.0 / math.sqrt(np.mean(raw**2)), self.constant + np.zeros(raw.shape[1])
            mean, share = np.average(raw, axis=0, weights=self.sample_weight), self.sample_weight[:, None]
            centred = raw - self.layer.pooled(mean)
            scale: float | np.ndarray
            if self.is_linear:
                scale = float((share * centred * self.target).sum() / (share * centred**2).sum())
            else:
                scale = self._narrowed(centred)
            offset = np.array(self.layer.offset)
            return scale, self.constant - scale * mean + (scale - 1.0) * offset

    def _narrowed(self, centred: np.ndarray) -> np.ndarray:
        """Return the factor of each prediction of a network: 1 where it is not much wider than the target."""
        share, pooled = self.sample_weight[:, None] / self.sample_weight.sum(), self.layer.pooled
        target = self.target - pooled((share * self.target).sum(axis=0))
        squares = [pooled((share * table**2).sum(axis=0)) for table in (target, centred)]
        ratios = np.sqrt(squares[0] / squares[1])
        return np.where((ratios > 0) & (ratios < 1.0 / _LARGE), ratios, 1.0)

    def _with_last_layer(self, tensors: Tensors, scale: float | np.ndarray, shift: np.ndarray) -> Tensors:
        """Return weights whose last layer is scaled, and shifted by the intercept next to each output."""
        changed, missing = dict(tensors), np.array(shift)
        # numpy's broadcast_to takes ten times as long
        scales = np.zeros_like(missing) + scale
        for part in self.layer.weights:
            weight = part.scaled(tensors[part.name, WEIGHT].astype(np.float64), scales)
            if part.name in self.intercepts and weight.shape == part.shape:
                added = part.means(missing[part.outputs] / part.factors)
                weight += added.reshape(weight.shape)
                missing[part.outputs] -= added[part.channels] * part.factors
            changed[part.name, WEIGHT] = weight.astype(tensors[part.name, WEIGHT].dtype)
        return changed


def _total(pair: tuple[Objective, Tensors]) -> float:
    """Return the objective of a candidate; infinite unless it is a number."""
    return pair[0].total if math.isfinite(pair[0].total) else math.inf


def is_due(state: FitState, n_rows: int) -> bool:
    """Tell whether the calls of few rows since a fit are enough to judge the data, with so many rows each."""
    n_calls = len(state.loss_curve) - state.judged_from
    return state.judged_from > 0 and n_calls * n_rows >= ENOUGH_ROWS


def share_of_calls(state: FitState, n_rows: int) -> float:
    """Return the share of the rate after calls of so many rows each that followed a fit.

    It is the share of their mean loss, without the worst call, beyond the objective at the end of the fit. A
    constant's loss is not known of few rows.
    """
    known = state.loss_curve[state.judged_from - 1]
    losses = np.sort(state.loss_curve[state.judged_from :])[:-1]
    mean = float(losses.mean()) if len(losses) else 0.0
    if not mean > 0:
        return LEAST_SHARE
    return max(LEAST_SHARE, _excess(mean, known, n_rows * len(losses)) / mean)


def _excess(loss: float, known: float, n_rows: float) -> float:
    """Return the part of a mean loss beyond a known one and its standard errors, for normal residuals."""
    return loss - known - _ERRORS * known * math.sqrt(2.0 / n_rows)


def best_constant(
    loss: Loss,
    target: np.ndarray,
    sample_weight: np.ndarray,
    mean: np.ndarray | None = None,
    n_samples: int = 0,
    unit: np.ndarray | None = None,
) -> np.ndarray:
    """Return the raw predictions whose predictions are the mean of a target, or that describe its scatter.

    Of a classification, those of :meth:`Loss.scores_of_shares`.

    Parameters
    ----------
    loss : Loss
        The loss, with the link and the number of raw predictions of a target.
    target : ndarray of shape [n_samples, n_outputs]
        The target, encoded for the loss.
    sample_weight : ndarray of shape [n_samples]
        Weights of the samples.
    mean : ndarray of shape [n_outputs] or None
        The mean of the target, if these are some of the samples; None: it is that of these.
    n_samples : int
        The number of all samples then.
    unit : ndarray of shape [n_outputs] or None
        The deviations of the targets of a stream so far, the absolute value of a constant one, or 1 for 0.
        They stand for the scatter of equal targets: a variance of 0 would have infinite gradients. The
        variance of fewer than ten samples is larger than their own. None: no samples follow.

    Returns
    -------
    ndarray of shape [n_outputs]
        Of a target of zeros alone, the logarithm is that of half an event in all samples.
    """
    if mean is None:
        mean, n_samples = _mean(target, sample_weight), len(target)
    if loss.targets in ("sign", "indicator"):
        return loss.scores_of_shares(mean, 0.5 / n_samples)
    if loss.link == "log":
        return np.log(np.where(mean > 0, mean, 0.5 / n_samples))
    if len(loss.score_factors) == 1:
        return mean
    n_targets, rows = len(mean) // len(loss.score_factors), some_rows([target])
    target, sample_weight = target[rows], sample_weight[rows]
    residual = target[:, :n_targets].astype(np.float64) - mean[:n_targets]
    if unit is not None and loss.link == "normal":
        # the largest residual of others is their deviation at least
        has_scatter = np.abs(residual).max(axis=0) > 0.5 * unit[:n_targets]
        residual = np.where(has_scatter, factor_of_few(len(residual)) * residual, unit[:n_targets])
    return np.repeat(loss.score_factors, n_targets) * mean + loss.score_offsets(residual, sample_weight)


def _mean(target: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
    """Return the weighted mean of each column."""
    if not are_many(target):
        share, table = sample_weight[:, None], as_array(target)
        # numpy's function takes longer than the rest of the start of a small fit
        with np.errstate(over="ignore", invalid="ignore"):
            mean: np.ndarray = (table * share).sum(axis=0) / share.sum(axis=0)
        if not np.isfinite(mean).all():
            # products of large weights and targets
            share = share / share.max()
            mean = (table * share).sum(axis=0) / share.sum(axis=0)
        return mean
    sums, total = np.zeros(target.shape[1]), 0.0
    for rows in row_blocks(len(target)):
        weight = np.ascontiguousarray(sample_weight[rows], np.float64)
        sums += weight @ target[rows].astype(np.float64)
        total += float(weight.sum())
    return sums / total
