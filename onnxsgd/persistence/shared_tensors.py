"""Tensors of a saved graph that the same file holds elsewhere too, as weights or in `model`: saved once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, numpy_helper
from sklearn.base import BaseEstimator

__all__ = [
    "Reference", "digest_of", "held_tensors", "restore_shared", "take_shared", "with_numbers",
    "without_numbers",
]  # fmt: skip

#: The fewest bytes of a tensor that is left out of a saved graph: names take as long.
_LEAST = 256

#: A tensor whose numbers are left out: its name, under which a graph has it; or its name, and the path of an
#: array in an estimator with the form in which a converter writes that.
Reference = str | list[str]

#: The forms in which converters write arrays. Numpy computes each to the last bit on every computer.
_FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda array: array,
    "transposed": lambda array: array.T,
    "inverse": lambda array: np.reciprocal(array.astype(np.float64)),
}


def held_tensors(model: object) -> dict[str, TensorProto | np.ndarray]:
    """Return the initializers of a graph in memory by name, or the arrays of an estimator by path.

    Those of a file are none: it may change.
    """
    if isinstance(model, BaseEstimator):
        return dict(_arrays(model, "", set()))
    if isinstance(model, bytes):
        model = onnx.load_from_string(model)
    return {} if not isinstance(model, onnx.ModelProto) else {t.name: t for t in model.graph.initializer}


def _arrays(value: object, path: str, seen: set[int]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of real numbers in an estimator, those inside, and lists of them."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "fiu":
            yield path, value
        return
    if not isinstance(value, BaseEstimator | list | tuple) or id(value) in seen:
        return
    seen.add(id(value))
    parts = vars(value).items() if isinstance(value, BaseEstimator) else enumerate(value)
    for name, part in parts:
        yield from _arrays(part, f"{path}.{name}" if path else str(name), seen)


def take_shared(proto: onnx.ModelProto, held: Mapping[str, TensorProto | np.ndarray]) -> list[Reference]:
    """Remove the numbers of tensors that `held` has too; return where they are.

    A tensor of a graph has the same name there; an array of an estimator has the same numbers in one of the
    forms.
    """
    shared = list[Reference]()
    for tensor in proto.graph.initializer:
        if tensor.ByteSize() >= _LEAST and tensor.data_location != TensorProto.EXTERNAL:
            reference = _reference(tensor, held)
            if reference is not None:
                _set_numbers(tensor, b"")
                shared.append(reference)
    return shared


def _reference(tensor: TensorProto, held: Mapping[str, TensorProto | np.ndarray]) -> Reference | None:
    other = held.get(tensor.name)
    if isinstance(other, TensorProto):
        return tensor.name if _are_same(tensor, other) else None
    size, raw = np.prod(tensor.dims), None
    for path, array in held.items():
        if isinstance(array, np.ndarray) and array.size == size:
            raw = _numbers(tensor) if raw is None else raw
            for form in _FORMS:
                if _formed(array, form, tensor) == raw:
                    return [tensor.name, path, form]
    return None


def _formed(array: np.ndarray, form: str, tensor: TensorProto) -> bytes:
    """Return the bytes of an array of an estimator in the type of a tensor."""
    with np.errstate(all="ignore"):
        return _FORMS[form](array).astype(ir.DataType(tensor.data_type).numpy()).tobytes()


def restore_shared(
    proto: onnx.ModelProto, shared: Iterable[Reference], held: Mapping[str, TensorProto | np.ndarray]
) -> onnx.ModelProto:
    """Give a graph the numbers that :func:`take_shared` removed, and return it.

    Raises
    ------
    ValueError
        If an array of the estimator has another size, or is gone.
    """
    places = {entry if isinstance(entry, str) else entry[0]: entry for entry in shared}
    for tensor in proto.graph.initializer:
        place = places.get(tensor.name)
        if isinstance(place, str):
            _set_numbers(tensor, _numbers(cast(TensorProto, held[place])))
        elif place is not None:
            _, path, form = place
            array = held.get(path)
            if not isinstance(array, np.ndarray) or array.size != np.prod(tensor.dims):
                raise ValueError(f"model has no array {path} of {[*tensor.dims]}, as when it was saved")
            _set_numbers(tensor, _formed(array, form, tensor))
    return proto


def digest_of(shared: Iterable[Reference], held: Mapping[str, TensorProto | np.ndarray]) -> tuple[str, int]:
    """Return a digest of the numbers that are in `held` alone, and how many bytes they have there."""
    digest, n_bytes = hashlib.sha256(), 0
    for entry in shared:
        found: Any = held[entry if isinstance(entry, str) else entry[1]]
        raw = found.tobytes() if isinstance(found, np.ndarray) else _numbers(found)
        kind = (found.shape, found.dtype.str) if isinstance(found, np.ndarray) else (found.data_type,)
        digest.update(repr((entry, kind, len(raw))).encode() + raw)
        n_bytes += len(raw)
    return digest.hexdigest(), n_bytes


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
    if other.data_location == TensorProto.EXTERNAL:
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
