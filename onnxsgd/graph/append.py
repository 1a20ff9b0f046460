"""Append computed nodes to a graph, under names that it does not use yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
from onnxscript import GraphBuilder

from onnxsgd.graph.model import graph_names, unique_name

__all__ = ["appending"]


@contextmanager
def appending(graph: ir.Graph) -> Iterator[Any]:
    """Give a builder of operators whose nodes are at the end of `graph` when the block ends.

    The builder itself numbers names without a look at those that are taken, so it works on a graph of its
    own first.
    """
    scratch = ir.Graph([], [], nodes=[], opset_imports=dict(graph.opset_imports), name="scratch")
    yield GraphBuilder(scratch).op
    names = graph_names(graph)
    for name in list(scratch.initializers):
        value = scratch.initializers.pop(name)
        value.name = unique_name(name, names)
        graph.register_initializer(value)
    nodes = list(scratch)
    scratch.remove(nodes)
    taken = {str(node.name) for node in graph.all_nodes()}
    for node in nodes:
        node.name = unique_name(str(node.name or node.op_type), taken)
        node.metadata_props.clear()
        for value in node.outputs:
            value.name = unique_name(str(value.name or node.op_type), names)
    graph.extend(nodes)
