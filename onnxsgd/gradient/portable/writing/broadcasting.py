"""Reduction from the shape of a result to the shape of an operand, at build time where possible."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = [
    "dim_of",
    "expand_to",
    "mean_over",
    "number",
    "reshape_to",
    "shape_of",
    "size_of",
    "sum_to",
    "swap_last",
    "vector",
    "zeros_like",
]

#: The first version of the standard operators whose reductions take their axes as an input.
_AXES_AS_INPUT = 18


def shape_of(x: Tensor) -> Tensor | list[int]:
    """Return the shape of `x`: a list if it is known, else a computed tensor."""
    if x.dims is not None and x.is_static:
        return [int(dim) for dim in x.dims]
    shape: Tensor = op.Shape(x)
    return shape


def size_of(x: Tensor, axes: Sequence[int]) -> Tensor | int:
    """Return the product of some dimensions of `x`: a number if they are known, else a computed tensor."""
    sizes = [dim for dim in (x.dims[axis] for axis in axes if x.dims is not None) if isinstance(dim, int)]
    if len(sizes) == len(axes):
        return math.prod(sizes)
    product: Tensor = op.ReduceProd(op.Gather(op.Shape(x), list(axes)), keepdims=0)
    return product.known_as(()).cast(x.dtype)


def expand_to(g: Tensor, like: Tensor) -> Tensor:
    """Return `g` broadcast to the shape of `like`; a `g` of unknown shape already has it."""
    if g.dims is None or g.dims == like.dims:
        return g
    expanded: Tensor = op.Expand(g, shape_of(like))
    return expanded.known_as(like.dims)


def reshape_to(g: Tensor, like: Tensor) -> Tensor:
    """Return the elements of `g` in the shape of `like`."""
    if like.dims is None:
        return op.Reshape(g, op.Shape(like))
    if g.dims == like.dims:
        return g
    if like.is_static and 0 in like.dims:
        # A 0 in the target of a Reshape copies a size of its input.
        return zeros_like(like)
    unknown = [dim for dim in like.dims if isinstance(dim, str)]
    if len(unknown) > 1 or (unknown and 0 in like.dims):
        return op.Reshape(g, op.Shape(like)).known_as(like.dims)
    return op.Reshape(g, [-1 if isinstance(dim, str) else dim for dim in like.dims]).known_as(like.dims)


def zeros_like(x: Tensor) -> Tensor:
    """Return zeros of the type and shape of `x`."""
    zeros: Tensor = op.Expand(number(x, 0), shape_of(x))
    return zeros.known_as(x.dims)


def swap_last(x: Tensor) -> Tensor:
    """Return `x`, of known rank, with its last two axes exchanged."""
    axes = list(range(x.rank or 0))
    return op.Transpose(x, perm=[*axes[:-2], axes[-1], axes[-2]])


def sum_to(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return `g`, a gradient with respect to `y`, summed over the axes along which `x` was broadcast to `y`.

    Axes of equal size, numbers or names, are kept, an axis of size 1 in `x` is summed; only where neither is
    certain does the graph compare the shapes at run time.
    """
    if x.value is y.value or (x.dims is not None and x.dims == y.dims):
        return g
    if x.dims is None or y.dims is None or len(x.dims) > len(y.dims):
        return _sum_at_run_time(expand_to(g, y), y, x)
    lead = len(y.dims) - len(x.dims)
    pairs = list(zip((1,) * lead + x.dims, y.dims, strict=True))
    if any(have not in (1, size) for have, size in pairs):
        return _sum_at_run_time(expand_to(g, y), y, x)
    return _sum_axes(
        g, y, x, [axis for axis, (have, size) in enumerate(pairs) if axis < lead or have != size]
    )


def _sum_axes(g: Tensor, y: Tensor, x: Tensor, axes: list[int]) -> Tensor:
    lead = list(range(len(y.dims or ()) - len(x.dims or ())))
    g = expand_to(g, y)
    if len(lead) > 1 and axes == lead and len(x.dims or ()) == 1 and g.is_static and x.is_static:
        # As a matrix, which the gradient of a weight beside reads too: its rows are summed by a product.
        g, axes = op.Reshape(g, [-1, *(x.dims or ())]), [0]
        return op.ReduceSum(g, axes, keepdims=0).known_as(x.dims)
    if axes == lead:
        return op.ReduceSum(g, axes, keepdims=0).known_as(x.dims)
    summed: Tensor = op.ReduceSum(g, axes, keepdims=1)
    return op.Squeeze(summed, lead).known_as(x.dims) if lead else summed.known_as(x.dims)


def _sum_at_run_time(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Sum the axes in which the shape of `x`, with ones before it up to the rank of `y`, is 1."""
    shape = op.Shape(x)
    padded = shape
    if x.rank is None or x.rank != y.rank:
        one = g.emitter.constant(np.array([1], dtype=np.int64))
        missing = op.Sub(op.Shape(op.Shape(y)), op.Shape(shape))
        padded = op.Concat(op.Expand(one, missing), shape, axis=0)
    axes = op.Squeeze(op.NonZero(op.Equal(padded, 1)), [0])
    return op.Reshape(op.ReduceSum(g, axes, keepdims=1, noop_with_empty_axes=1), shape).known_as(x.dims)


def dim_of(x: Tensor, axis: int) -> Tensor | int:
    """Return the size of one axis of `x`: a number if it is known, else a vector of one element."""
    size = None if x.dims is None else x.dims[axis]
    if isinstance(size, int):
        return size
    found: Tensor = op.Gather(op.Shape(x), [axis])
    return found


def mean_over(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the mean of `x` over `axes`, which are kept."""
    if x.emitter.opset >= _AXES_AS_INPUT:
        return op.ReduceMean(x, list(axes), keepdims=1)
    return op.ReduceMean(x, axes=list(axes), keepdims=1)


def vector(like: Tensor, size: Tensor | int) -> Tensor:
    """Return a size from :func:`dim_of` as a vector of one element."""
    return like.emitter.constant(np.array([size], dtype=np.int64)) if isinstance(size, int) else size


def number(like: Tensor, value: float) -> Tensor:
    """Return a number of the type of `like`."""
    return like.emitter.constant(np.array(value, dtype=(like.dtype or ir.DataType.FLOAT).numpy()))
