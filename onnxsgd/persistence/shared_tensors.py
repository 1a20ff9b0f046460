"""Tensors of a saved graph that the same file holds elsewhere too, as weights or in `model`: saved once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import cast

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, numpy_helper
from sklearn.base import BaseEstimator

from onnxsgd.exceptions import ParameterError

__all__ = [
    "Held", "Reference", "bytes_in", "digest_of", "held_tensors", "restore_shared", "take_shared",
    "with_numbers", "without_numbers",
]  # fmt: skip

#: The fewest bytes of a tensor that is left out of a saved graph: names take as long.
_LEAST = 256

#: A tensor whose numbers are left out: its name, under which a graph has it; or its name, and the path of an
#: array in an estimator with the form in which a converter writes that.
Reference = str | list[str]

#: The initializers of a graph by name, or the arrays of an estimator by path.
Held = Mapping[str, TensorProto | np.ndarray]

#: The methods that decide about a pickle: a class with its own may leave arrays out.
_OF_PICKLES = ("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__")

#: The forms in which converters write arrays. Numpy computes each to the last bit on every computer.
_FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda array: array,
    "transposed": lambda array: array.T,
    "inverse": lambda array: np.reciprocal(array.astype(np.float64)),
}


def held_tensors(model: object) -> Held:
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
    is_estimator = isinstance(value, BaseEstimator) and _is_pickled_whole(type(value))
    if not (is_estimator or type(value) in (list, tuple)) or id(value) in seen:
        return
    seen.add(id(value))
    parts = vars(value).items() if is_estimator else enumerate(cast(Iterable[object], value))
    for name, part in parts:
        yield from _arrays(part, f"{path}.{name}" if path else str(name), seen)


def _is_pickled_whole(kind: type[BaseEstimator]) -> bool:
    """Tell whether pickles of a class have all attributes, as those of scikit-learn have."""
    return all(getattr(kind, name) is getattr(BaseEstimator, name) for name in _OF_PICKLES)


def take_shared(proto: onnx.ModelProto, held: Held) -> list[Reference]:
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


def _reference(tensor: TensorProto, held: Held) -> Reference | None:
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


def restore_shared(proto: onnx.ModelProto, shared: Iterable[Reference], held: Held) -> onnx.ModelProto:
    """Give a graph the numbers that :func:`take_shared` removed, and return it.

    Raises
    ------
    ParameterError
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
                raise ParameterError(
                    f"model has no array {path!r:.60} of shape {[*tensor.dims]!r:.60}, as it had when it was "
                    "pickled: unpickle it with the same version of scikit-learn."
                )
            _set_numbers(tensor, _formed(array, form, tensor))
    return proto


def bytes_in(shared: Iterable[Reference], held: Held) -> int:
    """Return the bytes of the numbers that are in `held` alone."""
    return sum(
        found.nbytes if isinstance(found, np.ndarray) else found.ByteSize() for found in _found(shared, held)
    )


def digest_of(shared: Iterable[Reference], held: Held) -> str:
    """Return a digest of the references and of the numbers that are in `held` alone."""
    digest = hashlib.sha256(repr(shared).encode())
    for found in _found(shared, held):
        if isinstance(found, np.ndarray):
            kind, raw = f"{found.dtype.str} {found.shape}", found.tobytes()
        else:
            kind, raw = str(found.data_type), _numbers(found)
        digest.update(f" {kind} {len(raw)} ".encode() + raw)
    return digest.hexdigest()


def _found(shared: Iterable[Reference], held: Held) -> Iterator[TensorProto | np.ndarray]:
    """Yield the tensors and arrays of references; those that are gone are left to :func:`restore_shared`."""
    for entry in shared:
        found = held.get(entry if isinstance(entry, str) else entry[1])
        if found is not None:
            yield found


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
        if dtype.itemsize < array.itemsize:
            # of 16 bits in the graph, as the user gave it
            largest = float(dtype.max)
            array = array.clip(-largest, largest)
        _set_numbers(tensor, array.astype(dtype.numpy()).tobytes())
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
