"""Small constants that subgraphs capture, copied into them.

onnx infers the shapes of a body without the constants that it reads from outside.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import graph_names, unique_name

__all__ = ["copy_constants_into_bodies"]

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
    array = _constant_value(value)
    return array is not None and array.dtype.kind == "i" and array.size <= _MAX_SIZE


def _constant(body: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    array = _constant_value(value)
    assert array is not None
    kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
    copy = ir.Value(name=name, shape=ir.Shape(array.shape), type=kind)
    attribute = ir.AttrTensor("value", ir.Tensor(array))
    body.insert_before(body[0], ir.Node("", "Constant", [], [attribute], outputs=[copy], name=name))
    return copy


def _constant_value(value: ir.Value) -> np.ndarray | None:
    tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()
