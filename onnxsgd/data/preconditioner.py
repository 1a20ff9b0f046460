"""The preconditioner of a linear model on correlated columns, chosen by the likelihood of the target.

``benchmarks/support.py``, fits with and without it: 16 sets of classes have an accuracy of 0.863 and 0.806,
12 real targets have R2 0.963 and 0.933. 24 sets of features and their products have R2 0.657, and 0.652 where
the noise counts as all of the variance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from onnxsgd.data.one_thread import one_thread
from onnxsgd.data.row_tables import Table

__all__ = ["preconditioner"]

#: The rows that the correlations are computed from, and the most columns.
_ENOUGH_ROWS, _MOST_COLUMNS = 4096, 256
#: The fewest rows for each direction that is no rounding, for a power of its variance alone. A difference of
#: columns with a correlation of 0.95 and as much noise, of 250 rows and 200 columns, has R2 -0.28 with a
#: preconditioner, and 0.07 without; 80 spectra of 200 columns that are sums of six have R2 0.99 with one,
#: 0.42 without.
_LEAST_ROWS = 3
#: Numbers of the data that are converted to float64 at once: 1 MB.
_BLOCK = 131_072
#: The share of the variance explained by least squares that the first step of gradient descent explains, from
#: which on there is no preconditioner. 28 sets of random sums of as many columns: 0.32 to 0.64; 58 others,
#: generated and bundled: 0.65 to 1.
_MOST_OF_STEP = 0.8
#: The powers of the variance of a direction that the squares of its coefficients may follow.
_POWERS = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
#: The sizes of coefficients that are tried, from an exact fit to noise, as powers of the least one.
_EXPONENTS = np.linspace(0.0, 1.0, 16)
#: The least share of noise in the variance of a target.
_LEAST_NOISE = 0.01
#: The logarithm of the likelihood by which a power has to exceed that of standardised columns.
_CLEAR = 2.0
#: The sizes of coefficients that a ridge regression is tried with, n t, and the most directions, as a share
#: of the rows, and the fewest rows beside them: others do not tell the noise.
_SIZES, _MOST_OF_ROWS, _LEAST_FREE = np.logspace(-4.0, 4.0, 33), 0.8, 20
#: The steps of gradient descent that reach the directions which a fit learns in time, and the share of the
#: variance explained by the ridge regression that they explain where they are late; the largest error of one
#: that tells anything. ``benchmarks/support.py --only narrow``: R2 is 0.73 in place of 0.66 (`SGDRegressor`
#: 0.71), the accuracy 0.73 in place of 0.62 (`SGDClassifier` 0.73). Of 852 targets of real tables two have
#: other scores, by 0.01 at most.
_STEPS, _LATE = np.unique(np.round(np.logspace(0.0, 2.0, 20)))[:, None], 0.8
_MOST_ERROR = 0.9
#: The least share of the largest variance that a direction has. Below, other directions lose the digits of
#: float32 in P, which would no longer be positive.
_LEAST = 5e-6
#: The ratio of variances below which directions are alike, as those that a penalty decides.
_ALIKE = 2.0
#: Added to what may be zero before a division.
_TINY = 1e-300
#: The largest mean square of a standardised column, except with extreme entries, which its scale leaves out.
_MOST_SQUARE = 2.0


def preconditioner(
    table: Table,
    target: Table,
    sample_weight: np.ndarray,
    centre: np.ndarray,
    scale: np.ndarray,
    penalty: float,
) -> np.ndarray | None:
    r"""Return the matrix P that multiplies the gradient of the coefficients of standardised columns.

    Gradient descent learns directions of small variance last. Where the target depends on them as much as on
    others, as on differences of nearly equal columns, that is late; where it depends on the wide ones, as in
    most tables, it prevents overfitting. The target tells which of the two. In the eigenbasis V of the
    correlation matrix C, with the eigenvalues :math:`\lambda_i`::

        r_i = squared correlation of the target with direction i, averaged over the targets
        s   = (1 - sum_i r_i) / (1 - d / n),   at least 0.01 and at most 1
        r_i ~ (t lambda_i^p + s / n) chi^2,   t from 0.01 / n to 1,   p in {0, 1/4, 1/2, 3/4, 1}
        P   = V diag(lambda_i^(p - 1)) V^T d / sum_i lambda_i^p

    with the t and p of the greatest likelihood. P = I for p = 1, and C^-1, with which the squared loss has
    one curvature in all directions, for p = 0. The trace of P C is d, as that of C.

    The target may still lie in directions that gradient descent does not reach, with this P or, where d is
    more than a third of n, without one. The ridge regression with q_i = n t (lambda_i / mean lambda)^p, n t
    from 1e-4 to 1e4, whose t has the greatest evidence [1]_, and whose p too, unless that of p = 1 is less by
    a factor of exp(2) at most, learns the share g_i = q_i / (1 + q_i) of direction i::

        P   = V diag(g_i / lambda_i) V^T d / sum_i g_i

    if the best of up to 100 steps of gradient descent explains less than 0.8 times as much variance of other
    rows as the regression, by generalized cross-validation [2]_, and the regression more than a tenth of it.
    The error of the steps must also be larger than the geometric mean of that of the regression and that of
    least squares, to which training may lead. Directions of rounding alone, below 5e-6 times the largest
    variance, count as one that is as wide as the mean.

    Parameters
    ----------
    table : ndarray of shape [n_rows, d]
        The data, not standardised.
    target : ndarray of shape [n_rows, n_outputs]
        The target, encoded for the loss.
    sample_weight : ndarray of shape [n_rows]
        Weights of the rows.
    centre, scale : ndarray of shape [d]
        The centre and the scale of each column.
    penalty : float
        The strength of the l2 penalty of coefficients of the data. Its curvature is added to C in P; the
        likelihood is that of the data alone, in which the penalty has no part.

    Returns
    -------
    ndarray of shape [d, d] or None
        A symmetric matrix; None: no power below 1 is more likely by a factor of exp(2), and gradient descent
        is not late, or there are more directions than 0.8 times the rows that equal weights would have, or
        fewer than 20 such rows beside them, fewer columns than two, or more than 256.

    References
    ----------
    .. [1] D. J. C. MacKay, Bayesian interpolation, Neural Computation 4, 1992.
    .. [2] G. H. Golub, M. Heath and G. Wahba, Generalized cross-validation as a method for choosing a good
           ridge parameter, Technometrics 21, 1979.
    """
    if not 1 < len(scale) <= _MOST_COLUMNS or len(table) < 2 * _LEAST_ROWS:
        return None
    with np.errstate(all="ignore"), one_thread(len(table), len(scale)):
        return _preconditioner(table, target, sample_weight, centre, scale, penalty)


def _preconditioner(
    table: Table,
    target: Table,
    sample_weight: np.ndarray,
    centre: np.ndarray,
    scale: np.ndarray,
    penalty: float,
) -> np.ndarray | None:
    """Return the same, in a quiet context, for a number of columns that may have one."""
    n_columns = len(scale)
    every = -(-len(table) // _ENOUGH_ROWS)
    some = np.arange(0, len(table), every)
    share = sample_weight[::every].astype(np.float64)
    share /= np.add.reduce(share)
    wanted = np.asarray(target[some if every > 1 else slice(None)], np.float64)
    # rounding of the mean of a constant is no target
    varies = wanted.max(axis=0) > wanted.min(axis=0)
    wanted = wanted - share.dot(wanted)
    root = np.sqrt(share)[:, None]
    wanted *= root
    spread = np.add.reduce(wanted * wanted)
    step = max(1, _BLOCK // n_columns)
    matrix, products = np.zeros((n_columns, n_columns)), np.zeros((n_columns, len(spread)))
    for start in range(0, len(share), step):
        part = slice(start, start + step)
        columns = np.asarray(table[some[part] if every > 1 else part], np.float64) - centre
        columns *= root[part]
        matrix += columns.T.dot(columns)
        products += columns.T.dot(wanted[part])
    squares = matrix.diagonal() / scale / scale
    told = varies & (spread > 0)
    # also False for what is no number
    if not (told.any() and (squares < _MOST_SQUARE).all()):
        return None
    width = np.sqrt(np.where(squares > 0, squares, 1.0))
    matrix /= np.multiply.outer(width * scale, width * scale)
    matrix.flat[:: n_columns + 1] = 1.0
    products = products[:, told] / np.multiply.outer(width * scale, np.sqrt(spread[told]))
    if not np.isfinite(matrix).all():
        return None
    if _first_step(matrix, products) > _MOST_OF_STEP:
        return None
    variances, directions = np.linalg.eigh(matrix)
    known = variances > _LEAST * variances[-1]
    found = directions.T @ products
    correlations = (found * found).mean(axis=1)[known] / variances[known]
    # the rows that equal weights would have; labels of k classes are k - 1 targets
    n_rows, n_targets = 1.0 / float(share @ share), max(1, int(np.count_nonzero(told)) - 1)
    has_rows = _LEAST_ROWS * np.count_nonzero(known) <= len(share)
    power = _likely_power(variances[known], correlations, n_rows, n_targets) if has_rows else 1.0
    ridge = _late_ridge(variances[known], correlations, n_rows, n_targets, power)
    if ridge is None and power == 1.0:
        return None
    prior = ridge or _Prior(power)
    if penalty:
        # it widens columns: a unit of them has the curvature of both
        wider = np.sqrt(1.0 + penalty / (width * scale) / (width * scale))
        matrix /= np.multiply.outer(wider, wider)
        matrix.flat[:: n_columns + 1] = 1.0
        width = width * wider
        variances, directions = np.linalg.eigh(matrix)
        known = variances > _LEAST * variances[-1]
        if variances[-1] < _ALIKE * variances[0]:
            return None
    factors = np.ones(n_columns)
    factors[known] = prior.speeds(variances[known]) / variances[known]
    factors *= n_columns / float(factors @ np.maximum(variances, 0.0))
    half = directions * np.sqrt(factors) / width[:, None]
    made: np.ndarray = half @ half.T
    return made


class _Prior(NamedTuple):
    """The squares of the coefficients of directions, in proportion to a power of their variance.

    Attributes
    ----------
    power : float
        The power.
    size : float
        Their size, n t, in units of the noise; 0: all are small beside it.
    unit : float
        The variance that has a coefficient of this size.
    """

    power: float
    size: float = 0.0
    unit: float = 1.0

    def speeds(self, variances: np.ndarray) -> np.ndarray:
        """Return the speeds at which directions are learned: the shares that a regression learns of them.

        They are in units of the share of a direction with the unit of variance.
        """
        squares: np.ndarray = (variances / self.unit) ** self.power
        return squares * (1.0 + self.size) / (1.0 + self.size * squares)


def _late_ridge(
    variances: np.ndarray, correlations: np.ndarray, n_rows: float, n_targets: int, power: float
) -> _Prior | None:
    """Return the ridge regression of the greatest evidence, where gradient descent would be late for it.

    The latter learns directions at speeds that are a power of their variance.
    Errors are those on other rows, by generalized cross-validation, in units of the variance of the target.
    """
    if len(variances) > min(_MOST_OF_ROWS * n_rows, n_rows - _LEAST_FREE):
        return None
    rest = max(_TINY, 1.0 - float(np.add.reduce(correlations)))

    def errors(left: np.ndarray) -> np.ndarray:
        # of fits that leave these shares of directions, and have a mean
        n_learned = 1.0 + (1.0 - left).sum(axis=-1)
        found: np.ndarray = ((correlations * left * left).sum(axis=-1) + rest) / (
            1.0 - n_learned / n_rows
        ) ** 2
        return found

    unit = float(variances.mean())
    left = 1.0 / (1.0 + np.multiply.outer(_SIZES, (variances / unit) ** _POWERS[:, None]))
    misfit = (correlations * left).sum(axis=-1) + rest
    evidence = 0.5 * n_targets * (np.log(left).sum(axis=-1) - (n_rows - 1.0) * np.log(misfit))
    sizes = evidence.argmax(axis=0)
    of_powers = evidence.max(axis=0)
    best = int(of_powers.argmax())
    if of_powers[best] <= of_powers[-1] + _CLEAR:
        best = len(_POWERS) - 1
    error = float(errors(left[sizes[best], best]))
    of_least_squares = float(errors(np.zeros(len(variances))))
    of_steps = float(errors((1.0 - (variances / variances[-1]) ** power) ** _STEPS).min())
    most = min(1.0, of_steps)
    is_late = 1.0 - most < _LATE * (1.0 - error) and error < _MOST_ERROR
    if not is_late or error * of_least_squares > most * most:
        return None
    return _Prior(float(_POWERS[best]), float(_SIZES[sizes[best]]), unit)


def _first_step(matrix: np.ndarray, products: np.ndarray) -> float:
    """Return the share of the variance explained by least squares that one step from zero explains.

    The step follows the gradient up to the minimum along it; `matrix` is that of the correlations of columns,
    `products` are those of columns and targets.
    """
    squares = np.add.reduce(products * products)
    curvatures = np.add.reduce(products * (matrix @ products))
    regular = matrix.copy()
    regular.flat[:: len(matrix) + 1] += _LEAST
    explained = np.add.reduce(products * np.linalg.solve(regular, products), axis=None)
    return float(np.add.reduce(squares * squares / np.maximum(curvatures, _TINY)) / max(explained, _TINY))


def _likely_power(variances: np.ndarray, correlations: np.ndarray, n_rows: float, n_targets: int) -> float:
    """Return the power of the greatest likelihood; 1 unless another one is clearly more likely."""
    free = max(1.0 - len(variances) / n_rows, 1.0 - 1.0 / _LEAST_ROWS)
    noise = min(1.0, max(_LEAST_NOISE, (1.0 - float(np.add.reduce(correlations))) / free))
    signals = (variances / variances.mean()) ** _POWERS[:, None]
    sizes = (0.01 / n_rows) ** _EXPONENTS
    expected = sizes[:, None, None] * signals + noise / n_rows
    logs = -0.5 * n_targets * (np.log(expected) + correlations / expected).sum(axis=-1).min(axis=0)
    best = int(logs.argmax())
    return float(_POWERS[best]) if logs[best] > logs[-1] + _CLEAR else 1.0
