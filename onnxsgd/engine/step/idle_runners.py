"""Runners between fits: a compiled step stays bound to its buffers, which takes as long as a small fit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxsgd.engine.step.buffers import Buffers
from onnxsgd.engine.step.deferred_losses import is_standard
from onnxsgd.engine.step.given_gradient import build_forward
from onnxsgd.engine.step.scan_epoch import EpochRunner, ScaledForm, build_epoch, build_scaled_epoch
from onnxsgd.engine.step.single_step import StepRunner, make_buffers
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.runtime.collection import collection_paused
from onnxsgd.runtime.forks import new_lock
from onnxsgd.runtime.sessions import make_session

if TYPE_CHECKING:
    from onnxsgd.engine.step.batches import Batches
    from onnxsgd.engine.step.linear_adam import LinearAdamRunner
    from onnxsgd.engine.step.step_spec import StepSpec
    from onnxsgd.engine.step.training_step import CompiledStep

__all__ = ["BoundRunners", "CompiledOnUse", "IdleRunners"]

#: The most idle runners of a step: as many fits run at once in threads. The most bytes of the buffers of one,
#: and of its data of a batch, or of a block of batches.
_MOST_IDLE, _MOST_BYTES = 4, 4_000_000


class CompiledOnUse:
    """A step and its sessions, each made when it is needed.

    Parameters
    ----------
    build : callable
        Builds the step.
    spec : StepSpec
        Its specification.
    n_threads : int
        Threads of a session.
    """

    def __init__(self, build: Callable[[], CompiledStep], spec: StepSpec, n_threads: int) -> None:
        self.spec = spec
        self._build, self._n_threads = build, n_threads
        self._lock = new_lock()
        self._made: dict[str, Any] = {}
        #: The loop with weights in other units, and the forms of such that the step does not allow.
        self._scaled: tuple[Any, ScaledForm | None] = (None, None)
        self._absent: set[ScaledForm] = set()

    @property
    def step(self) -> CompiledStep:
        """The step."""
        step: CompiledStep = self._get("step", self._build)
        return step

    @property
    def can_repeat(self) -> bool:
        """True if the step can be repeated in a larger graph."""
        return bool(self._get("can repeat", lambda: is_standard(self.step)))

    @property
    def session(self) -> Any:
        """The session of the step."""
        return self._get("single", lambda: make_session(self.step.model, self._n_threads))

    @property
    def forward(self) -> Any:
        """The session of the forward pass alone."""
        return self._get("forward", lambda: make_session(build_forward(self.step), self._n_threads))

    @property
    def loop(self) -> Any:
        """The session of the loop over batches."""
        return self._get(
            "loop", lambda: make_session(build_epoch(self.step, self.spec.loss), self._n_threads)
        )

    def scaled_loop(self, *, is_even: bool) -> tuple[Any, ScaledForm | None]:
        """Return a session of the loop for batches whose samples have the same rate, or for others.

        It has the form with weights in other units where the step allows that, and no form otherwise.
        """
        forms = set(ScaledForm) if is_even else {ScaledForm.OF_ROWS}
        with self._lock:
            session, form = self._scaled
            if form is None and not forms <= self._absent:
                with collection_paused():
                    model, form = build_scaled_epoch(self.step, self.spec.loss, forms)
                    session = make_session(model, self._n_threads)
                if form is None:
                    self._absent |= forms
                    self._made.setdefault("loop", session)
                else:
                    self._scaled = session, form
            return (session, form) if form in forms else (self.loop, None)

    def _get(self, name: str, make: Callable[[], Any]) -> Any:
        with self._lock:
            if name not in self._made:
                with collection_paused():
                    self._made[name] = make()
            return self._made[name]


class BoundRunners:
    """The runners of a step on buffers of their own, each made when it is needed.

    Parameters
    ----------
    compiled : CompiledOnUse
        The step.
    buffers : Buffers
        Weights and states.
    batches : Batches
        The data.
    """

    def __init__(self, compiled: CompiledOnUse, buffers: Buffers, batches: Batches) -> None:
        self.buffers = buffers
        self._compiled = compiled
        self._batches: Any = batches
        self._single: StepRunner | None = None
        self._loop: EpochRunner | None = None
        self._short: tuple[Hashable, LinearAdamRunner] | None = None

    def short(self, key: Hashable, make: Callable[[], LinearAdamRunner]) -> LinearAdamRunner:
        """Return the runner of a short loop on these buffers: the last one, if it has the same key."""
        if self._short is None or self._short[0] != key:
            self._short = key, make()
        return self._short[1]

    @property
    def single(self) -> StepRunner:
        """The runner of one batch in a call."""
        if self._single is None:
            made = self._compiled
            self._single = StepRunner(made.session, made.step, self.buffers, self._batches)
        return self._single

    @property
    def loop(self) -> EpochRunner:
        """The runner of many batches in a call."""
        if self._loop is None:
            made = self._compiled
            self._loop = EpochRunner(made, made.step, self.buffers, self._batches)
        return self._loop

    def use(self, batches: Batches | None) -> None:
        """Replace the data."""
        self._batches = batches
        if self._single is not None:
            self._single.batches = self._batches
        if self._loop is not None:
            self._loop.batches = self._batches
        if self._short is not None:
            self._short[1].batches = batches

    def shrink(self, n_bytes: int) -> bool:
        """Free runners whose data take more than so many bytes; tell whether the buffers take fewer."""
        if self._loop is not None and self._loop.nbytes > n_bytes:
            self._loop = None
        if self._single is not None and self._single.nbytes > n_bytes:
            self._single = None
        if self._short is not None and self._short[1].nbytes > n_bytes:
            self._short = None
        return self.buffers.nbytes <= n_bytes


class IdleRunners:
    """The runners of a step that no fit uses at present.

    Parameters
    ----------
    compiled : CompiledOnUse
        The step.
    """

    def __init__(self, compiled: CompiledOnUse) -> None:
        self.compiled = compiled
        self._idle: list[BoundRunners] = []

    def take(self, batches: Batches, tensors: Mapping[tuple[str, str], np.ndarray]) -> BoundRunners:
        """Return runners on these data that no other fit uses, for weights like those of the given tensors.

        Their buffers hold any numbers.
        """
        try:
            # one operation of the interpreter: two threads never take the same runners
            runners = self._idle.pop()
        except IndexError:
            weights = {name: array for (name, kind), array in tensors.items() if kind == WEIGHT}
            return BoundRunners(self.compiled, make_buffers(self.compiled.spec, weights), batches)
        runners.use(batches)
        return runners

    def give_back(self, runners: BoundRunners) -> None:
        """Keep runners for a later fit, if they are small, without the data."""
        runners.use(None)
        if runners.shrink(_MOST_BYTES) and len(self._idle) < _MOST_IDLE:
            self._idle.append(runners)
