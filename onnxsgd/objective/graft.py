"""Appending of computed nodes to a graph, under new names with a prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import onnx
import onnx_ir as ir

from onnxsgd._builder import Builder
from onnxsgd.exceptions import GraphError
from onnxsgd.graph.model import FROZEN, unique_name
from onnxsgd.graph.nodes import content

__all__ = ["check_operators", "graft"]


def graft(graph: ir.Graph, names: set[str], prefix: str, build: Callable[[Builder], ir.Value]) -> ir.Value:
    """Append the nodes of `build` to `graph`, and return their result.

    Parameters
    ----------
    graph : ir.Graph
        Changed in place.
    names : set of str
        The tensor names in use; the new ones are added.
    prefix : str
        The prefix of the new names.
    build : callable
        Receives an ``onnxscript.OpBuilder``, builds nodes on values of `graph`, and returns one value.

    Raises
    ------
    GraphError
        If the graph's opset lacks an operator that `build` uses.

    Notes
    -----
    Constants become nodes, not initializers: an initializer of a real type would be taken for a weight. They
    are also marked as frozen, in case a later pass lifts them to initializers.
    """
    from onnxscript import GraphBuilder

    scratch = ir.Graph([], [], nodes=[], opset_imports=dict(graph.opset_imports), name="scratch")
    result = build(GraphBuilder(scratch).op)
    nodes = [*_constants(scratch, f"constant of {prefix}"), *scratch]
    scratch.remove([node for node in nodes if node.graph is scratch])
    check_operators(nodes, graph.opset_imports)
    node_names = {str(node.name) for node in graph.all_nodes()}
    for node in nodes:
        node.metadata_props.clear()
        node.name = unique_name(f"{prefix}_{node.op_type}", node_names)
        for value in node.outputs:
            value.name = unique_name(f"{prefix}_{node.op_type}", names)
        graph.append(node)
    return result


def _constants(graph: ir.Graph, frozen: str) -> list[ir.Node]:
    """Take the initializers out of `graph`, and return equivalent Constant nodes."""
    nodes = []
    for value in list(graph.initializers.values()):
        array = ir.AttrTensor("value", content(value))
        del graph.initializers[str(value.name)]
        value.metadata_props[FROZEN] = frozen
        nodes.append(ir.Node("", "Constant", [], [array], outputs=[value]))
    return nodes


def check_operators(nodes: Iterable[ir.Node], opsets: Mapping[str, int]) -> None:
    """Refuse nodes whose operator is not in the imported opset."""
    for node in nodes:
        try:
            onnx.defs.get_schema(node.op_type, opsets[node.domain], node.domain)
        except onnx.defs.SchemaError:
            raise GraphError(
                f"Opset {opsets[node.domain]} has no operator {node.op_type}; onnx.version_converter brings "
                "a model to a newer one."
            ) from None
