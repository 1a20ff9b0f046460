"""Conversion of sequences filled by a loop to its scan outputs.

torch's newer exporter writes an EmbeddingBag so. A sequence that gets one tensor in each iteration, and is
joined after the loop, is the scan output of that tensor, with its axes in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.graph.captured_constants import copy_constants_into_bodies
from onnxsgd.graph.model import graph_names, nodes_within, unique_name
from onnxsgd.graph.nodes import attribute, first, fixed_size, graph_of, required, shape_of, standard_operator
from onnxsgd.graph.rewriting import Writer, rewrite
from onnxsgd.graph.shape_inference import ShapeInferencePass
from onnxsgd.graph.writing import copy_node, new_node

__all__ = ["stack_sequences"]


def stack_sequences(model: ir.Model) -> None:
    """Replace sequences filled by loops with scan outputs, in place.

    Precondition: no functions; constants are initializers. Result: a Loop of the main graph loses a sequence
    state that starts empty, gets one tensor at its end in each iteration, and is read after the loop by
    ConcatFromSequence alone. The size along the joined axis must be known; the other sizes are equal in all
    iterations, or the tensors could not be joined.
    """
    if not any(_is(node, "ConcatFromSequence") for node in model.graph):
        return
    shape_of, names = _inferred(model), graph_names(model.graph)
    for loop in [node for node in model.graph if _is(node, "Loop")]:
        for filled in list(_filled(loop, shape_of)):
            loop, stacked = _collect(loop, filled, names)
            rewrite(model, {("", "ConcatFromSequence"): _join}, [use.node for use in stacked.uses()])


@dataclass(frozen=True)
class _Filled:
    """A sequence that is a state of a loop.

    Attributes
    ----------
    state : int
        The index of the state.
    insert : ir.Node
        The node of the body that inserts a tensor.
    shape : ir.Shape
        The shape of this tensor.
    """

    state: int
    insert: ir.Node
    shape: ir.Shape


def _is(node: ir.Node | None, op_type: str) -> bool:
    return node is not None and standard_operator(node) == op_type


def _inferred(model: ir.Model) -> Callable[[ir.Value], ir.Shape | None]:
    """Return a function that gives the shape of a value, inferred through captured constants too."""
    copy = model.clone()
    copies = dict(zip(nodes_within(model.graph), nodes_within(copy.graph), strict=True))
    copy_constants_into_bodies(copy.graph)
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(copy)

    def shape_of(value: ir.Value) -> ir.Shape | None:
        node, index = value.producer(), value.index()
        return value.shape if node is None or index is None else copies[node].outputs[index].shape

    return shape_of


def _filled(node: ir.Node, shape_of: Callable[[ir.Value], ir.Shape | None]) -> Iterator[_Filled]:
    """Yield the sequences that can be scan outputs, from the last state to the first."""
    body = node.attributes["body"].as_graph()
    if len(body.inputs) != len(node.inputs) or len(body.outputs) != len(node.outputs) + 1:
        return
    for state in reversed(range(len(node.inputs) - 2)):
        before, after, result = body.inputs[2 + state], body.outputs[1 + state], node.outputs[state]
        start, insert = node.inputs[2 + state], after.producer()
        if start is None or insert is None or not _is(start.producer(), "SequenceEmpty"):
            continue
        if not _appends(insert, before) or result.is_graph_output():
            continue
        shape = shape_of(insert.inputs[1]) if insert.inputs[1] is not None else None
        if shape is not None and all(_can_join(use.node, shape) for use in result.uses()):
            yield _Filled(state, insert, shape)


def _appends(insert: ir.Node, state: ir.Value) -> bool:
    """Return whether a node appends a tensor to `state`, which no other node reads."""
    at_end = len(insert.inputs) == 2 or insert.inputs[2] is None
    read = [use.node for use in state.uses()] == [insert] and not insert.outputs[0].uses()
    return _is(insert, "SequenceInsert") and at_end and read and insert.inputs[0] is state


def _can_join(node: ir.Node, shape: ir.Shape) -> bool:
    axis, is_new = attribute(node, "axis"), attribute(node, "new_axis", 0)
    rank = len(shape) + is_new
    if not _is(node, "ConcatFromSequence") or not -rank <= axis < rank:
        return False
    return bool(is_new) or isinstance(shape[axis], int)


def _collect(loop: ir.Node, filled: _Filled, names: set[str]) -> tuple[ir.Node, ir.Value]:
    """Replace a Loop by one without the state; return it and its scan output of the inserted tensor."""
    body, graph = loop.attributes["body"].as_graph(), graph_of(loop)
    inserted = required(filled.insert, 1)
    # a body must compute all its outputs
    copy = ir.Value(name=unique_name(f"{inserted.name}_collected", names), type=inserted.type)
    copy.shape = filled.shape.copy()
    body.insert_before(filled.insert, new_node("Identity", [inserted], [copy], name=copy.name))
    body.outputs.pop(1 + filled.state)
    body.outputs.append(copy)
    body.remove(filled.insert, safe=True)
    body.inputs.pop(2 + filled.state)
    inputs = [value for index, value in enumerate(loop.inputs) if index != 2 + filled.state]
    old = [value for index, value in enumerate(loop.outputs) if index != filled.state]
    stacked = ir.Value(type=inserted.type, shape=ir.Shape([None, *filled.shape]))
    kept = [ir.Value(type=value.type, shape=value.shape) for value in old]
    new = copy_node(loop, inputs, [*kept, stacked])
    for before, after in zip((*old, loop.outputs[filled.state]), new.outputs, strict=True):
        name, before.name = before.name, None
        ir.convenience.replace_all_uses_with(before, after, replace_graph_outputs=True)
        after.name = name
    graph.insert_before(loop, new)
    graph.remove(loop, safe=True)
    return new, stacked


def _join(w: Writer, node: ir.Node) -> ir.Value:
    """Return the tensors stacked along the first axis, stacked or joined along another one."""
    stacked = first(node)
    shape = shape_of(stacked)
    axis, is_new = attribute(node, "axis"), attribute(node, "new_axis", 0)
    axis %= len(shape) - 1 + is_new
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
    moved = w.op.Transpose(stacked, perm=order) if axis else stacked
    if is_new:
        return moved if axis else w.op.Identity(moved)
    size = fixed_size(stacked, axis + 1)
    if size == 1:
        return w.op.Squeeze(moved, [axis + 1])
    sizes = w.op.Shape(moved)
    joined = w.op.Mul(w.op.Slice(sizes, [axis], [axis + 1]), [size])
    behind = w.op.Slice(sizes, [axis + 2], [len(order)])
    return w.op.Reshape(moved, w.op.Concat(w.op.Slice(sizes, [0], [axis]), joined, behind, axis=0))
