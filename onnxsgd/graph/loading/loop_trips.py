"""Trips of a Loop that follow from constants."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.model import subgraphs

__all__ = ["MOST_TRIPS", "check_trips", "stays_true"]

#: The most constant trips of a Loop: each takes a microsecond or more, and its states are kept for gradients.
MOST_TRIPS = 2**24

_Constants = Mapping[str, onnx.TensorProto]


def check_trips(graph: onnx.GraphProto, outer: _Constants) -> None:
    """Refuse a Loop of no number of trips, or very many, whose condition stays true, in subgraphs too."""
    constants = {**outer, **_constants(graph)}
    for node in graph.node:
        is_unbounded = node.op_type == "Loop" and not node.input[0]
        trips = constants.get(node.input[0]) if node.op_type == "Loop" else None
        if (is_unbounded or trips is not None) and stays_true(node, constants):
            if trips is None:
                raise GraphError(
                    f"Loop {node.name!r} never ends: it has no number of trips, and no condition."
                )
            count = int(onnx.numpy_helper.to_array(trips).reshape(()))
            if count > MOST_TRIPS:
                raise GraphError(
                    f"Loop {node.name!r} makes {count:,} trips: up to {MOST_TRIPS:,} are accepted if "
                    "nothing ends it before."
                )
        for subgraph in subgraphs([node]):
            check_trips(subgraph, constants)


def _constants(graph: onnx.GraphProto) -> _Constants:
    """Return the initializers and Constant nodes of one graph."""
    made = {
        node.output[0]: node.attribute[0].t
        for node in graph.node
        if node.op_type == "Constant" and node.attribute[0].HasField("t")
    }
    return made | {tensor.name: tensor for tensor in graph.initializer}


def stays_true(loop: onnx.NodeProto, outer: _Constants) -> bool:
    """Return whether the body returns the condition that it gets, or true; not if the first one is false."""
    (body,) = subgraphs([loop])
    first = outer.get(loop.input[1]) if len(loop.input) > 1 else None
    if first is not None and not _is_true(first):
        return False
    makers = {name: node for node in body.node for name in node.output}
    name = body.output[0].name
    while name in makers and makers[name].op_type in ("Cast", "Identity"):
        name = makers[name].input[0]
    returned = {**outer, **_constants(body)}.get(name)
    return name == body.input[1].name or (returned is not None and _is_true(returned))


def _is_true(tensor: onnx.TensorProto) -> bool:
    return bool(onnx.numpy_helper.to_array(tensor).any())
