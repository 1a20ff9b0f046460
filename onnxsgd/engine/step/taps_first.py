"""Kernels that a loop over batches carries with their taps before their channels.

A convolution of small images reads its weight [m, c, taps] as a table [m, taps x c], and the gradient is made
as such a table. In the loop the table takes the place of the weight: neither is moved in each update, and the
product that makes the gradient adds the weight.

``benchmarks/networks.py``, resnet18: 0.83 of the time of an update with moved weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxsgd.engine.step.fuse import add_products
from onnxsgd.engine.step.transposed_tables import operands_of_its_shape
from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import attribute, maker, shape_of
from onnxsgd.graph.writing import add_initializer, computed

if TYPE_CHECKING:
    from onnxsgd._builder import Builder

__all__ = ["TapsFirst", "carry_taps_first"]


@dataclass(frozen=True)
class TapsFirst:
    """The form of a weight, or of a state of it, that a loop carries as a table [m, taps x c].

    Attributes
    ----------
    shape : tuple of int
        The shape of the weight: [m, c, ...].
    """

    shape: tuple[int, ...]

    @property
    def table(self) -> tuple[int, int]:
        """The shape of the table."""
        return self.shape[0], math.prod(self.shape[1:])

    def taken(self, op: Builder, weight: ir.Value) -> ir.Value:
        """Return the table that the loop begins with."""
        by_tap = op.Transpose(op.Reshape(weight, [*self.shape[:2], -1]), perm=[0, 2, 1])
        return op.Reshape(by_tap, list(self.table))

    def put_back(self, op: Builder, weight: ir.Value, table: ir.Value) -> ir.Value:
        """Return the weight after the loop; `weight` is that before it."""
        m, c = self.shape[:2]
        return op.Reshape(op.Transpose(op.Reshape(table, [m, -1, c]), perm=[0, 2, 1]), list(self.shape))


def carry_taps_first(model: ir.Model, carried: Sequence[tuple[ir.Value, ir.Value]]) -> dict[int, TapsFirst]:
    """Let a step read and return tables with the taps first in place of weights, and of their states.

    Case: a weight that its layer reads as ``Reshape(Transpose<perm=[0, 2, 1]>(Reshape(W, [m, c, taps])), [m,
    taps c])``, and whose new value follows by elementwise operators from it, from the states, and from a
    gradient that is made from a table by the inverse. The numbers stay the same but for rounding.
    `model` is changed in place; `carried` and the result are as in
    :func:`~onnxsgd.engine.step.transposed_tables.carry_transposed`.
    """
    graph, found = model.graph, dict[int, TapsFirst]()
    places = {value: index for index, pair in enumerate(carried) for value in pair}
    names = graph_names(graph)
    for index, (old, _) in enumerate(carried):
        values = _connected(graph, old, dict(carried)) if index not in found else None
        if values is None:
            continue
        form = TapsFirst(tuple(shape_of(old).numpy()))
        for value in values:
            _rearrange(graph, names, value, form)
            if value in places:
                found[places[value]] = form
        for value in values:
            if value.is_graph_input():
                value.name = unique_name(f"{value.name}_taps_first", names)
    if found:
        RemoveUnusedNodesPass()(model)
        add_products(graph)
        # the runtime computes products that nothing reads in the body of a loop
        RemoveUnusedNodesPass()(model)
    return found


def _connected(
    graph: ir.Graph, weight: ir.Value, after: Mapping[ir.Value, ir.Value]
) -> list[ir.Value] | None:
    """Return a weight and those that elementwise operators connect with it; None if one has to stay."""
    if weight.shape is None or len(weight.shape) < 3 or not weight.shape.is_static():
        return None
    if all(_table_of(reader) is None for reader, _ in weight.uses()):
        return None
    before = {new: old for old, new in after.items()}
    values = [weight]
    # the list grows during the loop
    for value in values:
        node = value.producer()
        pair = after.get(value) if node is None else before.get(value)
        if value.shape != weight.shape or (pair is None and (node is None or value.is_graph_output())):
            return None
        nodes = [reader for reader, _ in value.uses() if _table_of(reader) is None]
        if node is not None and _source_of(node) is None:
            nodes.append(node)
        further = [] if pair is None else [pair]
        for each in nodes:
            operands = operands_of_its_shape(each, weight) if each.graph is graph else None
            if operands is None or len(each.outputs) != 1:
                return None
            further += [*operands, each.outputs[0]]
        values.extend(each for each in dict.fromkeys(further) if each not in values)
    return values


def _rearrange(graph: ir.Graph, names: set[str], value: ir.Value, form: TapsFirst) -> None:
    """Give a value the shape of a table, and those that read it, or make it, from a table that table."""
    node = value.producer()
    source = None if node is None else _source_of(node)
    for reader, _ in value.uses():
        if (table := _table_of(reader)) is not None:
            ir.convenience.replace_all_uses_with(table, value)
    value.shape = ir.Shape(form.table)
    if node is None or source is None:
        return
    if source.shape != value.shape:
        sizes = add_initializer(graph, unique_name(f"{value.name}_sizes", names), np.array(form.table))
        source = computed("Reshape", [source, sizes], name=unique_name(f"{value.name}_table", names))
        source.type, source.shape = value.type, value.shape
        graph.insert_before(node, maker(source))
    ir.convenience.replace_all_uses_with(value, source)


def _table_of(reader: ir.Node) -> ir.Value | None:
    """Return the table [m, taps x c] that a layer makes of a weight with this reader, or None.

    A weight of one axis of taps is read by the Transpose, others by a Reshape to [m, c, taps].
    """
    apart = reader.inputs[0] if _swaps(reader) else reader.outputs[0]
    transpose = reader if _swaps(reader) else None
    if reader.op_type == "Reshape":
        transpose = _only_reader(apart) if apart is not None else None
    last = None if transpose is None or not _swaps(transpose) else _only_reader(transpose.outputs[0])
    if last is None or last.op_type != "Reshape":
        return None
    m, c = _sizes(reader.inputs[0])[:2]
    is_table = _sizes(last.outputs[0]) == [m, math.prod(_sizes(apart)[1:])]
    return last.outputs[0] if is_table and _sizes(apart)[:2] == [m, c] else None


def _source_of(node: ir.Node) -> ir.Value | None:
    """Return the table [m, taps x c], or [m, taps, c], that a node makes [m, c, ...] of, or None."""
    transpose = _producer(node.inputs[0]) if node.op_type == "Reshape" else node
    if transpose is None or not _swaps(transpose):
        return None
    if _sizes(node.outputs[0])[:2] != _sizes(transpose.outputs[0])[:2]:
        return None
    apart = transpose.inputs[0]
    below = _producer(apart)
    if below is None or below.op_type != "Reshape":
        return apart
    table = below.inputs[0]
    return table if _sizes(table) == [_sizes(apart)[0], math.prod(_sizes(apart)[1:])] else apart


def _swaps(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and list(attribute(node, "perm", ())) == [0, 2, 1]


def _only_reader(value: ir.Value) -> ir.Node | None:
    """Return the node that reads a value, if it is the only one."""
    readers = [node for node, _ in value.uses()]
    return readers[0] if len(readers) == 1 and not value.is_graph_output() else None


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _sizes(value: ir.Value | None) -> list[int]:
    """Return the shape of a tensor, empty if a size is unknown."""
    if value is None or value.shape is None or not value.shape.is_static():
        return []
    return list(value.shape.numpy())
