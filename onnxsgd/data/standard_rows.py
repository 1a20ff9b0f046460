"""Products of standardised rows with vectors, of sparse data and of many dense numbers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from scipy import sparse

from onnxsgd.data.row_tables import Table

__all__ = ["StandardRows", "standard_rows"]

#: Numbers of the data that are converted to float64 at once: 16 MB.
_BLOCK = 1 << 21


def standard_rows(table: Any, shift: np.ndarray, factor: np.ndarray, root: np.ndarray) -> StandardRows:
    """Return the rows of data, ``root * (table - shift) * factor`` with columns of weighted mean zero.

    Parameters
    ----------
    table : csr_array or ndarray of shape [n_rows, n_columns]
        The data.
    shift, factor : ndarray of shape [n_columns]
        The standardisation of the columns.
    root : ndarray of shape [n_rows]
        The roots of the shares of the rows.
    """
    kind = _SparseRows if sparse.issparse(table) else _DenseRows
    return kind.of(table, shift, factor, root)


class StandardRows(Protocol):
    """Standardised rows, times the roots of their shares."""

    @property
    def n_columns(self) -> int:
        """The number of columns."""

    @property
    def means(self) -> np.ndarray | None:
        """The means of the standardised columns before they were centred; None: zeros."""

    def times(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the product with a vector of coefficients."""

    def transposed_times(self, of_rows: np.ndarray) -> np.ndarray:
        """Return the product of the transposed rows with a vector of a number for each row."""


class _SparseRows:
    """Rows of a CSR matrix, which stay sparse: products are centred, not columns.

    Parameters
    ----------
    table : csr_array of shape [n_rows, n_columns]
        The rows, divided by the scales of the columns.
    centre : ndarray of shape [n_columns]
        The numbers that the standardisation subtracts from them.
    root : ndarray of shape [n_rows]
        The roots of the shares.
    """

    def __init__(self, table: Any, centre: np.ndarray, root: np.ndarray) -> None:
        self._table, self._columns, self._root = table, table.T, root
        self.n_columns: int = table.shape[1]
        self.means: np.ndarray = self._columns @ (root * root) - centre

    @classmethod
    def of(cls, table: Any, shift: np.ndarray, factor: np.ndarray, root: np.ndarray) -> _SparseRows:
        """Return the rows of a CSR matrix."""
        # a conversion beforehand: places of 32 bits take three times as long
        data = np.asarray(table.data, np.float64) * factor.take(table.indices.astype(np.intp))
        standard = sparse.csr_array((data, table.indices, table.indptr), shape=table.shape)
        return cls(standard, np.asarray(shift * factor, np.float64), root)

    def times(self, coefficients: np.ndarray) -> np.ndarray:
        return self._centred((self._table @ coefficients) * self._root)

    def transposed_times(self, of_rows: np.ndarray) -> np.ndarray:
        product: np.ndarray = self._columns @ (self._centred(of_rows) * self._root)
        return product

    def _centred(self, of_rows: np.ndarray) -> np.ndarray:
        """Return numbers of rows, times their roots, less the weighted mean: the shares add to one."""
        centred: np.ndarray = of_rows - self._root * self._root.dot(of_rows)
        return centred


class _DenseRows:
    """Rows of float32, whose columns the standardisation centres.

    Products are bound by the memory that they read.

    Parameters
    ----------
    table : ndarray of float32, of shape [n_rows, n_columns]
        The rows.
    """

    means = None

    def __init__(self, table: np.ndarray) -> None:
        self._table = table
        self.n_columns: int = table.shape[1]

    @classmethod
    def of(cls, table: Table, shift: np.ndarray, factor: np.ndarray, root: np.ndarray) -> _DenseRows:
        """Return the rows of dense data."""
        n_rows, n_columns = table.shape
        standard = np.empty((n_rows, n_columns), np.float32)
        step = max(1, _BLOCK // n_columns)
        for start in range(0, n_rows, step):
            part = slice(start, start + step)
            block = (np.asarray(table[part], np.float64) - shift) * factor
            block *= root[part, None]
            standard[part] = block
        return cls(standard)

    def times(self, coefficients: np.ndarray) -> np.ndarray:
        return self._table.dot(coefficients.astype(np.float32)).astype(np.float64)

    def transposed_times(self, of_rows: np.ndarray) -> np.ndarray:
        return self._table.T.dot(of_rows.astype(np.float32)).astype(np.float64)
