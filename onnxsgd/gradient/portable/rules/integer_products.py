"""Gradients of products of quantized numbers, with respect to the levels of the first operand.

A product of levels has the gradient of the same product of real numbers; the zero points are constants ::

    MatMulInteger    y = (a - za) (b - zb)             da = dy (b - zb)^T
    ConvInteger      y = conv(x - zx, w - zw)          dx = the transposed convolution of dy by w - zw

Between a DynamicQuantizeLinear and the multiplication by its scale these give the straight-through estimator.
Quantized weights, the second operands, have none.
"""

from __future__ import annotations

from onnxsgd.gradient.portable.rules.convolution_image import spread
from onnxsgd.gradient.portable.rules.windows import kernel_of, read_window
from onnxsgd.gradient.portable.writing.broadcasting import swap_last
from onnxsgd.gradient.portable.writing.call import Call, Rules
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["INTEGER_PRODUCTS"]


def _weight(n: Call, dy: Tensor) -> Tensor:
    """Return the second operand less its zero points: one, or one for each output."""
    weight, point = n.b.cast(dy.dtype), n.optional(3)
    if point is None:
        return weight
    point = point.cast(dy.dtype)
    if n.node.op_type == "ConvInteger" and point.rank:
        point = op.Reshape(point, [-1, *(1 for _ in n.b.known_dims[1:])])
    return (weight - point).known_as(n.b.dims)


def _levels(n: Call) -> Tensor:
    dy = n.dy
    if n.b.rank != 2:
        raise n.refuse(f"needs a second operand {n.b.value.name!r} of two axes")
    weight = _weight(n, dy)
    if dy.rank == 2:
        product: Tensor = op.Gemm(dy, weight, transB=1)
    else:
        product = op.MatMul(dy, swap_last(weight))
    return product.known_as(n.a.dims)


def _image(n: Call) -> Tensor:
    dy = n.dy.known_as(n.y.dims)
    window = read_window(n, n.x, n.y, kernel_of(n, n.b))
    return spread(dy, _weight(n, dy), window, n.attribute("group", 1), n.x)


INTEGER_PRODUCTS: Rules = {
    "ConvInteger": (_image,),
    "MatMulInteger": (_levels,),
}
