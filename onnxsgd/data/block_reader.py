"""Blocks of rows in memory, read from files while others are trained on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

from onnxsgd.data.disk_reads import DiskReads
from onnxsgd.data.mapped_files import FileRows, with_files
from onnxsgd.data.row_tables import RowTable, Table, is_mapped, sources, take_into, taken

__all__ = ["BlockReader", "BlockTable"]

#: The bytes that are read together, while as many others are copied, and the most reads that they are in.
_TOGETHER, _MOST_READS = 1 << 22, 128
#: Of so many blocks of a window one tells if they are in the cache of the system.
_PROBED = 4


#: The file and the rows of reads that were begun, and these reads.
_Begun = tuple[FileRows, slice, list[tuple[int, int, int]]]


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
        self._thread = ThreadPoolExecutor(1, "onnxsgd-read-ahead")
        self._reading: Future[None] | None = None
        self._process = os.getpid()
        self._tables = list[tuple[BlockTable, Table, np.ndarray]]()
        for table in tables:
            from_file = with_files(table.source, n_rows)
            if from_file is not None:
                copies = np.empty((2 * n_mixed * n_rows, *table.shape[1:]), table.dtype)
                self._tables.append((table, from_file, copies))
                table.blocks = self, copies
        # two, so that one waits for the disk while the blocks of the other one are copied
        opened = [DiskReads.opened(_MOST_READS) for _ in range(2)]
        self._reads = [reads for reads in opened if reads is not None]

    def begin(self, number: int, blocks: np.ndarray) -> None:
        """Read the blocks of a window in place of those of the last but one; return at once."""
        half = number % 2
        self._places[self._held[half]] = -1
        self._held[half] = np.sort(blocks).astype(np.intp)
        held = self._held[half].tolist()
        self._reading = None
        if self._is_closed or all(map(self._is_cached, held[::_PROBED])):
            return
        try:
            self._reading = self._thread.submit(self._read, held, half * self._n_mixed)
        except RuntimeError:
            # the system starts no further thread
            self._is_closed = True

    def finish(self, number: int) -> None:
        """Wait for the blocks of a window; rows are taken from them from now on."""
        # the thread of a process is not in its forks
        self._has_copies = self._reading is not None and self._process == os.getpid()
        if self._reading is not None and self._has_copies:
            self._reading.result()
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
        """End the thread after the blocks that it reads; let tables take rows from their source."""
        self._is_closed = True
        for table, _, _ in self._tables:
            table.blocks = None
        self._thread.shutdown()
        for reads in self._reads:
            reads.close()
        for _, from_file, _ in self._tables:
            for file, _ in sources(from_file, slice(0, 0)):
                file.close()

    def _is_cached(self, block: int) -> bool:
        """Tell whether the beginning of a block is in the cache."""
        return all(file.is_cached(rows) for file, rows in self._files([block]))

    def _read(self, blocks: list[int], place: int) -> None:
        """Copy the blocks of a window to places among the copies, unless it is closed."""
        size = self._n_together(blocks[0])
        parts = [blocks[start : start + size] for start in range(0, len(blocks), size)]
        begun = self._begin_part(parts[0], 0)
        for number, (part, following) in enumerate(zip(parts, [*parts[1:], []], strict=True)):
            later = self._begin_part(following, number + 1)
            self._finish_part(begun, number)
            begun = later
            for block in part:
                if self._is_closed:
                    return
                self._copy(block, place)
                place += 1

    def _n_together(self, block: int) -> int:
        """Return the number of blocks like this one that are read together."""
        reads = [read for file, rows in self._files([block]) for read in file.reads(rows)]
        n_bytes = sum(size for _, _, size in reads)
        return max(1, min(_TOGETHER // max(1, n_bytes), _MOST_READS // max(1, len(reads))))

    def _begin_part(self, blocks: list[int], number: int) -> list[_Begun]:
        """Begin to read blocks from the disk; return what is read."""
        if len(self._reads) < 2:
            return []
        begun = [(file, rows, file.reads(rows)) for file, rows in self._files(blocks)]
        self._reads[number % 2].begin([read for _, _, reads in begun for read in reads])
        return begun

    def _finish_part(self, begun: list[_Begun], number: int) -> None:
        """Give their bytes to the files."""
        if begun:
            found = iter(self._reads[number % 2].finish())
            for file, rows, reads in begun:
                file.know(rows, list(islice(found, len(reads))))

    def _copy(self, block: int, place: int) -> None:
        start = place * self._n_rows
        for _, from_file, copies in self._tables:
            # numpy lets other threads run meanwhile
            rows: Any = from_file[self._rows(block)]
            copies[start : start + len(rows)] = rows

    def _files(self, blocks: list[int]) -> Iterator[tuple[FileRows, slice]]:
        """Yield the files that blocks are read from, with their rows."""
        for block in blocks:
            for _, from_file, _ in self._tables:
                yield from sources(from_file, self._rows(block))

    def _rows(self, block: int) -> slice:
        return slice(block * self._n_rows, (block + 1) * self._n_rows)
