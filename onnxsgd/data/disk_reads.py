"""Reads of a disk that wait together: asynchronous input of Linux (``man 7 aio``, ``man 2 io_submit``)."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

__all__ = ["SECTOR", "DiskReads", "address", "in_sectors"]

#: Addresses, places and sizes of direct reads are multiples of this.
SECTOR = 4096
#: The numbers of io_setup, io_destroy, io_submit and io_getevents, which the C library does not name.
_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
#: The bytes of a huge page, and the advice that the pages of a fork are empty (``man 2 madvise``).
_HUGE_PAGE, _WIPE_ON_FORK = 1 << 21, 18
#: A request to the system (struct iocb), and its result (struct io_event), on machines with these numbers.
_REQUEST = np.dtype(
    [
        ("number", "u8"), ("key", "u4"), ("flags", "u4"), ("operation", "u2"), ("priority", "i2"),
        ("file", "u4"), ("address", "u8"), ("size", "u8"), ("place", "i8"), ("unused", "u8", 2),
    ]
)  # fmt: skip
_RESULT = np.dtype([("number", "u8"), ("request", "u8"), ("size", "i8"), ("unused", "i8")])


class DiskReads:
    """Direct reads of files that are begun together, by one call for all.

    They are as fast as the disk, need no thread, and take a third of the processor time of reads that wait in
    threads of Python.

    Parameters
    ----------
    most : int
        The most reads that are under way together. Further ones begin when these are over.
    """

    def __init__(self, most: int) -> None:
        # the system gives the object a context, which an exception at any place does not keep
        self._context, self._process = ctypes.c_ulong(0), os.getpid()
        self._is_open = _system_call("setup", most, ctypes.byref(self._context)) >= 0
        self._memory = np.empty(0, np.uint8)
        self._requests = np.empty(0, _REQUEST)
        self._wanted: list[slice] = []
        # the addresses of requests that are not begun, and the number of those under way
        self._waiting = np.empty(0, np.int64)
        self._n_begun = 0

    @classmethod
    def opened(cls, most: int) -> DiskReads | None:
        """Return an object for up to `most` reads together; None: the system has none."""
        found = cls(most)
        return found if found._is_open else None

    def begin(self, wanted: Sequence[tuple[int, int, int]]) -> None:
        """Begin to read, after those begun before.

        Parameters
        ----------
        wanted : sequence of (int, int, int)
            Descriptors of files that are opened for direct reads, places in them, and numbers of bytes.
        """
        if self._n_begun:
            # they write into the same memory
            self.finish()
        files, places, sizes = np.array(wanted, np.int64).reshape(-1, 3).T
        margins = places % SECTOR
        rounded = -(-(margins + sizes) // SECTOR) * SECTOR
        starts = np.cumsum(rounded) - rounded
        if len(self._memory) < rounded.sum():
            # not beside what there is, which is given back first
            self._memory = np.empty(0, np.uint8)
            self._memory = in_sectors(int(rounded.sum()))
        self._wanted = [slice(*part) for part in np.c_[starts + margins, starts + margins + sizes].tolist()]
        requests = self._requests = np.zeros(len(wanted), _REQUEST)
        requests["number"], requests["file"] = np.arange(len(wanted)), files
        requests["address"], requests["size"] = address(self._memory) + starts, rounded
        requests["place"] = places - margins
        self._waiting = address(requests) + _REQUEST.itemsize * np.arange(len(wanted), dtype=np.int64)
        self._n_begun = 0
        self._submit()

    def finish(self) -> list[np.ndarray | None]:
        """Wait for the reads; return their bytes, which stay until the next ones begin. None: it failed."""
        n_read = np.full(len(self._requests), -1, np.int64)
        while self._n_begun and self._process == os.getpid():
            results = np.empty(self._n_begun, _RESULT)
            n_done = _system_call(
                "results", self._context.value, self._n_begun, self._n_begun, address(results), None
            )
            if n_done < 0 and ctypes.get_errno() != errno.EINTR and self._process == os.getpid():
                raise OSError(ctypes.get_errno(), "The system does not tell what it has read")
            done = results[: max(0, n_done)]
            n_read[done["number"]] = done["size"]
            self._n_begun -= len(done)
            if not self._n_begun:
                self._submit()
        ends = self._requests["address"].astype(np.int64) - address(self._memory) + n_read
        return [
            self._memory[part] if part.stop <= end else None
            for part, end in zip(self._wanted, ends.tolist(), strict=True)
        ]

    def _submit(self) -> None:
        """Begin as many of the reads that wait as the system takes."""
        while len(self._waiting):
            n_new = _system_call("submit", self._context.value, len(self._waiting), address(self._waiting))
            if n_new <= 0:
                break
            self._waiting = self._waiting[n_new:]
            self._n_begun += n_new

    def close(self) -> None:
        """Give the context back, after the reads that are under way; not in a fork, which has none."""
        context, self._context = self._context.value, ctypes.c_ulong(0)
        if context and self._process == os.getpid():
            _system_call("destroy", context)

    # an interrupted fit may leave it open, and the contexts of a system are few
    __del__ = close


def in_sectors(size: int) -> np.ndarray:
    """Return bytes whose address is a multiple of :data:`SECTOR`, in huge pages where the system has them.

    A disk writes into few large pieces of memory twice as fast as into many of 4 kB. The pages of a fork are
    empty: a direct read into memory that a fork has meanwhile copied may end in either copy (``man 2 open``).
    """
    try:
        memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        raise MemoryError(f"There is no memory of {size} bytes for rows of a file.") from None
    for advice in (_WIPE_ON_FORK, mmap.MADV_HUGEPAGE):
        # what the system does not know it refuses
        with suppress(OSError):
            memory.madvise(advice)
    found = np.frombuffer(memory, np.uint8)
    start = -address(found) % _HUGE_PAGE
    return found[start : start + size]


def address(array: np.ndarray) -> int:
    """Return the address of the first byte of an array."""
    return int(array.__array_interface__["data"][0])


def _system_call(name: str, *arguments: Any) -> int:
    """Call a function of the system; return its result, -1 for an error."""
    call, numbers = _system()
    if call is None:
        return -1
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return int(call(ctypes.c_long(numbers[name]), *converted))


@cache
def _system() -> tuple[Callable[..., int] | None, dict[str, int]]:
    """Return the function of the C library that calls the system, and the numbers of its functions."""
    is_known = sys.platform == "linux" and sys.maxsize > 1 << 32 and platform.machine() in _CALLS
    if not is_known:
        return None, {}
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return call, dict(zip(("setup", "destroy", "submit", "results"), _CALLS[platform.machine()], strict=True))
