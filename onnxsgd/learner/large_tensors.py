"""Large tensors of a graph apart from its structure, so that the structure can be cached without them.

A digest of the whole graph takes longer than the updates of a short fit, and a cache of whole graphs as much
memory as the models. The numbers of large tensors are read from the user's model in each fit, once, and
nothing but training uses them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import TensorProto

from onnxsgd.graph.nodes import content

__all__ = ["blank", "blanks", "bytes_of_large", "filled", "holds", "without_large"]

#: The fewest bytes of a large tensor. Those that passes read, such as sizes and constants, are smaller; those
#: below are part of the structure. No measured one.
_LEAST = 1 << 14

#: The types of large tensors.
_TYPES: dict[int, np.dtype[Any]] = {
    TensorProto.FLOAT: np.dtype("<f4"),
    TensorProto.DOUBLE: np.dtype("<f8"),
}


def bytes_of_large(model: onnx.ModelProto) -> int:
    """Return the bytes that large tensors of a model declare."""
    return sum(map(_declared, model.graph.initializer))


def without_large(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a copy of a model without the numbers of its large tensors, and these by name.

    Cases: initializers of real numbers in the main graph, stored as bytes, as many as they declare.

    Parameters
    ----------
    model : ModelProto
        It is not changed, and need not be valid.

    Returns
    -------
    ModelProto
        Equal ones are of models that differ in these numbers alone.
    dict of ndarray
        The numbers; nobody can change them.
    """
    bare, numbers = onnx.ModelProto(), dict[str, np.ndarray]()
    _merge(model, bare, but="graph")
    _merge(model.graph, bare.graph, but="initializer")
    for tensor in model.graph.initializer:
        size, copy = _declared(tensor), bare.graph.initializer.add()
        # each reading copies them
        raw = tensor.raw_data if size else b""
        if not size or len(raw) != size:
            copy.CopyFrom(tensor)
            continue
        _merge(tensor, copy, but="raw_data")
        numbers[tensor.name] = np.frombuffer(raw, _TYPES[tensor.data_type]).reshape(tensor.dims)
    return bare, numbers


def holds(model: ir.Model, numbers: Mapping[str, np.ndarray]) -> bool:
    """Tell whether a graph has initializers of these names and numbers."""
    initializers = model.graph.initializers
    return all(
        name in initializers and np.array_equal(content(initializers[name]).numpy(), array)
        for name, array in numbers.items()
    )


def filled(model: ir.Model, numbers: Mapping[str, np.ndarray]) -> ir.Model:
    """Return a copy of a graph whose initializers of these names are these arrays, which it shares."""
    copy = model.clone()
    for name, array in numbers.items():
        if name in copy.graph.initializers:
            copy.graph.initializers[name].const_value = ir.tensor(array, name=name)
    return copy


def blanks(numbers: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return an array of NaN for each array; see :func:`blank`."""
    return {name: blank(array) for name, array in numbers.items()}


def blank(array: np.ndarray) -> np.ndarray:
    """Return an array of NaN of the type and the shape of another one, which takes the memory of a number."""
    return np.broadcast_to(array.dtype.type(np.nan), array.shape)


def _declared(tensor: TensorProto) -> int:
    """Return the bytes that a tensor declares, if it is a large one; else 0."""
    dtype = _TYPES.get(tensor.data_type)
    if dtype is None or not tensor.HasField("raw_data") or not all(size > 0 for size in tensor.dims):
        return 0
    nbytes = math.prod(tensor.dims) * dtype.itemsize
    return nbytes if nbytes >= _LEAST else 0


def _merge(source: Message, target: Message, but: str) -> None:
    """Copy all fields of a message but one, which is not read: its bytes would be copied."""
    for name in source.DESCRIPTOR.fields_by_name:
        if name == but:
            continue
        value = getattr(source, name)
        if hasattr(value, "MergeFrom"):
            # a message that is not set has nothing to merge
            if not isinstance(value, Message) or source.HasField(name):
                getattr(target, name).MergeFrom(value)
        elif source.HasField(name):
            setattr(target, name, value)
