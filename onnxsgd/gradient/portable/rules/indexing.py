"""Gradients of operators that pick elements by an index: added where the elements came from."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd.gradient.portable.writing.broadcasting import dim_of, number, reshape_to, vector, zeros_like
from onnxsgd.gradient.portable.writing.call import Call, Rules
from onnxsgd.gradient.portable.writing.known_shapes import Dims
from onnxsgd.gradient.portable.writing.tensor import Tensor, op
from onnxsgd.graph.nodes import constant

__all__ = ["ADDING_SCATTER", "INDEXING", "gather_back", "picked_row", "positions", "scatter_distinct"]

#: The first version of ScatterElements and ScatterND that can add.
ADDING_SCATTER = 16

_END = np.iinfo(np.int64).max


def gather_back(g: Tensor, indices: Tensor, axis: int, size: Tensor | int) -> Tensor:
    """Return the gradient of ``Gather(x, indices, axis)``, given that of its result.

    Parameters
    ----------
    g : Tensor
        Gradient with respect to the gathered tensor, of known rank.
    indices : Tensor
        Of known rank; negative ones count from the end.
    axis : int
        Not negative.
    size : int or Tensor
        Size of `axis` in `x`.
    """
    end = axis + len(indices.known_dims)
    picked = list(range(axis, end))
    rest = [a for a in range(len(g.known_dims)) if a not in picked]
    rows = op.Transpose(g, perm=picked + rest) if axis and picked else g
    summed = _add_rows(rows, indices, size, len(rest))
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(rest) + 1)]
    back: Tensor = op.Transpose(summed, perm=order) if axis else summed
    if isinstance(size, int) and g.dims is not None:
        back = back.known_as((*g.dims[:axis], size, *g.dims[end:]))
    return back


def _add_rows(rows: Tensor, indices: Tensor, size: Tensor | int, rank: int) -> Tensor:
    """Return `size` rows of `rank` axes: the sums of `rows` with equal indices."""
    shape = _rows_shape(rows, size, rank)
    if rows.emitter.opset >= ADDING_SCATTER:
        start = op.Expand(number(rows, 0), shape)
        places = op.Unsqueeze(indices.cast(ir.DataType.INT64), [-1])
        added: Tensor = op.ScatterND(start, places, rows, reduction="add")
        return added
    # A product with a matrix of zeros and ones, one row for each place that can be picked.
    hits = op.Equal(positions(rows, size, 1), _from_front(op.Reshape(indices, [1, -1]), size))
    count = op.Reshape(op.Size(indices), [1])
    flat = op.Reshape(rows, op.Concat(count, vector(rows, -1), axis=0))
    return op.Reshape(op.MatMul(hits.cast(rows.dtype), flat), shape)


def picked_row(t: Tensor) -> tuple[int, Tensor] | None:
    """Return the index of the only row of a gradient that is not zero, and the row; None if it is unknown.

    Case: the result of :func:`gather_back` for a number on the first axis.
    """
    scatter = _maker(t.value, "ScatterND")
    start = None if scatter is None else _maker(scatter.inputs[0], "Expand")
    place = None if scatter is None else _maker(scatter.inputs[1], "Unsqueeze")
    if scatter is None or start is None or place is None:
        return None
    zero, index, row = constant(start.inputs[0]), constant(place.inputs[0]), scatter.inputs[2]
    if row is None or zero is None or zero.any() or index is None or index.ndim:
        return None
    return int(index), t.emitter.tensor(row)


def _maker(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type else None


def _rows_shape(rows: Tensor, size: Tensor | int, rank: int) -> Tensor | list[int]:
    """Return the shape of `size` rows like `rows`, whose last `rank` axes are those of a row."""
    row = rows.dims[len(rows.dims) - rank :] if rows.dims is not None else ("?",)
    if isinstance(size, int) and all(isinstance(dim, int) for dim in row):
        return [size, *(int(dim) for dim in row)]
    found: Tensor = op.Concat(vector(rows, size), op.Slice(op.Shape(rows), [-rank or _END], [_END]), axis=0)
    return found


def positions(like: Tensor, size: Tensor | int, after: int) -> Tensor:
    """Return 0, 1, ... `size` - 1 as int64, followed by `after` axes of size 1."""
    if isinstance(size, int):
        return like.emitter.constant(np.arange(size).reshape((size,) + (1,) * after))
    zero = like.emitter.constant(np.array(0, dtype=np.int64))
    count: Tensor = op.Range(zero, op.Squeeze(size, [0]), 1)
    return op.Reshape(count, [-1] + [1] * after)


def _from_front(indices: Tensor, size: Tensor | int) -> Tensor:
    """Return int64 indices that count from the front."""
    indices = indices.cast(ir.DataType.INT64)
    wrapped: Tensor = op.Where(op.Less(indices, 0), op.Add(indices, vector(indices, size)), indices)
    return wrapped


def _gathered(n: Call) -> Tensor:
    axis = n.attribute("axis", 0) % n.rank
    if n.b.rank is None:
        raise n.refuse("needs indices of known rank")
    return gather_back(n.dy, n.b, axis, dim_of(n.x, axis))


def _gathered_elements(n: Call) -> Tensor:
    axis = n.attribute("axis", 0) % n.rank
    if n.opset >= ADDING_SCATTER:
        return op.ScatterElements(zeros_like(n.x), n.b, n.dy, axis=axis, reduction="add")
    size = dim_of(n.x, axis)
    hits = op.Equal(positions(n.dy, size, n.rank - axis), op.Unsqueeze(_from_front(n.b, size), [axis]))
    part = op.ReduceSum(op.Unsqueeze(n.dy, [axis]) * hits, [axis + 1], keepdims=0)
    if n.b.dims is not None and n.x.dims is not None and _equal_but(n.b.dims, n.x.dims, axis):
        return part
    # The indices may be shorter than the data along the other axes.
    pads = op.Concat([0] * n.rank, op.Sub(op.Shape(n.x), op.Shape(part)), axis=0)
    return op.Pad(part, pads, 0.0)


def _equal_but(a: tuple[int | str, ...], b: tuple[int | str, ...], axis: int) -> bool:
    return a[:axis] == b[:axis] and a[axis + 1 :] == b[axis + 1 :]


def _gathered_nd(n: Call) -> Tensor:
    indices = _with_batch(n)
    if n.opset >= ADDING_SCATTER:
        return op.ScatterND(zeros_like(n.x), indices, n.dy, reduction="add")
    # With the indexed axes joined into one, rows are picked.
    depth = None if n.b.dims is None else n.b.dims[-1]
    if not isinstance(depth, int):
        raise n.refuse("needs indices whose last size is known")
    depth += n.attribute("batch_dims", 0)
    place, count = _one_axis(n.x, indices, depth)
    rows = op.Reshape(n.dy, op.Concat([-1], op.Slice(op.Shape(n.x), [depth], [_END]), axis=0))
    return reshape_to(_add_rows(rows.known_as(_row_dims(n.x, depth)), place, count, n.rank - depth), n.x)


def _row_dims(x: Tensor, depth: int) -> Dims:
    return None if x.dims is None else ("picked", *x.dims[depth:])


def _one_axis(x: Tensor, indices: Tensor, depth: int) -> tuple[Tensor, Tensor | int]:
    """Return `indices` into the first `depth` axes of `x` as positions along one axis, and its size."""
    place: Tensor = x.emitter.constant(np.array(0))
    count: Tensor | int = 1
    for axis in range(depth):
        size = dim_of(x, axis)
        step = op.Gather(indices, axis, axis=-1)
        place = op.Add(op.Mul(place, vector(x, size)), _from_front(step, size))
        both = isinstance(size, int) and isinstance(count, int)
        count = size * count if both else op.Mul(vector(x, size), vector(x, count))
    return place, count


def _with_batch(n: Call) -> Tensor:
    """Return the indices of a GatherND with the positions along its batch axes put before them."""
    batch, indices = n.attribute("batch_dims", 0), n.b.cast(ir.DataType.INT64)
    if not batch:
        return indices
    if indices.rank is None:
        raise n.refuse("needs indices of known rank")
    one = op.Concat(op.Slice(op.Shape(indices), [0], [-1]), n.emitter.constant(np.array([1])), axis=0)
    places = [
        op.Expand(positions(n.x, dim_of(n.x, axis), indices.rank - 1 - axis), one) for axis in range(batch)
    ]
    return op.Concat(*places, indices, axis=-1)


def scatter_distinct(g: Tensor, indices: Tensor, axis: int, into: Tensor) -> Tensor:
    """Return zeros like `into` with the elements of `g` at `indices`, all different, along `axis`."""
    placed: Tensor = op.ScatterElements(zeros_like(into), indices, g, axis=axis)
    return placed


def _top(n: Call) -> Tensor:
    axis = n.attribute("axis", -1)
    return scatter_distinct(n.dy, n.extra_output(1, n.y.dims, ir.DataType.INT64), axis, n.x)


def _compressed(n: Call) -> Tensor:
    """Add the gradient where the condition, which may be shorter than the axis, is true."""
    chosen = op.Squeeze(op.NonZero(n.b), [0]).known_as(("chosen",))
    axis = n.attribute("axis")
    if axis is None:
        flat = op.Reshape(n.x, [-1]).known_as(("all",))
        return reshape_to(gather_back(n.dy.known_as(("chosen",)), chosen, 0, dim_of(flat, 0)), n.x)
    return gather_back(n.dy, chosen, axis % n.rank, dim_of(n.x, axis))


def _one_hot_values(n: Call) -> Tensor:
    """Return the sums of the gradient over the places that are off and over those that are on."""
    hot = op.OneHot(n.a.cast(ir.DataType.INT64), n.b.cast(ir.DataType.INT64), [0, 1], **n.attributes("axis"))
    on = op.Reshape(op.ReduceSum(n.dy * hot.cast(n.dy.dtype), keepdims=0), [1])
    return op.Concat(op.Reshape(op.ReduceSum(n.dy, keepdims=0), [1]) - on, on, axis=0)


INDEXING: Rules = {
    "Compress": (_compressed, None),
    "Gather": (_gathered, None),
    "GatherElements": (_gathered_elements, None),
    "GatherND": (_gathered_nd, None),
    "OneHot": (None, None, _one_hot_values),
    "TopK": (_top, None),
}
