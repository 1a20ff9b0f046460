"""Caches of compiled sessions, shared within a process by equal graphs."""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

__all__ = ["CompiledCache", "compiled"]

T = TypeVar("T")


#: The number of entries kept in any case: the sessions of one fit.
_FEW = 6


class CompiledCache:
    """A thread-safe cache of the most recently used compiled objects.

    A session does not survive a fork, so the cache starts empty in a child process.

    Parameters
    ----------
    max_size : int
        The largest number of objects kept.
    max_bytes : int or None
        The largest total size of their graphs. The last few are kept however large they are: a fit needs
        several at a time.

    Attributes
    ----------
    n_built : int
        The number of objects built, that is, of cache misses.
    """

    def __init__(self, max_size: int, max_bytes: int | None = None) -> None:
        self._max_size, self._max_bytes = max_size, math.inf if max_bytes is None else max_bytes
        self._lock = threading.RLock()
        self._reset()

    def get(self, key: Hashable, build: Callable[[], T], nbytes: int = 0) -> T:
        """Return the object stored under `key`; if missing, store the result of `build`, of `nbytes`."""
        if self._process != os.getpid():
            # The lock may have been held by a thread that does not exist in the child process. Nor do the
            # threads of sessions: destroying a session, which waits for them, would crash the interpreter.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._entries))
            self._lock = threading.RLock()
            self._reset()
        with self._lock:
            if key not in self._entries:
                self._entries[key] = build(), nbytes
                self.n_built += 1
                self._drop_oldest()
            self._entries.move_to_end(key)
            made: T = self._entries[key][0]
            return made

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._reset()

    def _drop_oldest(self) -> None:
        total = sum(nbytes for _, nbytes in self._entries.values())
        while len(self._entries) > self._max_size or (total > self._max_bytes and len(self._entries) > _FEW):
            _, (_, nbytes) = self._entries.popitem(last=False)
            total -= nbytes

    def _reset(self) -> None:
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._process = os.getpid()
        self.n_built = 0


#: The sessions of this process: training steps and inference graphs.
compiled = CompiledCache(max_size=128, max_bytes=64_000_000)
