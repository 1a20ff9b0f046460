"""Arrays and tensors of the runtime: expected types and shapes, and vectors of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxsgd.exceptions import EngineError, ParameterError, ParameterTypeError, UnsupportedError
from onnxsgd.runtime.bindings import Device, OrtValue, runtime_bindings

__all__ = ["TensorSpec", "fill_vector", "new_vector", "readable_tensor", "result_vector", "specs_of"]


@dataclass(frozen=True)
class TensorSpec:
    """The type and shape that a graph expects of one tensor.

    Attributes
    ----------
    name : str
        Its name.
    dtype : np.dtype
        The type of its elements.
    element_type : int
        The same, as the number of the ONNX type.
    dims : tuple or None
        Its size along each axis, None where any is accepted; None if any rank is.
    """

    name: str
    dtype: np.dtype[Any]
    element_type: int
    dims: tuple[int | None, ...] | None

    def fit(self, tensor: Any) -> Any:
        """Return an array or a tensor in the expected shape, with axes of size 1 added or removed.

        Raises
        ------
        ParameterError
            If its type is wrong, or its shape differs in other ways.
        UnsupportedError
            If it is an array of strings, or of bfloat16 and the like.
        """
        if isinstance(tensor, np.ndarray) and tensor.dtype.kind not in "biuf":
            # the private bindings make tensors of numpy's own numbers alone
            raise UnsupportedError(
                f"{self.name!r} is an array of {tensor.dtype}: give an OrtValue, or cut the graph behind the "
                f"part that reads it; arrays of numpy's own integers, real numbers and booleans are accepted."
            )
        shape = tensor.shape if isinstance(tensor, np.ndarray) else tensor.shape()
        if self.dims is not None and not _fits(shape, self.dims) and _fits_but_for_ones(shape, self.dims):
            array = tensor if isinstance(tensor, np.ndarray) else tensor.numpy()
            tensor = array.reshape([size for size in self.dims if size is not None])
        self.check(tensor)
        return tensor

    def check(self, tensor: np.ndarray | OrtValue, dims: Sequence[int] | None = None) -> None:
        """Refuse an array or a tensor of another type, or of another shape than `dims` (None: its own)."""
        shape: Sequence[int]
        if isinstance(tensor, np.ndarray):
            same_type, shape = tensor.dtype == self.dtype, tensor.shape
        else:
            same_type, shape = tensor.element_type() == self.element_type, tensor.shape()
        if not same_type:
            found = tensor.dtype if isinstance(tensor, np.ndarray) else tensor.data_type()
            raise ParameterError(f"{self.name!r} has elements of type {found}: it must have {self.dtype}.")
        expected = self.dims if dims is None else dims
        if expected is not None and not _fits(shape, expected):
            raise ParameterError(
                f"{self.name!r} has shape {list(shape)}: it must have shape {_text(expected)}."
            )


def specs_of(values: Sequence[ir.Value]) -> tuple[TensorSpec, ...]:
    """Return the expected types and shapes of inputs of a graph."""
    return tuple(
        TensorSpec(
            str(value.name),
            value.dtype.numpy(),
            value.dtype.value,
            None
            if value.shape is None
            else tuple(dim if isinstance(dim, int) else None for dim in value.shape),
        )
        for value in values
        if value.dtype is not None
    )


@cache
def _vector_type() -> Any:
    """Return the class of the vectors made here: an ``OrtValueVector`` that keeps its arrays alive.

    A tensor made from an array reads the memory of that array and keeps no reference to it.
    """

    class HoldingVector(runtime_bindings().OrtValueVector):  # type: ignore[misc]
        held: Any = ()

    return HoldingVector


def new_vector() -> Any:
    """Return an empty vector of tensors."""
    return _vector_type()()


def result_vector(cache: object, count: int, parameter: str) -> Any:
    """Return the vector for `count` results: `cache`, or a new one if that is None.

    Raises
    ------
    ParameterTypeError
        If `cache`, the user's argument `parameter`, is not an ``OrtValueVector``.
    EngineError
        If it is not empty and has another number of tensors.
    """
    if cache is None:
        return new_vector()
    if not isinstance(cache, runtime_bindings().OrtValueVector):
        raise ParameterTypeError(f"{parameter} must be an OrtValueVector, not {type(cache).__name__}.")
    if len(cache) not in (0, count):
        raise EngineError(f"{parameter} holds {len(cache)} tensors: it must be empty or hold {count}.")
    return cache


def fill_vector(tensors: Any, devices: Sequence[Device], specs: Sequence[TensorSpec] | None = None) -> Any:
    """Return tensors as an ``OrtValueVector``; a vector that fits is returned unchanged.

    Parameters
    ----------
    tensors : OrtValueVector, or sequence of np.ndarray or OrtValue
        Arrays are not copied where they are contiguous and the device is the CPU.
    devices : sequence of OrtDevice
        The device of each.
    specs : sequence of TensorSpec or None
        The expected type and shape of each.

    Raises
    ------
    EngineError
        If their number is not that of `devices`.
    ParameterError
        If the type or the shape of one is wrong.
    UnsupportedError
        If one of them is None.
    ParameterTypeError
        If one of them is neither an array nor a tensor.
    """
    if tensors is None:
        raise UnsupportedError(
            "None is not accepted: give a list of arrays or OrtValues, or an OrtValueVector."
        )
    native = runtime_bindings()
    _check_count(len(tensors), devices, specs)
    is_vector = isinstance(tensors, native.OrtValueVector)
    held = list(tensors) if is_vector else [readable_tensor(tensor) for tensor in tensors]
    given = held
    if specs is not None:
        held = [spec.fit(tensor) for spec, tensor in zip(specs, held, strict=True)]
    if is_vector and all(tensor is before for tensor, before in zip(held, given, strict=True)):
        return tensors
    vector = new_vector()
    vector.reserve(len(held))
    for tensor, device in zip(held, devices, strict=True):
        if isinstance(tensor, np.ndarray):
            vector.push_back(native.OrtValue.ortvalue_from_numpy(tensor, device))
        else:
            vector.push_back(tensor)
    vector.held = (held, tensors)
    return vector


def _check_count(found: int, devices: Sequence[Device], specs: Sequence[TensorSpec] | None) -> None:
    if found != len(devices):
        names = "" if specs is None else f", {[spec.name for spec in specs]}"
        raise EngineError(f"{found} tensors were given: {len(devices)} are expected{names}.")


def readable_tensor(tensor: Any) -> Any:
    """Return a tensor that the runtime can read: a contiguous array, or its own kind of tensor.

    Raises
    ------
    UnsupportedError
        If `tensor` is None.
    ParameterTypeError
        If it is neither an array nor a tensor.
    """
    if isinstance(tensor, np.ndarray):
        # ascontiguousarray makes a vector of a scalar
        return np.ascontiguousarray(tensor) if tensor.ndim else tensor
    if tensor is None:
        raise UnsupportedError("A tensor is None: every input and every gradient must be given.")
    native = getattr(tensor, "_ortvalue", tensor)
    if not isinstance(native, runtime_bindings().OrtValue):
        raise ParameterTypeError(
            f"A tensor is a {type(tensor).__name__}: it must be a numpy array or an OrtValue."
        )
    return native


def _fits(shape: Sequence[int], dims: Sequence[int | None]) -> bool:
    if len(shape) != len(dims):
        return False
    for size, dim in zip(shape, dims, strict=True):  # noqa: SIM110 (a generator takes twice the time)
        if dim is not None and size != dim:
            return False
    return True


def _fits_but_for_ones(shape: Sequence[int], dims: Sequence[int | None]) -> bool:
    """Tell whether shapes with different numbers of axes differ in axes of size 1 alone."""
    if None in dims or len(shape) == len(dims):
        return False
    return [n for n in shape if n != 1] == [n for n in dims if n != 1]


def _text(dims: Sequence[int | None]) -> str:
    return f"[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"
