"""Blocks of rows in memory, read from files while others are trained on."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Any

import numpy as np

from onnxsgd.data.mapped_files import with_files
from onnxsgd.data.row_tables import RowTable, Table, is_mapped, sources, take_into, taken

__all__ = ["BlockReader", "BlockTable"]

#: The threads that read. They wait for the disk, which takes several requests at a time.
_THREADS = 8
#: Of so many blocks of a window one tells if they are in the cache of the system.
_PROBED = 4


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
    """Copies blocks of rows into memory: those of one window, and in threads those of the next one.

    While a file is in the cache of the system, rows are taken from the map, which takes no longer.

    Parameters
    ----------
    tables : iterable of BlockTable
        The tables. Those whose files are known take rows from the copies until the reader is closed.
    n_rows : int
        The rows of a block, a power of two.
    n_mixed : int
        The most blocks of a window.
    """

    def __init__(self, tables: Iterable[BlockTable], n_rows: int, n_mixed: int) -> None:
        self._n_rows, self._n_mixed = n_rows, n_mixed
        self._shift = n_rows.bit_length() - 1
        tables = tuple(tables)
        # the place of each block among those in memory; -1: it is not there
        self._places = np.full(-(-len(tables[0]) // n_rows), -1, np.int32)
        self._held: list[np.ndarray] = [np.empty(0, np.intp), np.empty(0, np.intp)]
        self._has_copies = self._is_closed = False
        self._threads = ThreadPoolExecutor(_THREADS, "onnxsgd-read-ahead")
        self._reading: list[Future[None]] = []
        self._tables = list[tuple[BlockTable, Table, np.ndarray]]()
        for table in tables:
            from_file = with_files(table.source, n_rows)
            if from_file is not None:
                copies = np.empty((2 * n_mixed * n_rows, *table.shape[1:]), table.dtype)
                self._tables.append((table, from_file, copies))
                table.blocks = self, copies

    def begin(self, number: int, blocks: np.ndarray) -> None:
        """Read the blocks of a window in place of those of the last but one; return at once."""
        half = number % 2
        self._places[self._held[half]] = -1
        self._held[half] = np.sort(blocks).astype(np.intp)
        held, first = self._held[half].tolist(), half * self._n_mixed
        self._reading = []
        if self._is_closed or all(map(self._is_cached, held[::_PROBED])):
            return
        parts = [range(start, len(held), _THREADS) for start in range(_THREADS)]
        try:
            self._reading = [self._threads.submit(self._read, held, part, first) for part in parts]
        except RuntimeError:
            # the system starts no further thread; what those there are still copy is not used
            self._is_closed = True

    def finish(self, number: int) -> None:
        """Wait for the blocks of a window; rows are taken from them from now on."""
        self._has_copies = bool(self._reading)
        for part in self._reading:
            part.result()
        if self._has_copies:
            held = self._held[number % 2]
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
        """End the threads after the blocks that they read; let tables take rows from their source."""
        self._is_closed = True
        for table, _, _ in self._tables:
            table.blocks = None
        self._threads.shutdown()
        for _, from_file, _ in self._tables:
            for file, _ in sources(from_file, slice(0, 0)):
                file.close()

    def _is_cached(self, block: int) -> bool:
        """Tell whether the beginning of a block is in the cache."""
        read = (sources(from_file, self._rows(block)) for _, from_file, _ in self._tables)
        return all(file.is_cached(rows) for file, rows in chain.from_iterable(read))

    def _read(self, blocks: list[int], part: range, place: int) -> None:
        """Copy some of the blocks of a window to places among the copies, unless it is closed."""
        for number in part:
            if self._is_closed:
                return
            start = (place + number) * self._n_rows
            for _, from_file, copies in self._tables:
                # both let other threads run meanwhile
                rows: Any = from_file[self._rows(blocks[number])]
                copies[start : start + len(rows)] = rows

    def _rows(self, block: int) -> slice:
        return slice(block * self._n_rows, (block + 1) * self._n_rows)
