"""Coefficients of a linear model as large as the data support, by the evidence for ridge regressions.

``benchmarks/support.py``, fits that end there and that learn all: 72 noisy targets have R2 0.274 and -0.485,
8 of 600 and 1,000 columns 0.134 and -0.754, 48 of sparse data 0.424 and 0.339; 90 noisy sets of classes have
an accuracy of 0.803 and 0.787, a log loss of 0.47 and 0.93.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, lsqr

from onnxsgd._cached_property import cached_property
from onnxsgd.data.extremes import USUAL, clipped
from onnxsgd.data.one_thread import one_thread
from onnxsgd.data.quadrature import measure
from onnxsgd.data.row_tables import Table
from onnxsgd.data.standard_rows import exact_rows, standard_rows

__all__ = [
    "EvidenceRidge", "NormalRidge", "QuadratureRidge", "noisy_ridge", "noisy_ridges", "normal_ridges",
    "tells_rare_classes",
]  # fmt: skip

#: The least number of columns, as a share of the rows, that can fit noise enough: of a target of noise alone,
#: least squares with 0.09 explain 9 percent.
_LEAST_COLUMNS = 0.09
#: The same of sparse data, where codes of many levels are usual.
_LEAST_COLUMNS_OF_SPARSE = 0.03
#: The same for the variances of targets beside their means.
_LEAST_COLUMNS_OF_VARIANCES = 0.03
#: The least square of a residual, as a share of the mean one, whose logarithm counts.
_LEAST_SQUARE = 1e-4
#: The fewest rows that tell signal from noise, of labels and of numbers. 120 sets of 8 to 16 rows have R2
#: -0.95, and -1.62 where all is learned (solvers -0.91). Of 10 kinds of 6 to 15 rows in two classes the
#: accuracy is lower with fewer rows: 0.66 in place of 0.70.
_LEAST_ROWS_OF_LABELS, _LEAST_ROWS = 16, 6
#: The most rows or columns, whichever are fewer: a matrix of so many has its eigenvalues in some 40 ms.
_MOST = 512
#: The ratios of the variances of coefficients and of noise that are compared by evidence.
_RATIOS = np.geomspace(1e-2, 1e9, 89)
#: The factors of the ratio of the greatest evidence whose predictions of rows left out are compared with it.
_LARGER = 10.0 ** np.arange(1, 9)
#: The difference of errors that is clear, in units of one over the root of the number of rows. 337 sets of 40
#: and 100 rows in 2 to 8 classes have an accuracy of 0.705, 0.702, 0.701 with 0.5, 1 and 1.5, and 0.702 where
#: all is learned. 91 sets that are mostly noise have 0.803, 0.803, 0.804, a log loss of 0.55, 0.50, 0.49, and
#: 0.789 and 0.95 where all is learned; 0.805 and 0.43 without this comparison.
_CLEAR = 1.0
#: The errors of classes, as a share of those of the most frequent one, that are few.
_FEW_ERRORS = 0.5
#: The fewest classes that are many, and the rows of a class, on average, below which it is rare.
_MANY_CLASSES, _RARE = 10, 10
#: The ratio that tells rare classes, and the most rows times classes: 16 MB.
_OF_RARE, _MOST_OF_RARE = 3.0, 1 << 21
#: The share of its trace below which an eigenvalue is rounding.
_ROUNDING = 1e-10
#: The rows or columns of sparse data with labels, whichever are fewer, up to which the evidence is sought:
#: some 3 ms. The most rows times columns then: data with columns of large means are made dense, 32 MB.
_FEW_OF_SPARSE, _MOST_OF_SPARSE = 200, 1 << 22
#: The rows of sparse data up to which the evidence is exact, of numbers too. 25 sets of 20 rows have R2 0.12
#: with it and -0.25 with an estimate, of 40 rows 0.18 and 0.14; of 80 rows they are equal.
_FEW_ROWS = 100
#: The most entries of other data, times the targets: a bound of time, and of 64 MB of dense data.
_MOST_ENTRIES = 1 << 24
#: The most targets there: each has products of its own.
_MOST_TARGETS = 16
#: Of other data the vectors of random signs, of fewer rows than the next number and of more, and the products
#: of each vector with the data.
_SIGNS, _MANY_ROWS, _STEPS = (2, 1), 1000, 30
#: The largest ratio whose error so many products resolve.
_RESOLVED = 1e3
#: The most steps of a regression there, and its tolerances.
_MOST_STEPS, _TOL = 100, 1e-3
#: The deviations at which a first regression has targets, and later ones residuals. Huber losses on 48 sets
#: with 5 to 20 percent of errors of 10 deviations: R2 0.63 with the range of targets alone, 0.78 with these.
_NEAR, _OF_RESIDUALS = 1.0, (2.0, 2.0, 2.0, 2.0, 3.0)
#: The least share of itself in its prediction that a row leaves to the others.
_LEAST_SHARE = 1e-13


class _Bounds(NamedTuple):
    """The residuals of ridge that are noise which least squares would fit.

    Attributes
    ----------
    ratio : float
        Those of least squares times this at least.
    share : float
        As a share of the variance, more than this.
    """

    ratio: float
    share: float


#: The bounds for squared losses, and for losses of the sizes of residuals, which noise overfits more: 36
#: noisy sets have R2 0.472 of the signal with a huber loss, 0.451 with the bounds for squared losses.
_OF_SQUARES, _OF_SIZES = _Bounds(1.1, 0.01), _Bounds(1.03, 0.01)
#: The same beside outliers: all others may be signal, and training would fit the outliers. 4 sets of 300 rows
#: of 1,000 columns, some of whose outliers are the only noise, have R2 0.14, and -0.49 where all is learned.
_OF_OTHERS = _OF_SIZES._replace(share=0.0)
#: Those for which any residuals are noise.
_NO_BOUNDS = _Bounds(0.0, 0.0)


class _Ridge:
    """The standardised targets of a ridge regression; see :class:`EvidenceRidge`."""

    def __init__(self, target: Table, sample_weight: np.ndarray, bounds: _Bounds) -> None:
        self._bounds = bounds
        #: The means of the standardised columns, where the standardisation does not centre them.
        self._means: np.ndarray | None = None
        share = np.ascontiguousarray(sample_weight, np.float64)
        self._share = share = share / np.add.reduce(share)
        self._root = np.sqrt(share)[:, None]
        self._set_target(target)
        #: The geometric mean of the rows with a weight and of those that equal weights would have, less one
        #: for the mean. 48 targets of 150 to 400 rows with squares of exponential weights have R2 0.188;
        #: -0.083 with the former, 0.164 with the latter, and their signs an accuracy of 0.603, 0.616, 0.583.
        self._n_rows = max(1.0, math.sqrt(np.count_nonzero(share) / share.dot(share)) - 1.0)

    def _set_target(self, target: Table) -> None:
        wanted = np.asarray(target[:], np.float64)
        # of a constant, rounding of the mean would be left
        varies = wanted.max(axis=0) > wanted.min(axis=0)
        self.mean = np.where(varies, self._share.dot(wanted), wanted[0])
        wanted = (wanted - self.mean) * self._root
        self.deviations: np.ndarray = np.sqrt(np.add.reduce(wanted * wanted))
        wanted /= np.where(self.deviations > 0, self.deviations, 1.0)
        self._wanted = wanted

    @property
    def _n_targets(self) -> int:
        return int(np.count_nonzero(self.deviations))

    def offsets(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the mean predictions, without the mean of the target, by coefficients of the columns."""
        means = self._means
        offsets = np.zeros(coefficients.shape[1]) if means is None else means.dot(coefficients)
        return np.asarray(offsets, np.float64)

    def _greatest(
        self, residuals: np.ndarray, remains: np.ndarray, logarithms: np.ndarray, unexplained: float
    ) -> float | None:
        """Return the ratio of the greatest evidence; see :attr:`EvidenceRidge.ratio`.

        Parameters
        ----------
        residuals, remains : ndarray
            Sums over the targets for each ratio: :math:`y^T (I + g Z Z^T)^{-1} y`, and squares of residuals.
        logarithms : ndarray
            Those of the determinants.
        unexplained : float
            The squares that least squares leave.
        """
        logs = self._n_rows * np.log(residuals) + logarithms
        best = int(logs.argmin())
        least = max(self._bounds.ratio * unexplained, self._bounds.share * self._n_targets)
        if not np.isfinite(logs).all() or remains[best] <= least:
            return None
        return float(_RATIOS[best]) if logs[best] < self._n_rows * np.log(self._n_targets) else 0.0


class EvidenceRidge(_Ridge):
    r"""The ridge regression of standardised columns whose penalty has the greatest evidence.

    Coefficients w and noise have normal distributions, whose variances have one ratio g for all targets::

        y ~ N(0, s (I + g Z Z^T)),   s = y^T (I + g Z Z^T)^-1 y / n
        evidence(g) = -n log s - log det(I + g Z Z^T),   w = (Z^T Z + I / g)^-1 Z^T y

    where columns and targets have root weighted sums of squares of 1.

    Parameters
    ----------
    table : csr_array or ndarray of shape [n_rows, n_features]
        The data.
    target : ndarray of shape [n_rows, n_outputs]
        The target, encoded for the loss.
    sample_weight : ndarray of shape [n_rows]
        Weights of the rows.
    shift, factor : ndarray of shape [n_features]
        The standardisation of the columns. Columns with a factor of 0 are left out.
    are_labels : bool
        Whether the targets are classes.
    bounds : _Bounds
        The residuals that are noise.

    Attributes
    ----------
    deviations : ndarray of shape [n_outputs]
        The deviation of each target.

    References
    ----------
    D. J. C. MacKay, "Bayesian Interpolation", Neural Computation 4, 1992, has the evidence. D. M. Allen, "The
    Relationship between Variable Selection and Data Augmentation and a Method for Prediction", Technometrics
    16, 1974, has predictions of rows from the others.
    """

    def __init__(
        self,
        table: Any,
        target: Table,
        sample_weight: np.ndarray,
        shift: np.ndarray,
        factor: np.ndarray,
        *,
        are_labels: bool,
        bounds: _Bounds = _OF_SQUARES,
    ) -> None:
        super().__init__(target, sample_weight, bounds)
        self._are_labels = are_labels
        self._rows = exact_rows(table, shift, factor, self._share)
        self._means = self._rows.means
        if are_labels:
            codes = target[:]
            #: The half of the way between the codes of two classes, as a distance from the mean.
            self._middle = (float(codes.max()) + float(codes.min())) / 2.0 - self.mean

    def of(self, target: np.ndarray, bounds: _Bounds) -> EvidenceRidge:
        """Return the regression of other numbers on the same columns."""
        other = copy.copy(self)
        for name in ("_parts", "ratio"):
            vars(other).pop(name, None)
        other._bounds = bounds
        other._set_target(target)
        return other

    @cached_property
    def _factors(self) -> tuple[np.ndarray, np.ndarray]:
        """The squares of the singular values of the data, and their left vectors."""
        values, vectors = np.linalg.eigh(self._rows.products)
        known = values > _ROUNDING * np.add.reduce(values)
        values, vectors = values[known], vectors[:, known]
        return values, self._rows.left_vectors(values, vectors)

    @cached_property
    def _parts(self) -> np.ndarray:
        """The parts of the targets along the left singular vectors."""
        parts: np.ndarray = self._factors[1].T.dot(self._wanted)
        return parts

    @property
    def is_finite(self) -> bool:
        """True if the targets, and the products of the data, are finite."""
        return bool(np.isfinite(self._wanted).all() and np.isfinite(self._rows.products).all())

    @cached_property
    def ratio(self) -> float | None:
        """The ratio g of the greatest evidence, 0 for none at all; None where all of the data can be learned.

        That is where the residual exceeds that of least squares by less than 10 percent, or is less than 1
        percent of the variance, by the bounds for squared losses, and where numbers are not finite.
        """
        n_targets = self._n_targets
        if not (n_targets and self.is_finite):
            return None
        values, explained = self._factors[0], np.add.reduce(self._parts * self._parts, axis=1)
        unexplained = max(0.0, n_targets - float(np.add.reduce(explained)))
        shrinkage = 1.0 / (1.0 + _RATIOS[:, None] * values)
        residuals = shrinkage.dot(explained) + unexplained
        remains = (shrinkage**2).dot(explained) + unexplained
        return self._greatest(residuals, remains, -np.add.reduce(np.log(shrinkage), axis=1), unexplained)

    def coefficients(self) -> np.ndarray:
        """Return the coefficients of standardised columns, for standardised targets."""
        values, vectors = self._factors
        ratio = self.ratio or 0.0
        shrunk = (ratio / (1.0 + ratio * values))[:, None] * self._parts
        return self._rows.transposed_times(vectors.dot(shrunk))

    def from_others(self, ratio: float | None = None) -> np.ndarray:
        """Return the prediction of each row by the regression on all others, for standardised targets.

        The mean is 0. Rows without weight have the prediction by all. The ratio is that of the greatest
        evidence, unless another one is given.
        """
        values, vectors = self._factors
        ratio = (self.ratio or 0.0) if ratio is None else ratio
        kept = ratio * values / (1.0 + ratio * values)
        predicted = (vectors * kept).dot(self._parts)
        own = (vectors * vectors).dot(kept) + self._share
        residual = (self._wanted - predicted) / np.maximum(1.0 - own, _LEAST_SHARE)[:, None]
        left_out: np.ndarray = (self._wanted - residual) / np.where(self._root > 0, self._root, 1.0)
        return left_out

    def residuals_of_others(self) -> np.ndarray:
        """Return the residual of each row of the regression on all others, in units of the targets."""
        root = np.where(self._root > 0, self._root, 1.0)
        residuals: np.ndarray = (self._wanted / root - self.from_others()) * self.deviations
        return residuals

    def average(self, numbers: np.ndarray) -> np.ndarray:
        """Return the weighted mean of the rows."""
        mean: np.ndarray = self._share.dot(numbers)
        return mean

    @property
    def tells_classes(self) -> bool:
        """True if it predicts several classes of rows from the others with half of a constant's errors.

        Labels as numbers have a small evidence there: a class between others is hidden by them. 216 sets of
        60 to 600 rows in 3 and 6 classes, a third of them of strongly correlated columns, have an accuracy of
        0.477 (log_loss) and 0.469 (hinge) where all is learned then, 0.473 and 0.462 without this exception.
        """
        return self.tells_classes_by(self.ratio or 0.0)

    def tells_classes_by(self, ratio: float) -> bool:
        """Tell the same of the regression of a ratio."""
        return self._wanted.shape[1] > 1 and self._error(ratio) < _FEW_ERRORS * self._error(0.0)

    @property
    def is_borne_out(self) -> bool:
        """True if no larger ratio predicts rows from the others clearly better.

        Evidence takes what depends on directions of small variance for noise.
        """
        least = max(self.ratio or 0.0, float(_RATIOS[0]))
        larger = [self._error(ratio) for ratio in least * _LARGER if ratio <= _RATIOS[-1]]
        most = min(larger, default=math.inf) + _CLEAR / math.sqrt(self._n_rows)
        return self._error(self.ratio or 0.0) <= most

    def _error(self, ratio: float) -> float:
        """Return the error of rows predicted from the others: squares, or the share of wrong classes."""
        wanted = self._wanted / np.where(self._root > 0, self._root, 1.0)
        if not self._are_labels:
            squares = (self.from_others(ratio) - wanted) ** 2
            return float(self._share.dot(squares).sum()) / self._n_targets
        # without a row, its class may not be the most frequent one: all rows tell that
        predicted = self.from_others(ratio) if ratio else np.zeros_like(wanted)
        predicted, wanted = predicted * self.deviations, wanted * self.deviations
        if wanted.shape[1] == 1:
            wrong = (predicted[:, 0] > self._middle[0]) != (wanted[:, 0] > self._middle[0])
        else:
            wrong = (predicted - self._middle).argmax(axis=1) != (wanted - self._middle).argmax(axis=1)
        return float(self._share.dot(wrong))


class QuadratureRidge(_Ridge):
    """The same regression on sparse data, or on many numbers, with an estimate of the evidence.

    The forms of targets, and those of vectors of random signs in place of traces, are those of Lanczos
    quadrature.

    Parameters
    ----------
    table : csr_array or ndarray of shape [n_rows, n_features]
        The data.
    target, sample_weight, shift, factor, bounds : ndarray, _Bounds
        As those of :class:`EvidenceRidge`.

    Attributes
    ----------
    deviations : ndarray of shape [n_outputs]
        The deviation of each target.

    References
    ----------
    G. H. Golub, M. Heath, G. Wahba, "Generalized Cross-Validation as a Method for Choosing a Good Ridge
    Parameter", Technometrics 21, 1979.
    """

    def __init__(
        self,
        table: Any,
        target: Table,
        sample_weight: np.ndarray,
        shift: np.ndarray,
        factor: np.ndarray,
        *,
        bounds: _Bounds = _OF_SQUARES,
    ) -> None:
        super().__init__(target, sample_weight, bounds)
        self._rows = standard_rows(table, shift, factor, self._root[:, 0])
        self._means = self._rows.means

    def _measures(self, starts: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the nodes and the weights of some starts together."""
        rows = self._rows
        found = [measure(lambda row: rows.times(rows.transposed_times(row)), v, _STEPS) for v in starts]
        nodes, weights = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return nodes, weights

    @cached_property
    def _signs(self) -> np.ndarray:
        """Vectors of random signs, whose forms stand for traces."""
        n_signs = _SIGNS[len(self._wanted) >= _MANY_ROWS]
        signs: np.ndarray = np.random.RandomState(0).choice([-1.0, 1.0], (n_signs, len(self._wanted)))
        return signs

    def _of_signs(self, scale: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the measure of signs, times a scale, without the mean, which the intercept takes."""
        root, starts = self._root[:, 0], self._signs * scale
        starts -= root * starts.dot(root)[:, None]
        nodes, weights = self._measures(starts)
        return nodes, weights / len(starts)

    @cached_property
    def _of_targets(self) -> tuple[np.ndarray, np.ndarray]:
        return self._measures(self._wanted.T[self.deviations > 0])

    @cached_property
    def _of_trace(self) -> tuple[np.ndarray, np.ndarray]:
        return self._of_signs(1.0)

    @cached_property
    def _of_weighted_trace(self) -> tuple[np.ndarray, np.ndarray]:
        """The same of the diagonal by the shares of the rows, which equal weights do not change."""
        root = self._root[:, 0]
        if (root == root[0]).all():
            return self._of_trace
        return self._of_signs(root)

    @cached_property
    def ratio(self) -> float | None:
        """An estimate of that of :class:`EvidenceRidge`."""
        if not (self._n_targets and np.isfinite(self._wanted).all()):
            return None
        (nodes, weights), (of_trace, shares) = self._of_targets, self._of_trace
        shrinkage = 1.0 / (1.0 + _RATIOS[:, None] * nodes)
        logarithms = (len(self._wanted) - 1) * np.log1p(_RATIOS[:, None] * of_trace).dot(shares)
        return self._greatest(shrinkage.dot(weights), (shrinkage**2).dot(weights), logarithms, 0.0)

    def coefficients(self) -> np.ndarray:
        """Return the coefficients of standardised columns, for standardised targets."""
        rows = self._rows
        found = np.zeros((rows.n_columns, self._wanted.shape[1]))
        if not self.ratio:
            return found
        table = LinearOperator(
            (len(self._wanted), rows.n_columns), rows.times, rmatvec=rows.transposed_times, dtype=np.float64
        )
        for number in np.flatnonzero(self.deviations):
            wanted, damp = self._wanted[:, number], self.ratio**-0.5
            found[:, number] = lsqr(table, wanted, damp, _TOL, _TOL, iter_lim=_MOST_STEPS)[0]
        return found

    @property
    def is_borne_out(self) -> bool:
        r"""True if no larger ratio that the steps resolve has a clearly lower error of cross-validation.

        That is the generalised one, :math:`n^2 |r|^2 / (\mathrm{tr}\,S)^2` of residuals :math:`r = S y`,
        where :math:`S = (I + g Z Z^T)^{-1}` on numbers of mean zero, n less one; with weights, rows have
        their shares in the mean of its diagonal.
        """
        ratio = self.ratio or 0.0
        larger = _RATIOS[(ratio < _RATIOS) & (_RATIOS <= _RESOLVED)]
        errors = self._error(np.array([ratio, *larger]))
        return bool(errors[0] <= errors.min() + _CLEAR / math.sqrt(self._n_rows))

    def _error(self, ratios: np.ndarray) -> np.ndarray:
        """Return the error of cross-validation of ratios, as a share of the variance of the targets."""
        (nodes, weights), (of_trace, shares) = self._of_targets, self._of_weighted_trace
        remains = (1.0 / (1.0 + ratios[:, None] * nodes) ** 2).dot(weights) / self._n_targets
        errors: np.ndarray = remains / (1.0 / (1.0 + ratios[:, None] * of_trace)).dot(shares) ** 2
        return errors


class NormalRidge:
    """Ridge regressions of targets, and of the logarithms of the variances of rows left out.

    The logarithm of a squared residual has the variance's for its mean, up to a constant. Rows predicted from
    all others have residuals as large as those of new rows, unless rows are repeated.

    A second regression of the targets has weights in inverse proportion to the variances of the first, of
    several targets to their geometric mean: its residuals are not those of the rows of large variance.

    Parameters
    ----------
    means : EvidenceRidge
        The regression of the targets.
    weighted : callable
        Returns the same with weights of rows that are multiplied by factors of shape [n_rows].

    Attributes
    ----------
    deviations : ndarray of shape [2 n_targets]
        The deviation of each target, and ones for the logarithms.

    References
    ----------
    A. C. Harvey, "Estimating Regression Models with Multiplicative Heteroscedasticity", Econometrica 44,
    1976.
    """

    def __init__(self, means: EvidenceRidge, weighted: Callable[[np.ndarray], EvidenceRidge]) -> None:
        constant_mean, of_constant = means.mean, 2.0 * np.log(means.deviations)
        logarithms, slopes, level = _of_variances(means, means)
        if logarithms.ratio:
            plain, means = means, weighted(np.exp(-slopes.mean(axis=1)))
            logarithms, slopes, level = _of_variances(plain, means)
        self._means, self._logarithms = means, logarithms
        #: The mean predictions, less those of the best constant.
        self._shifts = means.mean - constant_mean, level - of_constant
        self.deviations = np.concatenate([means.deviations, np.ones_like(means.deviations)])

    @property
    def ratio(self) -> float:
        """The larger one of both regressions; 0 for no coefficients at all."""
        return max(self._means.ratio or 0.0, self._logarithms.ratio or 0.0)

    def coefficients(self) -> np.ndarray:
        """Return the coefficients of standardised columns, for standardised targets and for logarithms."""
        of_logarithms = self._logarithms.coefficients() * self._logarithms.deviations
        return np.concatenate([self._means.coefficients(), of_logarithms], axis=1)

    def offsets(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the mean predictions by coefficients of the columns, without those of the best constant."""
        parts = np.split(coefficients, 2, axis=1)
        ridges = self._means, self._logarithms
        offsets = [ridge.offsets(part) for ridge, part in zip(ridges, parts, strict=True)]
        return np.concatenate(offsets) - np.concatenate(self._shifts)


def _of_variances(plain: EvidenceRidge, means: EvidenceRidge) -> tuple[EvidenceRidge, np.ndarray, np.ndarray]:
    """Return the regression of the logarithms of squared residuals, its slopes, and the mean logarithms.

    The slopes are predictions of each row from the others; with the means the residuals have variances of 1.
    """
    squares = means.residuals_of_others() ** 2
    # a residual of zero has no logarithm
    squares = np.maximum(squares, _LEAST_SQUARE * plain.average(squares) + np.finfo(np.float64).tiny)
    logs = np.log(squares)
    logarithms = plain.of(logs, _NO_BOUNDS)
    slopes = np.zeros_like(squares)
    if logarithms.ratio:
        # without coefficients the mean of the other rows would differ from row to row
        slopes = logarithms.deviations * logarithms.from_others()
        # a row with a column of its own has any prediction from the others
        slopes = np.clip(slopes, logs.min(axis=0) - logarithms.mean, logs.max(axis=0) - logarithms.mean)
    return logarithms, slopes, np.log(plain.average(squares * np.exp(-slopes)))


def normal_ridges(
    table: Any, target: Table, sample_weight: np.ndarray, shift: np.ndarray, factor: np.ndarray
) -> list[NormalRidge] | None:
    """Return the regressions of targets and of the logarithms of their variances.

    Parameters
    ----------
    table, target, sample_weight, shift, factor : ndarray
        As those of :class:`EvidenceRidge`.

    Returns
    -------
    list of NormalRidge, or None
        None for sparse data, with fewer than 6 rows or than 0.03 columns a row, with more than 512 rows and
        columns, and where rows left out do not bear the evidence out.
    """
    n_rows, n_columns = len(sample_weight), int(np.count_nonzero(factor))
    if sparse.issparse(table) or n_rows < _LEAST_ROWS or min(n_rows, len(factor)) > _MOST:
        return None
    if n_columns < _LEAST_COLUMNS_OF_VARIANCES * n_rows:
        return None

    def weighted(factors: np.ndarray | float) -> EvidenceRidge:
        weight = sample_weight * factors
        return EvidenceRidge(table, target, weight, shift, factor, are_labels=False, bounds=_NO_BOUNDS)

    with np.errstate(all="ignore"), one_thread(n_rows, len(factor)):
        means = weighted(1.0)
        return None if means.ratio is None or not means.is_borne_out else [NormalRidge(means, weighted)]


def tells_rare_classes(
    table: Any, target: np.ndarray, sample_weight: np.ndarray, shift: np.ndarray, factor: np.ndarray
) -> bool:
    """Tell whether classes of few rows are known from each other by the columns.

    A ridge regression that shrinks the effect of a column alone by a quarter predicts rows from all others
    with less than half of a constant's errors.

    Parameters
    ----------
    table, target, sample_weight, shift, factor : ndarray
        As those of :class:`EvidenceRidge`.

    Returns
    -------
    bool
        False for sparse data, with fewer than 10 classes or at least 10 rows a class, with more than 512 rows
        and columns, and with more than 2^21 rows times classes.
    """
    n_rows, n_targets = target.shape
    if n_targets < _MANY_CLASSES or n_rows >= _RARE * n_targets or n_rows * n_targets > _MOST_OF_RARE:
        return False
    if sparse.issparse(table) or min(n_rows, len(factor)) > _MOST:
        return False
    with np.errstate(all="ignore"), one_thread(n_rows, len(factor)):
        ridge = EvidenceRidge(table, target, sample_weight, shift, factor, are_labels=True)
        return ridge.is_finite and ridge.tells_classes_by(_OF_RARE)


def noisy_ridges(
    table: Any,
    target: Table,
    sample_weight: np.ndarray,
    shift: np.ndarray,
    factor: np.ndarray,
    *,
    are_labels: bool,
    is_robust: bool = False,
) -> list[EvidenceRidge | QuadratureRidge] | None:
    """Return the ridge regressions of data whose least squares fit noise.

    Parameters
    ----------
    table, target, sample_weight, shift, factor, are_labels : csr_matrix, ndarray, bool
        As those of :class:`EvidenceRidge`.
    is_robust : bool
        Whether the loss is one of the sizes of residuals: a second regression then has targets without
        outliers, and may lack the effects of rare columns. Where it is exact these are outliers of residuals,
        else of the targets, which are put at the end of the usual range.

    Returns
    -------
    list of EvidenceRidge and QuadratureRidge, or None
        None where one of them is; see :func:`noisy_ridge`.
    """
    given = table, target, sample_weight, shift, factor
    first = noisy_ridge(*given, are_labels=are_labels, bounds=_OF_SIZES if is_robust else _OF_SQUARES)
    if first is None:
        return None
    if not is_robust or ((usual := clipped(target[:], USUAL)) == target[:]).all():
        return [first]
    second: EvidenceRidge | QuadratureRidge | None
    if isinstance(first, EvidenceRidge):
        second = _with_usual_residuals(first, target[:])
    else:
        second = noisy_ridge(table, usual, *given[2:], are_labels=are_labels, bounds=_OF_OTHERS)
    return None if second is None else [first, second]


def noisy_ridge(
    table: Any,
    target: Table,
    sample_weight: np.ndarray,
    shift: np.ndarray,
    factor: np.ndarray,
    *,
    are_labels: bool,
    bounds: _Bounds = _OF_SQUARES,
) -> EvidenceRidge | QuadratureRidge | None:
    """Return the ridge regression of data whose least squares fit noise.

    The parameters are those of :class:`EvidenceRidge`; the table may be a CSR matrix.

    Returns
    -------
    EvidenceRidge, QuadratureRidge or None
        The latter of numbers as targets, and of sparse data of more than 100 rows or more than 512 rows and
        columns. None with fewer than 6 rows, 16 of labels, or columns than 0.09 of the rows, 0.03 for the
        latter of sparse data; of labels with more than 512 rows and columns, or 200 of sparse data; of more
        than 16 targets, or 2^24 entries times targets, for the latter; where the ratio of the greatest
        evidence is None, and where rows left out do not bear it out.
    """
    is_sparse, (n_rows, n_targets), is_used = sparse.issparse(table), target.shape, factor != 0
    n_numbers = n_rows * len(factor)
    n_entries = table.nnz if is_sparse else n_numbers
    is_exact = are_labels or not is_sparse or n_rows <= _FEW_ROWS
    has_exact = is_exact and not (is_sparse and n_numbers > _MOST_OF_SPARSE)
    has_estimate = not are_labels and n_targets <= _MOST_TARGETS and n_entries * n_targets <= _MOST_ENTRIES
    if n_rows < (_LEAST_ROWS_OF_LABELS if are_labels else _LEAST_ROWS) or not (has_exact or has_estimate):
        return None
    if is_sparse:
        # columns without an entry have no coefficients
        is_used &= np.bincount(table.indices, minlength=len(factor)) > 0
    n_columns = int(np.count_nonzero(is_used))
    least = _LEAST_COLUMNS if is_exact else _LEAST_COLUMNS_OF_SPARSE
    if n_columns < least * n_rows:
        return None
    size = min(n_rows, n_columns if is_sparse else len(factor))
    has_exact = has_exact and size <= (_FEW_OF_SPARSE if is_sparse else _MOST)
    if not (has_exact or has_estimate):
        return None
    with np.errstate(all="ignore"), one_thread(n_rows, len(factor)):
        ridge: EvidenceRidge | QuadratureRidge
        if has_exact:
            ridge = EvidenceRidge(
                table, target, sample_weight, shift, factor, are_labels=are_labels, bounds=bounds
            )
        else:
            ridge = QuadratureRidge(table, target, sample_weight, shift, factor, bounds=bounds)
        return None if ridge.ratio is None or not ridge.is_borne_out else ridge


def _with_usual_residuals(ridge: EvidenceRidge, target: np.ndarray) -> EvidenceRidge | None:
    """Return the regression of targets whose residuals have no outliers, on the columns of another one.

    Residuals are those of predictions from the other rows. Outliers among the targets hide the effects
    of the columns, which the first regression finds in the smaller ones. None as in :func:`noisy_ridge`.

    References
    ----------
    P. J. Huber, "Robust Statistics", Wiley 1981, section 7.8, has the modified residuals.
    """
    ridge = ridge.of(clipped(target, _NEAR), _OF_OTHERS)
    for most in _OF_RESIDUALS:
        if ridge.ratio is None:
            return None
        predicted = ridge.mean + ridge.deviations * ridge.from_others()
        ridge = ridge.of(predicted + clipped(target - predicted, most), _OF_OTHERS)
    return None if ridge.ratio is None or not ridge.is_borne_out else ridge
