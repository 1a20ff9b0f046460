"""Put standard operators in place of those that only onnxruntime-training has, and shapes in place of plumbing.

The gradient builder returns operators of its own and computes shapes at run time. Here each rule of a
table replaces one operator by standard ones, which is exact, costs no time and, for float64, runs where
the operator's kernel is for float32 only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxsgd.gradient.dimensions import broadcast_axes, expand_target, ratio, reshape_target, same_shape

__all__ = ["standardize"]


class Writer:
    """Writes the nodes of one replacement.

    Attributes
    ----------
    opset : int
        The version of the standard operators.
    nodes : list of ir.Node
        What was written.
    constants : list of ir.Value
        The initializers these nodes read, without names yet.
    """

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []

    def op(
        self, op_type: str, *inputs: ir.Value | None, like: ir.Value | None = None, **attributes: Any
    ) -> ir.Value:
        """Write a node of the standard domain and return its output, of the type and shape of `like`."""
        found = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
        node = ir.Node("", op_type, inputs, found)
        self.nodes.append(node)
        (output,) = node.outputs
        if like is not None:
            output.type, output.shape = like.type, like.shape
        return output

    def constant(self, array: Any, dtype: Any) -> ir.Value:
        """Return an initializer."""
        tensor = ir.tensor(np.asarray(array, dtype))
        value = ir.Value(type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape), const_value=tensor)
        self.constants.append(value)
        return value

    def ints(self, values: Sequence[int]) -> ir.Value:
        """Return a vector of integers."""
        return self.constant(values, np.int64)

    def number(self, value: float, like: ir.Value) -> ir.Value:
        """Return a scalar of the element type of `like`."""
        return self.constant(value, like.dtype.numpy())


#: What replaces the outputs of a node, one value for each; None: the node stays.
Rule = Callable[[Writer, ir.Node], Sequence[ir.Value] | None]


def standardize(graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
    """Replace in place those of `nodes` that :data:`RULES` has a rule for.

    Precondition: `graph` is a gradient graph as the builder returns it, without subgraphs, `nodes` some
    of its nodes in topological order; a name of a dimension stands for one size. What has no rule stays:
    ``ConvGrad``, ``MaxPoolGrad``, ``LayerNormalizationGrad``, ``GatherGrad`` and the like need
    onnxruntime-training.
    """
    count = 0
    for node in nodes:
        rule = RULES.get((node.domain, node.op_type))
        writer = Writer(graph.opset_imports[""])
        results = rule(writer, node) if rule is not None else None
        if results is None:
            continue
        for value in writer.constants:
            value.name = f"gradient_constant_{count}"
            count += 1
            graph.register_initializer(value)
        graph.insert_before(node, writer.nodes)
        for old, new in zip(node.outputs, results, strict=True):
            _replace(old, new)
        graph.remove(node, safe=True)


def _replace(old: ir.Value, new: ir.Value) -> None:
    """Put `new` in the place of `old`, and give it the name of `old` where it has none."""
    new.name = new.name or old.name
    if new.shape is None:
        new.shape = old.shape
    if new.type is None:
        new.type = old.type
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    found = node.attributes.get(name)
    return default if found is None else found.value


def _relu_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """``dY * (Y != 0)``: the operator branches on every element, which real data mispredicts."""
    gradient, y = _two(node)
    mask = w.op("Cast", w.op("Cast", y, to=ir.DataType.BOOL), to=y.dtype, like=y)
    return [w.op("Mul", gradient, mask, like=y)]


def _tanh_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """``dY * (1 - Y^2)``."""
    gradient, y = _two(node)
    slope = w.op("Sub", w.number(1, y), w.op("Mul", y, y, like=y), like=y)
    return [w.op("Mul", gradient, slope, like=y)]


def _sigmoid_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """``dY * (Y - Y^2)``."""
    gradient, y = _two(node)
    slope = w.op("Sub", y, w.op("Mul", y, y, like=y), like=y)
    return [w.op("Mul", gradient, slope, like=y)]


def _leaky_relu_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """``dY * (alpha + (1 - alpha) (Y > 0))``."""
    gradient, y = _two(node)
    alpha = _attribute(node, "alpha", 0.01)
    positive = w.op("Cast", w.op("Greater", y, w.number(0, y)), to=y.dtype, like=y)
    slope = w.op("Add", w.op("Mul", positive, w.number(1 - alpha, y), like=y), w.number(alpha, y), like=y)
    return [w.op("Mul", gradient, slope, like=y)]


def _softmax_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """``Y * (dY - sum(dY * Y))``."""
    gradient, y = _two(node)
    product = w.op("Mul", gradient, y, like=y)
    total = w.op("ReduceSum", product, w.ints([_attribute(node, "axis", -1)]), keepdims=1)
    return [w.op("Mul", y, w.op("Sub", gradient, total, like=y), like=y)]


def _log_softmax_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """``dY - exp(Y) * sum(dY)``."""
    gradient, y = _two(node)
    total = w.op("ReduceSum", gradient, w.ints([_attribute(node, "axis", -1)]), keepdims=1)
    return [w.op("Sub", gradient, w.op("Mul", w.op("Exp", y, like=y), total, like=y), like=y)]


def _fused_matmul(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Gemm for matrices, otherwise MatMul of the transposed, which runtimes fuse again; where the ranks are known."""
    a, b = _two(node)
    if a.shape is None or b.shape is None or min(len(a.shape), len(b.shape)) < 2:
        return None
    if _attribute(node, "transBatchA", 0) or _attribute(node, "transBatchB", 0):
        return None
    alpha = _attribute(node, "alpha", 1.0)
    trans_a, trans_b = _attribute(node, "transA", 0), _attribute(node, "transB", 0)
    if len(a.shape) == len(b.shape) == 2:
        return [w.op("Gemm", a, b, transA=trans_a, transB=trans_b, alpha=alpha, beta=0.0)]
    product = w.op("MatMul", _swapped(w, a) if trans_a else a, _swapped(w, b) if trans_b else b)
    return [product if alpha == 1 else w.op("Mul", product, w.number(alpha, a))]


def _swapped(w: Writer, matrices: ir.Value) -> ir.Value:
    rank = len(matrices.shape or ())
    order = [*range(rank - 2), rank - 1, rank - 2]
    swapped = w.op("Transpose", matrices, perm=order)
    swapped.type, swapped.shape = matrices.type, ir.Shape([(matrices.shape or ())[axis] for axis in order])
    return swapped


def _scale(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """``X / scale`` or ``X * scale``, the scale a constant where it is the ratio of two known sizes."""
    x, scale = _two(node)
    op_type = "Div" if _attribute(node, "scale_down", 0) else "Mul"
    known = _size_ratio(scale)
    factor = w.op("Cast", scale, to=x.dtype) if known is None else w.number(known, x)
    return [w.op(op_type, x, factor, like=x)]


def _size_ratio(value: ir.Value) -> int | None:
    """Return the number that `value`, the sizes of two tensors divided, must be; None if that is not known."""
    node = value.producer()
    if node is None or node.op_type != "Div":
        return None
    sizes = [operand.producer() if operand is not None else None for operand in node.inputs]
    if any(size is None or size.op_type != "Size" for size in sizes):
        return None
    total, part = (size.inputs[0].shape for size in sizes)
    return ratio(total, part)


def _identity(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """Nothing."""
    return [_first(node)]


def _reduce_sum(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Nothing, where the axes are known to be none."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if axes is None or axes.const_value is None or axes.const_value.size:
        return None
    return [_first(node)] if _attribute(node, "noop_with_empty_axes", 0) else None


def _broadcast_gradient_args(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """The axes along which each of two operands was broadcast: constants where the shapes are known."""
    operands = _two(node)
    shapes = [_shape_of(operand) for operand in operands]
    axes = [
        broadcast_axes(shapes[0], shapes[1]),
        broadcast_axes(shapes[1], shapes[0]),
    ]
    results = []
    for index in range(len(node.outputs)):
        known = axes[index]
        results.append(w.ints(known) if known is not None else _axes_of_ones(w, operands, index))
    return results


def _axes_of_ones(w: Writer, operands: Sequence[ir.Value], index: int) -> ir.Value:
    """Write the axes of the result along which the operand has one element or none: the sum over these is its gradient."""
    ranks = [w.op("Size", operand) for operand in operands]
    missing = w.op("Reshape", w.op("Sub", w.op("Max", *ranks), ranks[index]), w.ints([1]))
    one = ir.tensor(np.array([1], np.int64))
    padded = w.op("Concat", w.op("ConstantOfShape", missing, value=one), operands[index], axis=0)
    return w.op("Reshape", w.op("NonZero", w.op("Equal", padded, w.ints([1]))), w.ints([-1]))


def _reshape(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """To the shape of a tensor, as constants where they say it."""
    x, target = _two(node)
    shape = _shape_of(target)
    known = reshape_target(x.shape, shape)
    if shape is None or known is None or _attribute(node, "allowzero", 0):
        return None
    if same_shape(x.shape, shape):
        return [x]
    result = w.op("Reshape", x, w.ints(known))
    result.type, result.shape = x.type, shape
    return [result]


def _expand(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """To the shape of a tensor, as constants where they say it."""
    x, target = _two(node)
    shape = _shape_of(target)
    known = expand_target(x.shape, shape)
    if known is None:
        return None
    if same_shape(x.shape, shape):
        return [x]
    return [w.op("Expand", x, w.ints(known))]


def _div_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """``dY / B`` and ``-(dY A) / B^2``, each summed to the shape of its operand; where those are known."""
    gradient, a, b = (value for value in node.inputs if value is not None)
    axes = [_summed_axes(gradient, operand) for operand in (a, b)]
    if None in axes:
        return None
    quotient = w.op("Div", gradient, b, like=gradient)
    slope = w.op("Neg", w.op("Mul", quotient, w.op("Div", a, b, like=gradient), like=gradient), like=gradient)
    results = [_summed(w, quotient, a, axes[0]), _summed(w, slope, b, axes[1])]
    return results[: len(node.outputs)]


def _summed_axes(x: ir.Value, like: ir.Value) -> list[int] | None:
    if x.shape is None or like.shape is None:
        return None
    return broadcast_axes(like.shape, x.shape)


def _summed(w: Writer, x: ir.Value, like: ir.Value, axes: Sequence[int] | None) -> ir.Value:
    if not axes:
        return x
    total = w.op("ReduceSum", x, w.ints(axes), keepdims=1)
    missing = len(x.shape or ()) - len(like.shape or ())
    return w.op("Squeeze", total, w.ints(range(missing)), like=like) if missing else total


def _trilu(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """The standard operator, which opset 14 brought."""
    if w.opset < 14:
        return None
    return [w.op("Trilu", *node.inputs, upper=_attribute(node, "upper", 1))]


def _gather_elements_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Add each element at its index to zeros; opset 16 brought that."""
    if w.opset < 16:
        return None
    gradient, shape, indices = (value for value in node.inputs if value is not None)
    zeros = _zeros(w, shape, gradient)
    axis = _attribute(node, "axis", 0)
    return [w.op("ScatterElements", zeros, indices, gradient, axis=axis, reduction="add")]


def _gather_nd_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Add each slice at its index to zeros; opset 16 brought that."""
    if w.opset < 16 or _attribute(node, "batch_dims", 0):
        return None
    shape, indices, gradient = (value for value in node.inputs if value is not None)
    return [w.op("ScatterND", _zeros(w, shape, gradient), indices, gradient, reduction="add")]


def _zeros(w: Writer, shape: ir.Value, like: ir.Value) -> ir.Value:
    return w.op("ConstantOfShape", shape, value=ir.tensor(np.zeros(1, like.dtype.numpy())))



def _first(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None
    return value


def _two(node: ir.Node) -> tuple[ir.Value, ir.Value]:
    first, second = node.inputs[:2]
    assert first is not None
    assert second is not None
    return first, second


def _shape_of(value: ir.Value) -> ir.Shape | None:
    """Return the shape of the tensor whose shape `value` holds, if that is what it holds."""
    node = value.producer()
    if node is None or node.op_type != "Shape" or _attribute(node, "start", 0) or "end" in node.attributes:
        return None
    return _first(node).shape


#: The operators that are replaced.
RULES: Mapping[tuple[str, str], Rule] = {
    ("", "Expand"): _expand,
    ("", "Identity"): _identity,
    ("", "ReduceSum"): _reduce_sum,
    ("", "Reshape"): _reshape,
    ("com.microsoft", "BroadcastGradientArgs"): _broadcast_gradient_args,
    ("com.microsoft", "DivGrad"): _div_grad,
    ("com.microsoft", "FusedMatMul"): _fused_matmul,
    ("com.microsoft", "GatherElementsGrad"): _gather_elements_grad,
    ("com.microsoft", "GatherNDGrad"): _gather_nd_grad,
    ("com.microsoft", "LeakyReluGrad"): _leaky_relu_grad,
    ("com.microsoft", "LogSoftmaxGrad_13"): _log_softmax_grad,
    ("com.microsoft", "ReluGrad"): _relu_grad,
    ("com.microsoft", "Scale"): _scale,
    ("com.microsoft", "SigmoidGrad"): _sigmoid_grad,
    ("com.microsoft", "SoftmaxGrad_13"): _softmax_grad,
    ("com.microsoft", "TanhGrad"): _tanh_grad,
    ("com.microsoft", "Trilu"): _trilu,
}
