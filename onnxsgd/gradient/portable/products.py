"""Gradients of matrix products and of sums of products.

A product of matrices gives products of matrices, as single ``Gemm`` nodes wherever two axes are enough, so
that an update can be folded into the node that computes a weight's gradient.
"""

from __future__ import annotations

from .broadcasting import reshape_to, sum_to, swap_last
from .call import Call, Rules
from .einsum import einsum_gradient
from .tensor import Tensor, op

__all__ = ["PRODUCTS"]


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
        raise n.refuse("makes a tensor of unknown rank, as a loop or a branch may")
    if b.rank == 1:
        b, dy = op.Unsqueeze(b, [1]), op.Unsqueeze(dy, [-1])
    if a.rank == 1:
        a, dy = op.Unsqueeze(a, [0]), op.Unsqueeze(dy, [-2])
    return a, b, dy


def _matmul_a(n: Call) -> Tensor:
    a, b, dy = _matrices(n)
    if dy.rank == 2:
        return reshape_to(_gemm(dy, b, 0, 1), n.a)
    product = op.MatMul(dy, swap_last(b))
    return reshape_to(sum_to(product, _batched(product, dy, a), a), n.a)


def _matmul_b(n: Call) -> Tensor:
    a, b, dy = _matrices(n)
    if dy.rank == 2:
        return reshape_to(_gemm(a, dy, 1, 0), n.b)
    rows = [operand.dims[-1] if operand.dims else None for operand in (a, dy)]
    if b.rank == 2 and a.rank == dy.rank and all(isinstance(size, int) and size for size in rows):
        # One product over all batches at once, instead of one for each and a sum.
        return reshape_to(_gemm(op.Reshape(a, [-1, rows[0]]), op.Reshape(dy, [-1, rows[1]]), 1, 0), n.b)
    product = op.MatMul(swap_last(a), dy)
    return reshape_to(sum_to(product, _batched(product, dy, b), b), n.b)


def _batched(product: Tensor, dy: Tensor, operand: Tensor) -> Tensor:
    """Note the shape of `product`: the batch axes of `dy`, then the matrices of `operand`."""
    assert dy.dims is not None
    assert operand.dims is not None
    return product.known_as((*dy.dims[:-2], *operand.dims[-2:]))


PRODUCTS: Rules = {
    "Einsum": einsum_gradient,
    "Gemm": (_gemm_a, _gemm_b, _gemm_c),
    "MatMul": (_matmul_a, _matmul_b),
}
