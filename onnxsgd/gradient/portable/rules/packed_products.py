"""Gradients of products with packed weights, operators of onnxruntime.

``MatMulNBits`` multiplies by a matrix of few bits; each block of a row has a scale and a zero point ::

    y = x W^T,  W = (levels - zero point) scale,  dx = dy W

Its weights have no gradient. The matrix W is written out from constants.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxsgd.gradient.portable.writing.call import Call, Rules
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["PACKED_PRODUCTS"]

#: The bits of a level, and those of a byte.
_BITS, _BYTE = (4, 8), 8


def _product(n: Call) -> Tensor:
    if n.attribute("bits", 4) not in _BITS:
        raise n.refuse(f"has no gradient rule for bits={n.attribute('bits')}; accepted: 4 and 8")
    if n.optional(4) is not None:
        raise n.refuse("has no gradient rule for an order of groups (g_idx)")
    dy = n.dy
    weight = _matrix(n, dy.dtype)
    product: Tensor = op.Gemm(dy, weight) if dy.rank == 2 else op.MatMul(dy, weight)
    return product.known_as(n.a.dims)


def _matrix(n: Call, dtype: ir.DataType | None) -> Tensor:
    """Return the matrix of real numbers, of shape [N, K]."""
    rows, columns, block = (int(n.attribute(name)) for name in ("N", "K", "block_size"))
    count = -(-columns // block)
    levels = op.Reshape(_unpacked(n, n.b), [rows, count, block]).cast(dtype)
    scale = op.Reshape(n.c, [rows, count, 1]).cast(dtype)
    whole = op.Reshape((levels - _zero_points(n, rows, count, dtype)) * scale, [rows, count * block])
    if columns != count * block:
        whole = op.Slice(whole, [0], [columns], [1])
    matrix: Tensor = whole.known_as((rows, columns))
    return matrix


def _zero_points(n: Call, rows: int, count: int, dtype: ir.DataType | None) -> Tensor | float:
    """Return the zero points of all blocks; those of a row fill whole bytes."""
    bits = n.attribute("bits", 4)
    points = n.optional(3)
    if points is None:
        return float(1 << (bits - 1))
    if points.dtype is None or points.dtype.is_floating_point():
        return op.Reshape(points, [rows, count, 1]).cast(dtype)
    table = op.Reshape(_unpacked(n, points), [rows, -1])
    return op.Reshape(op.Slice(table, [0], [count], [1]), [rows, count, 1]).cast(dtype)


def _unpacked(n: Call, packed: Tensor) -> Tensor:
    """Return the numbers in the bytes of a tensor, in their order, along one axis."""
    numbers: Tensor = op.Reshape(packed.cast(ir.DataType.INT32), [-1, 1])
    if n.attribute("bits", 4) == _BYTE:
        return numbers
    return op.Concat(op.Mod(numbers, 16), op.Div(numbers, 16), axis=1)


PACKED_PRODUCTS: Rules = {
    "com.microsoft.MatMulNBits": (_product,),
}
