"""Weights that an adapter can stand beside, and the nodes that read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.graph.model import ADAPTER, REAL_TYPES
from onnxsgd.graph.nodes import attribute, rank, standard_operator
from onnxsgd.graph.reading.trainable import describe_node

__all__ = ["AdaptedNode", "adapted_nodes", "can_be_adapted"]


@dataclass(frozen=True)
class AdaptedNode:
    """A node that reads a weight in a form that an adapter can follow.

    Attributes
    ----------
    node : ir.Node
        The node.
    is_transposed : bool
        Whether the weight, as it is stored, has the outputs of the node along its first axis.
    """

    node: ir.Node
    is_transposed: bool


def can_be_adapted(value: ir.Value) -> bool:
    """Tell whether an adapter can stand beside an initializer."""
    return not isinstance(adapted_nodes(value), str)


def adapted_nodes(value: ir.Value) -> list[AdaptedNode] | str:
    """Return the nodes that read a weight, or the reason why it has no adapter, as a phrase about "it".

    Cases: the second operand of MatMul, Gemm, stored in either order, or behind a Transpose.
    """
    if value.dtype not in REAL_TYPES:
        return f"it holds {value.dtype}, no real numbers"
    if ADAPTER in value.metadata_props:
        return "it belongs to an adapter"
    if value.is_graph_output():
        return "it is an output of the graph"
    found = list(_readers(value, False))
    refused = [node for node in found if isinstance(node, ir.Node)]
    if refused:
        return f"{describe_node(refused[0])} reads it"
    return [node for node in found if isinstance(node, AdaptedNode)] or "no node reads it"


def _readers(value: ir.Value, is_transposed: bool) -> Iterator[AdaptedNode | ir.Node]:
    """Yield the nodes that read a weight, those without a form for adapters as they are."""
    for node, index in value.uses():
        operator = standard_operator(node)
        if operator == "Identity" or (operator == "Transpose" and _swaps(node, value)):
            yield from _readers(node.outputs[0], is_transposed != (operator == "Transpose"))
        elif (form := _form(operator, node, index, value)) is not None:
            yield AdaptedNode(node, is_transposed != form)
        else:
            yield node


def _form(operator: str, node: ir.Node, index: int, weight: ir.Value) -> bool | None:
    """Return whether the outputs of a node are along the first axis of its operand; None: another form."""
    if node.graph is not weight.graph:
        return None
    if rank(weight) == 2 and index == 1 and operator == "MatMul":
        return False
    if rank(weight) == 2 and index == 1 and operator == "Gemm":
        return attribute(node, "transB", 0) == 1
    return None


def _swaps(node: ir.Node, value: ir.Value) -> bool:
    return rank(value) == 2 and tuple(attribute(node, "perm", (1, 0))) == (1, 0)
