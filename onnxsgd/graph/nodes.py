"""Reading of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import REAL_TYPES

__all__ = [
    "attribute",
    "carries_gradient",
    "constant",
    "first",
    "is_real",
    "maker",
    "operands",
    "rank",
    "read_values",
]


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """Return the value of an attribute of `node`, or `default`; tuples for lists, None stays None."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def constant(value: ir.Value | None) -> np.ndarray | None:
    """Return the array that an initializer or a Constant holds; None for anything that is computed or fed."""
    tensor = None if value is None or value.is_graph_input() else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def operands(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of `node` that are there."""
    return [value for value in node.inputs if value is not None]


def first(node: ir.Node) -> ir.Value:
    """Return the first input of `node`."""
    return operands(node)[0]


def rank(value: ir.Value | None) -> int | None:
    """Return the number of dimensions of `value`, None if it is not known or not there."""
    return None if value is None or value.shape is None else len(value.shape)


def is_real(value: ir.Value) -> bool:
    """Return whether `value` is known to be a tensor of real numbers."""
    return isinstance(value.type, ir.TensorType) and value.dtype in REAL_TYPES


def maker(value: ir.Value) -> ir.Node:
    """Return the node that computes `value`, which is neither fed nor an initializer."""
    node = value.producer()
    if node is None:
        raise LookupError(f"no node computes {value.name!r}")
    return node


def carries_gradient(value: ir.Value) -> bool:
    """Return whether a gradient may flow to `value`: to real numbers, and to elements of an unknown type."""
    return value.dtype is None or value.dtype in REAL_TYPES


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
