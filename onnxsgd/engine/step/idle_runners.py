"""Runners between fits: a compiled step stays bound to its buffers, which takes as long as a small fit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from onnxsgd.engine.step.deferred_losses import can_repeat
from onnxsgd.engine.step.scan_epoch import EpochRunner, build_epoch
from onnxsgd.engine.step.single_step import StepRunner, make_buffers
from onnxsgd.runtime.sessions import make_session

if TYPE_CHECKING:
    from onnxsgd.engine.step.batches import Batches
    from onnxsgd.engine.step.training_step import CompiledStep
    from onnxsgd.losses import Loss

__all__ = ["BoundRunners", "IdleRunners", "Sessions"]

#: The most idle runners of a step: as many fits run at once in threads. The most bytes of one's buffers, and
#: the most of its blocks of batches.
_MOST_IDLE, _MOST_BYTES = 4, 1_000_000


class Sessions:
    """The sessions of a step, and of the loop over batches, compiled when they are needed.

    Parameters
    ----------
    step : CompiledStep
        The step.
    loss : Loss
        Its loss.
    n_threads : int
        Threads of a session.
    """

    def __init__(self, step: CompiledStep, loss: Loss, n_threads: int) -> None:
        self.step = step
        self._loss, self._n_threads = loss, n_threads
        self._lock = threading.Lock()
        self._made: dict[str, Any] = {}

    def single(self) -> Any:
        """Return the session of the step."""
        return self._get("single", lambda: self.step.model)

    def loop(self) -> Any:
        """Return the session of the loop."""
        return self._get("loop", lambda: build_epoch(self.step, self._loss))

    def _get(self, name: str, build: Callable[[], bytes]) -> Any:
        with self._lock:
            if name not in self._made:
                self._made[name] = make_session(build(), self._n_threads)
            return self._made[name]


class BoundRunners:
    """The runners of a compiled step on buffers of their own.

    Parameters
    ----------
    sessions : Sessions
        The compiled step.
    batches : Batches
        The data.

    Attributes
    ----------
    buffers : Buffers
        Weights and states.
    step : StepRunner
        One batch in a call.
    """

    def __init__(self, sessions: Sessions, batches: Batches) -> None:
        self._sessions = sessions
        self.buffers = make_buffers(sessions.step)
        self.step = StepRunner(sessions.single, sessions.step, self.buffers, batches)
        self._loop: EpochRunner | None = None

    @property
    def loop(self) -> EpochRunner:
        """Many batches in a call."""
        if self._loop is None:
            session, step = self._sessions.loop(), self._sessions.step
            self._loop = EpochRunner(session, step, self.buffers, self.step.batches)
        return self._loop

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and states, and of the data of a batch."""
        return self.step.nbytes

    def use(self, batches: Batches | None) -> None:
        """Replace the data."""
        self.step.batches = batches
        if self._loop is not None:
            self._loop.batches = batches

    def drop_large_blocks(self) -> None:
        """Free the loop if its blocks of batches are large."""
        if self._loop is not None and self._loop.nbytes > _MOST_BYTES:
            self._loop = None


class IdleRunners:
    """A compiled step, and its runners that no fit uses at present.

    Parameters
    ----------
    sessions : Sessions
        The compiled step.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._idle: list[BoundRunners] = []

    @cached_property
    def can_repeat(self) -> bool:
        """True if the step can be repeated in a larger graph."""
        return can_repeat(self._sessions.step)

    def take(self, batches: Batches) -> BoundRunners:
        """Return runners on these data that no other fit uses; their buffers hold any numbers."""
        try:
            # one operation of the interpreter: two threads never take the same runners
            runners = self._idle.pop()
        except IndexError:
            return BoundRunners(self._sessions, batches)
        runners.use(batches)
        return runners

    def give_back(self, runners: BoundRunners) -> None:
        """Keep runners for a later fit, if they are small, without the data."""
        runners.use(None)
        runners.drop_large_blocks()
        if len(self._idle) < _MOST_IDLE and runners.nbytes <= _MOST_BYTES:
            self._idle.append(runners)
