"""The base class of functions that run a forward and a backward pass, one tensor vector in and one out."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from logging import Logger
from typing import Any, ClassVar

import numpy as np
import onnx

from onnxsgd.engine.forward_backward.devices import check_devices, device_name
from onnxsgd.engine.forward_backward.executors import Executor, Pending, VectorSession
from onnxsgd.engine.forward_backward.tensors import TensorSpec, fill_vector, readable_tensor, result_vector
from onnxsgd.exceptions import EngineError, ParameterError, ParameterTypeError
from onnxsgd.runtime.bindings import Device, OrtValueVector

__all__ = ["OrtGradientForwardBackwardFunction"]


class OrtGradientForwardBackwardFunction:
    """Forward and backward pass of one graph.

    Instances come from :meth:`OrtGradientForwardBackward.new_instance`, which makes a subclass of this class
    for its graph. Use one instance in each thread. Training forwards that wait for their backward form a
    stack: ``backward`` belongs to the last of them.

    Attributes
    ----------
    states_ : list
        The training forwards that wait for their backward. Clear it to discard them.
    saved_tensors_ : OrtValueVector, list or None
        The last argument of :meth:`save_for_backward`.
    """

    _run_options: ClassVar[Any]
    _sess: ClassVar[Any]
    _sess_eval: ClassVar[Any]
    _training_agent: ClassVar[Any]
    _cache: ClassVar[Any]
    _logger: ClassVar[Logger | None]
    _debug: ClassVar[bool]
    _input_names: ClassVar[list[str]]
    _grad_input_names: ClassVar[list[str]]
    _output_names: ClassVar[list[str]]
    _weights_to_train: ClassVar[list[str]]
    _bw_fetches_names: ClassVar[list[str]]
    _fw_outputs_device_info: ClassVar[list[Any]]
    _bw_outputs_device_info: ClassVar[list[Any]]
    _fw_no_grad_output_device_info: ClassVar[list[Any]]
    _graph_info: ClassVar[Any]
    _graph_builder: ClassVar[Any]
    _trained_onnx: ClassVar[onnx.ModelProto]
    _forward_onnx: ClassVar[onnx.ModelProto | None]
    _backward_onnx: ClassVar[onnx.ModelProto | None]
    _optimized_pre_grad_model: ClassVar[onnx.ModelProto]
    _devices: ClassVar[list[Any]]
    _onx_inp: ClassVar[list[str]]
    _onx_out: ClassVar[list[str]]
    #: The executor of training forwards and their backwards, and the session of other forwards.
    _executor: ClassVar[Executor]
    _evaluation: ClassVar[VectorSession]
    #: Expected inputs; indices of the outputs that take a gradient, expected gradients, their devices.
    _input_specs: ClassVar[tuple[TensorSpec, ...]]
    _grad_positions: ClassVar[list[int]]
    _grad_specs: ClassVar[tuple[TensorSpec, ...]]
    _grad_devices: ClassVar[list[Any]]

    def __init__(self) -> None:
        self.states_: list[Pending] = []
        self.saved_tensors_: Any = None

    def forward(
        self, inputs: Any, training: bool = False, forward_outputs_cache: OrtValueVector | None = None
    ) -> Any:
        """Compute the outputs.

        Parameters
        ----------
        inputs : list of np.ndarray, list of OrtValue, or OrtValueVector
            All inputs of the graph, then all trained weights. Arrays are read in place, and kept for as long
            as the runtime may read them: do not change them before the backward of a training forward.
        training : bool, default=False
            Whether a backward follows.
        forward_outputs_cache : OrtValueVector or None, default=None
            The vector to return. If it is not empty, it must hold tensors of the right shapes, and the
            outputs are written into these.

        Returns
        -------
        OrtValueVector
            One tensor for each output of the graph; ``v.numpy()`` is a view of its memory.

        Raises
        ------
        EngineError
            If the number of inputs is wrong, or the runtime fails.
        ParameterError
            If an input has a wrong type or shape.
        ParameterTypeError
            If an input is neither an array nor a tensor, or the cache no vector.
        UnsupportedError
            If an input is None.
        """
        cls = type(self)
        vector = fill_vector(inputs, cls._devices, cls._input_specs)
        outputs = result_vector(forward_outputs_cache, len(cls._output_names), "forward_outputs_cache")
        self._log("forward", vector, training)
        self._refuse_pending(outputs)
        if cls._debug:
            check_devices(vector, cls._devices)
        if training:
            self.states_.append(cls._executor.forward(vector, outputs))
            self.save_for_backward(vector)
        else:
            cls._evaluation.run(vector, outputs)
        return outputs

    def backward(self, grad_outputs: Any, backward_outputs_cache: OrtValueVector | None = None) -> Any:
        """Compute the gradients of the last training forward that has no backward yet.

        Parameters
        ----------
        grad_outputs : list of np.ndarray, list of OrtValue, or OrtValueVector
            One gradient for each floating-point output, of its shape; an array with as many elements is
            reshaped to it.
        backward_outputs_cache : OrtValueVector or None, default=None
            The vector to return, as `forward_outputs_cache`.

        Returns
        -------
        OrtValueVector
            The gradients for the floating-point inputs, then those for the weights.

        Raises
        ------
        EngineError
            If no training forward waits, the number of gradients is wrong, or the runtime fails.
        ParameterError
            If a gradient has another type or shape than its output.
        ParameterTypeError
            If a gradient is neither an array nor a tensor, or the cache no vector.
        UnsupportedError
            If a gradient is None.
        """
        cls = type(self)
        if not self.states_:
            raise EngineError("backward needs a forward with training=True before it, and each only once.")
        pending = self.states_[-1]
        vector = self._read_gradients(grad_outputs, pending)
        gradients = result_vector(backward_outputs_cache, len(cls._onx_out), "backward_outputs_cache")
        self._log("backward", vector, True)
        if cls._debug:
            check_devices(vector, cls._grad_devices)
        self.states_.pop()
        cls._executor.backward(pending, vector, gradients)
        return gradients

    def save_for_backward(self, inputs: OrtValueVector) -> None:
        """Keep tensors for later; a training forward keeps its inputs.

        Parameters
        ----------
        inputs : OrtValueVector
            The tensors.
        """
        self.saved_tensors_ = inputs

    @property
    def saved_tensors(self) -> list[Any]:
        """The tensors saved last."""
        if self.saved_tensors_ is None:
            raise EngineError("No tensors are saved: call forward with training=True, or save_for_backward.")
        return list(self.saved_tensors_)

    @staticmethod
    def device_name(device: Device) -> str:
        """Return "Cpu" or "Gpu", the kind of an ``OrtDevice``.

        Parameters
        ----------
        device : OrtDevice
            The device.

        Returns
        -------
        str
            The name of its kind.
        """
        return device_name(device)

    @staticmethod
    def input_to_ort(tensors: Any, devices: Sequence[Device], debug: bool = False) -> Any:
        """Return tensors as an ``OrtValueVector``.

        Parameters
        ----------
        tensors : list of np.ndarray, list of OrtValue, or OrtValueVector
            One for each of `devices`.
        devices : list of OrtDevice
            The devices to copy arrays to.
        debug : bool, default=False
            Whether to check that each tensor is on its device.
        """
        vector = fill_vector(tensors, devices)
        if debug:
            check_devices(vector, devices)
        return vector

    @classmethod
    def save_onnx_graph(
        cls, folder: str | os.PathLike[str] | type, prefix: str | None = None, suffix: str | None = None
    ) -> dict[str, Any]:
        """Save the graphs behind this class; called on it, or on an instance.

        ``_optimized_pre_grad_model`` is the forward pass, ``_trained_onnx`` both passes with a ``YieldOp`` in
        between, which only the agent of onnxruntime-training runs. The portable engine also has
        ``_forward_onnx`` and ``_backward_onnx``, which together are the same in standard operators.

        Parameters
        ----------
        folder : str, path, or the type ``bytes``
            The folder to save to; it is created if missing. Given ``bytes``, nothing is saved.
        prefix, suffix : str or None, default=None
            The beginning and the end of file names.

        Returns
        -------
        dict
            For each attribute that is a graph, the name of its file, or with ``bytes`` its content.
        """
        for name, text in (("prefix", prefix), ("suffix", suffix)):
            if text is not None and not isinstance(text, str):
                raise ParameterTypeError(f"{name} must be a str or None, not {type(text).__name__}.")
        names = ("_trained_onnx", "_forward_onnx", "_backward_onnx", "_optimized_pre_grad_model")
        graphs = {name: graph for name in names if (graph := getattr(cls, name)) is not None}
        if folder is bytes:
            return {attribute: graph.SerializeToString() for attribute, graph in graphs.items()}
        if not isinstance(folder, (str, os.PathLike)):
            raise ParameterTypeError(f"folder must be a str, a path or the type bytes, not {folder!r}.")
        os.makedirs(folder, exist_ok=True)
        saved = {}
        for attribute, graph in graphs.items():
            file_name = f"{prefix or ''}{attribute.strip('_')}{suffix or ''}.onnx"
            saved[attribute] = os.path.join(os.fspath(folder), file_name)
            onnx.save(graph, saved[attribute])
        return saved

    def _read_gradients(self, grad_outputs: Any, pending: Pending) -> Any:
        """Return the gradients as a vector, in the shapes of the outputs they belong to."""
        cls = type(self)
        if grad_outputs is None or len(grad_outputs) != len(cls._grad_specs):
            # raises the error that names the expected gradients
            fill_vector(grad_outputs, cls._grad_devices, cls._grad_specs)
        read, changed = [], False
        for given, index, spec in zip(grad_outputs, cls._grad_positions, cls._grad_specs, strict=True):
            shape = pending.outputs[index].shape()
            gradient = _in_shape(given, shape)
            spec.check(gradient, shape)
            changed |= gradient is not given
            read.append(gradient)
        return fill_vector(read if changed else grad_outputs, cls._grad_devices)

    def _refuse_pending(self, outputs: OrtValueVector) -> None:
        if any(pending.outputs is outputs for pending in self.states_):
            raise ParameterError(
                "forward_outputs_cache holds the outputs of a forward that waits for its backward, which "
                "reads them: give another one."
            )

    def _log(self, name: str, vector: OrtValueVector, training: bool) -> None:
        if self._logger is not None:
            shapes = [value.shape() for value in vector]
            self._logger.debug("[%s.%s] training=%r shapes=%r", type(self).__name__, name, training, shapes)


def _in_shape(gradient: Any, shape: list[int]) -> Any:
    """Return `gradient` in `shape`, where it has as many elements in another one."""
    gradient = readable_tensor(gradient)
    found = gradient.shape if isinstance(gradient, np.ndarray) else gradient.shape()
    if list(found) == shape or math.prod(found) != math.prod(shape):
        return gradient
    array = gradient if isinstance(gradient, np.ndarray) else gradient.numpy()
    return array.reshape(shape)
