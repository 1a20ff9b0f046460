"""Runners between fits: a compiled step stays bound to its buffers, which takes as long as a small fit."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from onnxsgd.engine.step.deferred_losses import can_repeat
from onnxsgd.engine.step.single_step import StepRunner, make_buffers

if TYPE_CHECKING:
    from onnxsgd.engine.step.batches import Batches
    from onnxsgd.engine.step.training_step import CompiledStep

__all__ = ["IdleRunners"]

#: The most idle runners of a step: as many fits run at once in threads. The most bytes of one's buffers.
_MOST_IDLE, _MOST_BYTES = 4, 1_000_000


class IdleRunners:
    """The session of a compiled step, and its runners that no fit uses at present.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        The session of ``step.model``.
    step : CompiledStep
        The names of its inputs and outputs.

    Attributes
    ----------
    session, step : objects
        The parameters.
    """

    def __init__(self, session: Any, step: CompiledStep) -> None:
        self.session = session
        self.step = step
        self._idle: list[StepRunner] = []

    @cached_property
    def can_repeat(self) -> bool:
        """True if the step can be repeated in a larger graph."""
        return can_repeat(self.step)

    def take(self, batches: Batches) -> StepRunner:
        """Return a runner on these data that no other fit uses; its buffers hold any numbers."""
        try:
            # one operation of the interpreter: two threads never take the same runner
            runner = self._idle.pop()
        except IndexError:
            return StepRunner(self.session, self.step, make_buffers(self.session, self.step), batches)
        runner.batches = batches
        return runner

    def give_back(self, runner: StepRunner) -> None:
        """Keep a runner for a later fit, if it is small, without the data."""
        runner.batches = None
        if len(self._idle) < _MOST_IDLE and runner.nbytes <= _MOST_BYTES:
            self._idle.append(runner)
