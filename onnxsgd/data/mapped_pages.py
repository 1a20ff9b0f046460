"""Pages of memory maps: the system is told in which order they are read."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from functools import cache

import numpy as np

__all__ = ["MappedRows", "count_reads"]

#: The bytes of a request: Linux reads no more for one than the readahead of the device, 128 kB or more.
_REQUEST = 1 << 17


class MappedRows:
    """Rows of a memory map, read in blocks of neighbours.

    Until it is closed, the system reads no neighbours of a page that is missing: for each block it would read
    as much as for a file in order, megabytes.

    Parameters
    ----------
    array : ndarray
        A view of the map.
    mapped : mmap
        The map.
    advise : callable
        Gives the system advice on the pages from an address on.
    """

    def __init__(self, array: np.ndarray, mapped: mmap.mmap, advise: Callable[[int, int, int], int]) -> None:
        self._array, self._mapped, self._advise = array, mapped, advise
        self._advise_all("MADV_RANDOM")

    @classmethod
    def of(cls, array: np.ndarray, n_rows: int) -> MappedRows | None:
        """Return an array whose rows are read in blocks of `n_rows`.

        None: it is no map, its neighbours have less than a page, or the system takes no advice (Windows).
        """
        base: object = array
        while isinstance(base, np.ndarray):
            base = base.base
        advise = _madvise()
        if not isinstance(base, mmap.mmap) or advise is None or min(array.strides) < 0:
            return None
        _, size = _runs(array, slice(0, n_rows))
        return cls(array, base, advise) if size >= min(mmap.PAGESIZE, array.nbytes) else None

    def ask(self, rows: slice) -> None:
        """Let the system read rows into its cache, without waiting for them."""
        starts, size = _runs(self._array, rows)
        for start in starts:
            for place in range(start // mmap.PAGESIZE * mmap.PAGESIZE, start + size, _REQUEST):
                self._advise(place, min(_REQUEST, start + size - place), mmap.MADV_WILLNEED)

    def close(self) -> None:
        """Let the system read as before."""
        self._advise_all("MADV_NORMAL")

    def _advise_all(self, name: str) -> None:
        view = np.frombuffer(self._mapped, np.uint8)
        self._advise(_address(view), len(view), getattr(mmap, name))


def count_reads() -> int:
    """Return a number that grows with each read of this process from a disk, and each wait for one."""
    if sys.platform == "win32":
        return 0
    # the module is missing on Windows
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_inblock + usage.ru_majflt


def _runs(array: np.ndarray, rows: slice) -> tuple[list[int], int]:
    """Return the addresses of the contiguous parts of some rows, and the bytes of each: rows, or columns."""
    start, stop, _ = rows.indices(len(array))
    row, *others = array.strides
    first = np.array([_address(array) + start * row])
    if row < max(others, default=0):
        for size, stride in zip(array.shape[1:], others, strict=True):
            first = np.add.outer(first, np.arange(size) * stride).reshape(-1)
    return first.tolist(), (stop - start) * row


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """Return the function of the C library; that of Python's maps lets no other thread run meanwhile."""
    if not hasattr(mmap.mmap, "madvise"):
        return None
    call = ctypes.CDLL(None).madvise
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return call
