"""Locks and caches in the child process of a fork, which lacks the threads that held them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from weakref import WeakMethod, WeakSet

__all__ = ["call_in_child", "new_lock"]

_LOCKS = WeakSet[AbstractContextManager[object]]()
_METHODS = list["WeakMethod[Callable[[], None]]"]()


def new_lock() -> AbstractContextManager[object]:
    """Return a reentrant lock that is free in a child process, unless the thread that forks holds it."""
    lock = threading.RLock()
    _LOCKS.add(lock)
    return lock


def call_in_child(method: Callable[[], None]) -> None:
    """Call a method in each child process of a fork, as long as its object exists."""
    _METHODS.append(WeakMethod(method))


def _begin_child() -> None:
    """Free the locks of threads that do not exist here; call the methods."""
    for lock in _LOCKS:
        # as the module threading does for its own locks
        if not lock._is_owned():  # type: ignore[attr-defined]
            lock._at_fork_reinit()  # type: ignore[attr-defined]
    for reference in _METHODS:
        method = reference()
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
