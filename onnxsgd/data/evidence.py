"""Coefficients of a linear model as large as the data support, by the evidence for ridge regression."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from onnxsgd.data.row_tables import Table

__all__ = ["Ridge", "evidence_ridge"]

#: The least number of columns, as a share of the rows, that can fit noise enough: of a target of noise alone,
#: least squares with 0.09 explain 9 percent.
_LEAST_COLUMNS = 0.09
#: The most rows or columns, whichever are fewer: a matrix of so many has its eigenvalues in some 40 ms.
_MOST = 512
#: The ratios of the variances of coefficients and of noise, in units of that of the mean of all rows.
_RATIOS = np.geomspace(1e-2, 1e9, 89)
#: The share of its trace below which an eigenvalue is rounding.
_ROUNDING = 1e-10
#: The ratio of residuals of ridge and of least squares from which on the latter fit noise, and the share of
#: the variance that ridge has to leave then.
_NOISY, _LEAST_REST = 1.1, 0.01


class Ridge(NamedTuple):
    """The coefficients of a ridge regression.

    Attributes
    ----------
    coefficients : ndarray of shape [n_features, n_outputs]
        The coefficients of standardised columns.
    deviations : ndarray of shape [n_outputs]
        The deviation of each target.
    """

    coefficients: np.ndarray
    deviations: np.ndarray


def evidence_ridge(
    table: Table, target: Table, sample_weight: np.ndarray, shift: np.ndarray, factor: np.ndarray
) -> Ridge | None:
    r"""Return the ridge regression whose penalty has the greatest evidence, where least squares fit noise.

    Coefficients w and noise have normal distributions, in standardised columns and targets::

        y ~ N(0, s (I + g Z Z^T)),   s = y^T (I + g Z Z^T)^-1 y / n
        evidence(g) = -n log s - log det(I + g Z Z^T),   w = (Z^T Z + I / g)^-1 Z^T y

    with one g for all targets.

    Parameters
    ----------
    table : ndarray of shape [n_rows, n_features]
        The data.
    target : ndarray of shape [n_rows, n_outputs]
        The target, encoded for the loss.
    sample_weight : ndarray of shape [n_rows]
        Weights of the rows.
    shift, factor : ndarray of shape [n_features]
        The standardisation of the columns.

    Returns
    -------
    Ridge or None
        None where it is not needed or not known: with fewer columns than 0.09 of the rows; where its residual
        exceeds that of least squares by less than 10 percent, or is less than 1 percent of the variance; with
        more than 512 rows and columns; where a number is not finite.

    References
    ----------
    D. J. C. MacKay, "Bayesian Interpolation", Neural Computation 4, 1992.
    """
    n_rows, n_columns = len(table), len(factor)
    if n_columns < _LEAST_COLUMNS * n_rows or not 2 < min(n_rows, n_columns + 2) <= _MOST:
        return None
    with np.errstate(all="ignore"):
        return _evidence_ridge(table, target, sample_weight, shift, factor)


def _evidence_ridge(
    table: Table, target: Table, sample_weight: np.ndarray, shift: np.ndarray, factor: np.ndarray
) -> Ridge | None:
    """Return the same, in a quiet context, for a table of a size that has one."""
    share = np.ascontiguousarray(sample_weight, np.float64)
    share = share / np.add.reduce(share)
    root = np.sqrt(share)[:, None]
    wanted = np.asarray(target[:], np.float64)
    wanted = (wanted - share.dot(wanted)) * root
    deviations = np.sqrt(np.add.reduce(wanted * wanted))
    wanted /= np.where(deviations > 0, deviations, 1.0)
    columns = (np.asarray(table[:], np.float64) - shift) * factor
    columns *= root
    if not (np.isfinite(columns).all() and np.isfinite(wanted).all()):
        return None
    is_wide = len(columns) < columns.shape[1]
    values, vectors = np.linalg.eigh(columns.dot(columns.T) if is_wide else columns.T.dot(columns))
    known = values > _ROUNDING * np.add.reduce(values)
    values, vectors = values[known], vectors[:, known]
    # parts of the targets along the singular vectors of the data
    parts = vectors.T.dot(wanted if is_wide else columns.T.dot(wanted))
    if not is_wide:
        parts /= np.sqrt(values)[:, None]
    explained = np.add.reduce(parts * parts, axis=1)
    n_targets = int(np.count_nonzero(deviations))
    unexplained = max(0.0, n_targets - float(np.add.reduce(explained)))
    # the rows that equal weights would have, less the mean
    n_rows = max(1.0, 1.0 / float(share.dot(share)) - 1.0)
    shrinkage = 1.0 / (1.0 + _RATIOS[:, None] * values)
    residuals = shrinkage.dot(explained) + unexplained
    logs = n_rows * np.log(residuals) - np.add.reduce(np.log(shrinkage), axis=1)
    best = int(logs.argmin())
    remains = float((shrinkage[best] ** 2).dot(explained)) + unexplained
    if not (n_targets and np.isfinite(logs).all()):
        return None
    if remains <= max(_NOISY * unexplained, _LEAST_REST * n_targets):
        return None
    # without a ratio that is better than none, nothing is learned
    if n_rows * np.log(n_targets) <= logs[best]:
        return Ridge(np.zeros((columns.shape[1], len(deviations))), deviations)
    scaled = vectors * (_RATIOS[best] * shrinkage[best])
    found = columns.T.dot(scaled.dot(parts)) if is_wide else scaled.dot(parts * np.sqrt(values)[:, None])
    return Ridge(found * deviations, deviations)
