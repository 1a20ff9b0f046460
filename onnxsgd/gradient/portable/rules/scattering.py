"""Gradients of ScatterElements and ScatterND: updates written into data, added, multiplied or compared.

As formulas, for an element ``y`` of the result, computed from an element ``x`` of the data and the updates
``u`` that share its index ::

    none       dx = 0 where u is written, else dy             du = dy
    add        dx = dy                                        du = dy
    mul        dx = dy times the product of all u             du = dy times x and the product of the other u
    max, min   dx, du = dy / (number of x and u that equal y) where they equal y, else 0

As with Max and ReduceMax, all that tie at the extreme share the gradient evenly, the data included. Without a
reduction the standard asks for distinct indices: with repeated ones each update takes the whole gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnxsgd.gradient.portable.writing.broadcasting import zeros_like
from onnxsgd.gradient.portable.writing.call import Call, Rule, Rules
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["SCATTERING"]

#: The operators that scatter, and those that read the elements they write.
_OPERATORS = {"ScatterElements": "GatherElements", "ScatterND": "GatherND"}


def _scatter(n: Call, into: Tensor, updates: Tensor, reduction: str = "none") -> Tensor:
    """Scatter as the node does; there is no attribute `reduction` before version 16 of the operators."""
    options = {} if reduction == "none" else {"reduction": reduction}
    apply: Callable[..., Tensor] = getattr(op, n.node.op_type)
    return apply(into, n.b, updates, **n.attributes("axis"), **options)


def _gather(n: Call, x: Tensor) -> Tensor:
    """Return the elements of `x` at the indices of the node."""
    apply: Callable[..., Tensor] = getattr(op, _OPERATORS[n.node.op_type])
    return apply(x, n.b, **n.attributes("axis"))


def _written_data(n: Call) -> Tensor:
    return _scatter(n, n.dy, zeros_like(n.c))


def _picked(n: Call) -> Tensor:
    return _gather(n, n.dy)


def _multiplied_data(n: Call) -> Tensor:
    return n.dy * _scatter(n, zeros_like(n.x) + 1, n.c, "mul")


def _multiplied_updates(n: Call) -> Tensor:
    """Return the gradient times the product of the other factors, which is right where some are 0 too."""
    zero, zeros = (op.Equal(factor, 0.0).cast(n.x.dtype) for factor in (n.x, n.c))
    product = _scatter(n, n.x + zero, n.c + zeros, "mul")
    others_nonzero = op.Equal(_gather(n, _scatter(n, zero, zeros, "add")), zeros)
    return _gather(n, n.dy * product) / (n.c + zeros) * others_nonzero


def _ties(n: Call) -> Tensor:
    """Return the number of operands that equal each element of the result."""
    hits, more = (op.Equal(a, b).cast(n.x.dtype) for a, b in ((n.x, n.y), (n.c, _gather(n, n.y))))
    return _scatter(n, hits, more, "add")


def _extreme_data(n: Call) -> Tensor:
    return n.dy / _ties(n) * op.Equal(n.x, n.y)


def _extreme_updates(n: Call) -> Tensor:
    return _gather(n, n.dy / _ties(n)) * op.Equal(n.c, _gather(n, n.y))


#: For each reduction, the gradients with respect to the data and to the updates.
_REDUCTIONS: dict[str, tuple[Rule, Rule]] = {
    "none": (_written_data, _picked),
    "add": (lambda n: n.dy, _picked),
    "mul": (_multiplied_data, _multiplied_updates),
    "max": (_extreme_data, _extreme_updates),
    "min": (_extreme_data, _extreme_updates),
}


def _rule(index: int) -> Any:
    return lambda n: _REDUCTIONS[n.attribute("reduction", "none")][index](n)


SCATTERING: Rules = {name: (_rule(0), None, _rule(1)) for name in _OPERATORS}
