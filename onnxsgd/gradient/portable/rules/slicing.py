"""The gradient of Slice: zeros, with the gradient in place of the slice."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd.gradient.portable.rules.indexing import positions
from onnxsgd.gradient.portable.writing.broadcasting import dim_of, number, vector
from onnxsgd.gradient.portable.writing.call import Call
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["constant_ranges", "unslice"]


def unslice(n: Call) -> Tensor:
    """Return the gradient of a Slice: zeros, with the gradient in place of the slice."""
    axes = _sliced_axes(n)
    if axes is None:
        return _unslice_elements(n)
    ranges = constant_ranges(n)
    if ranges is None or (not n.y.is_static and any(kept.step > 1 for kept, _ in ranges.values())):
        return _unslice_axes(n, axes)
    g, pads = n.dy, [0] * (2 * n.rank)
    for axis, (kept, size) in ranges.items():
        g, phase = _apart(g, axis, kept), kept.start % kept.step
        pads[axis] = kept.start - phase
        pads[axis + n.rank] = size - pads[axis] - len(kept) * kept.step
    return op.Pad(g, pads, 0.0) if any(pads) else g


def _apart(g: Tensor, axis: int, kept: range) -> Tensor:
    """Return `g` with zeros around the elements of an axis, so that they are `kept.step` apart.

    Six ScatterElements of an update of swin took 412 us, the twelve Pad in their place 59
    (``benchmarks/networks.py``).
    """
    if kept.step == 1:
        return g
    dims = g.known_dims
    before, after = list(dims[: axis + 1]), list(dims[axis + 1 :])
    pads, phase = [0] * (2 * len(dims) + 2), kept.start % kept.step
    pads[axis + 1], pads[axis + 1 + len(dims) + 1] = phase, kept.step - 1 - phase
    wide = op.Pad(op.Reshape(g, [*before, 1, *after]), pads, 0.0)
    return op.Reshape(wide, [*before[:-1], len(kept) * kept.step, *after])


def constant_ranges(n: Call) -> dict[int, tuple[range, int]] | None:
    """Return the elements that each sliced axis keeps, and its size; None if these are not known.

    They are not known with a negative step, either, nor with one above 1 that keeps nothing.
    """
    bounds = _constant_bounds(n)
    if n.x.dims is None or bounds is None:
        return None
    found = {}
    for start, end, axis, step in zip(*bounds, strict=True):
        size = n.x.dims[axis]
        if step < 1 or not isinstance(size, int):
            return None
        found[axis % n.rank] = range(*slice(start, end, step).indices(size)), size
    return found if all(kept.step == 1 or len(kept) for kept, _ in found.values()) else None


def _constant_bounds(n: Call) -> list[list[int]] | None:
    """Return the starts, ends, axes and steps; None if the graph computes any, or they do not fit."""
    found: list[list[int]] = []
    for index in range(1, 5):
        array = n.constant(index)
        if array is None and n.optional(index) is not None:
            return None
        default = list(range(len(found[0]))) if index == 3 else [1] * len(found[0] if found else ())
        found.append(default if array is None else array.reshape(-1).tolist())
    return found if len({len(entry) for entry in found}) == 1 else None


def _sliced_axes(n: Call) -> list[int] | None:
    """Return the sliced axes, from the front; None if the graph computes them or the rank is not known."""
    if n.x.rank is None:
        return None
    if n.optional(3) is None:
        # the first ones, as many as there are starts
        count = None if n.b.dims is None else n.b.dims[0]
        return list(range(count)) if isinstance(count, int) else None
    axes = n.constant(3)
    return None if axes is None else [int(axis) % n.rank for axis in axes]


def _unslice_elements(n: Call) -> Tensor:
    """Slice the positions of all elements as the elements, and scatter the gradient there."""
    zero = n.emitter.constant(np.array(0, dtype=np.int64))
    count = op.Size(n.x)
    places = op.Reshape(op.Range(zero, count, 1), op.Shape(n.x))
    kept = op.Reshape(op.Slice(places, *n.inputs[1:]), [-1])
    flat = op.Expand(number(n.dy, 0), op.Reshape(count, [1]))
    back: Tensor = op.Reshape(op.ScatterElements(flat, kept, op.Reshape(n.dy, [-1])), op.Shape(n.x))
    return back.known_as(n.x.dims)


def _unslice_axes(n: Call, axes: list[int]) -> Tensor:
    """Slice the positions along each axis as the axis, and scatter the gradient there."""
    g = n.dy
    for k, axis in reversed(list(enumerate(axes))):
        start, end, *rest = (
            None if t is None else op.Slice(t.cast(ir.DataType.INT64), [k], [k + 1]) for t in n.inputs[1:]
        )
        kept = op.Slice(positions(n.x, dim_of(n.x, axis), 0), start, end, [0], *rest[1:])
        where = op.Reshape(kept, [-1] + [1] * (n.rank - 1 - axis))
        g = _place(g, where, axis, n)
    return g


def _place(g: Tensor, positions: Tensor, axis: int, n: Call) -> Tensor:
    shape = op.Shape(g)
    size = vector(g, dim_of(n.x, axis))
    parts = [op.Slice(shape, [0], [axis]), size, op.Slice(shape, [axis + 1], [n.rank])]
    start = op.Expand(number(g, 0), op.Concat(*parts, axis=0))
    placed: Tensor = op.ScatterElements(start, op.Expand(positions, shape), g, axis=axis)
    return placed
