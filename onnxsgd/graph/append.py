"""Appending of computed nodes to a graph, under new names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir
from onnxscript import GraphBuilder

from onnxsgd._builder import Builder
from onnxsgd.graph.model import FROZEN, REAL_TYPES, graph_names, unique_name

__all__ = ["appending", "blank", "take_constants"]


@contextmanager
def appending(graph: ir.Graph) -> Iterator[Builder]:
    """Yield an operator builder; when the block ends, append its nodes to `graph`."""
    scratch, op = blank(graph)
    yield op
    names = graph_names(graph)
    take_constants(scratch, graph, names)
    nodes = list(scratch)
    scratch.remove(nodes)
    taken = {str(node.name) for node in graph.all_nodes()}
    for node in nodes:
        node.name = unique_name(str(node.name or node.op_type), taken)
        node.metadata_props.clear()
        for value in node.outputs:
            value.name = unique_name(str(value.name or node.op_type), names)
    graph.extend(nodes)


def blank(graph: ir.Graph) -> tuple[ir.Graph, Builder]:
    """Return an empty graph and its operator builder.

    On `graph` itself the builder would reuse existing names: it numbers its values without checking.
    """
    scratch = ir.Graph([], [], nodes=[], opset_imports=dict(graph.opset_imports), name="scratch")
    return scratch, GraphBuilder(scratch).op


def take_constants(scratch: ir.Graph, graph: ir.Graph, names: set[str]) -> None:
    """Move the initializers of `scratch` to `graph`; the builder's constants are no parameters."""
    for name in list(scratch.initializers):
        value = scratch.initializers.pop(name)
        if name.startswith("const_") and value.dtype in REAL_TYPES:
            value.metadata_props.setdefault(FROZEN, "constant of a formula")
        value.name = unique_name(name, names)
        graph.register_initializer(value)
