"""Compiled sessions, shared within a process by everything that has the same graph."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

__all__ = ["CompiledCache", "compiled"]

T = TypeVar("T")


class CompiledCache:
    """A thread-safe table of the most recently used compiled objects.

    A session does not survive a fork, so the table starts anew in a child process.

    Parameters
    ----------
    max_size : int
        How many objects are kept.

    Attributes
    ----------
    n_built : int
        How many objects were built, that is, how often something was not in the table.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._lock = threading.RLock()
        self._reset()

    def get(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return the object stored under `key`; if there is none, store what `build` returns."""
        if self._process != os.getpid():
            # The lock may have been held by a thread that does not exist on this side of the fork. Nor do
            # the threads of sessions: to destroy one, which waits for them, would end the interpreter.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._entries))
            self._lock = threading.RLock()
            self._reset()
        with self._lock:
            if key not in self._entries:
                self._entries[key] = build()
                self.n_built += 1
                while len(self._entries) > self._max_size:
                    self._entries.popitem(last=False)
            self._entries.move_to_end(key)
            return self._entries[key]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._reset()

    def _reset(self) -> None:
        self._entries: OrderedDict[Hashable, Any] = OrderedDict()
        self._process = os.getpid()
        self.n_built = 0


#: The sessions of this process: training steps and inference graphs.
compiled = CompiledCache(max_size=128)
