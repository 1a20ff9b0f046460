"""Large tables from which a loop picks a few rows: their gradient is summed once, after the loop.

Summed in the loop, the gradient costs passes over the whole table in each iteration. Instead the rows of all
iterations are stacked, padded with zeros to the largest number of rows. An update of an embedding bag of
20,000 x 16 that torch exports as a Loop, 8 bags of 10: 0.64 ms, with sums 1.83.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.gradient.portable.rules.indexing import ADDING_SCATTER, gather_back
from onnxsgd.gradient.portable.writing.broadcasting import dim_of, number
from onnxsgd.gradient.portable.writing.call import Call
from onnxsgd.gradient.portable.writing.emitter import Emitter
from onnxsgd.gradient.portable.writing.known_shapes import UNNAMED
from onnxsgd.gradient.portable.writing.tensor import Tensor, op
from onnxsgd.graph.model import nodes_within
from onnxsgd.graph.nodes import attribute, constant, required
from onnxsgd.graph.writing import new_node

__all__ = ["Picks", "picked_tables"]

#: Elements of a table from which on sums cost more than the nodes that stack rows: a carried sum passes over
#: the whole table three times in each iteration. A bound by that, not measured for each size.
_LARGE = 2**15

#: Least number of rows of a table per row picked in an iteration, if known: all picked rows are stacked, in
#: memory that grows with the iterations. A bound by that, not measured.
_FEW = 64


def picked_tables(n: Call, graph: ir.Graph, captured: Iterable[ir.Value]) -> list[ir.Value]:
    """Return the large tables of which the body of a loop only picks rows, others in each iteration."""
    if n.opset < ADDING_SCATTER:
        return []
    return [value for value in captured if _is_picked(n.emitter.tensor(value), graph)]


def _is_picked(table: Tensor, graph: ir.Graph) -> bool:
    if not table.is_static or table.dims is None or math.prod(map(int, table.dims)) < _LARGE:
        return False
    value, top = table.value, set(graph)
    readers = [node for node in nodes_within(graph) if value in node.inputs]
    if not readers or any(value in part.outputs for part in (graph, *graph.subgraphs())):
        return False
    return all(node in top and _picks_few(node, table, graph) for node in readers)


def _picks_few(node: ir.Node, table: Tensor, graph: ir.Graph) -> bool:
    """Return whether a node is a Gather of few rows, with indices that the body computes or receives."""
    indices = node.inputs[1]
    if node.op_type != "Gather" or attribute(node, "axis", 0) != 0:
        return False
    if indices is None or indices.graph is not graph or constant(indices) is not None:
        return False
    rows = [dim for dim in indices.shape or () if isinstance(dim, int)]
    return indices.shape is not None and math.prod(rows) * _FEW <= int((table.dims or (0,))[0])


@dataclass
class Picks:
    """The picks from some tables in the body of a loop.

    Attributes
    ----------
    tables : list of ir.Value
        From :func:`picked_tables`.
    most : list of Tensor
        For each Gather from one of the tables, the largest number of rows in an iteration, as a vector.
    """

    tables: list[ir.Value]
    most: list[Tensor]

    @staticmethod
    def counted(graph: ir.Graph, tables: list[ir.Value], emitter: Emitter) -> list[ir.Value]:
        """Count the rows that each Gather of a body picks, in the body, and return the counts."""
        counts = []
        for node in _gathers(graph, tables):
            kind, name = ir.TensorType(ir.DataType.INT64), emitter.new_name()
            counts.append(ir.Value(name=name, type=kind, shape=ir.Shape([])))
            graph.append(new_node("Size", [node.inputs[1]], counts[-1:], name=name))
        return counts

    @classmethod
    def of(cls, tables: list[ir.Value], counts: Sequence[Tensor]) -> Picks:
        """Return the picks from `tables`, whose `counts` are stacked: one for each iteration."""
        # onnx's evaluator stacks numbers to a column.
        return cls(tables, [op.ReduceMax(op.Reshape(count, [-1]), keepdims=1) for count in counts])

    def nodes(self, body: Iterable[ir.Node]) -> list[ir.Node]:
        """Return the nodes of a body that pick."""
        return _gathers(body, self.tables)

    def stackable(self, nodes: Sequence[ir.Node], gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the indices and gradients of the rows of an iteration, padded to the same number of rows."""
        found = []
        for node, gradient, most in zip(nodes, gradients, self.most, strict=True):
            body = gradient.emitter
            places = op.Reshape(body.tensor(required(node, 1)).cast(ir.DataType.INT64), [-1])
            row = [int(dim) for dim in body.tensor(required(node, 0)).dims or ()][1:]
            rows = op.Reshape(gradient, [-1, *row])
            missing = op.Sub(body.borrow(most), op.Shape(places))
            found += [_filled(places, missing, []), _filled(rows, missing, row)]
        return found

    def gradients(self, nodes: Sequence[ir.Node], stacked: Sequence[Tensor]) -> list[tuple[ir.Value, Tensor]]:
        """Return the gradients of the tables, from the stacks of all iterations."""
        found = []
        for node, places, rows in zip(nodes, stacked[::2], stacked[1::2], strict=True):
            table = places.emitter.tensor(required(node, 0))
            row = (table.dims or ())[1:]
            lead = (f"{UNNAMED}iterations", f"{UNNAMED}rows")
            places, rows = places.known_as(lead), rows.known_as((*lead, *row))
            found.append((table.value, gather_back(rows, places, 0, dim_of(table, 0))))
        return found


def _gathers(nodes: Iterable[ir.Node], tables: list[ir.Value]) -> list[ir.Node]:
    return [node for node in nodes if node.op_type == "Gather" and node.inputs[0] in tables]


def _filled(rows: Tensor, missing: Tensor, row: list[int]) -> Tensor:
    """Return `rows`, each of shape `row`, padded with zeros: they add nothing to the first row of a table."""
    shape = op.Concat(missing, row, axis=0) if row else missing
    filled: Tensor = op.Concat(rows, op.Expand(number(rows, 0), shape), axis=0)
    return filled.known_as((f"{UNNAMED}{filled.value.name}", *row))
