"""Queries, keys and values that are picked from one transposed tensor, as the rows of a table.

The runtime makes a Split of the Gathers, takes it before the transposition, and then transposes each part by
itself, in more time than the whole. ``benchmarks/networks.py``: 0.97 of the time of an update of swin, 0.98
of vit.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, constant, first, standard_operator
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["PICKED_PART_FORMS"]

#: The note on parts that this form has written: a graph may have another Reshape and Split of the tensor.
_WRITTEN = "picked parts"


def _gather(w: Writer, node: ir.Node) -> ir.Value | None:
    """``Gather(Transpose(x), k, axis = 0)``, each number k picked by one node, and read by no other."""
    x = first(node)
    maker, sizes = x.producer(), [] if x.shape is None else list(x.shape)
    if maker is None or standard_operator(maker) != "Transpose" or x.dtype != ir.DataType.FLOAT:
        return None
    count, *kept = (size if isinstance(size, int) else -1 for size in sizes or [0])
    place = _place(node, count)
    if place is None or count < 2 or 0 in kept or not kept or kept.count(-1) > 1:
        return None
    parts = _parts_of(x, count) or _all_parts(w, x, count)
    if not parts:
        return None
    part = w.op.Reshape(parts[place], kept)
    part.type, part.shape = x.type, ir.Shape(sizes[1:])
    return part


def _all_parts(w: Writer, x: ir.Value, count: int) -> list[ir.Value]:
    """Write the parts of a tensor along its first axis, as rows; none if other nodes read it too."""
    places = [_place(reader, count) for reader, _ in x.uses()]
    if x.is_graph_output() or sorted(-1 if place is None else place for place in places) != list(
        range(count)
    ):
        return []
    parts = list(w.op.Split(w.op.Reshape(x, [count, -1]), [1] * count, axis=0, _outputs=count))
    parts[0].meta[_WRITTEN] = True
    return parts


def _parts_of(x: ir.Value, count: int) -> list[ir.Value]:
    """Return the parts that have been written for another reader of a tensor, or none."""
    for table, _ in x.uses():
        for reader, _ in table.outputs[0].uses() if standard_operator(table) == "Reshape" else ():
            if len(reader.outputs) == count and reader.outputs[0].meta.get(_WRITTEN):
                return list(reader.outputs)
    return []


def _place(node: ir.Node, count: int) -> int | None:
    """Return the number that a Gather picks of the first axis, None for another node."""
    if standard_operator(node) != "Gather" or attribute(node, "axis", 0) != 0 or count < 1:
        return None
    number = constant(node.inputs[1])
    return None if number is None or np.shape(number) != () else int(number) % count


#: The form of parts.
PICKED_PART_FORMS: Table = {("", "Gather"): _gather}
