"""Linear algebra of small matrices in one thread."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["one_thread"]


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS takes one thread of this process.

    Threads wait for each other at each step of a small factorisation: on a machine whose processors are busy
    the eigenvalues of 200 columns take 227 ms with two threads and 3 ms with one. The context takes 8 us.
    """
    limit: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limit


@cache
def _controller() -> ThreadpoolController:
    """Return the controller of the libraries that are loaded, which takes 1 ms to make."""
    return ThreadpoolController()
