"""Scales of the columns of a table with few rows: each has its own, or they share one."""

from __future__ import annotations

import math

import numpy as np
from scipy import linalg

from onnxsgd.data.one_thread import one_thread
from onnxsgd.data.row_tables import Table

__all__ = ["FEW_ROWS", "telling_scales"]

#: Tables with fewer rows than so many times their columns may share a scale. ``benchmarks/column_widths.py``,
#: 160 generated sets of 300 to 2,000 rows and 100 to 1,000 columns: the mean score is 0.678 in place of
#: 0.644, 64 are better by more than 0.01, by up to 0.41, and none is worse. Of 174 with 20 and 40 rows 40 are
#: better and 4 worse, by 0.021. 52 of bundled data with many or derived columns, 60 to 400 rows: 4 are
#: better, 1 is worse, by 0.013. 24 sets of numbers beside codes of categories have 0.780 in place of 0.760: 9
#: are better, by up to 0.154, and 1 is worse, by 0.010.
FEW_ROWS = 16
#: The correlation of widths and covariances, in units of its deviation for columns that have none, from which
#: on wider columns tell more.
_CLEAR = 2.0
#: The share of the error of ridge regressions of columns of their own scales below which that of columns of
#: one scale is clearly smaller, and the strengths of the regressions, in units of the mean eigenvalue: those
#: of smaller ones need more updates than training makes.
_BETTER, _STRENGTHS = 0.98, (0.1, 0.5, 2.5)
#: The factor from the common scale up to which columns share it where that is not clear.
_SIMILAR = 3.0
#: Numbers of dense data that are converted to float64 at once, 8 MB, and the rows that decide on the
#: correlation.
_BLOCK, _ENOUGH_ROWS = 1 << 20, 4096
#: The most and the fewest rows that decide on the error, and the numbers that they have in between: the
#: choice takes 1 ms with 60 columns and two scales, with codes 4 ms with 120 columns and 60 with 2,000.
_MOST_REGRESSED, _FEWEST_REGRESSED, _REGRESSED = 512, 128, 1 << 20
#: The mean eigenvalue below which the penalties would be no normal numbers: rows without weight.
_LEAST_MEAN = 1e-280
#: The share of its variance below which the rest of a column is rounding.
_ROUNDING = 1e-9


def telling_scales(
    table: Table, target: Table, sample_weight: np.ndarray, centre: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """Return the scales in which the columns of a table with few rows are to be standardised.

    Few rows leave the choice of the weights to the scales: training prefers wide columns. Those of different
    units have a scale for each. All columns share the geometric mean where wider ones covary more with the
    target than narrow ones, as in counts, pictures and factor models, and rows are predicted better so::

        r = covariance of the standardised column with the target, squared, summed over the targets
        sqrt(n_columns) correlation(log(scale), r) > 2
        error(shared) < 0.98 error(own), of ridge regressions of one half of the rows for the other half

    Where the last is not so, and columns outnumber rows, the errors tell little: then columns share it up to
    a factor of 3, and keep the excess.

    Beside other columns, those of zeros and ones, as codes of categories, share the scale of the others where
    rows are predicted better so: codes of rare categories, in scales of their own, are as wide as numbers.

    Parameters
    ----------
    table : ndarray of shape [n_rows, n_columns]
        The data, not standardised.
    target : ndarray of shape [n_rows, n_outputs]
        The target, encoded for the loss.
    sample_weight : ndarray of shape [n_rows]
        Weights of the rows.
    centre, scale : ndarray of shape [n_columns]
        The mean of each column, and its own scale.
    """
    squares, varies, are_codes = _squared_covariances(table, target, sample_weight, centre, scale)
    if not varies.any():
        return scale
    own, common = scale[varies], math.exp(float(np.log(scale[varies]).mean()))
    candidates = []
    if is_clear := _tell_more(np.log(own), squares[varies]):
        candidates.append(np.full_like(own, common))
    if 0 < np.count_nonzero(are_codes[varies]) < len(own):
        of_codes = np.where(are_codes[varies], 1.0, own)
        candidates.append(of_codes * math.exp(float(np.log(own / of_codes).mean())))
    if not candidates:
        return scale
    columns = np.flatnonzero(varies)
    of_own, *errors = _errors(table, target, sample_weight, centre, columns, [own, *candidates])
    scales, best = scale.copy(), int(np.argmin(errors))
    if errors[best] < _BETTER * of_own:
        scales[varies] = candidates[best]
    elif is_clear and len(own) > len(table):
        scales[varies] = own / np.clip(own / common, 1.0 / _SIMILAR, _SIMILAR)
    return scales


def _tell_more(width: np.ndarray, gain: np.ndarray) -> bool:
    """Tell whether wider columns clearly gain more: by the logarithms of their widths."""
    width, gain = width - width.mean(), gain - gain.mean()
    size = math.sqrt(float(width @ width) * float(gain @ gain))
    return math.sqrt(len(width)) * float(width @ gain) > _CLEAR * size


def _errors(
    table: Table,
    target: Table,
    sample_weight: np.ndarray,
    centre: np.ndarray,
    columns: np.ndarray,
    scales: list[np.ndarray],
) -> list[float]:
    """Return the errors with which rows are predicted by others from `columns` of each of some scales."""
    n_rows = min(_MOST_REGRESSED, max(_FEWEST_REGRESSED, _REGRESSED // len(centre)))
    rows = np.arange(0, len(table), -(-len(table) // n_rows))
    weight = np.ascontiguousarray(sample_weight[rows], np.float64)
    wanted = np.asarray(target[rows], np.float64)
    wanted = wanted - np.average(wanted, axis=0, weights=weight)
    centred = (np.asarray(table[rows], np.float64) - centre)[:, columns]
    root = np.sqrt(weight / weight.max())[:, None]
    wanted *= root
    centred *= root
    with one_thread(*centred.shape):
        return [_error_of_others(centred / scale, wanted) for scale in scales]


@np.errstate(over="ignore", invalid="ignore")
def _error_of_others(table: np.ndarray, target: np.ndarray) -> float:
    """Return the squared error of ridge regressions of either half of the rows for the other one.

    It is the least one of several strengths of the penalty; infinite where a half has no variance, or squares
    are beyond float64.
    """
    errors = np.zeros(len(_STRENGTHS))
    for known, others in (np.s_[::2], np.s_[1::2]), (np.s_[1::2], np.s_[::2]):
        given, wanted = table[known], target[known]
        is_wide = given.shape[1] > len(given)
        products = given @ given.T if is_wide else given.T @ given
        mean = float(np.trace(products)) / len(products)
        if not _LEAST_MEAN < mean < math.inf:
            return math.inf
        right = wanted if is_wide else given.T @ wanted
        for number, strength in enumerate(_STRENGTHS):
            penalised = products + strength * mean * np.eye(len(products))
            solved = linalg.solve(penalised, right, overwrite_a=True, check_finite=False, assume_a="pos")
            coefficients = given.T @ solved if is_wide else solved
            errors[number] += float(((table[others] @ coefficients - target[others]) ** 2).sum())
    return float(errors.min())


def _squared_covariances(
    table: Table, target: Table, sample_weight: np.ndarray, centre: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the squared covariance of each column with the target, in any unit.

    Tell also which columns vary, and which hold zeros and ones alone.
    """
    rows = np.arange(0, len(table), -(-len(table) // _ENOUGH_ROWS))
    weight = np.ascontiguousarray(sample_weight[rows], np.float64)
    wanted = np.asarray(target[rows], np.float64)
    wanted = wanted - np.average(wanted, axis=0, weights=weight)
    wanted *= weight[:, None] / max(float(np.abs(wanted).max()), np.finfo(float).tiny)
    products, spread = np.zeros((len(centre), wanted.shape[1])), np.zeros(len(centre))
    are_codes = np.ones(len(centre), bool)
    step = max(1, _BLOCK // len(centre))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        given = np.asarray(table[rows[part]], np.float64)
        if are_codes.any():
            of_part = given[:, are_codes]
            are_codes[are_codes] = ((of_part == 0.0) | (of_part == 1.0)).all(axis=0)
        standardised = (given - centre) / scale
        products += standardised.T @ wanted[part]
        spread += weight[part] @ (standardised * standardised)
    return (products**2).sum(axis=1), spread > _ROUNDING * weight.sum(), are_codes
