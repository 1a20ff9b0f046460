"""Gradients of reductions, of cumulative sums and of divisions by a norm.

Where an extreme is reached several times, all places that reach it share the gradient evenly. The derivative
of a norm of zeros is 0; a division by a norm of 0 is one by 1, also in the derivative.
"""

from __future__ import annotations

import numpy as np

from onnxsgd.gradient.portable.writing.broadcasting import size_of, zeros_like
from onnxsgd.gradient.portable.writing.call import Call, Rule, Rules
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["REDUCTIONS", "reduced_axes"]


def reduced_axes(n: Call) -> list[int] | None:
    """Return the axes that a reduction runs over, counted from the front; None if the graph computes them."""
    axes = n.attribute("axes")
    if axes is None and n.optional(1) is not None:
        given = n.constant(1)
        if given is None:
            return None
        axes = np.ravel(given).tolist()
    if axes is None or len(axes) == 0:
        return [] if n.attribute("noop_with_empty_axes", 0) else list(range(n.rank))
    return sorted(axis % n.rank if axis < 0 else axis for axis in axes)


def _kept(n: Call, reduced: Tensor) -> Tensor:
    """Return `reduced`, of the shape of ``n.y``, with its dropped axes restored as size 1."""
    axes = reduced_axes(n)
    if axes != [] and not n.attribute("keepdims", 1):
        reduced = op.Unsqueeze(reduced, n.b if axes is None else axes)
    if n.x.dims is None or axes is None:
        expanded: Tensor = op.Expand(reduced, op.Shape(n.x))
        return expanded.known_as(n.x.dims)
    return reduced.known_as(tuple(1 if axis in axes else dim for axis, dim in enumerate(n.x.dims)))


def _g(n: Call) -> Tensor:
    """Return the gradient with an axis of size 1 for each axis that was reduced."""
    if n.x.dims is not None and n.g.dims is not None and set(n.g.dims) <= {1}:
        # One number for all elements stays one number.
        ones = (1,) * len(n.x.dims)
        return n.g if n.g.dims == ones else op.Reshape(n.g, list(ones)).known_as(ones)
    return _kept(n, n.dy)


def _y(n: Call) -> Tensor:
    return _kept(n, n.y)


def _count(n: Call) -> Tensor | int:
    """Return the number of elements of the input for one of the output."""
    axes = reduced_axes(n)
    if axes is None:
        ratio: Tensor = op.Div(op.Size(n.x), op.Size(n.y))
        return ratio.known_as(()).cast(n.x.dtype)
    return size_of(n.x, axes)


def _shared_extreme(n: Call) -> Tensor:
    hits = op.Equal(n.x, _y(n)).cast(n.x.dtype)
    return _g(n) * hits / _sum_like(n, hits)


def _sum_like(n: Call, x: Tensor) -> Tensor:
    """Return `x` summed over the axes of the reduction, which are kept."""
    axes = reduced_axes(n)
    total: Tensor = op.ReduceSum(x, n.b if axes is None else axes, keepdims=1) if axes != [] else x
    return total


def _product_of_others(n: Call) -> Tensor:
    """Return, for each element, the product of the others: y / x, and right where some are 0 too."""
    zero = op.Equal(n.x, 0.0).cast(n.x.dtype)
    nonzero = n.x + zero
    product = op.ReduceProd(
        nonzero, *n.inputs[1:], **{**n.attributes("axes", "noop_with_empty_axes"), "keepdims": 1}
    )
    others_nonzero = op.Equal(_sum_like(n, zero), zero)
    return _g(n) * others_nonzero * (product / nonzero)


def _norm(n: Call) -> Tensor:
    """Return x / ||x||, and 0 where the norm is 0."""
    y = _y(n)
    return _g(n) * n.x / (y + op.Equal(y, 0.0).cast(n.x.dtype))


def _cumulated(n: Call) -> Tensor:
    reverse = 1 - n.attribute("reverse", 0)
    back: Tensor = op.CumSum(n.dy, n.b, reverse=reverse, exclusive=n.attribute("exclusive", 0))
    return back


def _lp_normalized(n: Call) -> Tensor:
    axis, p = n.attribute("axis", -1) % n.rank, n.attribute("p", 2)
    size = op.Abs(n.x) if p == 1 else n.x * n.x
    norm = op.ReduceSum(size, [axis], keepdims=1)
    norm = norm if p == 1 else op.Sqrt(norm)
    norm = norm + op.Equal(norm, 0.0).cast(n.x.dtype)
    direction = op.Sign(n.x) if p == 1 else n.y
    return (n.dy - direction * op.ReduceSum(n.dy * n.y, [axis], keepdims=1)) / norm


def _mean_variance(n: Call) -> Tensor:
    axes = [axis % n.rank for axis in n.attribute("axes", [0, 2, 3])]
    count = size_of(n.x, axes)
    centred = n.x - op.ReduceSum(n.x, axes, keepdims=1) / count
    deviation = op.Sqrt(op.ReduceSum(centred * centred, axes, keepdims=1) / count) + 1e-9
    g = n.dy - op.ReduceSum(n.dy, axes, keepdims=1) / count
    return (g - n.y * (op.ReduceSum(n.dy * n.y, axes, keepdims=1) / count)) / deviation


def _range_start(n: Call) -> Tensor:
    total: Tensor = op.ReduceSum(n.dy, keepdims=0)
    return total


def _range_step(n: Call) -> Tensor:
    total: Tensor = op.ReduceSum(n.dy * ((n.y - n.a) / n.c), keepdims=0)
    return total


def _axes_rules(rule: Rule) -> tuple[Rule | None, ...]:
    """Return the rules of a reduction, whose second input, if it has one, holds the axes."""
    return rule, None


REDUCTIONS: Rules = {
    "CumSum": (_cumulated, None),
    "LpNormalization": (_lp_normalized,),
    "MeanVarianceNormalization": (_mean_variance,),
    "Range": (_range_start, lambda n: zeros_like(n.b), _range_step),
    "ReduceL1": _axes_rules(lambda n: _g(n) * op.Sign(n.x)),
    "ReduceL2": _axes_rules(_norm),
    "ReduceLogSum": _axes_rules(lambda n: _g(n) / op.Exp(_y(n))),
    "ReduceLogSumExp": _axes_rules(lambda n: _g(n) * op.Exp(n.x - _y(n))),
    "ReduceMax": _axes_rules(_shared_extreme),
    "ReduceMean": _axes_rules(lambda n: _g(n) / _count(n)),
    "ReduceMin": _axes_rules(_shared_extreme),
    "ReduceProd": _axes_rules(_product_of_others),
    "ReduceSum": _axes_rules(_g),
    "ReduceSumSquare": _axes_rules(lambda n: _g(n) * (2 * n.x)),
}
