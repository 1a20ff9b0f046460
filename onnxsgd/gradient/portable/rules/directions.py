"""Directions of a recurrent operator, each with time running forwards.

Where all sizes are known, a Gather of whole steps by constant places reverses time, joins both directions and
puts their axis first, in the place of Split, Slice, Concat and Transpose: an update of a bidirectional LSTM
(20 steps, 32 units, batch 8; ``benchmarks/networks.py``) copies 6 tensors in place of 14.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxsgd.gradient.portable.rules.scan import flipped
from onnxsgd.gradient.portable.rules.sequence_lengths import Lengths
from onnxsgd.gradient.portable.rules.time_steps import swap_first
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["Directions", "apart", "joined", "shifted"]


@dataclass(frozen=True)
class Directions:
    """Directions of one pass, by their name in the operator; the lengths of their samples, if they differ."""

    names: tuple[str, ...]
    lengths: Lengths | None

    def flipped(self, sequence: Tensor) -> Tensor:
        """Return `sequence`, of one direction, with the time of each sample reversed."""
        if self.lengths is None:
            return sequence if sequence.known_dims[0] == 1 else flipped(sequence)
        back: Tensor = op.Unsqueeze(self.lengths.flipped(op.Squeeze(sequence, [1])), [1])
        return back.known_as(sequence.dims)

    def turned(self, t: Tensor) -> Tensor:
        """Return `t`, (time, directions, batch, features), with the time of reverse directions reversed."""
        if "reverse" not in self.names:
            return t
        if len(self.names) > 1 and self._is_placed(t):
            return _gathered(t, self._places(t, len(self.names)).T)
        return self._turned_apart(apart(t, axis=1))

    def inputs(self, x: Tensor) -> Tensor:
        """Return the inputs, (time, 1, batch, features), of every direction."""
        if len(self.names) > 1 and self._is_placed(x):
            return swap_first(_gathered(x, self._places(x, 1)))
        return self._turned_apart([x] * len(self.names))

    def before(self, first: Tensor, y: Tensor) -> Tensor:
        """Return the state before each step; `y` has the states after them in the order of the operator."""
        if len(self.names) == 1 or not self._is_placed(y):
            return shifted(first, self.turned(y))
        count = len(self.names)
        places = self._places(y, count)[:, :-1] + count
        places = np.concatenate([np.arange(count)[:, np.newaxis], places], axis=1)
        return swap_first(_gathered(op.Concat(op.Unsqueeze(first, [0]), y, axis=0), places, y))

    def _is_placed(self, t: Tensor) -> bool:
        return self.lengths is None and t.is_static and 0 not in t.known_dims

    def _places(self, t: Tensor, count: int) -> np.ndarray:
        """Return the places of the steps, (directions, time), among all steps of `count` directions."""
        steps = np.arange(int(t.known_dims[0]))
        turned = [steps[::-1] if name == "reverse" else steps for name in self.names]
        return np.stack([count * row + direction % count for direction, row in enumerate(turned)])

    def _turned_apart(self, parts: list[Tensor]) -> Tensor:
        pairs = zip(self.names, parts, strict=True)
        return joined([self.flipped(t) if name == "reverse" else t for name, t in pairs], axis=1)


def _gathered(t: Tensor, places: np.ndarray, like: Tensor | None = None) -> Tensor:
    """Return steps of (time, directions, batch, features) by their places in the first two axes."""
    batch, features = (int(dim) for dim in (like or t).known_dims[2:])
    found: Tensor = op.Gather(op.Reshape(t, [-1, batch, features]), places, axis=0)
    return found.known_as((*places.shape, batch, features))


def shifted(first: Tensor, sequence: Tensor) -> Tensor:
    """Return `sequence` one step later, with `first` before it."""
    if sequence.known_dims[0] == 1:
        alone: Tensor = op.Unsqueeze(first, [0])
        return alone.known_as(sequence.dims)
    late: Tensor = op.Concat(op.Unsqueeze(first, [0]), op.Slice(sequence, [0], [-1], [0]), axis=0)
    return late.known_as(sequence.dims)


def apart(t: Tensor, axis: int) -> list[Tensor]:
    """Return the directions of `t`, each with an axis of size 1 for it."""
    dims = t.known_dims
    count = int(dims[axis])
    if count == 1:
        return [t]
    parts: list[Tensor] = op.Split(t, [1] * count, axis=axis, outputs=count)
    return [part.known_as((*dims[:axis], 1, *dims[axis + 1 :])) for part in parts]


def joined(parts: list[Tensor], axis: int = 0) -> Tensor:
    """Return one tensor for each direction as one tensor, with an axis of directions."""
    if len(parts) == 1:
        return parts[0]
    whole: Tensor = op.Concat(*parts, axis=axis)
    shapes = [part.dims for part in parts if part.dims is not None]
    if len(shapes) < len(parts):
        return whole
    count = sum(int(shape[axis]) for shape in shapes)
    return whole.known_as((*shapes[0][:axis], count, *shapes[0][axis + 1 :]))
