"""Reading of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.model import REAL_TYPES, nodes_within
from onnxsgd.graph.operators import Fact, having

__all__ = [
    "QUANTIZERS",
    "attribute",
    "bodies",
    "carries_gradient",
    "constant",
    "content",
    "element_type",
    "first",
    "fixed_size",
    "graph_of",
    "holds_input",
    "is_empty",
    "is_fixed_float32",
    "is_read_once",
    "is_real",
    "maker",
    "matrix",
    "operands",
    "qualified_operator",
    "rank",
    "read_values",
    "represents_reals",
    "required",
    "shape_of",
    "standard_operator",
]

#: Operators whose first output represents the real numbers that they read, and products of such.
QUANTIZERS = frozenset({"DynamicQuantizeLinear", "QuantizeLinear"})
_OF_INTEGERS = having(Fact.FORM) | {"Concat", "ConvInteger", "Gather", "MatMulInteger", "Slice", "Tile"}


def standard_operator(node: ir.Node) -> str:
    """Return the name of the standard operator of `node`; "" for one of another domain.

    Operators of ``com.microsoft`` have names of standard ones: Gelu, GridSample, Pad, Trilu, for instance.
    """
    return node.op_type if node.domain == "" else ""


def qualified_operator(node: ir.Node) -> str:
    """Return the name of the operator of `node` for a message, with a domain other than the standard one."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """Return the value of an attribute of `node`, or `default`; tuples for lists, None stays None."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def constant(value: ir.Value | None) -> np.ndarray | None:
    """Return the array of an initializer or a Constant; None for an input or a computed value."""
    tensor = None if value is None or value.is_graph_input() else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def operands(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of `node` that are not left out."""
    return [value for value in node.inputs if value is not None]


def first(node: ir.Node) -> ir.Value:
    """Return the first input of `node`."""
    return operands(node)[0]


def matrix(node: ir.Node) -> ir.Value:
    """Return the first input of `node`, a matrix.

    Raises
    ------
    GraphError
        If it is known to have another rank.
    """
    value = first(node)
    if rank(value) not in (None, 2):
        raise GraphError(
            f"The {node.op_type} that computes {node.outputs[0].name!r} reads {value.name!r}, of "
            f"{rank(value)} axes: it must have 2."
        )
    return value


def rank(value: ir.Value | None) -> int | None:
    """Return the number of dimensions of `value`; None if it is unknown or there is no value."""
    return None if value is None or value.shape is None else len(value.shape)


def is_real(value: ir.Value) -> bool:
    """Return whether `value` is known to be a tensor of real numbers."""
    return isinstance(value.type, ir.TensorType) and value.dtype in REAL_TYPES


def is_empty(value: ir.Value) -> bool:
    """Return whether `value` is known to have no elements."""
    return value.shape is not None and 0 in tuple(value.shape)


def is_fixed_float32(value: ir.Value) -> bool:
    """Return whether `value` is known to hold float32, in known sizes."""
    return value.dtype == ir.DataType.FLOAT and value.shape is not None and value.shape.is_static()


def holds_input(value: ir.Value) -> bool:
    """Return whether `value` is an input of the graph, or one in another shape."""
    while (node := value.producer()) is not None and standard_operator(node) in ("Reshape", "Unsqueeze"):
        value = first(node)
    return value.is_graph_input() and not value.is_initializer()


def is_read_once(value: ir.Value) -> bool:
    """Return whether one operand of one node is all that reads `value`."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def maker(value: ir.Value) -> ir.Node:
    """Return the node that computes `value`, which is neither an input nor an initializer."""
    node = value.producer()
    if node is None:
        raise LookupError(f"no node computes {value.name!r}")
    return node


def required(node: ir.Node, index: int) -> ir.Value:
    """Return the input of `node` at `index`, which the operator requires."""
    value = node.inputs[index]
    if value is None:
        raise LookupError(f"the {node.op_type} {node.name!r} lacks its input {index}")
    return value


def graph_of(node: ir.Node) -> ir.Graph:
    """Return the graph that holds `node`."""
    if not isinstance(node.graph, ir.Graph):
        raise LookupError(f"the {node.op_type} {node.name!r} is in no graph")
    return node.graph


def element_type(value: ir.Value) -> ir.DataType:
    """Return the element type of `value`, which is known."""
    if value.dtype is None:
        raise LookupError(f"the element type of {value.name!r} is not known")
    return value.dtype


def shape_of(value: ir.Value) -> ir.Shape:
    """Return the shape of `value`, whose rank is known."""
    if value.shape is None:
        raise LookupError(f"the shape of {value.name!r} is not known")
    return value.shape


def fixed_size(value: ir.Value, axis: int) -> int:
    """Return the size of an axis of `value`, which is known."""
    size = shape_of(value)[axis]
    if not isinstance(size, int):
        raise LookupError(f"the size of axis {axis} of {value.name!r} is not known")
    return size


def content(value: ir.Value) -> ir.TensorProtocol:
    """Return the tensor that `value`, an initializer, holds."""
    if value.const_value is None:
        raise LookupError(f"{value.name!r} holds no tensor")
    return value.const_value


def carries_gradient(value: ir.Value) -> bool:
    """Return whether a gradient may flow to `value`: its element type is real or unknown."""
    return value.dtype is None or value.dtype in REAL_TYPES


def represents_reals(value: ir.Value) -> bool:
    """Return whether gradients may pass `value`: it is real or unknown, or represents real numbers.

    Quantized numbers do, products of such, and the same in another form.
    """
    if carries_gradient(value):
        return True
    node = value.producer()
    operator = "" if node is None else standard_operator(node)
    if node is None or operator in QUANTIZERS:
        return node is not None and value is node.outputs[0]
    source = node.inputs[0] if operator in _OF_INTEGERS else None
    return source is not None and not carries_gradient(source) and represents_reals(source)


def read_values(node: ir.Node) -> Iterator[tuple[int | None, ir.Value]]:
    """Yield the values that `node` reads: its inputs with their indices, then captured ones with None.

    A subgraph of a Loop, an If or a Scan captures the values of the node's own graph that it uses by name.
    """
    for index, value in enumerate(node.inputs):
        if value is not None:
            yield index, value
    for body in bodies(node):
        yield from _captured(body, node.graph)


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the subgraphs of `node`, without those inside of them."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


# analyze_implicit_usage of onnx_ir 1.1 walks a whole graph, and misses captured values that branches return
def _captured(subgraph: ir.Graph, outer: ir.Graph | ir.Function | None) -> Iterator[tuple[None, ir.Value]]:
    read = [value for node in nodes_within(subgraph) for value in node.inputs if value is not None]
    for value in (*read, *subgraph.outputs):
        if value.graph is outer:
            yield None, value
