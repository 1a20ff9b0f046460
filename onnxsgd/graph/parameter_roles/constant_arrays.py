"""Constant arrays, recognised by their numbers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import REAL_TYPES

__all__ = ["are_ordinary", "find_waves", "is_geometric", "is_grid"]

_Key = TypeVar("_Key", bound=Hashable)

#: The accuracy to which tables of functions are recognised, in float16 as well.
_TOLERANCE = 2e-3

#: Equal numbers of at least this size are a fill value such as the negative infinity of a mask.
_HUGE = 1e3

#: The first numbers of an array, which decide about most arrays.
_HEAD = slice(0, 64)


def is_grid(array: np.ndarray) -> bool:
    """Return whether `array` is a mask or a grid: whole and half numbers that differ, or one huge number.

    No parameter has such numbers after training, nor before it, except all zeros or all ones.
    """
    if array.size == 0:
        return False
    head = array.flat[_HEAD]
    first = head[0]
    if np.all(head == first) and np.all(array == first):
        return bool(np.abs(first) >= _HUGE)
    return _are_halves(head) and _are_halves(array)


def _are_halves(array: np.ndarray) -> bool:
    """Tell whether all finite numbers are whole or half ones."""
    finite = array[np.isfinite(array)].astype(np.float64)
    return bool(np.all(np.rint(2 * finite) == 2 * finite))


def is_geometric(array: np.ndarray) -> bool:
    """Return whether `array` is a geometric series: the frequencies of waves, the slopes of a bias."""
    if array.size != max(array.shape, default=0) or array.size < 3:
        return False
    numbers = array.astype(np.float64).reshape(-1)
    if not np.all(numbers > 0):
        return False
    steps = np.diff(np.log(numbers))
    return bool(abs(steps[0]) > _TOLERANCE and np.allclose(steps, steps[0], rtol=_TOLERANCE, atol=1e-5))


def find_waves(values: Iterable[ir.Value]) -> set[ir.Value]:
    """Return the tables of sines and cosines, such as position encodings, among `values`.

    A sine and a cosine of one angle are in the two halves of the last axis, alternate on it, or have the same
    position in two tables of one shape.
    """
    tables = {
        value: value.const_value.numpy()
        for value in values
        if value.dtype in REAL_TYPES and value.const_value is not None and len(value.const_value.shape) > 1
    }
    return _waves(tables)


def are_ordinary(arrays: Iterable[np.ndarray], beside: Iterable[np.ndarray] = ()) -> bool:
    """Return whether none of some real `arrays` of a graph is recognised by its numbers.

    Their roles are then those of any other ordinary arrays of these shapes, and the roles of the real arrays
    `beside` them in the graph do not depend on them.
    """
    given = list(arrays)
    recognised = any(is_grid(array) or is_geometric(array) for array in given)
    tables = {key: array for key, array in enumerate([*given, *beside]) if array.ndim > 1}
    return not recognised and all(key >= len(given) for key in _waves(tables))


def _waves(tables: Mapping[_Key, np.ndarray]) -> set[_Key]:
    found = {value for value, array in tables.items() if _holds_both(array)}
    by_shape: dict[tuple[int, ...], list[tuple[_Key, float]]] = {}
    for value, array in tables.items():
        # a large network has thousands of pairs, and one number excludes most of them
        corner = float(array.flat[0]) ** 2 if array.size else 0.0
        for other, square in by_shape.setdefault(array.shape, []):
            if abs(corner + square - 1) <= _TOLERANCE and _are_waves(array, tables[other]):
                found.update((value, other))
        by_shape[array.shape].append((value, corner))
    return found


def _holds_both(array: np.ndarray) -> bool:
    half, odd = divmod(array.shape[-1], 2)
    pairs = (
        (array[..., :half], array[..., half:]),
        (array[..., ::2], array[..., 1::2]),
    )
    return not odd and array.size >= 4 and any(_are_waves(*pair) for pair in pairs)


def _are_waves(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether squares add up to 1, and not all numbers are whole; the first rows decide most."""
    head = (slice(0, 2),) * (one.ndim - 1)
    if not (_on_circle(one[head], other[head]) and _on_circle(one, other)):
        return False
    return bool(np.any(np.rint(one) != one) and np.any(np.rint(other) != other))


def _on_circle(one: np.ndarray, other: np.ndarray) -> bool:
    squares = np.square(one, dtype=np.float64) + np.square(other, dtype=np.float64)
    return bool(np.all(np.abs(squares - 1) <= _TOLERANCE))
