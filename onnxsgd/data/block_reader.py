"""Blocks of rows in memory, read from files while others are trained on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from onnxsgd.data.disk_reads import DiskReads
from onnxsgd.data.mapped_files import FileRows, with_files
from onnxsgd.data.row_tables import RowTable, Table, is_mapped, sources, take_into, taken

__all__ = ["BlockReader", "BlockTable"]

#: The most reads that are under way.
_MOST_READS = 512
#: Of so many blocks of a window one tells if they are in the cache of the system.
_PROBED = 4

#: The file and the rows of reads that were begun, and these reads: file, place and size.
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
    """Copies blocks of rows into memory: those of a window, while the disk reads those of the next one.

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
        # the blocks of two windows, as an update may have rows of both, and the first place of the later one
        self._held, self._first = (np.empty(0, np.intp), np.empty(0, np.intp)), n_mixed
        self._wanted = np.empty(0, np.intp)
        self._has_copies = False
        self._begun: list[_Begun] | None = None
        self._process = os.getpid()
        self._reads = DiskReads.opened(_MOST_READS)
        self._tables = list[tuple[BlockTable, Table, np.ndarray]]()
        for table in tables:
            from_file = with_files(table.source, n_rows, is_direct=self._reads is not None)
            if from_file is not None:
                copies = np.empty((2 * n_mixed * n_rows, *table.shape[1:]), table.dtype)
                self._tables.append((table, from_file, copies))
                table.blocks = self, copies

    def begin(self, blocks: np.ndarray) -> None:
        """Begin to read the blocks of the next window."""
        self._wanted = np.sort(blocks).astype(np.intp)
        wanted, self._begun = self._wanted.tolist(), None
        if self._process != os.getpid() or all(map(self._is_cached, wanted[::_PROBED])):
            # no fork has the memory that the disk writes into
            return
        self._begun = [
            (file, rows, file.begin(rows))
            for block in wanted
            for _, from_file, _ in self._tables
            for file, rows in sources(from_file, self._rows(block))
        ]
        if self._reads is not None:
            self._reads.begin([read for _, _, reads in self._begun for read in reads])

    def finish(self) -> None:
        """Wait for the blocks and copy them in place of those of the last window but one.

        Rows are taken from the copies from now on.
        """
        self._has_copies = False
        if self._begun is None or self._process != os.getpid():
            return
        if self._reads is not None:
            found = iter(self._reads.finish())
            for file, rows, reads in self._begun:
                file.know(rows, list(islice(found, len(reads))))
        before, last = self._held
        self._places[before] = -1
        self._held = last, self._wanted
        self._first = self._n_mixed - self._first
        for place, block in enumerate(self._wanted.tolist(), self._first):
            self._copy(block, place)
        self._places[self._wanted] = np.arange(self._first, self._first + len(self._wanted))
        # a handler of a signal may have forked meanwhile: what the disk wrote is not in the fork
        self._has_copies = self._process == os.getpid()

    def places(self, rows: np.ndarray) -> np.ndarray | None:
        """Return where among the copies rows are; negative: nowhere. None: the blocks are not copied."""
        if not self._has_copies:
            return None
        of_blocks: np.ndarray = self._places.take(rows >> self._shift).astype(np.intp)
        of_blocks <<= self._shift
        of_blocks |= rows & (self._n_rows - 1)
        return of_blocks

    def close(self) -> None:
        """Give the files back, after the reads that are under way; let tables take rows from their source."""
        for table, _, _ in self._tables:
            table.blocks = None
        if self._reads is not None:
            self._reads.close()
        for _, from_file, _ in self._tables:
            for file, _ in sources(from_file, slice(0, 0)):
                file.close()

    def _is_cached(self, block: int) -> bool:
        """Tell whether the beginning of a block is in the cache."""
        rows = self._rows(block)
        return all(
            file.is_cached(part)
            for _, from_file, _ in self._tables
            for file, part in sources(from_file, rows)
        )

    def _copy(self, block: int, place: int) -> None:
        start = place * self._n_rows
        for _, from_file, copies in self._tables:
            rows: Any = from_file[self._rows(block)]
            copies[start : start + len(rows)] = rows

    def _rows(self, block: int) -> slice:
        return slice(block * self._n_rows, (block + 1) * self._n_rows)
