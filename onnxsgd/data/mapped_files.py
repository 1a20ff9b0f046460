"""Files of memory maps, read without the cache of the system."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import copy
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from onnxsgd.data.disk_reads import SECTOR, address, in_sectors
from onnxsgd.data.row_tables import RowTable, Selected, Table, sources

__all__ = ["FileRows", "column_pages", "with_files"]

#: The most bytes of a file that are read for a byte of a row: a bound of memory.
_MOST_READ = 2
#: The most columns of which a page each is read for a block: a bound of memory.
_MOST_COLUMNS = 1024
#: The memory maps of this process on Linux.
_MAPS = Path("/proc/self/maps")
#: Its open files, and the end of the names of removed ones.
_DESCRIPTORS, _REMOVED = "/proc/self/fd", " (deleted)"


class FileRows(RowTable):
    """Rows of a memory map, read from its file.

    They are read past the cache of the system (O_DIRECT), which takes a quarter of the processor time, as no
    page is put into the cache for them, and none dropped. Where the file system cannot do so, they are read
    through the cache. One thread reads at a time.

    Parameters
    ----------
    array : ndarray
        A view of the map.
    file : FileIO
        Its file.
    place : int
        The place of the first byte of the array in the file.
    is_direct : bool
        Read past the cache.
    """

    def __init__(self, array: np.ndarray, file: FileIO, place: int, *, is_direct: bool) -> None:
        self.shape, self.dtype = array.shape, array.dtype
        self._strides, self._place = array.strides, place
        # the bytes between the first one of a row and its end
        self._row_extent = _extent(array.shape[1:], array.strides[1:], array.itemsize)
        self._is_by_rows, self._memory = _is_by_rows(array), np.empty(0, np.uint8)
        self._address, self._is_told = address(array), _is_told(file)
        self._file, self._direct = file, _direct(file) if is_direct and self._is_told else None
        # bytes that were read already, by the place of the first one in the array
        self._known: dict[int, np.ndarray] = {}

    @classmethod
    def of(cls, array: np.ndarray, n_rows: int, *, is_direct: bool = True) -> FileRows | None:
        """Return the table of an array of which blocks of `n_rows` are read.

        None: its file is not known, or a block is scattered in it. `is_direct` lets it read past the cache.
        """
        if not array.size or min(array.strides) < 0:
            return None
        if _is_by_rows(array):
            is_scattered = array.strides[0] > _MOST_READ * _extent(
                array.shape[1:], array.strides[1:], array.itemsize
            )
        else:
            is_scattered = (
                array.ndim != 2
                or array.strides[0] != array.itemsize
                or array.strides[1] < len(array) * array.itemsize
                or min(n_rows, len(array)) * array.itemsize < SECTOR
            )
        found = None if is_scattered else _file_of(array)
        return None if found is None else cls(array, *found, is_direct=is_direct)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return a slice, or the rows of ascending numbers, which are read with those between them."""
        if not isinstance(rows, slice):
            first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, -1)
            return self[first : last + 1].take(rows - first, axis=0)
        parts = self._parts(rows)
        start, stop, _ = rows.indices(self.shape[0])
        shape = (max(0, stop - start), *self.shape[1:])
        if self._is_by_rows and parts:
            return np.ndarray(shape, self.dtype, self._bytes(*parts[0]), strides=self._strides)
        found = np.empty(shape, self.dtype, order="F")
        for column, (first, size) in zip(found.T, parts, strict=False):
            # of the memory of one part at a time
            column[:] = self._bytes(first, size).view(self.dtype)
        return found

    def begin(self, rows: slice) -> list[tuple[int, int, int]]:
        """Return the direct reads of a slice, for :class:`~.disk_reads.DiskReads`.

        Where the file has none, the list is empty, and the system reads the slice into its cache meanwhile.
        """
        parts = self._parts(rows)
        if self._direct is None:
            for first, size in parts:
                os.posix_fadvise(self._file.fileno(), self._place + first, size, os.POSIX_FADV_WILLNEED)
            return []
        file = self._direct.fileno()
        return [(file, self._place + first, size) for first, size in parts]

    def know(self, rows: slice, parts: Iterable[np.ndarray | None]) -> None:
        """Take the bytes of these reads in place of further ones, the next time that the slice is read."""
        if self._direct is not None:
            pairs = zip(self._parts(rows), parts, strict=True)
            self._known |= {first: data for (first, _), data in pairs if data is not None}

    def _parts(self, rows: slice) -> list[tuple[int, int]]:
        """Return the first byte and the size of each part of the array that has bytes of a slice."""
        start, stop, _ = rows.indices(self.shape[0])
        if stop <= start:
            return []
        first = start * self._strides[0]
        if self._is_by_rows:
            return [(first, (stop - start - 1) * self._strides[0] + self._row_extent)]
        size = (stop - start) * self.dtype.itemsize
        return [(first + column * self._strides[1], size) for column in range(self.shape[1])]

    def sources(self, rows: slice) -> Iterator[tuple[Table, slice]]:
        """Yield this table, with the rows."""
        yield self, rows

    def is_cached(self, rows: slice) -> bool:
        """Tell whether the first of some rows is in the cache of the system; not if it does not tell."""
        return self._is_told and _is_cached(self._address + rows.start * self._strides[0])

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        if self._direct is not None:
            self._direct.close()

    def _bytes(self, first: int, size: int) -> np.ndarray:
        """Return bytes of the array, until others are read."""
        known = self._known.pop(first, None)
        if known is not None:
            return known
        place = self._place + first
        margin = place % SECTOR
        rounded = -(-(margin + size) // SECTOR) * SECTOR
        if len(self._memory) < rounded:
            self._memory = in_sectors(rounded)
        memory = self._memory[:rounded]
        found, n_read = memory[margin : margin + size], 0
        if self._direct is not None:
            # what it cannot read is read through the cache, or refused there
            with suppress(OSError):
                n_read = max(0, os.preadv(self._direct.fileno(), [memory.data], place - margin) - margin)
        while n_read < size:
            n_more = os.preadv(self._file.fileno(), [found[n_read:].data], place + n_read)
            if not n_more:
                raise OSError(errno.EIO, "The file has become shorter than its memory map", self._file.name)
            n_read += n_more
        return found


def with_files(table: Table, n_rows: int, *, is_direct: bool = True) -> Any:
    """Return a table that reads blocks of `n_rows` from the file of its memory map; None: it has none.

    `is_direct` lets it read past the cache of the system.
    """
    if not isinstance(table, RowTable):
        return FileRows.of(table, n_rows, is_direct=is_direct)
    is_scattered = isinstance(table, Selected) and len(table.source) > _MOST_READ * len(table)
    if table.source is None or is_scattered:
        return None
    source = with_files(table.source, n_rows, is_direct=is_direct)
    if source is None:
        return None
    found = copy(table)
    found.source = source
    return found


def column_pages(table: Table) -> tuple[int, int]:
    """Return the rows that have a page of each column of a map in Fortran order, and the bytes of a row.

    Blocks of fewer rows are not read from the file. (1, 0): the table has another order, or more than 1,024
    columns.
    """
    found = (1, 0)
    for array, _ in sources(table, slice(0, 0)):
        is_by_columns = array.ndim == 2 and array.size and not _is_by_rows(array)
        if is_by_columns and array.shape[1] <= _MOST_COLUMNS:
            found = SECTOR // array.itemsize, array.shape[1] * array.itemsize
    return found


def _is_by_rows(array: np.ndarray) -> bool:
    """Tell whether the bytes of a row are beside each other, or those of a column."""
    row, *others = array.strides
    return row >= max(others, default=array.itemsize)


def _extent(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    """Return the bytes between the first one of an array and its end."""
    return itemsize + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _file_of(array: np.ndarray) -> tuple[FileIO, int] | None:
    """Return the file that an array is mapped from, and its place there.

    None: writes to the map do not reach it, it has been replaced, or removed and is not open in this process,
    or the system is not Linux.
    """
    if sys.platform != "linux":
        return None
    try:
        lines = _MAPS.read_bytes().split(b"\n")[:-1]
    except OSError:
        return None
    first = address(array)
    end = first + _extent(array.shape, array.strides, array.itemsize)
    for line in lines:
        # the addresses, permissions, place in the file, device, number of the file, its name
        addresses, permissions, place, _, number, *name = line.split(maxsplit=5)
        start, stop = (int(address, 16) for address in addresses.split(b"-"))
        if start <= first and end <= stop and permissions.endswith(b"s") and name:
            return _opened(os.fsdecode(name[0]), int(number), int(place, 16) + first - start)
    return None


def _opened(name: str, number: int, place: int) -> tuple[FileIO, int] | None:
    """Return a file that is opened for reads at random places, and the place; None: it is another one."""
    try:
        file = FileIO(name)
    except OSError:
        return None if (path := _descriptor(name)) is None else _opened(path, number, place)
    if os.fstat(file.fileno()).st_ino != number:
        file.close()
        return None
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
    return file, place


def _descriptor(name: str) -> str | None:
    """Return the path of a removed file through a descriptor of this process, such as that of its map."""
    for number in os.listdir(_DESCRIPTORS) if name.endswith(_REMOVED) else ():
        with suppress(OSError):
            if os.readlink(f"{_DESCRIPTORS}/{number}") == name:
                return f"{_DESCRIPTORS}/{number}"
    return None


def _direct(file: FileIO) -> FileIO | None:
    """Return the same file, opened for reads past the cache; None: its system cannot do so."""
    path = f"{_DESCRIPTORS}/{file.fileno()}"
    try:
        return FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_DIRECT))
    except OSError:
        return None


def _is_told(file: FileIO) -> bool:
    """Tell whether the system tells which pages of a file are in the cache: to those who may write to it."""
    path, effective = f"{_DESCRIPTORS}/{file.fileno()}", os.access in os.supports_effective_ids
    is_owner = os.fstat(file.fileno()).st_uid == os.geteuid()
    return is_owner or os.access(path, os.W_OK, effective_ids=effective)


def _is_cached(first: int) -> bool:
    """Tell whether the page of a map at an address is in memory (``man 2 mincore``).

    A read that must not wait (``RWF_NOWAIT``) does not tell: it begins to read, and some disks are as quick.
    """
    page = ctypes.c_ubyte()
    # the lowest bit tells
    return _mincore()(first - first % mmap.PAGESIZE, 1, ctypes.byref(page)) == 0 and page.value % 2 == 1


@cache
def _mincore() -> Callable[..., int]:
    """Return the function of the C library that tells which pages are in memory."""
    call = ctypes.CDLL(None).mincore
    call.argtypes, call.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p), ctypes.c_int
    return call
