"""Backward reading of a graph, from an output to its raw prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, constant, first, is_real, operands
from onnxsgd.graph.parameter_roles.patterns import (
    complement,
    divided_by_row_sums,
    made_by,
    mirrored,
    modified_huber_argument,
    negative,
    softmax_argument,
    softplus_argument,
    strip,
)

__all__ = ["Link", "holds_probabilities", "read_link"]


@dataclass(frozen=True)
class Link:
    """Function from a raw prediction to an output.

    Attributes
    ----------
    kind : {"softmax", "sigmoid", "ovr", "modified_huber", "identity"}
        As in :class:`~onnxsgd.graph.reading.head.ScoredGraph`.
    scores : tuple of ir.Value
        The raw prediction, or its columns.
    negated : bool
        True if the raw prediction is the negative of `scores`.
    """

    kind: str
    scores: tuple[ir.Value, ...]
    negated: bool = False


def read_link(value: ir.Value) -> Link | None:
    """Return the link whose result is `value`; None if no known link matches.

    Cases, each before copies and casts:

    - ``Softmax(z)`` over the last axis, written as such or with exponentials, or its logarithm; over axis 1
      of more than two axes, written as such;
    - ``Sigmoid(z)``, written as such or with exponentials;
    - ``clip((z + 1) / 2, 0, 1)``: scikit-learn's link of the modified Huber loss;
    - ``Concat(1 - p, p)`` and ``Concat(-z, z)``: one column for two classes;
    - a Concat of columns that are all of one of these kinds, or picked from such pairs;
    - one of these divided by its row sums; columns of sigmoids then become "ovr".

    Parameters
    ----------
    value : ir.Value
        A tensor of shape [N, k] of a lowered graph.
    """
    value = strip(value)
    summed = divided_by_row_sums(value)
    if summed is None or softmax_argument(value) is not None:
        return _read_columns(value)
    summed = strip(summed)
    link = _read_columns(summed)
    if link is not None and link.kind == "sigmoid" and complement(summed) is None:
        return replace(link, kind="ovr")
    if link is None or link.kind == "identity":
        return None
    return link


def holds_probabilities(value: ir.Value) -> bool:
    """Return whether `value` only mixes, selects or scales the results of links."""
    if constant(value) is not None or divided_by_row_sums(value) is not None:
        return True
    if made_by(value, "Softmax", "Sigmoid") or softplus_argument(value) is not None:
        return True
    node = made_by(value, *_MIXING)
    return node is not None and all(holds_probabilities(v) for v in operands(node) if is_real(v))


#: Operators that mix, select or scale probabilities, as ensembles and calibrations do.
_MIXING = (
    *("Add", "Cast", "Clip", "Concat", "Div", "Flatten", "Gather", "Identity", "Max", "Mean", "Min"),
    *("Mul", "ReduceMean", "Reshape", "Slice", "Split", "Squeeze", "Sub", "Sum", "Transpose", "Unsqueeze"),
)


def _read_columns(value: ir.Value) -> Link | None:
    """Read a matrix that is not divided by its row sums."""
    if (score := softmax_argument(value)) is not None:
        return Link("softmax", (score,))
    if (node := made_by(value, "Softmax", "LogSoftmax")) and attribute(node, "axis", -1) == 1:
        # the classes of pixels, and of other elements, are on the axis of channels
        return Link("softmax", (first(node),))
    if (single := _read_elements(value)) is not None:
        return single
    if (probability := complement(value)) is not None:
        return _read_elements(probability)
    if (positive := mirrored(value)) is not None:
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
    if (exponent := softplus_argument(value)) is not None:
        score = negative(exponent)
        return Link("sigmoid", (exponent,), negated=True) if score is None else Link("sigmoid", (score,))
    if (score := modified_huber_argument(value)) is not None:
        return Link("modified_huber", (score,))
    return None
