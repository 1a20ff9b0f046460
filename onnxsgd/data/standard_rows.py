"""Products of standardised rows with vectors and with each other, of sparse data and of dense numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from onnxsgd._cached_property import cached_property
from onnxsgd.data.row_tables import Table

__all__ = ["ExactRows", "StandardRows", "exact_rows", "standard_rows"]

#: The mean of a column, in units of its scale, up to which its sparse products keep nine digits.
_FAR = 1e3
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


def exact_rows(table: Any, shift: np.ndarray, factor: np.ndarray, share: np.ndarray) -> ExactRows:
    """Return the same in float64, with the products of all rows or columns.

    Parameters
    ----------
    table, shift, factor : csr_array, ndarray
        As those of :func:`standard_rows`.
    share : ndarray of shape [n_rows]
        The shares of the rows.
    """
    if sparse.issparse(table) and table.shape[0] < table.shape[1]:
        rows = _SparseRows.of(table, shift, factor, np.sqrt(share))
        # products of columns far from zero would lose the digits of their deviations
        if np.abs(rows.means + shift * factor).max() <= _FAR:
            return rows
    return _ExactRows(table.toarray() if sparse.issparse(table) else table[:], shift, factor, share)


class ExactRows(Protocol):
    """Standardised rows, times the roots of their shares, in float64."""

    @property
    def means(self) -> np.ndarray:
        """The means of the standardised columns before they were centred."""

    @property
    def products(self) -> np.ndarray:
        """The products of rows, or of columns, whichever are fewer."""

    def left_vectors(self, values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Return the left singular vectors of the rows, from eigenvalues and eigenvectors of the products."""

    def transposed_times(self, of_rows: np.ndarray) -> np.ndarray:
        """Return the product of the transposed rows with vectors of a number for each row."""


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
        product: np.ndarray = self._columns @ (self._centred(of_rows).T * self._root).T
        return product

    @cached_property
    def products(self) -> np.ndarray:
        """The products of rows."""
        products = (self._table @ self._columns).toarray() * np.multiply.outer(self._root, self._root)
        return self._centred(self._centred(products).T)

    def left_vectors(self, values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        return vectors

    def _centred(self, of_rows: np.ndarray) -> np.ndarray:
        """Return numbers of rows, times their roots, less the weighted mean: the shares add to one."""
        centred: np.ndarray = of_rows - np.multiply.outer(self._root, self._root.dot(of_rows))
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


class _ExactRows:
    """Rows in float64, of which some columns are made at once.

    Parameters
    ----------
    table : ndarray of shape [n_rows, n_columns]
        The rows.
    shift, factor, share : ndarray
        As those of :func:`exact_rows`.
    """

    def __init__(self, table: np.ndarray, shift: np.ndarray, factor: np.ndarray, share: np.ndarray) -> None:
        self._table, self._factor, self._root = table, factor, np.sqrt(share)[:, None]
        # in float64, of all rows: the standardisation may centre no column, or the bulk of each
        parts = [share.dot(np.asarray(table[:, part], np.float64)) for part in self._parts_of_columns()]
        self._centre = np.concatenate(parts)
        self.means: np.ndarray = (self._centre - shift) * factor

    @cached_property
    def _columns(self) -> np.ndarray:
        """All columns, where they are no more than the rows."""
        return self._block(slice(None))

    @property
    def _is_wide(self) -> bool:
        return self._table.shape[0] < self._table.shape[1]

    @cached_property
    def products(self) -> np.ndarray:
        """The products of rows, or of columns, whichever are fewer."""
        if not self._is_wide:
            return self._columns.T.dot(self._columns)
        products = np.zeros((len(self._table), len(self._table)))
        for part in self._parts_of_columns():
            block = self._block(part)
            products += block.dot(block.T)
        return products

    def left_vectors(self, values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        return vectors if self._is_wide else self._columns.dot(vectors) / np.sqrt(values)

    def transposed_times(self, of_rows: np.ndarray) -> np.ndarray:
        return np.concatenate([self._block(part).T.dot(of_rows) for part in self._parts_of_columns()])

    def _block(self, part: slice) -> np.ndarray:
        """Return some columns, standardised, with rows times the root of their share."""
        block = (np.asarray(self._table[:, part], np.float64) - self._centre[part]) * self._factor[part]
        block *= self._root
        return block

    def _parts_of_columns(self) -> Iterator[slice]:
        """Return the parts of the columns that are converted at once."""
        n_rows, n_columns = self._table.shape
        step = max(1, _BLOCK // n_rows)
        return (slice(start, start + step) for start in range(0, n_columns, step))
