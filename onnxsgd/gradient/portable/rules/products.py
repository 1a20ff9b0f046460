"""Gradients of matrix products and of sums of products.

A product of matrices gives products of matrices, as single ``Gemm`` nodes wherever two axes are enough, so
that an update can be folded into the node that computes a weight's gradient.
"""

from __future__ import annotations

from onnxsgd.gradient.portable.rules.einsum import einsum_gradient
from onnxsgd.gradient.portable.writing.broadcasting import reshape_to, sum_to, swap_last
from onnxsgd.gradient.portable.writing.call import Call, Rules
from onnxsgd.gradient.portable.writing.tensor import Tensor, op
from onnxsgd.graph.nodes import attribute

__all__ = ["PRODUCTS", "transposed_product"]


def _gemm(a: Tensor, b: Tensor, trans_a: int, trans_b: int, alpha: float = 1.0) -> Tensor:
    attributes: dict[str, float] = {"transA": 1} if trans_a else {}
    if trans_b:
        attributes["transB"] = 1
    if alpha != 1.0:
        attributes["alpha"] = float(alpha)
    product: Tensor = op.Gemm(a, b, **attributes)
    return product


def _gemm_a(n: Call) -> Tensor:
    trans_b, alpha = n.attribute("transB", 0), n.attribute("alpha", 1.0)
    if n.attribute("transA", 0):
        return _gemm(n.b, n.dy, trans_b, 1, alpha)
    return _gemm(n.dy, n.b, 0, 1 - trans_b, alpha)


def _gemm_b(n: Call) -> Tensor:
    trans_a, alpha = n.attribute("transA", 0), n.attribute("alpha", 1.0)
    if n.attribute("transB", 0):
        return _gemm(n.dy, n.a, 1, trans_a, alpha)
    return _gemm(n.a, n.dy, 1 - trans_a, 0, alpha)


def _gemm_c(n: Call) -> Tensor:
    return sum_to(n.g, n.y, n.c) * n.attribute("beta", 1.0)


def _matrices(n: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return both operands of a MatMul and the gradient, with vectors as matrices of one row or column."""
    if n.a.rank is None or n.b.rank is None:
        raise n.refuse("needs operands of known rank")
    a, b, dy = n.a, n.b, n.dy
    if dy.rank is None:
        raise n.refuse("returns a tensor of unknown rank, as a loop or a branch may")
    if b.rank == 1:
        b, dy = op.Unsqueeze(b, [1]), op.Unsqueeze(dy, [-1])
    if a.rank == 1:
        a, dy = op.Unsqueeze(a, [0]), op.Unsqueeze(dy, [-2])
    return a, b, dy


def _matmul_a(n: Call) -> Tensor:
    a, b, dy = _matrices(n)
    if dy.rank == 2:
        return reshape_to(_gemm(dy, b, 0, 1), n.a)
    product = op.MatMul(dy, _unswapped(b))
    return reshape_to(sum_to(product, _batched(product, dy, a), a), n.a)


def _matmul_b(n: Call) -> Tensor:
    a, b, dy = _matrices(n)
    if dy.rank == 2:
        return reshape_to(_gemm(a, dy, 1, 0), n.b)
    m, k = (operand.dims[-1] if operand.dims else None for operand in (a, dy))
    if b.rank == 2 and a.rank == dy.rank and isinstance(m, int) and isinstance(k, int) and m * k:
        # One product over all batches at once, instead of one for each and a sum.
        product = _gemm(op.Reshape(a, [-1, m]), op.Reshape(dy, [-1, k]), 1, 0)
        return reshape_to(product.known_as((m, k)), n.b)
    product = op.MatMul(_unswapped(a), dy)
    return reshape_to(sum_to(product, _batched(product, dy, b), b), n.b)


def _batched(product: Tensor, dy: Tensor, operand: Tensor) -> Tensor:
    """Note the shape of `product`: the batch axes of `dy`, then the matrices of `operand`."""
    return product.known_as((*dy.known_dims[:-2], *operand.known_dims[-2:]))


def transposed_product(product: Tensor) -> Tensor | None:
    """Return the transpose of a product of matrices as the product of the transposes, in the other order.

    None if `product` is no such product. A product reads a transposed operand directly; the transpose of the
    result would be a copy.
    """
    node = product.value.producer()
    if (
        node is None
        or node.op_type not in ("MatMul", "Gemm")
        or len(node.inputs) != 2
        or product.rank is None
    ):
        return None
    a, b = (product.emitter.tensor(value) for value in node.inputs if value is not None)
    if node.op_type == "Gemm":
        trans_a, trans_b = (attribute(node, name, 0) for name in ("transA", "transB"))
        return _gemm(b, a, 1 - trans_b, 1 - trans_a, attribute(node, "alpha", 1.0))
    if not a.rank == b.rank == product.rank:
        return None
    return op.MatMul(_unswapped(b), _unswapped(a))


def _unswapped(x: Tensor) -> Tensor:
    """Return `x` with its last two axes exchanged: the input of its Transpose, if that exchanged them."""
    node, axes = x.value.producer(), list(range(x.rank or 0))
    source = node.inputs[0] if node is not None and node.op_type == "Transpose" else None
    if node is None or source is None:
        return swap_last(x)
    is_swap = list(attribute(node, "perm", ())) == [*axes[:-2], axes[-1], axes[-2]]
    return x.emitter.tensor(source) if is_swap else swap_last(x)


PRODUCTS: Rules = {
    "Einsum": einsum_gradient,
    "Gemm": (_gemm_a, _gemm_b, _gemm_c),
    "MatMul": (_matmul_a, _matmul_b),
}
