"""Pages of memory maps: the system is asked for those that are read next."""

from __future__ import annotations

import mmap
import sys

import numpy as np

__all__ = ["ask_for_rows", "count_reads"]

#: The bytes of a request: Linux reads no more for one than the readahead of the device, 128 kB or more.
_REQUEST = 1 << 17


def ask_for_rows(array: np.ndarray, rows: slice) -> None:
    """Let the system read some rows of a memory map into its cache, without waiting for them.

    Nothing happens for an array in memory, for one whose rows are not contiguous, which have no pages of
    their own, and where the system takes no advice (Windows).
    """
    mapped = _map_of(array)
    start, stop, _ = rows.indices(len(array))
    if mapped is None or not hasattr(mapped, "madvise") or start >= stop:
        return
    row_bytes = array.strides[0]
    if row_bytes < max(array.strides[1:], default=0) or min(array.strides) < 0:
        return
    # the address of the map; the view is dropped at once, so that the map may be closed
    first = _address(array) - _address(np.frombuffer(mapped, np.uint8))
    begin = (first + start * row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    for place in range(begin, min(first + stop * row_bytes, len(mapped)), _REQUEST):
        mapped.madvise(mmap.MADV_WILLNEED, place, min(_REQUEST, len(mapped) - place))


def count_reads() -> int:
    """Return a number that grows with each read of this process from a disk, and each wait for one."""
    if sys.platform == "win32":
        return 0
    # the module is missing on Windows
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_inblock + usage.ru_majflt


def _map_of(array: np.ndarray) -> mmap.mmap | None:
    """Return the map that an array is a view of."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
