"""Picks of one place of an axis, made before the tensor is transposed and reshaped.

A network that reads the last step of a sequence, or its first token, transposes all of them before, and so
does the gradient, of which all but one step are zeros.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import attribute, constant, graph_of, maker, standard_operator
from onnxsgd.graph.writing import add_initializer, computed, new_node, replace_output

__all__ = ["put_picks_first"]


def put_picks_first(graph: ir.Graph) -> None:
    """Move each Gather by a number before the Transpose and the Reshape of its input, in place.

    Cases, each with no other reader of the tensor between:

    - ``Gather(Transpose(x), k)``;
    - ``Gather(Reshape(x, sizes), k)``, where the constant sizes keep the axis and those before it.
    """
    names = graph_names(graph)
    for node in list(graph):
        pick: ir.Node | None = node
        while pick is not None and standard_operator(pick) == "Gather":
            pick = _moved(pick, names)


def _moved(pick: ir.Node, names: set[str]) -> ir.Node | None:
    """Move a Gather before the node behind it; return the new one, or None if it stays."""
    table, index = pick.inputs[0], constant(pick.inputs[1])
    behind = None if table is None else table.producer()
    is_alone = behind is not None and len(behind.outputs[0].uses()) == 1
    if behind is None or index is None or index.ndim or not is_alone or behind.graph is not pick.graph:
        return None
    if behind.outputs[0].is_graph_output():
        return None
    form = standard_operator(behind)
    if form == "Transpose":
        return _before_transpose(pick, behind, names)
    return _before_reshape(pick, behind, names) if form == "Reshape" else None


def _before_transpose(pick: ir.Node, behind: ir.Node, names: set[str]) -> ir.Node | None:
    perm = attribute(behind, "perm", None)
    if perm is None:
        return None
    source = perm[attribute(pick, "axis", 0) % len(perm)]
    rest = [place - (place > source) for place in perm if place != source]
    moved = _gather(pick, behind, source, names)
    if rest == sorted(rest):
        return _replace(pick, moved, moved.outputs[0])
    return _replace(pick, moved, computed("Transpose", moved.outputs, {"perm": rest}))


def _before_reshape(pick: ir.Node, behind: ir.Node, names: set[str]) -> ir.Node | None:
    sizes, source = constant(behind.inputs[1]), behind.inputs[0]
    if sizes is None or source is None or attribute(behind, "allowzero", 0):
        return None
    axis, known = attribute(pick, "axis", 0) % len(sizes), list(source.shape or ())
    before = sizes[: axis + 1].tolist()
    if any(size and [size] != known[place : place + 1] for place, size in enumerate(before)):
        return None
    name = unique_name(f"{pick.outputs[0].name}_sizes", names)
    rest = add_initializer(graph_of(pick), name, np.delete(sizes, axis))
    moved = _gather(pick, behind, axis, names)
    return _replace(pick, moved, computed("Reshape", [moved.outputs[0], rest]))


def _gather(pick: ir.Node, behind: ir.Node, axis: int, names: set[str]) -> ir.Node:
    """Return the same Gather from the tensor before another node."""
    picked = ir.Value(name=unique_name(f"{pick.outputs[0].name}_picked", names), type=pick.outputs[0].type)
    return new_node("Gather", [behind.inputs[0], pick.inputs[1]], [picked], {"axis": axis})


def _replace(pick: ir.Node, moved: ir.Node, result: ir.Value) -> ir.Node:
    """Write a Gather, and the result that is made of its own, in the place of another one; return it."""
    graph, behind = graph_of(pick), pick.inputs[0]
    written = [moved] if result is moved.outputs[0] else [moved, maker(result)]
    graph.insert_before(pick, written)
    replace_output(pick.outputs[0], result)
    unused = [pick] if behind is None else [pick, maker(behind)]
    graph.remove(unused, safe=True)
    return moved
