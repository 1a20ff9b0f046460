"""Tensors of a saved graph that the same file holds as weights or in an estimator too: saved once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import cast

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto
from sklearn.base import BaseEstimator

from onnxsgd.exceptions import ParameterError
from onnxsgd.persistence.graph_differences import numbers_in, set_numbers

__all__ = [
    "LEAST",
    "NUMERIC",
    "Held",
    "arrays_in",
    "held_tensors",
    "restore_shared",
    "take_shared",
    "with_numbers",
]

#: The fewest bytes of a tensor that is left out of a saved graph: names take as long.
LEAST = 256

#: A tensor whose numbers are left out: its name, and the path of an array in an estimator with the form in
#: which a converter writes that; in formats 1 and 2 also its name, under which `model` has it.
Reference = str | list[str]

#: The initializers of a graph by name, or the arrays of an estimator by path.
Held = Mapping[str, TensorProto | np.ndarray]

#: The methods that decide about a pickle: a class with its own may leave arrays out.
_OF_PICKLES = ("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__")

#: The kinds of arrays of real numbers, and further ones of texts.
NUMERIC, _KINDS = frozenset("fiu"), frozenset("fiuOU")
#: Types of attributes that hold no arrays.
_PLAIN = frozenset({bool, int, float, str, type(None)})

#: The forms in which converters write arrays. Numpy computes each to the last bit on every computer.
_FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda array: array,
    "transposed": lambda array: array.T,
    "inverse": lambda array: np.reciprocal(array.astype(np.float64)),
}


def held_tensors(model: object) -> Held:
    """Return the initializers of a graph by name, or the arrays of an estimator by path.

    Those of a file are none: it may change.
    """
    if isinstance(model, BaseEstimator):
        return {path: array for path, array in arrays_in(model).items() if array.dtype.kind in NUMERIC}
    return {} if not isinstance(model, onnx.ModelProto) else {t.name: t for t in model.graph.initializer}


def arrays_in(model: object) -> dict[str, np.ndarray]:
    """Return the arrays of numbers and texts in an estimator, in those inside, and in lists, by path."""
    found = dict[str, np.ndarray]()
    if isinstance(model, BaseEstimator):
        _find_arrays(model, "", found, set())
    return found


def _find_arrays(value: object, path: str, found: dict[str, np.ndarray], seen: set[int]) -> None:
    if isinstance(value, np.ndarray):
        if value.dtype.kind in _KINDS:
            found[path] = value
        return
    is_list = type(value) in (list, tuple)
    if id(value) in seen or not (
        is_list or (isinstance(value, BaseEstimator) and _is_pickled_whole(type(value)))
    ):
        return
    seen.add(id(value))
    parts = enumerate(cast(Iterable[object], value)) if is_list else vars(value).items()
    for name, part in parts:
        if type(part) not in _PLAIN:
            _find_arrays(part, f"{path}.{name}" if path else str(name), found, seen)


def _is_pickled_whole(kind: type[BaseEstimator]) -> bool:
    """Tell whether pickles of a class have all attributes, as those of scikit-learn have."""
    return all(getattr(kind, name) is getattr(BaseEstimator, name) for name in _OF_PICKLES)


def take_shared(proto: onnx.ModelProto, held: Held) -> list[Reference]:
    """Remove the numbers of tensors that an array of an estimator has too, in one of the forms.

    Returns
    -------
    list
        References to these arrays.
    """
    arrays = [(path, array) for path, array in held.items() if isinstance(array, np.ndarray)]
    shared = list[Reference]()
    for tensor in proto.graph.initializer if arrays else ():
        if tensor.ByteSize() >= LEAST:
            reference = _reference(tensor, arrays)
            if reference is not None:
                set_numbers(tensor, b"")
                shared.append(reference)
    return shared


def _reference(tensor: TensorProto, arrays: Iterable[tuple[str, np.ndarray]]) -> Reference | None:
    size, raw = np.prod(tensor.dims), None
    for path, array in arrays:
        if array.size == size:
            raw = numbers_in(tensor) if raw is None else raw
            for form in _FORMS:
                if _formed(array, form, tensor) == raw:
                    return [tensor.name, path, form]
    return None


def _formed(array: np.ndarray, form: str, tensor: TensorProto) -> bytes:
    """Return the bytes of an array of an estimator in the type of a tensor."""
    with np.errstate(all="ignore"):
        return _FORMS[form](array).astype(ir.DataType(tensor.data_type).numpy()).tobytes()


def restore_shared(proto: onnx.ModelProto, shared: Iterable[Reference], held: Held) -> onnx.ModelProto:
    """Give a graph the numbers that :func:`take_shared` removed.

    Raises
    ------
    ParameterError
        If an array of the estimator has another size, or is gone.
    """
    places = {entry if isinstance(entry, str) else entry[0]: entry for entry in shared}
    for tensor in proto.graph.initializer:
        place = places.get(tensor.name)
        if isinstance(place, str):
            set_numbers(tensor, numbers_in(cast(TensorProto, held[place])))
        elif place is not None:
            _, path, form = place
            array = held.get(path)
            if not isinstance(array, np.ndarray) or array.size != np.prod(tensor.dims):
                raise ParameterError(
                    f"model has no array {path!r:.60} of shape {[*tensor.dims]!r:.60}, as it had when it was "
                    "pickled: unpickle it with the same version of scikit-learn."
                )
            set_numbers(tensor, _formed(array, form, tensor))
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
        set_numbers(tensor, array.astype(dtype.numpy()).tobytes())
    return proto
