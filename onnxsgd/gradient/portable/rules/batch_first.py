"""Recurrent operators whose first axis is the batch, rewritten with time as the first axis.

No runtime computes the first form, so the forward nodes of a gradient graph must not hold it either.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxsgd.graph.model import graph_names, nodes_within, unique_name
from onnxsgd.graph.nodes import graph_of, standard_operator
from onnxsgd.graph.operators import Fact, having
from onnxsgd.graph.writing import displace, new_node

__all__ = ["put_time_first"]

#: The inputs with a batch axis, and the permutations of the outputs: to (batch, time, direction, hidden) of
#: Y, (batch, direction, hidden) of the last states.
_SEQUENCE, _STATE, _RESULT = (0,), (5, 6), ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))

_RECURRENT = having(Fact.RECURRENT)


def put_time_first(graph: ir.Graph) -> None:
    """Write recurrent operators with ``layout=1`` as transpositions around the other layout, in place."""
    names = graph_names(graph)
    for node in list(nodes_within(graph)):
        layout = node.attributes.get("layout")
        if standard_operator(node) in _RECURRENT and layout is not None:
            if layout.as_int():
                _transpose_around(node, names)
            node.attributes.pop("layout")


def _transpose_around(node: ir.Node, names: set[str]) -> None:
    graph = graph_of(node)
    for index in (*_SEQUENCE, *_STATE):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None:
            turned = ir.Value(name=unique_name(f"{value.name}_time_first", names), type=value.type)
            graph.insert_before(node, _transposition(value, turned, (1, 0, 2)))
            node.replace_input_with(index, turned)
    for index, (value, perm) in enumerate(zip(node.outputs, _RESULT, strict=False)):
        if value.name:
            _transpose_output(node, index, perm, unique_name(f"{value.name}_time_first", names))


def _transpose_output(node: ir.Node, index: int, perm: tuple[int, ...], name: str) -> None:
    """Rename the output at `index`, and transpose it to a value that replaces it."""
    old = node.outputs[index]
    result, old.shape = displace(old, name), None
    graph_of(node).insert_after(node, _transposition(old, result, perm))


def _transposition(value: ir.Value, result: ir.Value, perm: tuple[int, ...]) -> ir.Node:
    return new_node("Transpose", [value], [result], {"perm": perm}, name=result.name)
