"""Random inputs of a graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx

from onnxsgd.exceptions import ParameterError, UnsupportedError
from onnxsgd.graph.loading.load import check_proto
from onnxsgd.graph.loading.size_limits import check_shapes

__all__ = ["check_drawn", "random_feed"]

#: The types of a session's inputs, as it writes them.
_SESSION_TYPES: dict[str, Any] = {
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.str_,
    "tensor(int8)": np.int8,
    "tensor(int16)": np.int16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64,
}

#: The bound of integers, small enough for indices.
_N_INTEGERS = 10

#: The most elements of a random array: 2 GiB of float64.
_MOST_DRAWN = 2**28


def random_feed(inputs: Any, batch: int = 10, empty_dimension: int = 1) -> dict[str, np.ndarray]:
    """Return random arrays for the inputs of a graph or of a session.

    Parameters
    ----------
    inputs : sequence of onnx.ValueInfoProto or onnxruntime.NodeArg
        ``onx.graph.input`` or ``session.get_inputs()``; a ``ModelProto`` or a session as well.
    batch : int, default=10
        The size along the first dimension of an input if unknown, >= 0.
    empty_dimension : int, default=1
        The size along each other unknown dimension, >= 0: ``[2, None, 3]`` gives (2, 1, 3).

    Returns
    -------
    dict
        An array for each input. Real numbers are normal with mean 0 and deviation 1, integers uniform in 0
        to 9. An input of unknown rank gets one dimension.

    Raises
    ------
    ParameterError
        If a size is negative, or an array would have more than 2^28 elements.
    GraphError
        If a model is not valid, or the declared size of an input is negative or too large.
    UnsupportedError
        If an input is no tensor, or of a type that numpy lacks.

    Examples
    --------
    >>> import onnx
    >>> from onnxsgd import random_feed
    >>> onx = onnx.parser.parse_model('''<ir_version: 9, opset_import: ["" : 18]>
    ... g (float[N, M, 3] X, int64[1] I) => (float[N, M, 3] Y) { Y = Gather(X, I) }''')
    >>> [(name, array.shape, array.dtype) for name, array in random_feed(onx.graph.input).items()]
    [('X', (10, 1, 3), dtype('float32')), ('I', (1,), dtype('int64'))]
    """
    for name, size in (("batch", batch), ("empty_dimension", empty_dimension)):
        if size < 0:
            raise ParameterError(f"{name}={size} is not accepted: it must be >= 0.")
    rng = np.random.default_rng()
    feed = {}
    for value in _values(inputs):
        dtype, dims = _describe(value)
        shape = _sizes(dims, batch, empty_dimension)
        check_drawn(value.name, shape)
        feed[value.name] = _draw(rng, dtype, shape)
    return feed


def check_drawn(name: str, shape: Sequence[int]) -> None:
    """Refuse to draw more than 2^28 random numbers for an input.

    Raises
    ------
    ParameterError
        It names the shape.
    """
    if math.prod(shape) > _MOST_DRAWN:
        raise ParameterError(
            f"The input {name!r} would be drawn in the shape {list(shape)}: up to {_MOST_DRAWN:,} elements "
            "are accepted."
        )


def _values(inputs: Any) -> Iterable[Any]:
    if isinstance(inputs, onnx.ModelProto):
        check_proto(inputs, "inputs")
        initialized = {tensor.name for tensor in inputs.graph.initializer}
        return [value for value in inputs.graph.input if value.name not in initialized]
    return inputs.get_inputs() if hasattr(inputs, "get_inputs") else inputs


def _describe(value: Any) -> tuple[np.dtype[Any], list[Any] | None]:
    """Return the type of an input, and its dimensions: numbers, or other values if unknown."""
    if not isinstance(value, onnx.ValueInfoProto):
        if value.type not in _SESSION_TYPES:
            raise UnsupportedError(f"No random values for the input {value.name!r} of type {value.type!r}.")
        return np.dtype(_SESSION_TYPES[value.type]), value.shape
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or kind.elem_type == onnx.TensorProto.UNDEFINED:
        raise UnsupportedError(f"No random values for the input {value.name!r}: it is no tensor.")
    if kind.elem_type == onnx.TensorProto.STRING:
        dtype = np.dtype(np.str_)
    else:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    if not kind.HasField("shape"):
        return dtype, None
    check_shapes([value])
    return dtype, [dim.dim_value for dim in kind.shape.dim]


def _sizes(dims: list[Any] | None, batch: int, empty_dimension: int) -> list[int]:
    return [
        dim if isinstance(dim, int) and dim > 0 else empty_dimension if axis else batch
        for axis, dim in enumerate([None] if dims is None else dims)
    ]


def _draw(rng: np.random.Generator, dtype: np.dtype[np.generic], shape: list[int]) -> np.ndarray:
    if dtype.kind in "iu":
        return np.asarray(rng.integers(_N_INTEGERS, size=shape), dtype)
    if dtype.kind == "b":
        return np.asarray(rng.integers(2, size=shape), dtype)
    if dtype.kind == "U":
        return np.asarray(rng.integers(_N_INTEGERS, size=shape), dtype).astype(object)
    return np.asarray(rng.normal(size=shape), dtype)
