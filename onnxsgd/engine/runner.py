"""Run a compiled step again and again, on buffers that stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxsgd.engine.update import WEIGHT

if TYPE_CHECKING:
    from onnxsgd.engine.step import CompiledStep

__all__ = ["StepRunner", "Tensors"]

#: Weights and their states, under (weight, kind of tensor).
Tensors = dict[tuple[str, str], np.ndarray]


class StepRunner:
    """The buffers of a training step, bound once to its session.

    A step reads its weights and states from one set of buffers and writes the new ones to the other; the
    next step goes the opposite way. (Writing to the buffers that are read would be wrong without a sound:
    the gradient of an early layer would see the new weights of a late one.)

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        The session of ``step.model``.
    step : CompiledStep
        What its inputs and outputs are called.
    tensors : dict
        The weights to start from and their states; they are copied. What is missing starts at zero.

    Attributes
    ----------
    features : dict of ndarray
        The batch, to be filled in place before each step: one array [batch_size, ...] for each input.
    target : ndarray of shape [batch_size, n_outputs]
        The target of the batch, to be filled in place.
    sample_weight : ndarray of shape [batch_size, 1]
        The normalised weights of the samples, to be filled in place.
    scalars : dict of ndarray
        The numbers of the step, each of one element, to be filled in place.
    """

    def __init__(
        self, session: Any, step: CompiledStep, tensors: Mapping[tuple[str, str], np.ndarray]
    ) -> None:
        inputs = {value.name: value for value in session.get_inputs()}
        self._session = session
        self._step = step
        self._current = 0
        self.features = {name: _zeros(inputs[name]) for name in step.features if name in inputs}
        self.target = _zeros(inputs[step.target])
        self.sample_weight = _zeros(inputs[step.sample_weight])
        self.scalars = {kind: _zeros(inputs[name]).reshape(1) for kind, name in step.scalars.items()}
        self._loss = np.zeros((1, 1), self.target.dtype)
        self._buffers = tuple(
            {key: _zeros(inputs[old]) for key, (old, _) in step.tensors.items()} for _ in range(2)
        )
        self._bindings = tuple(self._bind(self._buffers[i], self._buffers[1 - i]) for i in range(2))
        self.load(tensors)

    def load(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> None:
        """Copy `tensors` into the buffers; what is missing becomes zero."""
        for key, buffer in self._buffers[self._current].items():
            buffer[...] = tensors.get(key, 0)

    def run(self) -> float:
        """Make one step on the batch that was filled in; return its loss, before the update."""
        self._session.run_with_iobinding(self._bindings[self._current])
        self._current = 1 - self._current
        return float(self._loss[0, 0])

    def weights(self) -> dict[str, np.ndarray]:
        """Return the weights as they are now; the arrays change with the next steps."""
        return {name: a for (name, kind), a in self._buffers[self._current].items() if kind == WEIGHT}

    def snapshot(self) -> Tensors:
        """Return a copy of the weights and of their states."""
        return {key: buffer.copy() for key, buffer in self._buffers[self._current].items()}

    def _bind(self, sources: Tensors, targets: Tensors) -> Any:
        binding = self._session.io_binding()
        data = {self._step.target: self.target, self._step.sample_weight: self.sample_weight, **self.features}
        states = {self._step.tensors[key][0]: buffer for key, buffer in sources.items()}
        for name, array in {**data, **states}.items():
            _bind(binding.bind_input, name, array, array.shape)
        for kind, name in self._step.scalars.items():
            _bind(binding.bind_input, name, self.scalars[kind], ())
        _bind(binding.bind_output, self._step.loss, self._loss, self._loss.shape)
        for key, buffer in targets.items():
            _bind(binding.bind_output, self._step.tensors[key][1], buffer, buffer.shape)
        return binding


def _bind(bind: Callable[..., None], name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    bind(name, "cpu", 0, array.dtype.type, list(shape), array.ctypes.data)


_NUMPY_TYPES = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(int16)": np.int16, "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8, "tensor(uint16)": np.uint16, "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64, "tensor(bool)": np.bool_,
}  # fmt: skip


def _zeros(value: Any) -> np.ndarray:
    """Return an array of zeros of the type and shape of a session's input."""
    return np.zeros(value.shape, _NUMPY_TYPES[value.type])
