"""Sums, products, norms and extrema written out."""

from __future__ import annotations

import math
from functools import reduce

import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, constant, first, operands, rank
from onnxsgd.graph.rewriting import Rule, Table, Writer

__all__ = ["REDUCTION_FORMS", "divide_by_norm"]

#: The most elements of a product to write out, each as a node.
_LONGEST_PRODUCT = 64


def divide_by_norm(w: Writer, x: ir.Value, axis: int, p: int) -> ir.Value:
    """Write x divided by its norm along `axis`, or by 1 if that is 0."""
    powers = w.op.Abs(x) if p == 1 else w.op.Mul(x, x)
    total = w.op.ReduceSum(powers, [axis], keepdims=1)
    total = w.op.Where(w.op.Equal(total, 0.0), 1.0, total)
    return w.op.Div(x, total if p == 1 else w.op.Sqrt(total))


def _lp_normalization(w: Writer, node: ir.Node) -> ir.Value:
    """``x / (sum |x|^p)^(1/p)`` along an axis; zeros stay zeros."""
    return divide_by_norm(w, first(node), attribute(node, "axis", -1), attribute(node, "p", 2))


def _sum(w: Writer, node: ir.Node) -> ir.Value:
    """``x + y + ...``; a sum of one term is that term."""
    return reduce(w.op.Add, operands(node))


def _mean(w: Writer, node: ir.Node) -> ir.Value:
    """``(x + y + ...) / n``."""
    return w.op.Div(reduce(w.op.Add, operands(node)), float(len(node.inputs)))


def _reduce_l1(w: Writer, node: ir.Node) -> ir.Value | None:
    """``sum(|x|)``."""
    return None if (axes := _axes(node)) is None else _total(w, w.op.Abs(first(node)), axes, node)


def _reduce_sum_square(w: Writer, node: ir.Node) -> ir.Value | None:
    """``sum(x x)``."""
    x = first(node)
    return None if (axes := _axes(node)) is None else _total(w, w.op.Mul(x, x), axes, node)


def _reduce_log_sum(w: Writer, node: ir.Node) -> ir.Value | None:
    """``log(sum(x))``."""
    return None if (axes := _axes(node)) is None else w.op.Log(_total(w, first(node), axes, node))


def _total(w: Writer, x: ir.Value, axes: list[int], node: ir.Node) -> ir.Value:
    return w.op.ReduceSum(x, axes, keepdims=attribute(node, "keepdims", 1))


def _extremum(largest: int) -> Rule:
    def rule(w: Writer, node: ir.Node) -> ir.Value | None:
        """Take the mean of the equal best elements, which share the gradient evenly."""
        x, axes = first(node), _axes(node)
        if axes is None or x.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            return None
        best = x
        for axis in axes:
            best, _ = w.op.TopK(best, [1], axis=axis, largest=largest, _outputs=2)
        hits = w.op.Equal(x, best)
        total = _total(w, w.op.Where(hits, x, 0.0), axes, node)
        return w.op.Div(total, _total(w, w.op.Cast(hits, to=x.dtype), axes, node))

    return rule


def _reduce_prod(w: Writer, node: ir.Node) -> ir.Value | None:
    """Multiply slices, along axes of known, small length."""
    x, axes = first(node), _axes(node)
    sizes = [] if axes is None or x.shape is None else [x.shape[axis] for axis in axes]
    known = [size for size in sizes if isinstance(size, int)]
    if axes is None or len(known) < len(axes) or math.prod(known) > _LONGEST_PRODUCT:
        return None
    for axis, size in zip(axes, known, strict=True):
        slices = [w.op.Slice(x, [i], [i + 1], [axis]) for i in range(size)]
        x = reduce(w.op.Mul, slices)
    return x if attribute(node, "keepdims", 1) else w.op.Squeeze(x, axes)


def _axes(node: ir.Node) -> list[int] | None:
    """Return the axes of a reduction, all if it names none; None if they are unknown."""
    dimensions = rank(first(node))
    if dimensions is None:
        return None
    given = attribute(node, "axes")
    if given is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        if (array := constant(node.inputs[1])) is None:
            return None
        given = array.reshape(-1).tolist()
    if not given:
        return None if attribute(node, "noop_with_empty_axes", 0) else list(range(dimensions))
    return [int(axis) % dimensions for axis in given]


#: The forms of sums, norms and reductions.
REDUCTION_FORMS: Table = {
    ("", "LpNormalization"): _lp_normalization,
    ("", "Mean"): _mean,
    ("", "ReduceL1"): _reduce_l1,
    ("", "ReduceLogSum"): _reduce_log_sum,
    ("", "ReduceMax"): _extremum(largest=1),
    ("", "ReduceMin"): _extremum(largest=0),
    ("", "ReduceProd"): _reduce_prod,
    ("", "ReduceSumSquare"): _reduce_sum_square,
    ("", "Sum"): _sum,
}
