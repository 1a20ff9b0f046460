"""Which part of a graph gradients flow through.

A gradient is needed only between the tensors it is taken for and the outputs: what lies before or beside
that is frozen, and may hold any operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.graph.nodes import carries_gradient, read_values

__all__ = ["Passes", "Path", "find_path", "values_upstream"]

#: Tells whether a gradient may flow from the outputs of a node to its input of that number. The values
#: that the subgraphs of a node take from around it have the number None.
Passes = Callable[[ir.Node, int | None], bool]


@dataclass(frozen=True)
class Path:
    """The nodes and the values between the tensors to differentiate for and the outputs.

    Attributes
    ----------
    nodes : tuple of ir.Node
        In topological order.
    values : frozenset of ir.Value
        Every value whose gradient is needed on the way, both ends included.
    upstream : frozenset of ir.Value
        Every value that a path leads from to an output, whether one leads to it or not.
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
                value for index, value in read_values(node) if carries_gradient(value) and passes(node, index)
            )
    return upstream


def find_path(graph: ir.Graph, wrt: Sequence[ir.Value], outputs: Sequence[ir.Value], passes: Passes) -> Path:
    """Return what lies between `wrt` and `outputs`.

    Parameters
    ----------
    graph : ir.Graph
        In topological order.
    wrt : sequence of ir.Value
        What the gradient is taken for: inputs or initializers.
    outputs : sequence of ir.Value
        What is differentiated.
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
