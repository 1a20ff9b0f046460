"""Writing of nodes: creation, names, insertion, replacement.

One node of known type is written with :func:`computed`; formulas of several are written with a builder, in
:mod:`onnxsgd.graph.append` and :mod:`onnxsgd.graph.rewriting`, which infers types and is fifty times as slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import graph_of

__all__ = [
    "Replacement",
    "add_initializer",
    "computed",
    "copy_node",
    "displace",
    "new_node",
    "replace_input",
    "replace_nodes",
    "replace_output",
    "take_nodes",
]

#: The nodes in the place of one, and the values in the places of its outputs.
Replacement = tuple[Sequence[ir.Node], Sequence[ir.Value]]


def new_node(
    op_type: str,
    inputs: Sequence[ir.Value | None],
    outputs: Sequence[ir.Value],
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = "",
    name: str | None = None,
) -> ir.Node:
    """Return a node that computes `outputs`, in no graph yet; a graph names a node without a name."""
    return ir.node(op_type, inputs, attributes, domain=domain, outputs=outputs, name=name)


def computed(
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    like: ir.Value | None = None,
) -> ir.Value:
    """Return the output of a new standard node, in no graph yet, of the type and shape of `like`."""
    output = ir.Value(name=name)
    if like is not None:
        output.type, output.shape = like.type, like.shape
    new_node(op_type, inputs, [output], attributes)
    return output


def copy_node(node: ir.Node, inputs: Sequence[ir.Value | None], outputs: Sequence[ir.Value]) -> ir.Node:
    """Return a copy of `node` with other inputs and outputs; it shares subgraphs with `node`."""
    return new_node(node.op_type, inputs, outputs, dict(node.attributes), domain=node.domain, name=node.name)


def add_initializer(graph: ir.Graph, name: str, tensor: np.ndarray | ir.TensorProtocol) -> ir.Value:
    """Add an initializer to `graph` under a name that is free, and return it."""
    held = ir.tensor(tensor, name=name) if isinstance(tensor, np.ndarray) else tensor
    shape = ir.Shape(held.shape.numpy())
    value = ir.Value(name=name, type=ir.TensorType(held.dtype), shape=shape, const_value=held)
    graph.register_initializer(value)
    return value


def take_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Take the nodes out of `graph`, which then computes nothing, and return them in their order."""
    graph.outputs.clear()
    nodes = list(graph)
    graph.remove(nodes)
    return nodes


def displace(old: ir.Value, name: str) -> ir.Value:
    """Return a new value with the name, the type, the shape and the uses of `old`; name `old` anew."""
    new = ir.Value(name=old.name, type=old.type, shape=old.shape)
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name = name
    return new


def replace_input(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Give the uses of an input of `graph` to `new`, and remove the input."""
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    graph.inputs.remove(old)


def replace_output(old: ir.Value, new: ir.Value) -> None:
    """Give the name, the type, the shape and the uses of `old`, which a node computes, to `new`."""
    name, old.name = old.name, None
    new.name, new.type, new.shape = name, old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def replace_nodes(nodes: Iterable[ir.Node], find: Callable[[ir.Node], Replacement | None]) -> int:
    """Replace those of `nodes` for which `find` returns a replacement; return how many were.

    Nodes of a replacement are tried in turn. The values of a replacement have their names.
    """
    count, waiting = 0, list(reversed(list(nodes)))
    while waiting:
        node = waiting.pop()
        if (found := find(node)) is not None:
            written, results = found
            _replace(node, written, results)
            waiting.extend(reversed(written))
            count += 1
    return count


def _replace(node: ir.Node, written: Sequence[ir.Node], results: Sequence[ir.Value]) -> None:
    graph = graph_of(node)
    graph.insert_before(node, written)
    # trailing outputs that nothing reads need no replacement
    for old, new in zip(node.outputs, results, strict=False):
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
