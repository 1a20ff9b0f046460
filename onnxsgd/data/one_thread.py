"""Linear algebra of small matrices in one thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

__all__ = ["MOST_OF_ONE_THREAD", "one_thread", "sum_of_multiples"]

#: Products of more numbers, 10,000, start threads of BLAS, which then wait for further ones for 0.1 s.
MOST_OF_ONE_THREAD = 8192

#: Tables with more than 24 rows and columns start such threads where they are factored, and those with more
#: than 16 also where their products take more multiplications: threads of OpenBLAS 0.3.30 took no time below.
_FEW, _FEWEST, _MOST_MULTIPLICATIONS = 24, 16, 2**18

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


def one_thread(*shape: int) -> AbstractContextManager[None]:
    """Return a context in which BLAS takes one thread of this process.

    Threads wait for each other at each step of a small factorisation: on a machine whose processors are busy
    the eigenvalues of 200 columns take 227 ms with two threads and 3 ms with one. The context takes 10 us,
    and the first one 8 ms where 250 libraries are loaded, as scikit-learn does.

    The limit is that of the process: where several fits are made at once, the first one sets it, and the last
    one restores it.

    Parameters
    ----------
    *shape : int
        The numbers of rows and columns of a table whose products with itself are factored: there is no limit
        where they are so small that BLAS takes one thread in any case.
    """
    return nullcontext() if shape and _starts_none(*shape) else _limited()


def _starts_none(n_rows: int, n_columns: int) -> bool:
    """Tell whether products and factorisations of such a table start no threads."""
    least = min(n_rows, n_columns)
    return least <= _FEWEST or (least <= _FEW and n_rows * n_columns * least <= _MOST_MULTIPLICATIONS)


@contextmanager
def _limited() -> Iterator[None]:
    """Return the context with the limit."""
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
