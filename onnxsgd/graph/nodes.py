"""Reading of nodes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

__all__ = ["read_values"]


def read_values(node: ir.Node) -> Iterator[tuple[int | None, ir.Value]]:
    """Yield the values that `node` reads: its inputs with their numbers, then captured ones with None.

    A subgraph of a Loop, an If or a Scan captures the values of the node's own graph that it uses by name.
    """
    for index, value in enumerate(node.inputs):
        if value is not None:
            yield index, value
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield from _captured(attribute.as_graph(), node.graph)
        elif attribute.type == ir.AttributeType.GRAPHS:
            for graph in attribute.as_graphs():
                yield from _captured(graph, node.graph)


def _captured(subgraph: ir.Graph, outer: ir.Graph | ir.Function | None) -> Iterator[tuple[None, ir.Value]]:
    read = [value for node in subgraph.all_nodes() for value in node.inputs if value is not None]
    for value in (*read, *subgraph.outputs):
        if value.graph is outer:
            yield None, value
