"""Tables that compute the rows taken: of another type, of some rows, of labels."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sized
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

__all__ = [
    "MANY_ROWS",
    "Converted",
    "EncodedLabels",
    "RowTable",
    "Selected",
    "are_many",
    "as_array",
    "column_of",
    "evenly",
    "is_mapped",
    "row_blocks",
    "some_rows",
    "sources",
    "take_into",
    "taken",
]

#: From this number of rows on, no array of more than a few bytes for each row is made: a bound of memory.
MANY_ROWS = 1 << 18
#: The rows up to which vectors of equal numbers are kept.
_FEW_ROWS = 1024
#: Rows of a block of such data: a bound of memory.
_BLOCK_ROWS = 1 << 14
#: The most bytes of a part of the rows from which a number is estimated: a bound of memory.
_SAMPLE_BYTES = 1 << 23
#: The most outputs whose rows of classes are taken from a table of all: a bound of memory.
_FEW_OUTPUTS = 64


class RowTable(ABC):
    """A table whose rows are computed when they are taken.

    Attributes
    ----------
    shape : tuple of int
        The shape, as that of an array.
    dtype : dtype
        The type of the rows.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    #: The table that the rows are read from.
    source: Any = None

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the array that it stands for."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @abstractmethod
    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return a slice, or the rows of these numbers, as a contiguous array."""

    def take_into(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Copy the rows of these numbers to an array."""
        out[...] = self[rows.reshape(-1)].reshape(out.shape)

    def sources(self, rows: slice) -> Iterator[tuple[Any, slice]]:
        """Yield the tables that a slice is read from, each with its rows."""
        if self.source is not None:
            yield from sources(self.source, rows)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Return all rows."""
        found = self[:]
        return found if dtype is None else found.astype(dtype, copy=False)


#: An array, or a table whose rows are computed.
Table = np.ndarray | RowTable


class Converted(RowTable):
    """A table in another type, or of another order, whose columns may be repeated.

    Parameters
    ----------
    source : ndarray or RowTable
        The table.
    dtype : dtype
        The type of the rows.
    repeats : int
        How many times the columns of a table of two axes stand beside each other.
    """

    def __init__(self, source: Table, dtype: DTypeLike, repeats: int = 1) -> None:
        self.source, self._repeats = source, repeats
        self.dtype = np.dtype(dtype)
        *first, last = source.shape
        self.shape = (*first, repeats * last)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        found = np.ascontiguousarray(taken(self.source, rows), self.dtype)
        return found if self._repeats == 1 else np.tile(found, (1, self._repeats))


class Selected(RowTable):
    """Some rows of a table.

    Parameters
    ----------
    source : ndarray or RowTable
        The table.
    rows : ndarray of shape [n_rows]
        The numbers of the rows, as unsigned integers of 32 bits.
    """

    def __init__(self, source: Table, rows: np.ndarray) -> None:
        self.source, self._rows = source, rows
        self.dtype, self.shape = source.dtype, (len(rows), *source.shape[1:])

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        return taken(self.source, self._rows[rows])

    def sources(self, rows: slice) -> Iterator[tuple[Any, slice]]:
        """Yield the tables, each with the rows between the first and the last of these."""
        numbers = self._rows[rows]
        part = slice(int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else slice(0, 0)
        yield from sources(self.source, part)


class EncodedLabels(RowTable):
    """Labels as the table that a loss takes: a column for each class, or one for the second of two.

    Parameters
    ----------
    columns : ndarray of shape [n_rows]
        The number of the class of each label; -1: none.
    n_outputs : int
        The columns of the table.
    low : float
        The value of the other classes; that of the class is 1.
    dtype : dtype
        The type of the rows.
    """

    def __init__(self, columns: np.ndarray, n_outputs: int, low: float, dtype: DTypeLike) -> None:
        self._columns, self._low, self.dtype = columns, low, np.dtype(dtype)
        self.shape = (len(columns), n_outputs)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        return encoded_rows(self._columns[rows], self.shape[1], self._low, self.dtype)

    def astype(self, dtype: DTypeLike) -> EncodedLabels:
        """Return the same table in another type."""
        return EncodedLabels(self._columns, self.shape[1], self._low, dtype)


def encoded_rows(columns: np.ndarray, n_outputs: int, low: float, dtype: DTypeLike) -> np.ndarray:
    """Return the rows of labels in the table of a loss; see :class:`EncodedLabels`."""
    if n_outputs == 1 or (n_outputs <= _FEW_OUTPUTS and np.maximum.reduce(columns, initial=0) < n_outputs):
        return _rows_of_classes(n_outputs, low, np.dtype(dtype)).take(columns, axis=0)
    table = np.empty((len(columns), n_outputs), dtype)
    table.fill(low)
    is_class = np.flatnonzero((columns >= 0) & (columns < n_outputs))
    table[is_class, columns[is_class]] = 1.0
    return table


@lru_cache(maxsize=16)
def _rows_of_classes(n_outputs: int, low: float, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the rows of all classes, and that of no class, which is the last one."""
    if n_outputs == 1:
        # the only column of two classes is that of the second one
        return np.array([[low], [1.0], [low]], dtype)
    rows = np.full((n_outputs + 1, n_outputs), low, dtype)
    np.fill_diagonal(rows, 1.0)
    return rows


def taken(source: Table, rows: slice | np.ndarray) -> Any:
    """Return rows of a table: a slice, or those of these numbers."""
    if isinstance(rows, slice) or not isinstance(source, np.ndarray):
        return source[rows]
    if not source.flags.c_contiguous:
        are_neighbours = len(rows) > 0 and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows)))
        return source[rows[0] : rows[0] + len(rows)] if are_neighbours else source[rows]
    # twice as fast as an index for the rows of a table
    return source.take(rows, axis=0)


def take_into(source: Table, rows: np.ndarray, out: np.ndarray) -> None:
    """Copy the rows of these numbers to an array: for a batch, or for several."""
    # an abstract class takes five times as long to tell
    if type(source) is not np.ndarray and isinstance(source, RowTable):
        source.take_into(rows, out)
    else:
        # with mode="raise" numpy would gather into a temporary array first
        source.take(rows, axis=0, out=out, mode="clip")


def are_many(table: Sized) -> bool:
    """Tell whether a table has so many rows that no array is made for each of them."""
    return len(table) > MANY_ROWS


def column_of(table: Table, column: int) -> np.ndarray:
    """Return a column of a table of two axes."""
    if not isinstance(table, RowTable):
        return table[:, column]
    found = np.empty(len(table), table.dtype)
    for rows in row_blocks(len(table)):
        found[rows] = table[rows][:, column]
    return found


def row_blocks(n_rows: int, size: int = _BLOCK_ROWS) -> Iterator[slice]:
    """Yield the blocks of so many rows."""
    return (slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size))


def some_rows(tables: Iterable[Any]) -> slice:
    """Return all rows of tables, or a part of many rows in even steps."""
    tables = list(tables)
    n_rows = tables[0].shape[0]
    if n_rows <= MANY_ROWS or any(sparse.issparse(table) for table in tables):
        return slice(None)
    row_bytes = max(table.dtype.itemsize * math.prod(table.shape[1:]) for table in tables)
    return slice(None, None, -(-n_rows // max(1, min(MANY_ROWS, _SAMPLE_BYTES // row_bytes))))


def evenly(value: float, n_rows: int) -> np.ndarray:
    """Return a vector of equal numbers, not to be changed, which takes memory only for few rows."""
    if n_rows > MANY_ROWS:
        return np.broadcast_to(np.float64(value), n_rows)
    return _few_evenly(float(value), n_rows) if n_rows <= _FEW_ROWS else np.full(n_rows, float(value))


@lru_cache(maxsize=16)
def _few_evenly(value: float, n_rows: int) -> np.ndarray:
    """Return the same object for each number of few rows."""
    vector = np.full(n_rows, value)
    vector.flags.writeable = False
    return vector


def sources(table: Table, rows: slice) -> Iterator[tuple[Any, slice]]:
    """Yield the tables that some rows of a table are read from, each with its rows."""
    if isinstance(table, RowTable):
        yield from table.sources(rows)
    else:
        yield table, rows


def as_array(table: object) -> Any:
    """Return the rows of a table that computes them; other tables as they are."""
    # an abstract class takes five times as long to tell
    return table[:] if type(table) is not np.ndarray and isinstance(table, RowTable) else table


def is_mapped(table: object) -> bool:
    """Tell whether a table is read from a memory map."""
    found: Any = table
    while found is not None:
        if isinstance(found, np.memmap):
            return True
        if isinstance(found, np.ndarray):
            found = found.base
        else:
            found = found.source if isinstance(found, RowTable) else None
    return False
