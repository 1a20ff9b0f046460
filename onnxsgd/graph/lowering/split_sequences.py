"""Conversion of sequences of parts, read at constant positions, to a Split.

torch's newer exporter, without its optimizer, writes split, chunk and the projections of an attention so. An
operator on sequences has no gradient in any engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import attribute, constant, first, graph_of, maker, standard_operator
from onnxsgd.graph.writing import add_initializer, computed, new_node, replace_output

__all__ = ["split_sequences"]

#: The most parts of a Split; a file may declare an axis of any size.
_MAX_PARTS = 4096


def split_sequences(model: ir.Model) -> bool:
    """Replace parts of tensors that are read from sequences by parts of a Split, in place.

    Precondition: constants are initializers, types and shapes are inferred as far as possible. Result: a
    SequenceAt at a constant position of a SplitToSequence of the main graph is an output of a Split, under
    its name. The number of parts must be known, from the sizes or from the axis that is split.

    Parameters
    ----------
    model : ir.Model
        The model.

    Returns
    -------
    bool
        Whether there were any.
    """
    found = [(node, sizes, read) for node in model.graph for sizes, read in [_parts(node)] if read]
    names = graph_names(model.graph) if found else set()
    for node, sizes, read in found:
        _split(node, sizes, read, names)
    return bool(found)


def _parts(node: ir.Node) -> tuple[list[int], dict[ir.Node, int]]:
    """Return the sizes of the parts of a SplitToSequence, and the positions that nodes read."""
    if standard_operator(node) != "SplitToSequence":
        return [], {}
    sizes = _sizes(node)
    positions = {reader: _position(reader, len(sizes)) for reader, _ in node.outputs[0].uses()}
    return sizes, {reader: position for reader, position in positions.items() if position is not None}


def _sizes(node: ir.Node) -> list[int]:
    """Return the sizes of the parts; none if they are not known, too many, or do not fill the axis."""
    given, whole = np.array(1) if _is_unbound(node) else _integers(node.inputs[1]), _size(node)
    if given is None or given.size > _MAX_PARTS or given.min(initial=0) < 0:
        return []
    if given.ndim:
        sizes = given.tolist()
        return sizes if whole in (None, sum(sizes)) else []
    if _loses_axis(node) and not _is_unbound(node):
        # onnxruntime 1.32 takes the axis away from parts of one given size, against the standard
        return []
    size = int(given)
    if whole is None or size < 1 or math.ceil(whole / size) > _MAX_PARTS:
        return []
    return [min(size, whole - start) for start in range(0, whole, size)]


def _is_unbound(node: ir.Node) -> bool:
    """Return whether the parts of a SplitToSequence are single elements, as no sizes are given."""
    return len(node.inputs) == 1 or node.inputs[1] is None


def _loses_axis(node: ir.Node) -> bool:
    return not attribute(node, "keepdims", 1)


def _integers(value: ir.Value | None) -> np.ndarray | None:
    array = constant(value)
    return array if array is not None and array.dtype.kind == "i" else None


def _size(node: ir.Node) -> int | None:
    """Return the size of the axis that a SplitToSequence splits; None if it is not known."""
    shape, axis = first(node).shape, attribute(node, "axis", 0)
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    size = shape[axis]
    return size if isinstance(size, int) else None


def _position(node: ir.Node, count: int) -> int | None:
    """Return the position of `count` ones that a SequenceAt reads; None for another node."""
    position = _integers(node.inputs[1]) if standard_operator(node) == "SequenceAt" else None
    if position is None or position.size != 1 or not -count <= position.item() < count:
        return None
    return int(position.item()) % count


def _split(node: ir.Node, sizes: list[int], read: Mapping[ir.Node, int], names: set[str]) -> None:
    """Write a Split before `node`, and its parts in the places of the nodes of `read`."""
    x, axis, graph = first(node), attribute(node, "axis", 0), graph_of(node)
    base = node.outputs[0].name
    given = add_initializer(graph, unique_name(f"{base}_sizes", names), np.array(sizes, np.int64))
    parts = [ir.Value(name=unique_name(f"{base}_part", names), type=x.type) for _ in sizes]
    graph.insert_before(node, new_node("Split", [x, given], parts, {"axis": axis}))
    axes = []
    if _is_unbound(node) and _loses_axis(node):
        axes = [add_initializer(graph, unique_name(f"{base}_axis", names), np.array([axis], np.int64))]
    for reader, position in read.items():
        # two nodes may read one part, under two names
        part = computed("Squeeze" if axes else "Identity", [parts[position], *axes])
        graph_of(reader).insert_before(reader, maker(part))
        replace_output(reader.outputs[0], part)
        graph_of(reader).remove(reader, safe=True)
