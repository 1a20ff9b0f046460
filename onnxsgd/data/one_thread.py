"""Linear algebra of small matrices in one thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

__all__ = ["MOST_OF_ONE_THREAD", "one_thread", "sum_of_multiples"]

#: Products of more numbers, 10,000, start threads of BLAS, which then wait for further ones for 0.1 s.
MOST_OF_ONE_THREAD = 8192

#: Held while threads enter or leave the contexts; the number of those in one, and the end of the limit.
_LOCK = threading.Lock()
_inside = 0
_limit = ExitStack()


def sum_of_multiples(numbers: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return the sum of the rows of a table, each multiplied by a number: parts of few start no threads."""
    n_rows = max(1, MOST_OF_ONE_THREAD // table.shape[1])
    if len(table) <= n_rows:
        found: np.ndarray = numbers.dot(table)
        return found
    parts = (slice(start, start + n_rows) for start in range(0, len(table), n_rows))
    return np.add.reduce([numbers[part].dot(table[part]) for part in parts])


@contextmanager
def one_thread() -> Iterator[None]:
    """Return a context in which BLAS takes one thread of this process.

    Threads wait for each other at each step of a small factorisation: on a machine whose processors are busy
    the eigenvalues of 200 columns take 227 ms with two threads and 3 ms with one. The context takes 10 us.

    The limit is that of the process: where several fits are made at once, the first one sets it, and the last
    one restores it.
    """
    global _inside
    with _LOCK:
        if _inside == 0:
            _limit.enter_context(_one_thread())
        _inside += 1
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            if _inside == 0:
                _limit.close()


def _one_thread() -> AbstractContextManager[Any]:
    limit: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limit


@cache
def _controller() -> ThreadpoolController:
    """Return the controller of the libraries that are loaded, which takes 1 ms to make."""
    return ThreadpoolController()
