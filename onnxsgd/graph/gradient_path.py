"""The part of a graph through which gradients flow.

A gradient is needed only between the tensors it is taken for and the outputs: nodes before or beside that
path are frozen, and may be of any operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.graph.nodes import carries_gradient, read_values, represents_reals

__all__ = ["Passes", "Path", "find_path", "values_upstream"]

#: Predicate: a gradient may flow from the outputs of a node to its input of that index. Values that the
#: subgraphs of a node capture have the index None.
Passes = Callable[[ir.Node, int | None], bool]


@dataclass(frozen=True)
class Path:
    """The nodes and the values between the tensors to differentiate for and the outputs.

    Attributes
    ----------
    nodes : tuple of ir.Node
        In topological order.
    values : frozenset of ir.Value
        Every value on the path whose gradient is needed, both ends included.
    upstream : frozenset of ir.Value
        Every value from which a path leads to an output, reached from the differentiated tensors or not.
    """

    nodes: tuple[ir.Node, ...]
    values: frozenset[ir.Value]
    upstream: frozenset[ir.Value]


def values_upstream(graph: ir.Graph, outputs: Sequence[ir.Value], passes: Passes) -> set[ir.Value]:
    """Return the values from which a gradient path leads to one of `outputs`, these included.

    `graph` must be in topological order.
    """
    upstream = {value for value in outputs if carries_gradient(value)}
    for node in reversed(graph):
        if not upstream.isdisjoint(node.outputs):
            upstream.update(
                value for index, value in read_values(node) if represents_reals(value) and passes(node, index)
            )
    return upstream


def find_path(graph: ir.Graph, wrt: Sequence[ir.Value], outputs: Sequence[ir.Value], passes: Passes) -> Path:
    """Return the path between `wrt` and `outputs`.

    Parameters
    ----------
    graph : ir.Graph
        In topological order.
    wrt : sequence of ir.Value
        The inputs or initializers to differentiate for.
    outputs : sequence of ir.Value
        The values to differentiate.
    passes : callable
        See :data:`Passes`.
    """
    upstream = values_upstream(graph, outputs, passes)
    values = upstream.intersection(wrt)
    nodes = []
    for node in graph:
        reached = any(value in values and passes(node, index) for index, value in read_values(node))
        if reached and not upstream.isdisjoint(node.outputs):
            nodes.append(node)
            values.update(upstream.intersection(node.outputs))
    return Path(tuple(nodes), frozenset(values), frozenset(upstream))
