"""Random orders of rows: of all, or of blocks of neighbours."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

import numpy as np

from onnxsgd.data.block_reader import BlockReader, BlockTable
from onnxsgd.data.generators import seeded, words
from onnxsgd.data.mapped_files import column_pages
from onnxsgd.data.row_tables import Table, row_blocks

__all__ = ["BlockOrder", "Blocks", "shuffled"]

#: Up to this many numbers are sorted by their keys, which takes less time than to sort pairs of both.
_SHORT = 100
#: From this length on an order is numpy's permutation. ``benchmarks/constants.py``, nanoseconds for a number
#: on a processor on which numpy does not sort in vectors: pairs of several orders of up to 800 take 10 to 14,
#: and those of longer ones 20 to 60; its permutation takes 14 to 19, and 11 to 16.
_LONG = 800
#: From this length on the numbers of an order have 32 bits from the first, a bound of memory.
_MANY = 1 << 18
#: The bytes of a block, the blocks whose rows are mixed, and their bytes. ``benchmarks/shuffle_blocks.py``
#: measures time and quality.
_BLOCK_BYTES, _MIXED_BLOCKS, _MIXED_BYTES = 1 << 17, 128, 12 << 20
#: The blocks of a window that are not made fewer for the sake of longer reads of columns.
_LEAST_MIXED = 16
#: The most rows of a block, and of those that are mixed.
_MOST_ROWS, _MIXED_ROWS = 1 << 12, 1 << 18


def shuffled(shape: tuple[int, int], random_state: np.random.RandomState) -> np.ndarray:
    """Return rows of the numbers below their length, each in random order.

    Short ones are sorted by random keys, for which numpy is faster than for its permutation. One pair of keys
    in four billion is equal and keeps its order.
    """
    n_all, n_columns = shape[0] * shape[1], shape[1]
    if n_columns >= _LONG:
        orders = np.empty(shape, np.uint32)
        for order in orders:
            _permute(order, random_state)
        return orders
    if n_all <= _SHORT:
        found: np.ndarray = words(random_state, n_all).reshape(shape).argsort(axis=1, kind="stable")
        return found
    pairs = words(random_state, n_all).reshape(shape)
    pairs <<= np.uint64(32)
    pairs |= np.arange(n_columns, dtype=np.uint64)
    pairs.sort(axis=1)
    return pairs.astype(np.uint32)


def _permute(order: np.ndarray, random_state: np.random.RandomState) -> None:
    """Write the numbers below its length to an array, in random order."""
    if len(order) < _MANY:
        # numbers of 64 bits take less time
        order[:] = random_state.permutation(len(order))
    else:
        order[:] = np.arange(len(order), dtype=order.dtype)
        random_state.shuffle(order)


@dataclass(frozen=True)
class Blocks:
    """Sizes of a shuffle by blocks, and the tables that are read in them.

    Attributes
    ----------
    n_rows : int
        Rows of a block of neighbours, which are read together: a power of two.
    n_mixed : int
        Blocks of a window, whose rows are mixed.
    tables : tuple of BlockTable
        The tables in memory maps.
    """

    n_rows: int
    n_mixed: int
    tables: tuple[BlockTable, ...] = ()

    @classmethod
    def of(cls, tables: Collection[Table], n_rows_of_update: int) -> Blocks:
        """Return the sizes for tables that are read together: blocks of 128 kB and windows of 12 MB, or less.

        Rows of more than 128 kB are blocks; a window has the rows of one update at least. Blocks of a map in
        Fortran order have pages of each column, and windows fewer of them.
        """
        mapped = tuple(table for table in tables if isinstance(table, BlockTable))
        page_rows, page_row_bytes = _rows_of_pages(mapped)
        row_bytes = max(1, sum(map(_row_bytes, tables)))
        n_rows = min(1 << (max(1, _BLOCK_BYTES // row_bytes).bit_length() - 1), _MOST_ROWS)
        n_rows, row_bytes = max(n_rows, page_rows), max(row_bytes, page_row_bytes)
        n_mixed = min(_MIXED_BLOCKS, _MIXED_ROWS // n_rows, _MIXED_BYTES // (n_rows * row_bytes))
        return cls(n_rows, max(n_mixed, -(-n_rows_of_update // n_rows)), mapped)

    @property
    def n_window(self) -> int:
        """The rows of a window."""
        return self.n_rows * self.n_mixed

    def reader(self) -> BlockReader | None:
        """Return the reader of the tables for an epoch; None: all are in memory."""
        return BlockReader(self.tables, self.n_rows, self.n_mixed) if self.tables else None


def _rows_of_pages(tables: Collection[Table]) -> tuple[int, int]:
    """Return the rows of a block of maps in Fortran order, and the bytes of a row; (1, 0): there are none."""
    found = [column_pages(table) for table in tables]
    n_rows, row_bytes = max((rows for rows, _ in found), default=1), sum(n_bytes for _, n_bytes in found)
    if row_bytes:
        most = min(_MOST_ROWS, _MIXED_BYTES // (_LEAST_MIXED * row_bytes))
        n_rows = max(n_rows, 1 << max(0, most.bit_length() - 1))
    return n_rows, row_bytes


def _row_bytes(table: Table) -> int:
    """Return the bytes of a row; of a sparse matrix, those of its entries and their columns."""
    n_entries = getattr(table, "nnz", None)
    if n_entries is None:
        return int(table.dtype.itemsize * prod(table.shape[1:]))
    return int(n_entries * (table.dtype.itemsize + 4) // max(1, table.shape[0]))


class BlockOrder:
    """An order of rows: blocks of neighbours in random order, the rows of some of them at a time mixed.

    Rows that fit into one window have any order with the same probability. Nothing is kept for each row but
    the order of one window; its numbers follow from those drawn first, so that slices may be read again.

    Parameters
    ----------
    n_rows : int
        The number of rows.
    blocks : Blocks
        The sizes.
    random_state : RandomState
        Draws the order.
    reader : BlockReader or None
        Reads the blocks of a window when its order is read first, and those of the next one meanwhile.
    """

    def __init__(
        self,
        n_rows: int,
        blocks: Blocks,
        random_state: np.random.RandomState,
        reader: BlockReader | None = None,
    ) -> None:
        self._n_rows, self._blocks = n_rows, blocks
        n_blocks = -(-n_rows // blocks.n_rows)
        order = shuffled((1, n_blocks), random_state)[0].astype(np.uint32, copy=False)
        # the last block may be shorter: in the last window no batch is moved into another one by it
        last = int(np.argmax(order == n_blocks - 1))
        order[[last, -1]] = order[[-1, last]]
        self._windows = [order[part] for part in row_blocks(n_blocks, blocks.n_mixed)]
        self._seeds = random_state.randint(0, 1 << 32, len(self._windows), np.uint32)
        self._known: tuple[int, np.ndarray] | None = None
        self._reader, self._begun = reader, -1

    def __len__(self) -> int:
        return self._n_rows

    def __getitem__(self, places: slice) -> np.ndarray:
        """Return the numbers of the rows at a slice of places."""
        start, stop, _ = places.indices(self._n_rows)
        parts = [np.empty(0, np.uint32)]
        while start < stop:
            number = start // self._blocks.n_window
            window, first = self._window(number), number * self._blocks.n_window
            parts.append(window[start - first : stop - first])
            start = first + len(window)
        return parts[1] if len(parts) == 2 else np.concatenate(parts)

    def _window(self, number: int) -> np.ndarray:
        """Return the order of the rows of a window, when its data are read; begin to read the next one."""
        if self._known is None or self._known[0] != number:
            self._read(number)
            self._known = number, self._mixed(number)
        return self._known[1]

    def _read(self, number: int) -> None:
        """Wait for the data of a window; begin to read the next one."""
        if self._reader is None:
            return
        if self._begun != number:
            self._reader.begin(self._windows[number])
        self._reader.finish()
        self._begun = number + 1
        if self._begun < len(self._windows):
            self._reader.begin(self._windows[self._begun])

    def _mixed(self, number: int) -> np.ndarray:
        """Return the rows of the blocks of a window in random order."""
        starts = self._windows[number][:, None] * np.uint32(self._blocks.n_rows)
        rows = (starts + np.arange(self._blocks.n_rows, dtype=np.uint32)).reshape(-1)
        rows = rows[rows < self._n_rows]
        mixed: np.ndarray = rows.take(shuffled((1, len(rows)), seeded(int(self._seeds[number])))[0])
        return mixed
