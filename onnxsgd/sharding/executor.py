"""The engine that runs the tasks of a fit, as the fit knows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["Executor", "Handle", "reduced"]

#: The engine's name for the result of a task.
Handle = Any


class Executor(Protocol):
    """An engine that runs pure functions, and runs them again where a worker is lost.

    Each method but the last returns at once. Arguments of a task may be handles of results of others.
    """

    def source(self, value: object) -> Handle:
        """Return the handle of a task that holds a value itself, so that nothing before it is needed."""

    def submit(self, function: Callable[..., Any], *arguments: object) -> Handle:
        """Return the handle of a task: the result of a function."""

    def release(self, handles: Sequence[Handle]) -> None:
        """Let the engine forget the results of these tasks."""

    def results(self, handles: Sequence[Handle]) -> list[Any]:
        """Return the results of tasks, in their order.

        Raises
        ------
        WorkersLostError
            If no worker is left to run them.
        """


def reduced(executor: Executor, add: Callable[..., object], handles: Sequence[Handle]) -> Handle:
    """Return the handle of the sum of results, added pairwise in an order that their number decides."""
    level, added = list(handles), list[Handle]()
    while len(level) > 1:
        pairs = [executor.submit(add, *level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
        added.extend(pairs)
        level = pairs + level[2 * len(pairs) :]
    executor.release([handle for handle in added if handle is not level[0]])
    return level[0]
