"""Lowering sums, products, powers, norms and extrema that have no registered gradient."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import REAL_TYPES
from onnxsgd.graph.rewriting import Rule, Table, Writer, attribute, constant, first, operands, rank

__all__ = ["REDUCTION_RULES", "divide_by_norm"]

#: A product over more elements than this is left alone: it would become as many nodes.
_LONGEST_PRODUCT = 64


def divide_by_norm(w: Writer, x: ir.Value, axis: int, p: int) -> ir.Value:
    """Write ``x / max(norm, tiny)`` along `axis`: no 0 / 0, neither in the value nor in the gradient."""
    powers = w.op.Abs(x) if p == 1 else w.op.Mul(x, x)
    total = w.op.Max(w.op.ReduceSum(powers, [axis], keepdims=1), float(np.finfo(np.float32).tiny))
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


def _pow(w: Writer, node: ir.Node) -> ir.Value | None:
    """``x x`` for a square; an integer exponent gets the type of the base."""
    base, exponent = operands(node)
    if (array := constant(exponent)) is not None and array.ndim == 0 and array == 2:
        return w.op.Mul(base, base)
    if exponent.dtype not in (ir.DataType.INT32, ir.DataType.INT64) or base.dtype not in REAL_TYPES:
        return None
    if array is None:
        return w.op.Pow(base, w.op.Cast(exponent, to=base.dtype))
    return w.op.Pow(base, w.tensor("exponent", array.astype(base.dtype.numpy())))


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
        """Take the first of the best elements, one axis after the other; gradients go to that one."""
        x, axes = first(node), _axes(node)
        if axes is None or x.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            return None
        for axis in axes:
            x, _ = w.op.TopK(x, [1], axis=axis, largest=largest, _outputs=2)
        return x if attribute(node, "keepdims", 1) else w.op.Squeeze(x, axes)

    return rule


def _reduce_prod(w: Writer, node: ir.Node) -> ir.Value | None:
    """Multiply slices, along axes whose length is known and small."""
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
    """Return the axes that a reduction takes, all of them where it names none; None if they are not known."""
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


#: What replaces sums, powers, norms and reductions of the standard domain.
REDUCTION_RULES: Table = {
    ("", "LpNormalization"): _lp_normalization,
    ("", "Mean"): _mean,
    ("", "Pow"): _pow,
    ("", "ReduceL1"): _reduce_l1,
    ("", "ReduceLogSum"): _reduce_log_sum,
    ("", "ReduceMax"): _extremum(largest=1),
    ("", "ReduceMin"): _extremum(largest=0),
    ("", "ReduceProd"): _reduce_prod,
    ("", "ReduceSumSquare"): _reduce_sum_square,
    ("", "Sum"): _sum,
}
