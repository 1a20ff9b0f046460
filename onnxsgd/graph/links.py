"""Reading a graph backwards: from what it returns to the raw score behind it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import REAL_TYPES
from onnxsgd.graph.rewriting import attribute, constant, first, operands

__all__ = ["Link", "holds_probabilities", "made_by", "read_link", "strip"]


@dataclass(frozen=True)
class Link:
    """What lies between a raw score and the tensor that was read.

    Attributes
    ----------
    kind : {"softmax", "sigmoid", "ovr", "modified_huber", "identity"}
        As in :class:`~onnxsgd.graph.head.ScoredGraph`.
    scores : tuple of ir.Value
        The raw score, or the columns it is to be put together from.
    negated : bool
        Whether the raw score is the negative of that.
    """

    kind: str
    scores: tuple[ir.Value, ...]
    negated: bool = False


def read_link(value: ir.Value) -> Link | None:
    """Return the link whose result `value` is; None if it is none that is known.

    Cases, each behind copies and casts:

    - ``Softmax(z)`` over the last axis, or its logarithm;
    - ``Sigmoid(z)``, written as such or with exponentials;
    - ``clip((z + 1) / 2, 0, 1)``: what scikit-learn makes of the modified Huber loss;
    - ``Concat(1 - p, p)`` and ``Concat(-z, z)``: one column for two classes;
    - a Concat of columns that are all of one of these kinds, or picked from such pairs;
    - one of these divided by its row sums; columns of sigmoids become "ovr" by that.

    Parameters
    ----------
    value : ir.Value
        A tensor of shape [N, k] of a lowered graph.
    """
    value = strip(value)
    summed = _divided_by_row_sums(value)
    if summed is None:
        return _read_columns(value)
    summed = strip(summed)
    link = _read_columns(summed)
    if link is not None and link.kind == "sigmoid" and _complement(summed) is None:
        return replace(link, kind="ovr")
    if link is None or link.kind == "identity":
        return None
    return link


def holds_probabilities(value: ir.Value) -> bool:
    """Return whether `value` mixes, selects or scales the results of links, and nothing else."""
    if constant(value) is not None or _divided_by_row_sums(value) is not None:
        return True
    if made_by(value, "Softmax", "Sigmoid") or _softplus_argument(value) is not None:
        return True
    node = made_by(value, *_MIXING)
    return node is not None and all(
        holds_probabilities(v) for v in node.inputs if v is not None and _is_real(v)
    )


def made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the node that computes `value` if it is a standard one of these types."""
    node = None if value is None else value.producer()
    return node if node is not None and node.domain == "" and node.op_type in op_types else None


def strip(value: ir.Value) -> ir.Value:
    """Return what `value` is a copy of: behind casts, reshapes to the same shape, or a column of a Concat."""
    while (source := _source(value)) is not None:
        value = source
    return value


_MIXING = (
    *("Add", "Cast", "Clip", "Concat", "Div", "Flatten", "Gather", "Identity", "Max", "Min", "Mul"),
    *("ReduceMean", "Reshape", "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze"),
)


def _read_columns(value: ir.Value) -> Link | None:
    """Read a matrix that is not divided by its row sums."""
    if node := made_by(value, "Softmax", "LogSoftmax"):
        return Link("softmax", (first(node),)) if attribute(node, "axis", -1) in (-1, 1) else None
    if (single := _read_elements(value)) is not None:
        return single
    if (probability := _complement(value)) is not None:
        return _read_elements(probability)
    if (positive := _mirrored(value)) is not None:
        return Link("identity", (positive,))
    node = made_by(value, "Concat")
    if node is None or attribute(node, "axis") not in (1, -1):
        return None
    parts = [strip(part) for part in operands(node)]
    links = [link for part in parts if (link := _read_elements(part)) is not None]
    if len(links) == len(parts) and len({(link.kind, link.negated) for link in links}) == 1:
        return replace(links[0], scores=tuple(link.scores[0] for link in links))
    return Link("identity", tuple(parts)) if parts != operands(node) else None


def _read_elements(value: ir.Value) -> Link | None:
    """Read a function of each element."""
    if node := made_by(value, "Sigmoid"):
        return Link("sigmoid", (first(node),))
    if (exponent := _softplus_argument(value)) is not None:
        score = _negative(exponent)
        return Link("sigmoid", (exponent,), negated=True) if score is None else Link("sigmoid", (score,))
    if (score := _modified_huber_argument(value)) is not None:
        return Link("modified_huber", (score,))
    return None


def _source(value: ir.Value) -> ir.Value | None:
    """Return what the node behind `value` copies, None if it does more than that."""
    if node := made_by(value, "Identity", "Concat"):
        return first(node) if len(node.inputs) == 1 else None
    if (node := made_by(value, "Cast")) and _is_real(value) and _is_real(first(node)):
        return first(node)
    if (node := made_by(value, "Reshape", "Flatten", "Squeeze")) and _same_shape(value, first(node)):
        return first(node)
    if (
        (node := made_by(value, "Div"))
        and (array := constant(node.inputs[1])) is not None
        and np.all(array == 1)
    ):
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
    if pair is None or any(part.shape is None or part.shape[-1] != 1 for part in operands(pair)):
        return None
    return operands(pair)[int(picked.item())]


def _divided_by_row_sums(value: ir.Value) -> ir.Value | None:
    """Return p for ``p / sum(p)`` over a row, whatever keeps the sum from being zero."""
    node = made_by(value, "Div")
    if node is None:
        return None
    p, total = operands(node)
    for candidate in (p, *(operands(guard) if (guard := made_by(p, "Add")) else ())):
        if any(_is_row_sum(term, candidate) for term in _terms(total)):
            return candidate
    return None


def _terms(value: ir.Value) -> list[ir.Value]:
    node = made_by(value, "Add", "Max", "Clip", "Where")
    return [value, *(term for term in node.inputs if term is not None)] if node else [value]


def _is_row_sum(value: ir.Value, p: ir.Value) -> bool:
    node = made_by(value, "ReduceSum")
    if node is None:
        return False
    summed = first(node)
    size = made_by(summed, "Abs")
    return strip(summed) is strip(p) or (size is not None and strip(first(size)) is strip(p))


def _complement(value: ir.Value) -> ir.Value | None:
    """Return p for ``Concat(1 - p, p)``."""
    node = made_by(value, "Concat")
    if node is None or len(node.inputs) != 2:
        return None
    first, second = (strip(part) for part in operands(node))
    rest = made_by(first, "Sub")
    if rest is None or (one := constant(rest.inputs[0])) is None or not np.all(one == 1):
        return None
    return second if strip(operands(rest)[1]) is second else None


def _mirrored(value: ir.Value) -> ir.Value | None:
    """Return z for ``Concat(-z, z)``, and for the negative of ``Concat(z, -z)``."""
    turned = _negative(value)
    node = made_by(value if turned is None else strip(turned), "Concat")
    if node is None or len(node.inputs) != 2:
        return None
    first, second = (strip(part) for part in operands(node))
    if turned is not None:
        first, second = second, first
    for own, other in ((second, first), (first, second)):
        if (negated := _negative(other)) is not None and strip(negated) is own:
            return second
    return None


def _negative(value: ir.Value) -> ir.Value | None:
    """Return x for ``-x``."""
    if node := made_by(value, "Neg"):
        return first(node)
    if node := made_by(value, "Mul"):
        for factor, other in (operands(node), operands(node)[::-1]):
            if (array := constant(factor)) is not None and array.size == 1 and array.item() == -1:
                return other
    return None


def _softplus_argument(value: ir.Value) -> ir.Value | None:
    """Return x for ``exp(-softplus(x))`` as lowering writes it, which is sigmoid(-x)."""
    node = made_by(value, "Exp")
    for op_type in ("Neg", "Add", "Log", "Add", "Exp", "Neg", "Abs"):
        if node is None:
            return None
        node = next((found for entry in operands(node) if (found := made_by(entry, op_type))), None)
    return None if node is None else first(node)


def _modified_huber_argument(value: ir.Value) -> ir.Value | None:
    """Return z for ``(clip(z, -1, 1) + 1) / 2``."""
    half = made_by(value, "Div")
    shifted = made_by(first(half), "Add") if half else None
    if half is None or shifted is None:
        return None
    clipped = next((n for v in operands(shifted) if (n := made_by(v, "Clip"))), None)
    if clipped is None or len(clipped.inputs) != 3:
        return None
    bounds = [constant(bound) for bound in clipped.inputs[1:]]
    others = [
        constant(half.inputs[1]),
        *(constant(v) for v in operands(shifted) if v.producer() is not clipped),
    ]
    expected = [-1, 1, 2, 1]
    arrays = [*bounds, *others]
    matches = all(a is not None and np.all(a == b) for a, b in zip(arrays, expected, strict=True))
    return first(clipped) if matches else None


def _is_real(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType) and value.dtype in REAL_TYPES


def _same_shape(value: ir.Value, other: ir.Value) -> bool:
    """Return whether shapes agree, the number of samples being the one that may be unknown."""
    if value.shape is None or other.shape is None or len(value.shape) != len(other.shape):
        return False
    return all(isinstance(size, int) for size in value.shape[1:]) and value.shape[1:] == other.shape[1:]
