"""Patterns of formulas in a lowered graph; each function returns the argument of a formula, or None."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, constant, first, is_real, operands, rank, standard_operator
from onnxsgd.graph.operators import Fact, having

__all__ = [
    "FORM",
    "behind_form",
    "complement",
    "divided_by_row_sums",
    "made_by",
    "mirrored",
    "modified_huber_argument",
    "negative",
    "softmax_argument",
    "softplus_argument",
    "strip",
]

#: Operators that change the form of a tensor, and keep its elements.
FORM = having(Fact.FORM)


def made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the node that computes `value` if it is a standard one of these types."""
    node = None if value is None else value.producer()
    return node if node is not None and standard_operator(node) in op_types else None


def strip(value: ir.Value) -> ir.Value:
    """Return the source of a copy: before casts, reshapes to the same shape, or a column of a Concat."""
    while (source := _source(value)) is not None:
        value = source
    return value


def behind_form(value: ir.Value) -> ir.Value:
    """Return the source of `value` before all changes of its form."""
    while node := made_by(value, *FORM):
        value = first(node)
    return value


def softmax_argument(value: ir.Value) -> ir.Value | None:
    """Return z for ``Softmax(z)`` over the last axis, or its logarithm, or the same in exponentials."""
    if node := made_by(value, "Softmax", "LogSoftmax"):
        last = {-1, (rank(value) or 2) - 1}
        return first(node) if attribute(node, "axis", -1) in last else None
    summed = divided_by_row_sums(value)
    exponential = None if summed is None else made_by(strip(summed), "Exp")
    if summed is None or exponential is None or softplus_argument(strip(summed)) is not None:
        return None
    return _without_row_maximum(first(exponential))


def _without_row_maximum(value: ir.Value) -> ir.Value:
    """Return z for ``z - max(z)``, which has the same softmax, and `value` for any other formula."""
    node = made_by(value, "Sub")
    if node is None:
        return value
    scores, subtracted = operands(node)
    largest = behind_form(subtracted)
    for term in map(behind_form, _terms(largest)):
        if (found := made_by(term, "TopK", "ReduceMax")) and strip(first(found)) is strip(scores):
            return scores
    return value


def _source(value: ir.Value) -> ir.Value | None:
    """Return the operand that the node behind `value` copies, None if it is no copy."""
    if node := made_by(value, "Identity", "Concat", "Mean", "Sum"):
        return first(node) if len(node.inputs) == 1 else None
    if (node := made_by(value, "Cast")) and is_real(value) and is_real(first(node)):
        return first(node)
    if (node := made_by(value, "Reshape", "Flatten", "Squeeze")) and _same_shape(value, first(node)):
        return first(node)
    if (node := made_by(value, "Div")) and _holds(node.inputs[1], 1):
        return first(node)
    return _picked_column(value)


def _picked_column(value: ir.Value) -> ir.Value | None:
    """Return the column x_i that a Gather or a Slice picks from a Concat of columns x_0, x_1, ..."""
    if node := made_by(value, "Gather"):
        picked, axes = constant(node.inputs[1]), [attribute(node, "axis", 0)]
    elif (node := made_by(value, "Slice")) and len(node.inputs) == 4:
        start, end, axis = (constant(entry) for entry in node.inputs[1:])
        if start is None or end is None or axis is None or start.size != 1 or end != start + 1:
            return None
        picked, axes = start, axis.tolist()
    else:
        return None
    if picked is None or picked.size != 1 or axes not in ([1], [-1]):
        return None
    pair = made_by(strip(first(node)), "Concat")
    if pair is None or attribute(pair, "axis") not in (1, -1):
        return None
    columns, index = operands(pair), int(picked.item())
    if any(column.shape is None or len(column.shape) != 2 or column.shape[-1] != 1 for column in columns):
        return None
    return columns[index] if -len(columns) <= index < len(columns) else None


def divided_by_row_sums(value: ir.Value) -> ir.Value | None:
    """Return p for ``p / sum(p)`` over a row, with any guard against a sum of zero."""
    if node := made_by(value, "LpNormalization"):
        last = attribute(node, "axis", -1) in (-1, (rank(value) or 2) - 1)
        return first(node) if last and attribute(node, "p", 2) == 1 else None
    node = made_by(value, "Div")
    if node is None:
        return None
    p, total = operands(node)
    total = behind_form(total)
    for candidate in (p, *(operands(guard) if (guard := made_by(p, "Add")) else ())):
        if any(_is_row_sum(term, candidate) for term in _terms(total)):
            return candidate
    return None


def _terms(value: ir.Value) -> list[ir.Value]:
    node = made_by(value, "Add", "Max", "Clip", "Where")
    return [value, *(term for term in node.inputs if term is not None)] if node else [value]


def _is_row_sum(value: ir.Value, p: ir.Value) -> bool:
    node = made_by(behind_form(value), "ReduceSum")
    axes = None if node is None or len(node.inputs) < 2 else constant(node.inputs[1])
    if node is None or axes is None or axes.size != 1 or axes.item() not in (-1, (rank(p) or 2) - 1):
        return False
    summed = first(node)
    size = made_by(summed, "Abs")
    return strip(summed) is strip(p) or (size is not None and strip(first(size)) is strip(p))


def complement(value: ir.Value) -> ir.Value | None:
    """Return p for ``Concat(1 - p, p)``."""
    node = made_by(value, "Concat")
    if node is None or len(node.inputs) != 2:
        return None
    first, second = (strip(part) for part in operands(node))
    rest = made_by(first, "Sub")
    if rest is None or not _holds(rest.inputs[0], 1):
        return None
    return second if strip(operands(rest)[1]) is second else None


def mirrored(value: ir.Value) -> ir.Value | None:
    """Return z for ``Concat(-z, z)``, and for the negative of ``Concat(z, -z)``."""
    turned = negative(value)
    node = made_by(value if turned is None else strip(turned), "Concat")
    if node is None or len(node.inputs) != 2:
        return None
    first, second = (strip(part) for part in operands(node))
    if turned is not None:
        first, second = second, first
    for own, other in ((second, first), (first, second)):
        if (negated := negative(other)) is not None and strip(negated) is own:
            return second
    return None


def negative(value: ir.Value) -> ir.Value | None:
    """Return x for ``-x``."""
    if node := made_by(value, "Neg"):
        return first(node)
    if node := made_by(value, "Mul"):
        for factor, other in (operands(node), operands(node)[::-1]):
            if _holds(factor, -1):
                return other
    return None


def softplus_argument(value: ir.Value) -> ir.Value | None:
    """Return x for ``exp(-softplus(x))``, which is sigmoid(-x), with either form of the softplus."""
    node = made_by(value, "Exp")
    if node and (turned := made_by(first(node), "Neg")) and (soft := made_by(first(turned), "Softplus")):
        return first(soft)
    for op_type in ("Neg", "Add", "Log", "Add", "Exp", "Neg", "Abs"):
        if node is None:
            return None
        node = next((found for entry in operands(node) if (found := made_by(entry, op_type))), None)
    return None if node is None else first(node)


def modified_huber_argument(value: ir.Value) -> ir.Value | None:
    """Return z for ``(clip(z, -1, 1) + 1) / 2``."""
    half = made_by(value, "Div")
    shifted = made_by(first(half), "Add") if half else None
    if half is None or shifted is None:
        return None
    clipped = next((n for v in operands(shifted) if (n := made_by(v, "Clip"))), None)
    if clipped is None or len(clipped.inputs) != 3:
        return None
    added = [value for value in operands(shifted) if value.producer() is not clipped]
    numbers = [*clipped.inputs[1:], *added, half.inputs[1]]
    return first(clipped) if all(map(_holds, numbers, (-1, 1, 1, 2))) else None


def _holds(value: ir.Value | None, number: float) -> bool:
    """Return whether `value` is a constant that holds only this number."""
    array = constant(value)
    return array is not None and array.dtype.kind in "fi" and bool(np.all(array == number))


def _same_shape(value: ir.Value, other: ir.Value) -> bool:
    """Return whether shapes agree; only the number of samples may be unknown."""
    if value.shape is None or other.shape is None or len(value.shape) != len(other.shape):
        return False
    return all(isinstance(size, int) for size in value.shape[1:]) and value.shape[1:] == other.shape[1:]
