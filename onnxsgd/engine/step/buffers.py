"""Weights and their states, in buffers of fixed address (double buffering)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, eq, is_
from typing import Any

import numpy as np

from onnxsgd.data.masks import are_all
from onnxsgd.engine.step.update import WEIGHT

__all__ = ["Buffers", "Tensors", "all_finite", "bind", "dtype_of", "joined"]

#: Weights and their states, under (weight, kind of tensor).
Tensors = dict[tuple[str, str], np.ndarray]

#: Keys of tensors, and their arrays.
_Arrays = tuple[tuple[tuple[str, str], ...], tuple[np.ndarray, ...]]
_NOTHING: _Arrays = ((), ())
#: The bytes of a line of the cache, with which each buffer begins.
_LINE = 64

_NUMPY_TYPES = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(int16)": np.int16, "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8, "tensor(uint16)": np.uint16, "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64, "tensor(bool)": np.bool_,
}  # fmt: skip


class Buffers:
    """Double buffers: one set holds the present weights, the other takes the next ones.

    An update in place would be silently wrong: the gradient of an early layer would read the new weights of
    a late one.

    Parameters
    ----------
    tensors : dict of ndarray
        One array for each buffer: its shape and type; buffers are contiguous.

    Attributes
    ----------
    sets : tuple of dict of ndarray
        Both sets.
    nbytes : int
        Bytes of both sets.
    """

    def __init__(self, tensors: Tensors) -> None:
        (first, its_blocks), (second, blocks_of_second) = _laid_out(tensors), _laid_out(tensors)
        self.sets = (first, second)
        self._blocks = (its_blocks, blocks_of_second)
        self._present = (0, 0)
        #: The keys and the arrays of the last finite snapshot, while the present set has its numbers.
        self._copied = _NOTHING
        #: Those of each set that are shown without some tensors.
        self._shown: dict[tuple[int, tuple[tuple[str, str], ...]], _Arrays] = {}
        self.nbytes = 2 * sum(array.nbytes for array in self.sets[0].values())

    @property
    def current(self) -> int:
        """The number of the present set."""
        return self._present[0]

    @property
    def present(self) -> Tensors:
        """The present set."""
        return self.sets[self._present[0]]

    @property
    def following(self) -> Tensors:
        """The set that takes the next weights."""
        return self.sets[1 - self._present[0]]

    @property
    def n_done(self) -> int:
        """The batches whose updates the present set has, since :meth:`restart`."""
        return self._present[1]

    def restart(self) -> None:
        """Count batches from 0 on."""
        self._present = (self._present[0], 0)

    def flip(self, n_batches: int = 1) -> None:
        """Swap the two sets: the updates of further batches are made, all at once, whatever interrupts."""
        current, n_done = self._present
        self._copied = _NOTHING
        self._present = (1 - current, n_done + n_batches)

    def skip(self) -> None:
        """Count a batch without an update."""
        current, n_done = self._present
        self._present = (current, n_done + 1)

    def load(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> None:
        """Copy `tensors` into the present set; missing ones become zero."""
        # the caller may change the set
        (keys, arrays), self._copied = self._copied, _NOTHING
        is_known = bool(arrays) and len(arrays) == len(tensors) and all(map(is_, tensors, keys))
        if is_known and all(map(is_, tensors.values(), arrays)):
            return
        for key, buffer in self.present.items():
            buffer[...] = tensors.get(key, 0)

    def weights(self) -> dict[str, np.ndarray]:
        """Return the present weights, without a copy: later steps change the arrays."""
        return {name: array for (name, kind), array in self.present.items() if kind == WEIGHT}

    def snapshot(self) -> Tensors:
        """Return a copy of the weights and of their states."""
        return {key: buffer.copy() for key, buffer in self.present.items()}

    def finite_snapshot(self, without: tuple[tuple[str, str], ...] = ()) -> Tensors | None:
        """Return the same without some tensors; None if one of the numbers is not finite.

        The present set need not take these arrays again, which nobody changes: a stream returns them with its
        next part.
        """
        if not all(map(all_finite, self._blocks[self.current])):
            return None
        place = self.current, without
        if place not in self._shown:
            shown = {key: buffer for key, buffer in self.present.items() if key not in without}
            self._shown[place] = tuple(shown), tuple(shown.values())
        keys, buffers = self._shown[place]
        arrays = tuple(map(np.ndarray.copy, buffers))
        self._copied = keys, arrays
        return dict(zip(keys, arrays, strict=True))


def _laid_out(tensors: Tensors) -> tuple[Tensors, list[np.ndarray]]:
    """Return contiguous arrays like some others, and the memory that they lie in: a block for each type.

    One look at a block takes less time than one at each array. Between arrays there are zeros.
    """
    ends: dict[np.dtype[Any], int] = {}
    places: dict[tuple[str, str], slice] = {}
    for key, array in tensors.items():
        step = _LINE // array.itemsize
        start = -(-ends.get(array.dtype, 0) // step) * step
        places[key] = slice(start, start + array.size)
        ends[array.dtype] = start + array.size
    blocks = {dtype: _aligned(size, dtype) for dtype, size in ends.items()}
    arrays = {key: blocks[array.dtype][places[key]].reshape(array.shape) for key, array in tensors.items()}
    return arrays, list(blocks.values())


def _aligned(size: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Return a vector of zeros that begins with a line of the cache."""
    memory = np.zeros(size * dtype.itemsize + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size * dtype.itemsize].view(dtype)


def all_finite(array: np.ndarray) -> bool:
    """Tell whether all numbers are finite."""
    return math.isfinite(array.item()) if array.size == 1 else are_all(np.isfinite(array))


#: The type of the elements of an array.
_dtype = attrgetter("dtype")


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the numbers of some arrays in one vector, not to be changed, in any order.

    The bytes of small arrays of one type are joined in a tenth of the time that numpy takes.
    """
    parts: Any = arrays
    dtype = arrays[0].dtype
    if all(map(eq, map(_dtype, arrays), repeat(dtype))):
        try:
            return np.frombuffer(b"".join(parts), dtype)
        except (TypeError, ValueError):
            # no number at all, or another order of the axes in memory
            pass
    return np.concatenate(arrays, axis=None)


def bind(bind_one: Callable[..., None], name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Bind the memory of a contiguous array; the caller keeps the array alive."""
    bind_one(name, "cpu", 0, array.dtype.type, list(shape), array.ctypes.data)


def dtype_of(value: Any) -> type[np.generic]:
    """Return the numpy type of an input or output of a session."""
    return _NUMPY_TYPES[value.type]
