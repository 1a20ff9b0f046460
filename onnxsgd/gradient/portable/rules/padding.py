"""The gradient of Pad: added elements are cut off, or their gradient is added to the copied elements."""

from __future__ import annotations

import numpy as np

from onnxsgd.gradient.portable.rules.indexing import gather_back, positions
from onnxsgd.gradient.portable.writing.broadcasting import dim_of, reshape_to, shape_of, vector, zeros_like
from onnxsgd.gradient.portable.writing.call import Call
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["pad_value", "unpad"]

_END = np.iinfo(np.int64).max


def unpad(n: Call) -> Tensor:
    """Return the gradient of a Pad with respect to its data."""
    amounts, mode = _constant_amounts(n), n.attribute("mode", "constant")
    if mode == "constant":
        return _cropped_at_run_time(n) if amounts is None else _cropped(n.dy, *amounts)
    if amounts is None or n.x.dims is None or min(amounts[1] + amounts[2], default=0) < 0:
        return _folded_at_run_time(n, mode)
    if not all(isinstance(n.x.dims[axis], int) for axis in amounts[0]):
        return _folded_at_run_time(n, mode)
    return _folded(n, mode, *amounts)


def pad_value(n: Call) -> Tensor:
    """Return the gradient with respect to the value of all elements that a Pad adds: its sum over them."""
    if n.attribute("mode", "constant") != "constant":
        return zeros_like(n.c)
    added = op.Pad(zeros_like(n.x), n.b, 1.0, *n.inputs[3:], mode="constant")
    return reshape_to(op.ReduceSum(n.dy * added, keepdims=0).known_as(()), n.c)


def _constant_amounts(n: Call) -> tuple[list[int], list[int], list[int]] | None:
    """Return the axes, and the amounts added before and after each; None if the graph computes any."""
    pads = n.constant(1)
    axes = n.constant(3) if n.optional(3) is not None else np.arange(n.rank)
    if pads is None or axes is None:
        return None
    count = len(axes)
    return [int(axis) % n.rank for axis in axes], pads[:count].tolist(), pads[count:].tolist()


def _cropped_at_run_time(n: Call) -> Tensor:
    """Undo a padding whose amounts the graph computes."""
    axes = n.optional(3)
    sizes = op.Shape(n.dy) if axes is None else op.Gather(op.Shape(n.dy), axes)
    count = vector(n.x, n.rank if axes is None else dim_of(axes, 0))
    before, after = op.Slice(n.b, [0], count), op.Slice(n.b, count, [_END])
    places = list(range(n.rank)) if axes is None else axes
    kept = op.Slice(n.dy, op.Max(before, 0), op.Sub(sizes, op.Max(after, 0)), places)
    restored: Tensor = op.Pad(kept, op.Max(op.Neg(n.b), 0), 0.0, *([] if axes is None else [axes]))
    return restored


def _cropped(g: Tensor, axes: list[int], before: list[int], after: list[int]) -> Tensor:
    """Undo a padding with constants: cut added elements, and put zeros in place of removed ones."""
    added = [index for index in range(len(axes)) if before[index] > 0 or after[index] > 0]
    if added:
        starts = [max(before[index], 0) for index in added]
        ends = [-after[index] if after[index] > 0 else _END for index in added]
        g = op.Slice(g, starts, ends, [axes[index] for index in added])
    if min(before + after, default=0) < 0:
        rank = g.rank or max(axes) + 1
        sizes = [0] * (2 * rank)
        for axis, low, high in zip(axes, before, after, strict=True):
            sizes[axis], sizes[axis + rank] = max(-low, 0), max(-high, 0)
        g = op.Pad(g, sizes, 0.0)
    return g


def _folded(n: Call, mode: str, axes: list[int], before: list[int], after: list[int]) -> Tensor:
    """Undo a padding with copies: each copy's gradient is added to the element that it copies."""
    g = n.dy
    for axis, low, high in zip(axes, before, after, strict=True):
        if low or high:
            size = int(n.x.known_dims[axis])
            copied = np.pad(np.arange(size), (low, high), mode=mode)  # type: ignore[call-overload]
            g = gather_back(g, n.emitter.constant(copied), axis, size)
    return g


def _folded_at_run_time(n: Call, mode: str) -> Tensor:
    """Pad the positions of all elements as the elements, and add the gradient there."""
    count = op.Reshape(op.Size(n.x), [1])
    places = op.Pad(op.Reshape(positions(n.x, count, 0), shape_of(n.x)), n.b, None, *n.inputs[3:], mode=mode)
    flat = op.Reshape(places, [-1]).known_as(("padded",))
    return reshape_to(gather_back(op.Reshape(n.dy, [-1]).known_as(("padded",)), flat, 0, count), n.x)
