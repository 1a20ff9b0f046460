"""Reading of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

__all__ = ["attribute", "constant", "first", "operands", "rank", "read_values"]


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """Return the value of an attribute of `node`, or `default`; tuples for lists, None stays None."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def constant(value: ir.Value | None) -> np.ndarray | None:
    """Return the array that an initializer holds; None for anything that is computed or fed."""
    if value is None or value.is_graph_input() or value.const_value is None:
        return None
    return value.const_value.numpy()


def operands(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of `node` that are there."""
    return [value for value in node.inputs if value is not None]


def first(node: ir.Node) -> ir.Value:
    """Return the first input of `node`."""
    return operands(node)[0]


def rank(value: ir.Value) -> int | None:
    """Return the number of dimensions of `value`, None if it is not known."""
    return None if value.shape is None else len(value.shape)


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
