"""The shapes of a forward graph, inferred once, with equal sizes recognized as equal.

onnx infers shapes, but it gives a new name to a size that a Reshape leaves open and forgets the names that a
model declares for its outputs. A gradient is summed unless two sizes are known to be equal, so these names
are traced back to those of the inputs here.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxsgd.gradient.portable.body_shapes import shape_loops
from onnxsgd.gradient.portable.writing.emitter import Emitter
from onnxsgd.gradient.portable.writing.known_shapes import (
    ELEMENTWISE,
    UNNAMED,
    Dim,
    Dims,
    broadcast,
    read_shape,
    to_shape,
)
from onnxsgd.graph.captured_constants import copy_constants_into_bodies
from onnxsgd.graph.model import nodes_within
from onnxsgd.graph.nodes import constant, standard_operator
from onnxsgd.graph.shape_inference import ShapeInferencePass

__all__ = ["infer_shapes"]

#: Operators that read the shape of their result, and the index of that input.
_SHAPED_BY = {"ConstantOfShape": 0, "Reshape": 1}

#: Operators whose result has the type and shape of their first input, although their definition hides it.
_LIKE_FIRST = frozenset({"GroupNormalization"})


def infer_shapes(model: ir.Model, emitter: Emitter) -> None:
    """Infer the shapes of a graph in place, and pass the dimensions of each value to `emitter`.

    Declared shapes of inputs and outputs stay; their unnamed dimensions have names for `emitter` only.
    """
    graph = model.graph
    declared = {value: value.shape for value in (*graph.inputs, *graph.outputs)}
    for value, shape in declared.items():
        named = read_shape(shape, value.name or "") if value.producer() is None else None
        value.shape = None if named is None else ir.Shape(named)
    copy_constants_into_bodies(graph)
    infer = ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)
    infer(model)
    while _complete_shapes(graph):
        infer(model)
    for value, dims in _read_equal(graph, declared).items():
        emitter.tensor(value, dims)
        shape = declared.get(value)
        value.shape = to_shape(dims) if shape is None else shape


def _complete_shapes(graph: ir.Graph) -> bool:
    """Set shapes that depend on a computed one, of unknown sizes if need be; return whether one was found.

    onnx infers nothing from a computed shape, even where its number of elements fixes the rank.
    """
    found = shape_loops(graph)
    for node in nodes_within(graph):
        output, shape = node.outputs[0], None
        if output.shape is None and node.domain == "":
            shape = _shape_by_operator(node)
        if shape is not None and output.type is not None:
            output.shape, found = shape, True
    return found


def _shape_by_operator(node: ir.Node) -> ir.Shape | None:
    """Return the shape of the first output of a node, as far as the operator alone determines it."""
    operator = standard_operator(node)
    if operator in _LIKE_FIRST and node.inputs[0] is not None:
        node.outputs[0].type = node.inputs[0].type
        return node.inputs[0].shape
    return _held_shape(node.inputs[_SHAPED_BY[operator]]) if operator in _SHAPED_BY else None


def _held_shape(computed: ir.Value | None) -> ir.Shape | None:
    """Return the shape that a computed vector of sizes denotes, as far as it is known."""
    node = None if computed is None else computed.producer()
    if node is not None and node.op_type == "Shape" and not node.attributes and node.inputs[0] is not None:
        return node.inputs[0].shape
    length = None if computed is None or computed.shape is None else computed.shape[0]
    return ir.Shape([None] * length) if isinstance(length, int) else None


def _read_equal(graph: ir.Graph, declared: dict[ir.Value, ir.Shape | None]) -> dict[ir.Value, Dims]:
    """Return the shape of each value, with one name for all sizes that are known to be equal."""
    names: dict[Dim, Dim] = {}
    dims = {value: _read(value) for value in (*graph.inputs, *graph.initializers.values())}
    for node in graph:
        operands = [_renamed(names, dims.get(value)) for value in node.inputs if value is not None]
        for value in node.outputs:
            dims[value] = _read(value)
            _match(names, dims[value], read_shape(declared.get(value), value.name or ""))
        if node.op_type == "Reshape":
            _match_reshape(names, node, operands[0], dims[node.outputs[0]])
        elif standard_operator(node) in ELEMENTWISE:
            _match(names, dims[node.outputs[0]], broadcast(*operands))
        for value in node.outputs:
            if dims[value] is None:
                dims[value] = read_shape(declared.get(value), value.name or "")
    return {value: _renamed(names, shape) for value, shape in dims.items()}


def _read(value: ir.Value) -> Dims:
    return read_shape(value.shape, value.name or "")


def _renamed(names: dict[Dim, Dim], dims: Dims) -> Dims:
    return None if dims is None else tuple(_root(names, dim) for dim in dims)


def _root(names: dict[Dim, Dim], dim: Dim) -> Dim:
    while dim in names:
        dim = names[dim]
    return dim


def _equate(names: dict[Dim, Dim], a: Dim, b: Dim) -> None:
    """Record equal sizes: a name made here is replaced by one of the graph, any name by a number."""
    a, b = _root(names, a), _root(names, b)
    if a == b:
        return
    if isinstance(a, int) or (isinstance(b, str) and b.startswith(UNNAMED)):
        a, b = b, a
    if isinstance(a, str):
        names[a] = b


def _match(names: dict[Dim, Dim], inferred: Dims, other: Dims) -> None:
    """Record that two shapes of the same value are equal."""
    if inferred is not None and other is not None and len(inferred) == len(other):
        for a, b in zip(inferred, other, strict=True):
            _equate(names, a, b)


def _match_reshape(names: dict[Dim, Dim], node: ir.Node, before: Dims, after: Dims) -> None:
    """Find the size that a Reshape leaves open, if its other sizes are all those of the tensor but one."""
    shape = constant(node.inputs[1])
    if before is None or after is None or shape is None or "allowzero" in node.attributes:
        return
    sizes = shape.ravel().tolist()
    if -1 not in sizes or len(after) != len(sizes) or 0 in before:
        return
    named = [before[axis] if size == 0 else size for axis, size in enumerate(sizes) if size != -1]
    left = list(before)
    for size in (size for size in named if isinstance(size, str)):
        left.remove(size)
    numbers = [math.prod(size for size in side if isinstance(size, int)) for side in (left, named)]
    unknown = [size for size in left if isinstance(size, str)]
    if numbers[0] == numbers[1] and len(unknown) == 1:
        _equate(names, after[sizes.index(-1)], unknown[0])
