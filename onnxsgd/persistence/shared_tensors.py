"""Tensors of a saved graph that the same file holds elsewhere too, as weights or in `model`: saved once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, numpy_helper

__all__ = ["held_tensors", "restore_shared", "take_shared", "with_numbers", "without_numbers"]

#: The fewest bytes of a tensor that is left out of a saved graph: names take as long.
_LEAST = 256


def held_tensors(model: object) -> dict[str, TensorProto]:
    """Return the initializers of a graph in memory; none of other models, whose files may change."""
    if isinstance(model, bytes):
        model = onnx.load_from_string(model)
    return {} if not isinstance(model, onnx.ModelProto) else {t.name: t for t in model.graph.initializer}


def take_shared(proto: onnx.ModelProto, held: Mapping[str, TensorProto]) -> list[str]:
    """Remove the numbers of tensors that `held` has under the same name; return these names."""
    shared = []
    for tensor in proto.graph.initializer:
        other = held.get(tensor.name)
        if other is not None and tensor.ByteSize() >= _LEAST and _are_same(tensor, other):
            _set_numbers(tensor, b"")
            shared.append(tensor.name)
    return shared


def restore_shared(
    proto: onnx.ModelProto, shared: Iterable[str], held: Mapping[str, TensorProto]
) -> onnx.ModelProto:
    """Give a graph the numbers that :func:`take_shared` removed, and return it."""
    names = set(shared)
    for tensor in proto.graph.initializer:
        if tensor.name in names:
            _set_numbers(tensor, _numbers(held[tensor.name]))
    return proto


def without_numbers(proto: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """Remove the numbers of some initializers of a graph, and return it."""
    for tensor in proto.graph.initializer:
        if tensor.name in names:
            _set_numbers(tensor, b"")
    return proto


def with_numbers(proto: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Give initializers of a graph the numbers of arrays, in their type, and return it.

    Raises
    ------
    ValueError
        If an array has another shape.
    """
    for tensor in proto.graph.initializer:
        array = arrays.get(tensor.name)
        if array is None:
            continue
        if array.shape != tuple(tensor.dims):
            raise ValueError(f"weight {tensor.name!r} has shape {array.shape}, not {[*tensor.dims]}")
        dtype = ir.DataType(tensor.data_type)
        if array.dtype != dtype.numpy():
            # of 16 bits in the graph, as the user gave it
            largest = float(dtype.max)
            array = array.clip(-largest, largest).astype(dtype.numpy())
        _set_numbers(tensor, array.tobytes())
    return proto


def _are_same(tensor: TensorProto, other: TensorProto) -> bool:
    if TensorProto.EXTERNAL in (tensor.data_location, other.data_location):
        return False
    kinds = [(entry.data_type, tuple(entry.dims)) for entry in (tensor, other)]
    return kinds[0] == kinds[1] and _numbers(tensor) == _numbers(other)


def _numbers(tensor: TensorProto) -> bytes:
    if not tensor.raw_data:
        tensor = numpy_helper.from_array(numpy_helper.to_array(tensor))
    return bytes(tensor.raw_data)


def _set_numbers(tensor: TensorProto, raw: bytes) -> None:
    for field in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "raw_data"):
        tensor.ClearField(field)
    if raw:
        tensor.raw_data = raw
