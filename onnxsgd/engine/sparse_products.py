"""Products of sparse rows and dense tables, added in place.

scipy's public products return new arrays, of all columns for a transposed one; its kernels add to an array.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

# Private, with these names and arguments in all scipy 1.x. To be replaced once scipy has products with `out`.
from scipy.sparse import _sparsetools as kernels

__all__ = ["SparseRows", "is_sparse", "is_sparse_table", "multiply"]

#: The types that the kernels take among those of graphs.
_TYPES = (np.dtype(np.float32), np.dtype(np.float64))


class SparseRows(NamedTuple):
    """Rows of a CSR matrix; duplicate entries are added.

    Attributes
    ----------
    indptr : ndarray of shape [n_rows + 1]
        The start of each row, and the end of the last one, in the other arrays.
    indices, data : ndarray of shape [n_stored]
        The column and the value of each entry. There may be entries of other rows before and behind.
    n_columns : int
        The number of columns.
    offsets : ndarray of shape [2, n_rows] or None
        The product of each row and the centre that is subtracted from it, and ones; None: the centre is zero.
    """

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    n_columns: int
    offsets: np.ndarray | None = None

    def alone(self) -> SparseRows:
        """Return the same rows without entries of others."""
        first, last = self.indptr[0], self.indptr[-1]
        entries = slice(first, last)
        return SparseRows(self.indptr - first, self.indices[entries], self.data[entries], self.n_columns)

    def add_product(self, table: np.ndarray, out: np.ndarray) -> None:
        """Add rows @ table, of shape [n_columns, n], to `out`, of shape [n_rows, n], both contiguous."""
        n_rows, n = out.shape
        arguments = (self.indptr, self.indices, self.data, table, out)
        if n == 1:
            kernels.csr_matvec(n_rows, self.n_columns, *arguments)
        else:
            kernels.csr_matvecs(n_rows, self.n_columns, n, *arguments)

    def add_transposed_product(self, table: np.ndarray, out: np.ndarray) -> None:
        """Add rows.T @ table, of shape [n_rows, n], to `out`, of shape [n_columns, n], both contiguous."""
        n_rows, n = table.shape
        # the arrays of rows by rows are those of the transposed matrix by columns
        arguments = (self.indptr, self.indices, self.data, table, out)
        if n == 1:
            kernels.csc_matvec(self.n_columns, n_rows, *arguments)
        else:
            kernels.csc_matvecs(self.n_columns, n_rows, n, *arguments)


def is_sparse(table: object) -> bool:
    """Tell whether a table is a sparse matrix: one look at an array of numpy, as small calls ask often."""
    return type(table) is not np.ndarray and bool(sparse.issparse(table))


def is_sparse_table(table: Any) -> bool:
    """Tell whether a table is a CSR matrix of a type that products support."""
    return is_sparse(table) and table.format == "csr" and table.dtype in _TYPES


def multiply(matrix: Any, weight: np.ndarray, is_transposed: bool) -> np.ndarray:
    """Return matrix @ weight, or matrix @ weight.T if `is_transposed`, as a contiguous array."""
    if not weight.any():
        # the first weights of a linear model
        n_outputs = weight.shape[0 if is_transposed else 1]
        return np.zeros((matrix.shape[0], n_outputs), np.result_type(matrix, weight))
    table = np.ascontiguousarray(weight.T if is_transposed else weight)
    return np.ascontiguousarray(matrix @ table)
