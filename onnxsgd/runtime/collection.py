"""Pauses of Python's cyclic garbage collection while graphs are made."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collection_paused"]


@contextmanager
def collection_paused() -> Iterator[None]:
    """Make objects without automatic collections in between; on again at the end if it was on.

    Graphs are many objects that stay, and each quarter more of them has the interpreter look at all others,
    those of imported packages too: 0.3 s of 1.2 s of the first fit of a MobileNet.
    """
    if not gc.isenabled():
        # also in another thread, which turns it on again
        yield
        return
    gc.disable()
    _pauses.append(True)
    try:
        yield
    finally:
        _pauses.clear()
        gc.enable()


def _enable_in_child() -> None:
    """End a pause of another thread, which a forked process does not have."""
    if _pauses:
        _pauses.clear()
        gc.enable()


#: Not empty while collections are paused here.
_pauses: list[bool] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_enable_in_child)
