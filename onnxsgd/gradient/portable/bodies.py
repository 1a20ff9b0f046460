"""Shapes inside of loops and branches, as far as they follow from outside.

onnx infers the shapes of a body without the constants that it captures, and without the shapes of the states
of a Loop, for these may change from turn to turn. States whose gradient is taken may not: every turn is
stacked.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxsgd.graph.model import graph_names, unique_name

from .call import constant_value

__all__ = ["copy_constants_into_bodies", "shape_loops"]

#: Vectors of sizes and axes; larger constants say nothing about a shape.
_MAX_SIZE = 64


def copy_constants_into_bodies(graph: ir.Graph) -> None:
    """Give each body a copy of the few integers that it captures, in place."""
    names = graph_names(graph)
    for body in graph.subgraphs():
        _copy_captured(body, names)


def _copy_captured(body: ir.Graph, names: set[str]) -> None:
    copies: dict[ir.Value, ir.Value] = {}
    for node in list(body):
        for index, value in enumerate(node.inputs):
            if value is None or value.graph is body or not _is_small_integers(value):
                continue
            if value not in copies:
                copies[value] = _constant(body, value, unique_name(f"{value.name}_copy", names))
            node.replace_input_with(index, copies[value])


def _is_small_integers(value: ir.Value) -> bool:
    array = constant_value(value)
    return array is not None and array.dtype.kind == "i" and array.size <= _MAX_SIZE


def _constant(body: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    array = constant_value(value)
    assert array is not None
    kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
    copy = ir.Value(name=name, shape=ir.Shape(array.shape), type=kind)
    attribute = ir.AttrTensor("value", ir.Tensor(array))
    body.insert_before(body[0], ir.Node("", "Constant", [], [attribute], outputs=[copy], name=name))
    return copy


def shape_loops(graph: ir.Graph) -> bool:
    """Tell the bodies of Loops the shapes of their states, and the Loops those of their results, in place.

    Returns
    -------
    bool
        Whether a shape was found, from which others may follow.
    """
    found = False
    for node in graph:
        for body in _bodies(node):
            if node.op_type == "Loop" and node.domain == "":
                found |= _shape_states(node, body)
            found |= shape_loops(body)
    return found


def _shape_states(node: ir.Node, body: ir.Graph) -> bool:
    found = False
    states = len(node.inputs) - 2
    for first, inside in zip(node.inputs[2:], body.inputs[2:], strict=True):
        if first is not None and inside.shape is None and first.shape is not None:
            inside.shape, found = first.shape.copy(), True
    for first, after, result in zip(node.inputs[2:], body.outputs[1:], node.outputs[:states], strict=False):
        if first is not None and result.shape is None and after.shape is not None:
            result.shape, found = _common(first.shape, after.shape), True
    for each, stacked in zip(body.outputs[1 + states :], node.outputs[states:], strict=False):
        if stacked.shape is None and each.shape is not None:
            stacked.shape, found = ir.Shape([None, *each.shape]), True
    return found


def _common(first: ir.Shape | None, after: ir.Shape) -> ir.Shape:
    """Return the shape of a state before and after a turn; sizes that differ are not known."""
    if first is None or len(first) != len(after):
        return after.copy()
    return ir.Shape([a if a == b else None for a, b in zip(first, after, strict=True)])


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
