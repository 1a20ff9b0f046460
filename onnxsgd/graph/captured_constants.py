"""Small constants that subgraphs capture, copied into them.

onnx infers the shapes of a body without the constants that the body captures.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import constant
from onnxsgd.graph.writing import new_node

__all__ = ["copy_constants_into_bodies"]

#: The most elements of a vector of sizes or axes; larger constants determine no shape.
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
            array = None if value is None or value.graph is body else _small_integers(value)
            if value is None or array is None:
                continue
            if value not in copies:
                copies[value] = _constant(body, array, unique_name(f"{value.name}_copy", names))
            node.replace_input_with(index, copies[value])


def _small_integers(value: ir.Value) -> np.ndarray | None:
    array = constant(value)
    return array if array is not None and array.dtype.kind == "i" and array.size <= _MAX_SIZE else None


def _constant(body: ir.Graph, array: np.ndarray, name: str) -> ir.Value:
    kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
    copy = ir.Value(name=name, shape=ir.Shape(array.shape), type=kind)
    body.insert_before(body[0], new_node("Constant", [], [copy], {"value": ir.Tensor(array)}, name=name))
    return copy
