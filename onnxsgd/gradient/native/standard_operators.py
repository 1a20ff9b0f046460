"""Rules that replace operators of onnxruntime-training by standard ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi

import onnx_ir as ir

from onnxsgd.gradient.native.dimensions import broadcast_axes
from onnxsgd.gradient.native.replacements import Writer, element_type
from onnxsgd.graph.nodes import attribute, first, maker, operands

__all__ = [
    "replace_cos",
    "replace_div_grad",
    "replace_fused_matmul",
    "replace_fused_matmul_of_float64",
    "replace_gather_elements_grad",
    "replace_gather_grad",
    "replace_gather_nd_grad",
    "replace_layer_normalization_grad",
    "replace_leaky_relu_grad",
    "replace_log_softmax_grad",
    "replace_max_pool_grad",
    "replace_relu_grad",
    "replace_softmax_grad",
    "replace_trilu",
]


def replace_relu_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """Write ``dY * (Y != 0)``: the operator branches on every element, often mispredicted on real data."""
    gradient, given = operands(node)
    # the builder gives Y, or X where X is an input of the graph
    forward = next((user for user in given.consumers() if user.op_type == "Relu"), None)
    y = given if forward is None else forward.outputs[0]
    mask = w.op("Cast", w.op("Cast", y, to=ir.DataType.BOOL), to=element_type(y), like=y)
    return [w.op("Mul", gradient, mask, like=y)]


def replace_leaky_relu_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """Write ``dY * (alpha + (1 - alpha) (Y > 0))``."""
    gradient, y = operands(node)
    alpha = attribute(node, "alpha", 0.01)
    positive = w.op("Cast", w.op("Greater", y, w.number(0, y)), to=element_type(y), like=y)
    slope = w.op("Add", w.op("Mul", positive, w.number(1 - alpha, y), like=y), w.number(alpha, y), like=y)
    return [w.op("Mul", gradient, slope, like=y)]


def replace_softmax_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """Write ``Y * (dY - sum(dY * Y))``."""
    gradient, y = operands(node)
    product = w.op("Mul", gradient, y, like=y)
    total = w.op("ReduceSum", product, w.ints([attribute(node, "axis", -1)]), keepdims=1)
    return [w.op("Mul", y, w.op("Sub", gradient, total, like=y), like=y)]


def replace_log_softmax_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """Write ``dY - exp(Y) * sum(dY)``."""
    gradient, y = operands(node)
    total = w.op("ReduceSum", gradient, w.ints([attribute(node, "axis", -1)]), keepdims=1)
    return [w.op("Sub", gradient, w.op("Mul", w.op("Exp", y, like=y), total, like=y), like=y)]


def replace_cos(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """Write ``sin(X + pi / 2)``: the runtime has a sine of float64, and no cosine."""
    x = first(node)
    return [w.op("Sin", w.op("Add", x, w.number(pi / 2, x), like=x), like=x)]


def replace_div_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Write ``dY / B`` and ``-(dY / B) (A / B)``, summed to the operands' shapes if these are known."""
    gradient, a, b = operands(node)
    for_a, for_b = (broadcast_axes(operand.shape, gradient.shape) for operand in (a, b))
    if for_a is None or for_b is None:
        return None
    quotient = w.op("Div", gradient, b, like=gradient)
    slope = w.op("Mul", quotient, w.op("Div", a, b, like=gradient), like=gradient)
    results = (_summed(w, quotient, a, for_a), _summed(w, w.op("Neg", slope, like=gradient), b, for_b))
    return results[: len(node.outputs)]


def _summed(w: Writer, x: ir.Value, like: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Sum over `axes`, and drop those that `like` does not have."""
    if not axes:
        return x
    total = w.op("ReduceSum", x, w.ints(axes), keepdims=1)
    missing = len(x.shape or ()) - len(like.shape or ())
    return w.op("Squeeze", total, w.ints(range(missing)), like=like) if missing else total


def replace_fused_matmul(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Write Gemm for two matrices, else MatMul of the transposed, which the runtime fuses again."""
    return _matmul(w, node, _transposed)


def replace_fused_matmul_of_float64(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Transpose by Einsum instead: the runtime fuses Transpose to an operator without float64."""
    return _matmul(w, node, lambda w, matrices: w.op("Einsum", matrices, equation="...ij->...ji"))


def _matmul(
    w: Writer, node: ir.Node, transpose: Callable[[Writer, ir.Value], ir.Value]
) -> Sequence[ir.Value] | None:
    if not _has_plain_matrices(node):
        return None
    a, b = operands(node)
    trans_a, trans_b = attribute(node, "transA", 0), attribute(node, "transB", 0)
    alpha = attribute(node, "alpha", 1.0)
    ranks = _ranks(node)
    if ranks == (2, 2):
        return [w.op("Gemm", a, b, transA=trans_a, transB=trans_b, alpha=alpha, beta=0.0)]
    if ranks == (1, 2):
        product = w.op("MatMul", b, a) if trans_b else w.op("MatMul", a, b)
    else:
        product = w.op("MatMul", transpose(w, a) if trans_a else a, transpose(w, b) if trans_b else b)
    return [product if alpha == 1 else w.op("Mul", product, w.number(alpha, a))]


def _ranks(node: ir.Node) -> tuple[int, ...]:
    """Return the ranks of the inputs, 0 where one is not known."""
    return tuple(len(value.shape) if value.shape is not None else 0 for value in operands(node))


def _has_plain_matrices(node: ir.Node) -> bool:
    """Return whether a FusedMatMul multiplies stacks of matrices, or a vector and a matrix, of known rank."""
    a, b = _ranks(node)
    batches = attribute(node, "transBatchA", 0) or attribute(node, "transBatchB", 0)
    return not batches and ((a >= 2 and b >= 2) or (a == 1 and b == 2))


def _transposed(w: Writer, matrices: ir.Value) -> ir.Value:
    dims = list(matrices.shape or ())
    order = [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]
    swapped = w.op("Transpose", matrices, perm=order)
    swapped.type, swapped.shape = matrices.type, ir.Shape([dims[axis] for axis in order])
    return swapped


def replace_trilu(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Write the standard operator, which exists from opset 14 on."""
    if w.opset < 14:
        return None
    return [w.op("Trilu", *node.inputs, upper=attribute(node, "upper", 1))]


def replace_gather_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Add each row at its index to zeros, many times faster; along the first axis, and from opset 16 on."""
    if w.opset < 16 or attribute(node, "axis", 0):
        return None
    shape, indices, gradient = operands(node)
    rows = w.op("Unsqueeze", indices, w.ints([-1]))
    return [w.op("ScatterND", w.zeros(shape, gradient), rows, gradient, reduction="add")]


def replace_gather_elements_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Add each element at its index to zeros; from opset 16 on."""
    if w.opset < 16:
        return None
    gradient, shape, indices = operands(node)
    axis = attribute(node, "axis", 0)
    return [w.op("ScatterElements", w.zeros(shape, gradient), indices, gradient, axis=axis, reduction="add")]


def replace_gather_nd_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Add each slice at its index to zeros; from opset 16 on."""
    if w.opset < 16 or attribute(node, "batch_dims", 0):
        return None
    shape, indices, gradient = operands(node)
    return [w.op("ScatterND", w.zeros(shape, gradient), indices, gradient, reduction="add")]


def replace_max_pool_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Add each element to zeros at the place of its maximum; from opset 16 on."""
    if w.opset < 16:
        return None
    gradient, indices = operands(node)
    x = first(maker(indices))
    size, flat = w.op("Reshape", w.op("Size", x), w.ints([1])), w.ints([-1])
    total = w.op(
        "ScatterElements",
        w.zeros(size, gradient),
        w.op("Reshape", indices, flat),
        w.op("Reshape", gradient, flat),
        axis=0,
        reduction="add",
    )
    return [w.op("Reshape", total, w.op("Shape", x), like=x)]


def replace_layer_normalization_grad(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Write the formula, with mean and deviation computed anew: those of the forward pass are of float32.

    With ``z`` the normalised input and ``g = dY * scale`` ::

        dX = (g - mean(g) - z mean(g z)) / deviation,   dscale = sum(dY z),   dbias = sum(dY)
    """
    gradient, x, scale = operands(node)[:3]
    if x.shape is None:
        return None
    axis = attribute(node, "axis", -1) % len(x.shape)
    inner, outer = list(range(axis, len(x.shape))), list(range(axis))
    count = w.op("Cast", w.op("Div", w.op("Size", x), _size_of(w, x, outer)), to=element_type(x))

    def mean(value: ir.Value) -> ir.Value:
        return w.op("Div", w.op("ReduceSum", value, w.ints(inner), keepdims=1), count)

    centred = w.op("Sub", x, mean(x), like=x)
    variance = mean(w.op("Mul", centred, centred, like=x))
    deviation = w.op("Sqrt", w.op("Add", variance, w.number(attribute(node, "epsilon", 1e-5), x)))
    z = w.op("Div", centred, deviation, like=x)
    g = w.op("Mul", gradient, scale, like=x)
    rest = w.op("Add", mean(g), w.op("Mul", z, mean(w.op("Mul", g, z, like=x)), like=x), like=x)
    for_x = w.op("Div", w.op("Sub", g, rest, like=x), deviation, like=x)
    products = w.op("Mul", gradient, z, like=x)
    if not outer:
        return [for_x, products, gradient]
    for_scale = w.op("ReduceSum", products, w.ints(outer), keepdims=0, like=scale)
    return [for_x, for_scale, w.op("ReduceSum", gradient, w.ints(outer), keepdims=0, like=scale)]


def _size_of(w: Writer, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Write the number of elements along `axes`."""
    return w.op("ReduceProd", w.op("Gather", w.op("Shape", x), w.ints(axes)), keepdims=0)
