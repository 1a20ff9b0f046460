"""Weights and their states, in buffers of fixed address (double buffering)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, eq
from typing import Any

import numpy as np

from onnxsgd.data.masks import are_all
from onnxsgd.engine.step.update import WEIGHT

__all__ = ["Buffers", "Tensors", "all_finite", "bind", "dtype_of", "joined"]

#: Weights and their states, under (weight, kind of tensor).
Tensors = dict[tuple[str, str], np.ndarray]

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
        # not np.empty_like, which keeps the order of axes in memory: the runtime has another one
        self.sets = tuple(
            {key: np.empty(array.shape, array.dtype) for key, array in tensors.items()} for _ in range(2)
        )
        self._present = (0, 0)
        self.nbytes = 2 * sum(array.nbytes for array in self.sets[0].values())

    @property
    def current(self) -> int:
        """The number of the present set."""
        return self._present[0]

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
        self._present = (1 - current, n_done + n_batches)

    def skip(self) -> None:
        """Count a batch without an update."""
        current, n_done = self._present
        self._present = (current, n_done + 1)

    def load(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> None:
        """Copy `tensors` into the present set; missing ones become zero."""
        for key, buffer in self.sets[self.current].items():
            buffer[...] = tensors.get(key, 0)

    def weights(self) -> dict[str, np.ndarray]:
        """Return the present weights, without a copy: later steps change the arrays."""
        return {name: array for (name, kind), array in self.sets[self.current].items() if kind == WEIGHT}

    def snapshot(self) -> Tensors:
        """Return a copy of the weights and of their states."""
        return {key: buffer.copy() for key, buffer in self.sets[self.current].items()}


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
