"""Rules that replace shapes computed at run time by constants.

The gradient builder computes the broadcast axes of an operand, the target of a reshape and the number of
elements of a mean. Where shapes are known, by number or by name, these are constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxsgd.gradient.native.dimensions import (
    broadcast_axes,
    dims_of,
    expand_target,
    ratio,
    reshape_target,
    same_shape,
)
from onnxsgd.gradient.native.replacements import Writer, element_type
from onnxsgd.graph.nodes import attribute, first, maker, operands

__all__ = [
    "identity",
    "replace_broadcast_gradient_args",
    "replace_expand",
    "replace_reduce_sum",
    "replace_reshape",
    "replace_scale",
    "replace_split_training",
    "replace_where",
]


def identity(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """Drop the node."""
    return [first(node)]


def replace_reduce_sum(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Drop the node where it is known to sum over no axes."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if axes is None or axes.const_value is None or axes.const_value.size:
        return None
    return [first(node)] if attribute(node, "noop_with_empty_axes", 0) else None


def replace_broadcast_gradient_args(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """Write the axes along which each of two operands was broadcast, as constants if they are known."""
    read = operands(node)
    a, b = (_shape_held_by(operand) for operand in read)
    known = (broadcast_axes(a, b), broadcast_axes(b, a))
    return [
        w.ints(axes) if axes is not None else _axes_of_ones(w, read, index)
        for index, axes in enumerate(known[: len(node.outputs)])
    ]


def _axes_of_ones(w: Writer, operands: Sequence[ir.Value], index: int) -> ir.Value:
    """Write the axes of the result along which an operand has one element or none.

    The sum over all of these is right, whether the operand was broadcast along them or not.
    """
    ranks = [w.op("Size", operand) for operand in operands]
    missing = w.op("Reshape", w.op("Sub", w.op("Max", *ranks), ranks[index]), w.ints([1]))
    one = ir.tensor(np.array([1], np.int64))
    padded = w.op("Concat", w.op("ConstantOfShape", missing, value=one), operands[index], axis=0)
    return w.op("Reshape", w.op("NonZero", w.op("Equal", padded, w.ints([1]))), w.ints([-1]))


def replace_reshape(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Write constants for the shape of a tensor as target, or drop the node."""
    x, target = operands(node)
    shape = _shape_held_by(target)
    known = reshape_target(x.shape, shape)
    return None if attribute(node, "allowzero", 0) else _in_shape(w, "Reshape", x, known, shape)


def replace_expand(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Write constants for the shape of a tensor as target, or drop the node."""
    x, target = operands(node)
    shape = _shape_held_by(target)
    return _in_shape(w, "Expand", x, expand_target(x.shape, shape), shape)


def _in_shape(
    w: Writer, operator: str, x: ir.Value, target: Sequence[int] | None, shape: ir.Shape | None
) -> Sequence[ir.Value] | None:
    """Return `x` brought to `shape` by `operator` with `target`; `x` itself if it has that shape."""
    if target is None:
        return None
    if same_shape(x.shape, shape):
        return [x]
    result = w.op(operator, x, w.ints(target))
    result.type, result.shape = x.type, shape
    return [result]


def replace_where(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Write a scalar for a zero of shape [1], which would give a scalar a dimension."""
    condition, *chosen = operands(node)
    if not any(_is_single(value) for value in chosen):
        return None
    like = next(value for value in chosen if not _is_single(value))
    chosen = [w.number(0, like) if _is_single(value) else value for value in chosen]
    return [w.op("Where", condition, *chosen, like=node.outputs[0])]


def _is_single(value: ir.Value) -> bool:
    """Return whether `value` is a constant of shape [1], as the builder writes zeros."""
    tensor = value.const_value
    return value.is_initializer() and tensor is not None and list(tensor.shape) == [1]


def replace_scale(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """Write ``X / scale`` or ``X * scale``, the scale a constant if it is a ratio of known sizes."""
    x, scale = operands(node)
    op_type = "Div" if attribute(node, "scale_down", 0) else "Mul"
    known = _ratio_held_by(scale)
    factor = w.op("Cast", scale, to=element_type(x)) if known is None else w.number(known, x)
    return [w.op(op_type, x, factor, like=x)]


def replace_split_training(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """Write Split, into the sizes of the concatenated operands along the axis."""
    gradient, lengths = operands(node)
    axis = attribute(node, "axis", 0)
    read = operands(maker(lengths))
    known = [dims[axis] if (dims := dims_of(value.shape)) is not None else None for value in read]
    numbers = [length for length in known if isinstance(length, int)]
    if len(numbers) == len(known):
        sizes = w.ints(numbers)
    else:
        taken = [w.op("Gather", w.op("Shape", value), w.ints([axis])) for value in read]
        sizes = w.op("Concat", *taken, axis=0)
    return w.ops("Split", gradient, sizes, n_outputs=len(read), axis=axis)


def _shape_held_by(value: ir.Value) -> ir.Shape | None:
    """Return the shape that `value`, a result of Shape, holds; None if it is another or not known."""
    node = value.producer()
    if node is None or node.op_type != "Shape" or attribute(node, "start", 0) or "end" in node.attributes:
        return None
    return first(node).shape


def _ratio_held_by(value: ir.Value) -> int | None:
    """Return the number in `value`, the quotient of two tensors' sizes; None if it is not known."""
    node = value.producer()
    if node is None or node.op_type != "Div":
        return None
    whole, part = (operand.producer() for operand in operands(node))
    if whole is None or part is None or whole.op_type != "Size" or part.op_type != "Size":
        return None
    return ratio(first(whole).shape, first(part).shape)
