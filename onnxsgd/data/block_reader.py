"""Blocks of rows in memory, read from memory maps while others are trained on."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

import numpy as np

from onnxsgd.data.mapped_pages import MappedRows, count_reads
from onnxsgd.data.row_tables import RowTable, Table, is_mapped, sources, take_into, taken

__all__ = ["BlockReader", "BlockTable"]

#: The blocks that a disk is asked for before the one that is copied.
_ASKED = 16


class BlockTable(RowTable):
    """A table in a memory map, of which some blocks of rows are in memory.

    Parameters
    ----------
    source : ndarray or RowTable
        The table.
    """

    def __init__(self, source: Table) -> None:
        self.source, self.shape, self.dtype = source, source.shape, source.dtype
        #: The reader and its copies of rows, while there is one.
        self.blocks: tuple[BlockReader, np.ndarray] | None = None

    @classmethod
    def of(cls, table: Any) -> Any:
        """Return a table in a memory map as one of these, and others as they are."""
        return cls(table) if is_mapped(table) else table

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        found: np.ndarray
        if isinstance(rows, slice) or self.blocks is None:
            found = taken(self.source, rows)
        else:
            found = np.empty((len(rows), *self.shape[1:]), self.dtype)
            self.take_into(rows, found)
        return found

    def take_into(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Copy the rows of these numbers to an array, those in memory from there."""
        places = None if self.blocks is None else self.blocks[0].places(rows)
        if self.blocks is None or places is None:
            take_into(self.source, rows, out)
            return
        self.blocks[1].take(places, axis=0, out=out, mode="clip")
        is_missing = places < 0
        if is_missing.any():
            out[is_missing] = taken(self.source, rows[is_missing])


class BlockReader:
    """Copies blocks of rows into memory: those of one window, and in a thread those of the next one.

    While the map is in memory, rows are taken from there, which takes no longer, and the first block of each
    window is copied to find that out.

    Parameters
    ----------
    tables : iterable of BlockTable
        The tables. They take rows from the copies until the reader is closed.
    n_rows : int
        The rows of a block, a power of two.
    n_mixed : int
        The most blocks of a window.
    """

    def __init__(self, tables: Iterable[BlockTable], n_rows: int, n_mixed: int) -> None:
        self._tables, self._n_rows, self._n_mixed = tuple(tables), n_rows, n_mixed
        self._shift = n_rows.bit_length() - 1
        # the place of each block among those in memory; -1: it is not there
        self._places = np.full(-(-len(self._tables[0]) // n_rows), -1, np.int32)
        self._copies = [np.empty((2 * n_mixed * n_rows, *t.shape[1:]), t.dtype) for t in self._tables]
        arrays = [array for table in self._tables for array, _ in sources(table, slice(0, 0))]
        self._maps = {id(array): MappedRows.of(array, n_rows) for array in arrays}
        for table, copies in zip(self._tables, self._copies, strict=True):
            table.blocks = self, copies
        self._thread = ThreadPoolExecutor(1, "onnxsgd-read-ahead")
        self._reading: Future[bool] | None = None
        self._held: list[np.ndarray] = [np.empty(0, np.intp), np.empty(0, np.intp)]
        self._has_copies = self._is_closed = False
        self._n_reads = count_reads()

    def begin(self, number: int, blocks: np.ndarray) -> None:
        """Read the blocks of a window in place of those of the last but one; return at once."""
        half = number % 2
        self._places[self._held[half]] = -1
        self._held[half] = np.sort(blocks).astype(np.intp)
        self._reading = self._thread.submit(self._read, self._held[half].tolist(), half * self._n_mixed)

    def finish(self, number: int) -> None:
        """Wait for the blocks of a window; rows are taken from them from now on."""
        self._has_copies = self._reading is not None and self._reading.result()
        held = self._held[number % 2]
        if self._has_copies:
            self._places[held] = np.arange(len(held)) + number % 2 * self._n_mixed

    def places(self, rows: np.ndarray) -> np.ndarray | None:
        """Return where among the copies rows are; negative: nowhere. None: the blocks are not copied."""
        if not self._has_copies:
            return None
        of_blocks: np.ndarray = self._places.take(rows >> self._shift).astype(np.intp)
        of_blocks <<= self._shift
        of_blocks |= rows & (self._n_rows - 1)
        return of_blocks

    def close(self) -> None:
        """End the thread after the block that it reads; let tables take rows from their source."""
        self._is_closed = True
        for table in self._tables:
            table.blocks = None
        self._thread.shutdown()
        for mapped in self._maps.values():
            if mapped is not None:
                mapped.close()

    def _read(self, blocks: list[int], place: int) -> bool:
        """Copy blocks to a place among the copies, unless the map is in memory; tell whether it did."""
        n_before, self._n_reads = self._n_reads, count_reads()
        self._copy(blocks[0], place)
        if count_reads() == n_before:
            # nothing was read since the last window was begun
            return False
        for block in blocks[1 : _ASKED + 1]:
            self._ask(block)
        followed = zip_longest(blocks[1:], blocks[_ASKED + 1 :])
        for number, (block, asked) in enumerate(followed, start=1):
            if self._is_closed:
                return False
            if asked is not None:
                self._ask(asked)
            self._copy(block, place + number)
        return True

    def _copy(self, block: int, place: int) -> None:
        first = place * self._n_rows
        for table, copies in zip(self._tables, self._copies, strict=True):
            # numpy lets other threads run meanwhile
            rows: Any = table.source[self._rows(block)]
            copies[first : first + len(rows)] = rows

    def _ask(self, block: int) -> None:
        for table in self._tables:
            for array, rows in sources(table, self._rows(block)):
                mapped = self._maps[id(array)]
                if mapped is not None:
                    mapped.ask(rows)

    def _rows(self, block: int) -> slice:
        return slice(block * self._n_rows, (block + 1) * self._n_rows)
