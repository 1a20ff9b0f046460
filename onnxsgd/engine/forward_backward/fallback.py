"""Fallback to another engine if the first run of the preferred one fails."""

from __future__ import annotations

from collections.abc import Callable

from onnxsgd.engine.forward_backward.executors import Executor, Pending
from onnxsgd.engine.forward_backward.tensors import new_vector
from onnxsgd.exceptions import EngineError
from onnxsgd.runtime.bindings import OrtValueVector

__all__ = ["TrialExecutor"]


class TrialExecutor:
    """An executor that is replaced if its first forward or its first backward fails.

    Some graphs build in onnxruntime-training, and fail when they run. Once a backward succeeded, errors are
    those of the caller's tensors.

    Parameters
    ----------
    first : Executor
        The preferred executor.
    replace : callable
        Takes the error, returns the executor to use instead.
    """

    def __init__(self, first: Executor, replace: Callable[[EngineError], Executor]) -> None:
        self._first = self._current = first
        self._replace = replace
        self._is_proven = False
        self.session, self.agent, self.cache = first.session, first.agent, first.cache

    def forward(self, inputs: OrtValueVector, outputs: OrtValueVector) -> Pending:
        """See :class:`Executor`."""
        executor = self._current
        try:
            pending = executor.forward(inputs, outputs)
        except EngineError as error:
            executor = self._give_up(executor, error)
            pending = executor.forward(inputs, outputs)
        return Pending(inputs, outputs, (executor, pending))

    def backward(self, pending: Pending, seeds: OrtValueVector, gradients: OrtValueVector) -> None:
        """See :class:`Executor`; a forward of the engine that failed is run again."""
        executor, inner = pending.state
        try:
            executor.backward(inner, seeds, gradients)
        except EngineError as error:
            executor = self._give_up(executor, error)
            executor.backward(executor.forward(pending.inputs, new_vector()), seeds, gradients)
        self._is_proven = self._is_proven or executor is self._first

    def _give_up(self, executor: Executor, error: EngineError) -> Executor:
        """Return the replacement of `executor`; raise its `error` if there is none."""
        if executor is not self._first or self._is_proven:
            raise error
        if self._current is self._first:
            self._current = other = self._replace(error)
            self.session, self.agent, self.cache = other.session, other.agent, other.cache
        return self._current
