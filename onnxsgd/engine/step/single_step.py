"""The runner of a compiled step, one batch per call."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxsgd._library_errors import run_error
from onnxsgd.engine.step.buffers import Buffers, Tensors, bind

if TYPE_CHECKING:
    from onnxsgd.engine.step.batches import Batches, EpochPlan
    from onnxsgd.engine.step.training_step import CompiledStep

__all__ = ["StepRunner", "make_buffers"]


def make_buffers(step: CompiledStep) -> Buffers:
    """Return buffers for the weights and states of a step."""
    tensors = {key: _zeros(step, old) for key, (old, _) in step.tensors.items()}
    return Buffers({key: array[0] if key in step.rows else array for key, array in tensors.items()})


class StepRunner:
    """A training step, bound once to its buffers.

    Parameters
    ----------
    session : callable
        Returns the session of ``step.model``; called before the first update.
    step : CompiledStep
        The names of its inputs and outputs.
    buffers : Buffers
        Weights and states, updated in place.
    batches : Batches
        The data.

    Attributes
    ----------
    batches : Batches
        The data, which may be replaced between calls.
    n_done : int
        Batches done by the last call to :meth:`run`, also if that was interrupted.
    """

    def __init__(
        self, session: Callable[[], Any], step: CompiledStep, buffers: Buffers, batches: Batches
    ) -> None:
        self._make_session = session
        self._step = step
        self.buffers = buffers
        self.batches: Any = batches
        self._features = {name: _zeros(step, name) for name in step.features if name in step.inputs}
        self._target = _zeros(step, step.target)
        self._sample_weight = _zeros(step, step.sample_weight)
        self._gradient_weight = _zeros(step, step.gradient_weight)
        self._scalars = np.zeros(len(step.scalars), self._target.dtype)
        self._loss = np.zeros((1, 1), self._target.dtype)
        self.n_done = 0

    def prepare(self) -> None:
        """Compile the step now, not before the first update."""
        _ = self._bindings

    @cached_property
    def _session(self) -> Any:
        return self._make_session()

    @cached_property
    def _bindings(self) -> tuple[Any, Any]:
        first, second = self.buffers.sets
        return self._bind(first, second), self._bind(second, first)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and states, and of the data of a batch."""
        arrays = [*self.buffers.sets[0].values(), *self.buffers.sets[1].values(), *self._features.values()]
        return sum(array.nbytes for array in arrays)

    def run(self, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray) -> None:
        """Make one update for each batch, until a loss is not finite.

        Parameters
        ----------
        plan : EpochPlan
            The order of the data.
        scalars : ndarray of shape [n_batches, n_scalars]
            The numbers of each update, in the order of ``step.scalars``.
        losses : ndarray of shape [n_batches]
            Takes the loss of each batch, before its update.
        """
        self.n_done = 0
        for number, rows in enumerate(plan.rows):
            self.batches.fill(rows, self._features, self._target)
            plan.weigh(number, self._sample_weight, self._gradient_weight)
            self._scalars[...] = scalars[number]
            try:
                self._session.run_with_iobinding(self._bindings[self.buffers.current])
            except Exception as error:
                raise run_error(error) from error
            self.buffers.flip()
            loss = losses[number] = self._loss[0, 0]
            self.n_done += 1
            if not math.isfinite(loss):
                break

    def _bind(self, sources: Tensors, targets: Tensors) -> Any:
        step, binding = self._step, self._session.io_binding()
        data = {
            step.target: self._target,
            step.sample_weight: self._sample_weight,
            step.gradient_weight: self._gradient_weight,
            **self._features,
        }
        states = {step.tensors[key][0]: buffer for key, buffer in sources.items()}
        for name, array in {**data, **states}.items():
            bind(binding.bind_input, name, array, step.inputs[name][1])
        for index, name in enumerate(step.scalars.values()):
            bind(binding.bind_input, name, self._scalars[index : index + 1], ())
        bind(binding.bind_output, step.loss, self._loss, self._loss.shape)
        for key, buffer in targets.items():
            old, new = step.tensors[key]
            bind(binding.bind_output, new, buffer, step.inputs[old][1])
        return binding


def _zeros(step: CompiledStep, name: str) -> np.ndarray:
    """Return an array of zeros of the type and shape of an input."""
    dtype, shape = step.inputs[name]
    return np.zeros(shape, dtype)
