"""Executors of forward and backward passes: the runtime's training agent, or two sessions that share tensors.

Both executors have the same methods and keep no state between calls: threads may share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from onnxsgd._library_errors import run_error
from onnxsgd.engine.forward_backward.tensors import new_vector
from onnxsgd.gradient.native.builder import bindings
from onnxsgd.runtime.bindings import Device, OrtValueVector, runtime_bindings

__all__ = ["AgentExecutor", "Executor", "Pending", "SessionsExecutor", "VectorSession"]


@dataclass(frozen=True)
class Pending:
    """A training forward that waits for its backward: the tensors that the runtime may still read.

    Attributes
    ----------
    inputs, outputs : OrtValueVector
        Its inputs and outputs.
    state : object
        Other data that the executor keeps, such as saved tensors.
    """

    inputs: OrtValueVector
    outputs: OrtValueVector
    state: Any


class Executor(Protocol):
    """An object that runs the forward and the backward pass of a graph.

    A vector for results is empty, or holds tensors that results are written to.

    Attributes
    ----------
    session : onnxruntime.InferenceSession
        The session of a training forward.
    agent, cache : TrainingAgent and OrtValueCache, or None
        The runtime's own objects.
    """

    session: Any
    agent: Any
    cache: Any

    def forward(self, inputs: OrtValueVector, outputs: OrtValueVector) -> Pending:
        """Compute the outputs."""

    def backward(self, pending: Pending, seeds: OrtValueVector, gradients: OrtValueVector) -> None:
        """Compute the gradients from `seeds`, those of the outputs; once for each forward."""


class VectorSession:
    """A session that takes and returns an ``OrtValueVector``.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        The session.
    device : OrtDevice
        The device of its outputs.
    options : RunOptions
        Options of each run.
    """

    def __init__(self, session: Any, device: Device, options: Any) -> None:
        self.session = session
        self.inputs = [value.name for value in session.get_inputs()]
        self.outputs = [value.name for value in session.get_outputs()]
        self.devices = [device] * len(self.outputs)
        self.options = options

    def run(self, inputs: OrtValueVector, outputs: OrtValueVector) -> None:
        """Fill the vector `outputs`, which is empty or holds a tensor to write to for each output."""
        run = self.session._sess.run_with_ortvaluevector
        _call(run, self.options, self.inputs, inputs, self.outputs, outputs, self.devices)

    def run_into(self, inputs: OrtValueVector, outputs: OrtValueVector) -> Any:
        """Write to `outputs`, which holds tensors for the first outputs; return all outputs."""
        binding = runtime_bindings().SessionIOBinding(self.session._sess)
        _call(self._bind, binding, inputs, outputs)
        _call(self.session._sess.run_with_iobinding, binding, self.options)
        return binding.get_outputs()

    def _bind(self, binding: Any, inputs: OrtValueVector, outputs: OrtValueVector) -> None:
        for position, name in enumerate(self.inputs):
            binding.bind_ortvalue_input(name, inputs[position])
        for position, name in enumerate(self.outputs):
            if position < len(outputs):
                binding.bind_ortvalue_output(name, outputs[position])
            else:
                binding.bind_output(name, self.devices[position])


class AgentExecutor:
    """The agent of onnxruntime-training: one graph, which waits in the middle for the output gradients.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        The session of the graph, in which a ``YieldOp`` takes the outputs.
    fetches : sequence of str
        The gradients, among the outputs of the graph.
    n_outputs : int
        The number of tensors that the ``YieldOp`` takes.
    device, device_index : OrtDevice, int
        The device of all of them.
    """

    def __init__(
        self, session: Any, fetches: Sequence[str], n_outputs: int, device: Device, device_index: int
    ) -> None:
        inputs = [value.name for value in session.get_inputs()]
        self.session = session
        self.agent = bindings().TrainingAgent(
            session._sess, inputs, [device] * n_outputs, fetches, [device] * len(fetches), device_index
        )
        self.cache = bindings().OrtValueCache()

    def forward(self, inputs: OrtValueVector, outputs: OrtValueVector) -> Pending:
        """See :class:`Executor`."""
        state = bindings().PartialGraphExecutionState()
        _call(self.agent.run_forward, inputs, outputs, state, self.cache)
        return Pending(inputs, outputs, state)

    def backward(self, pending: Pending, seeds: OrtValueVector, gradients: OrtValueVector) -> None:
        """See :class:`Executor`."""
        _call(self.agent.run_backward, seeds, gradients, pending.state)


class SessionsExecutor:
    """Two sessions of any runtime: the second one reads inputs and outputs of the first.

    Parameters
    ----------
    first : VectorSession
        Returns the outputs, then the tensors saved for the second session.
    second : VectorSession
        Takes inputs of `first`, then outputs of `first`, each under the name it has there, then the gradients
        of the outputs.
    n_outputs : int
        The number of outputs.
    """

    def __init__(self, first: VectorSession, second: VectorSession, n_outputs: int) -> None:
        self.session = first.session
        self.agent = self.cache = None
        self._first = first
        self._second = second
        self._n_outputs = n_outputs
        self._inputs_read = [first.inputs.index(name) for name in second.inputs if name in first.inputs]
        self._returned_read = [first.outputs.index(name) for name in second.inputs if name in first.outputs]

    def forward(self, inputs: OrtValueVector, outputs: OrtValueVector) -> Pending:
        """See :class:`Executor`."""
        if len(outputs) > 0:
            return Pending(inputs, outputs, self._first.run_into(inputs, outputs))
        returned = new_vector()
        self._first.run(inputs, returned)
        _append(outputs, returned, range(self._n_outputs))
        return Pending(inputs, outputs, returned)

    def backward(self, pending: Pending, seeds: OrtValueVector, gradients: OrtValueVector) -> None:
        """See :class:`Executor`."""
        feeds = new_vector()
        feeds.reserve(len(self._second.inputs))
        _append(feeds, pending.inputs, self._inputs_read)
        _append(feeds, pending.state, self._returned_read)
        _append(feeds, seeds, range(len(seeds)))
        self._second.run(feeds, gradients)


def _append(vector: OrtValueVector, source: OrtValueVector, positions: Iterable[int]) -> None:
    """Append tensors of another vector, by index: its iterator ends in an exception, which takes 15 us."""
    for position in positions:
        vector.push_back(source[position])


def _call(function: Callable[..., None], *arguments: Any) -> None:
    try:
        function(*arguments)
    except Exception as error:
        raise run_error(error) from error
