"""Weights that an adapter can stand beside, and the nodes that read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.graph.model import ADAPTER, REAL_TYPES
from onnxsgd.graph.nodes import attribute, rank, standard_operator
from onnxsgd.graph.reading.trainable import describe_node

__all__ = ["CONVOLUTION", "EMBEDDING", "LINEAR", "AdaptedNode", "adapted_nodes", "can_be_adapted"]

#: The uses of a weight: in a product, in a convolution, as a table of rows.
LINEAR, CONVOLUTION, EMBEDDING = "linear", "convolution", "embedding"


@dataclass(frozen=True)
class AdaptedNode:
    """A node that reads a weight in a form that an adapter can follow.

    Attributes
    ----------
    node : ir.Node
        The node.
    kind : {"linear", "convolution", "embedding"}
        The use of the weight.
    is_transposed : bool
        Whether the weight of a product, or a table, is stored with the outputs of the node along its first
        axis.
    """

    node: ir.Node
    kind: str
    is_transposed: bool


def can_be_adapted(value: ir.Value) -> bool:
    """Tell whether an adapter can stand beside an initializer."""
    return not isinstance(adapted_nodes(value), str)


def adapted_nodes(value: ir.Value) -> list[AdaptedNode] | str:
    """Return the nodes that read a weight, or the reason why it has no adapter, as a phrase about "it".

    Cases: the second operand of MatMul or Gemm, stored in either order; the kernels of a Conv of one group;
    the table of a Gather along its first axis; the same behind a Transpose of a matrix.
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
        elif (found := _form(operator, node, index, value)) is not None:
            kind, is_swapped = found
            yield AdaptedNode(node, kind, is_transposed != is_swapped)
        else:
            yield node


def _form(operator: str, node: ir.Node, index: int, weight: ir.Value) -> tuple[str, bool] | None:
    """Return the use of a weight, and whether the outputs are along the first axis of the operand.

    None: another form.
    """
    if node.graph is not weight.graph:
        return None
    if operator == "Conv" and index == 1 and attribute(node, "group", 1) == 1:
        return CONVOLUTION, False
    if rank(weight) != 2:
        return None
    if operator == "Gather" and index == 0 and attribute(node, "axis", 0) in (0, -2):
        return EMBEDDING, False
    if operator in ("MatMul", "Gemm") and index == 1:
        return LINEAR, attribute(node, "transB", 0) == 1
    return None


def _swaps(node: ir.Node, value: ir.Value) -> bool:
    return rank(value) == 2 and tuple(attribute(node, "perm", (1, 0))) == (1, 0)
