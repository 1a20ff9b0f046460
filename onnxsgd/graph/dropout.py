"""Dropout nodes that act in training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import onnx_ir as ir

from onnxsgd.exceptions import ParameterError
from onnxsgd.graph.nodes import constant, standard_operator

__all__ = ["acting_dropouts", "acts", "mark_dropouts", "ratio_of", "refuse_without_dropout"]

#: The metadata key of a Dropout that acts in training. In predictions such a node returns its operand.
_ACTS = "onnxsgd.dropout"


def mark_dropouts(graph: ir.Graph) -> None:
    """Mark the Dropout nodes of `graph`, without those in subgraphs, whose ratio is a constant above zero.

    Lowering removes the others.
    """
    for node in graph:
        if standard_operator(node) == "Dropout" and ratio_of(node):
            node.metadata_props[_ACTS] = "in training"


def acting_dropouts(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the Dropout nodes of `graph` that act in training."""
    return (node for node in graph if acts(node))


def acts(node: ir.Node) -> bool:
    """Tell whether `node` is a Dropout that acts in training."""
    return standard_operator(node) == "Dropout" and _ACTS in node.metadata_props


def refuse_without_dropout(ratio: float) -> NoReturn:
    """Refuse a ratio for a model without a node that has one."""
    raise ParameterError(
        f"dropout={ratio!r} needs a Dropout before the score, and the model has none: exporters remove them "
        "from a network in evaluation mode. With torch, call module.train() before torch.onnx.export."
    )


def ratio_of(node: ir.Node) -> float | None:
    """Return the share of the elements that a Dropout drops; None if it is computed."""
    ratio = node.inputs[1] if len(node.inputs) > 1 else None
    if ratio is None:
        return 0.5
    value = constant(ratio)
    return None if value is None else float(f"{value.item():.7g}")
