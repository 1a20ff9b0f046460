"""Mean and deviation of columns, of all data at once or of one part after another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

__all__ = ["Moments", "add_moments"]

#: Numbers of dense data that are converted to float64 at once: 1 MB.
_BLOCK = 131_072
#: A deviation of fewer units in the last place of the mean is rounding.
_ROUNDING = 8
#: The share of the negative exponents that scales may have: the others are left for weights above 1.
_USED_EXPONENTS = 0.9


@dataclass(frozen=True)
class Moments:
    """The weighted moments of columns.

    Sparse columns are not centred, so that they remain sparse: their moments are those of the non-zeros,
    about zero. A rare column then has the same scale as a frequent one.

    Attributes
    ----------
    count : ndarray of shape [n_columns]
        The weight of all rows, or of those with a non-zero.
    mean : ndarray of shape [n_columns]
        The mean; of sparse columns zero.
    squares : ndarray of shape [n_columns]
        The sum of squared differences from the mean.
    """

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, table: Any, weight: np.ndarray, axis: int = -1) -> Moments:
        """Return the moments of dense data or of a sparse table, of which row `i` counts `weight[i]` times.

        Data of more than two axes have the columns of `axis`, over all other axes.
        """
        if sparse.issparse(table):
            return cls._of_sparse(sparse.csr_array(table), weight)
        moments = None
        n_rows = max(1, _BLOCK // max(1, math.prod(table.shape[1:])))
        for start in range(0, len(table), n_rows):
            rows = slice(start, start + n_rows)
            block = np.moveaxis(np.asarray(table[rows], np.float64), axis, -1)
            columns = block.reshape(-1, table.shape[axis])
            part = cls._of_dense(columns, np.repeat(weight[rows], len(columns) // len(block)))
            moments = part if moments is None else moments.merged(part)
        return cls(*np.zeros((3, table.shape[axis]))) if moments is None else moments

    @classmethod
    def _of_dense(cls, table: np.ndarray, weight: np.ndarray) -> Moments:
        total = float(weight.sum())
        # about the first row first, which keeps the digits of columns far from zero
        mean = table[0] + (weight @ (table - table[0])) / total
        return cls(np.full(table.shape[1], total), mean, weight @ (table - mean) ** 2)

    @classmethod
    def _of_sparse(cls, table: Any, weight: np.ndarray) -> Moments:
        is_stored = sparse.csr_array(
            (np.asarray(table.data != 0, np.float64), table.indices, table.indptr), shape=table.shape
        )
        squared = sparse.csr_array(
            (np.asarray(table.data, np.float64) ** 2, table.indices, table.indptr), shape=table.shape
        )
        return cls(is_stored.T @ weight, np.zeros(table.shape[1]), squared.T @ weight)

    def merged(self, other: Moments) -> Moments:
        """Return the moments of both sets of rows.

        References
        ----------
        T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing
        Sample Variances", 1979.
        """
        count = self.count + other.count
        share = np.divide(other.count, count, out=np.zeros_like(count), where=count > 0)
        step = other.mean - self.mean
        return Moments(
            count,
            self.mean + share * step,
            self.squares + other.squares + step**2 * self.count * share,
        )

    def deviation(self, dtype: np.dtype[Any] | type = np.float64) -> np.ndarray:
        """Return the standard deviation; for columns constant but for rounding the absolute mean, or 1.

        Parameters
        ----------
        dtype : dtype
            The type that the data were rounded to. Deviations next to its smallest number count as zero.
        """
        deviation = np.sqrt(self._variance)
        size = np.abs(self.mean)
        is_constant = deviation <= _ROUNDING * float(np.finfo(dtype).eps) * size
        return _invertible(np.where(is_constant, size, deviation), dtype)

    def size(self, dtype: np.dtype[Any] | type = np.float64) -> np.ndarray:
        """Return the root of the mean square; 1 for columns of zeros.

        Parameters
        ----------
        dtype : dtype
            The type of the data. Sizes next to its smallest number count as zero.
        """
        return _invertible(np.sqrt(self._variance + self.mean**2), dtype)

    @property
    def _variance(self) -> np.ndarray:
        return np.divide(self.squares, self.count, out=np.zeros_like(self.squares), where=self.count > 0)


def _invertible(scale: np.ndarray, dtype: np.dtype[Any] | type) -> np.ndarray:
    """Return scales, with 1 for zeros and for numbers so small that weights, over them, would overflow."""
    return np.where(scale > float(np.finfo(dtype).tiny) ** _USED_EXPONENTS, scale, 1.0)


def add_moments(
    moments: dict[str, Moments], name: str, table: Any, weight: np.ndarray, axis: int = -1
) -> None:
    """Merge the moments of further rows into those under `name`; see :meth:`Moments.of`."""
    part = Moments.of(table, weight, axis)
    moments[name] = moments[name].merged(part) if name in moments else part
