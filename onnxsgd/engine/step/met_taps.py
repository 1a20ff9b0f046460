"""Kernels of which a loop over batches carries only the taps that meet an image.

Where an image is smaller than a kernel, some taps meet padding alone. The layer then reads the others, by a
product with a matrix of zeros and ones, and the update changes no other ones; and yet a weight of 512 x 512 x
3 x 3 numbers, of which the centre is met, is read and written as a whole in each update. In the loop, the met
taps take the place of the weight, which is put together again at its end.

``benchmarks/networks.py``, resnet18, whose last stage has images of 1 x 1: 0.81 of the time of an update.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxsgd.engine.step.fuse import add_products
from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import attribute, constant, first, fixed_size, maker, operands, shape_of
from onnxsgd.graph.writing import add_initializer, computed

if TYPE_CHECKING:
    from onnxsgd._builder import Builder

__all__ = ["MetTaps", "carry_met_taps"]


@dataclass(frozen=True)
class MetTaps:
    """The met taps of a weight, carried as a table [m, c x met].

    Attributes
    ----------
    shape : tuple of int
        The shape of the weight: [m, c, ...].
    matrix : ndarray of shape [taps, met]
        One where a column picks a tap, else zero.
    """

    shape: tuple[int, ...]
    matrix: np.ndarray

    @property
    def table(self) -> tuple[int, int]:
        """The shape of the table."""
        return self.shape[0], math.prod(self.shape) // self.shape[0] // len(self.matrix) * self.matrix.shape[
            1
        ]

    def taken(self, op: Builder, weight: ir.Value) -> ir.Value:
        """Return the table of a weight."""
        rows = op.Reshape(weight, [-1, len(self.matrix)])
        return op.Reshape(op.MatMul(rows, op.Constant(value=ir.tensor(self.matrix))), list(self.table))

    def put_back(self, op: Builder, weight: ir.Value, table: ir.Value) -> ir.Value:
        """Return the weight with the taps of a table in place of its own.

        They are cleared in rows of all channels: the runtime takes 2.5 times as long for rows of 9 taps, 3.9
        in place of 2.3 ms for all of this with 512 x 512 x 3 x 3 numbers.
        """
        rest = (1 - self.matrix.sum(axis=1)).astype(self.matrix.dtype)
        n_rows, width = self.shape[0], math.prod(self.shape[1:])
        kept_taps = op.Constant(value=ir.tensor(np.tile(rest, width // len(rest))[None]))
        kept = op.Mul(op.Reshape(weight, [n_rows, width]), kept_taps)
        rows = op.Reshape(table, [-1, self.matrix.shape[1]])
        turned = op.Constant(value=ir.tensor(np.ascontiguousarray(self.matrix.T)))
        sum_ = op.Add(op.Reshape(kept, [-1, len(rest)]), op.MatMul(rows, turned))
        return op.Reshape(sum_, list(self.shape))


@dataclass(frozen=True)
class _Kernel:
    """The nodes of a step around a weight of which some taps are met.

    Attributes
    ----------
    taps : MetTaps
        The taps.
    rows : ir.Value
        The met taps, [m x c, met].
    change : ir.Value
        Their part of the update, of as many elements, in the same order.
    """

    taps: MetTaps
    rows: ir.Value
    change: ir.Value


def carry_met_taps(
    model: ir.Model, carried: Sequence[tuple[ir.Value, ir.Value]]
) -> tuple[list[tuple[ir.Value, ir.Value]], dict[int, MetTaps]]:
    """Let a step read and return tables of met taps in place of weights where it can.

    Case: a weight W that two nodes read, ``MatMul(Reshape(W, [m c, taps]), e)`` with columns of the identity
    e [taps, met], and ``Add(W, g)``, the new weight, where g is a product with the transpose of e.

    Parameters
    ----------
    model : ir.Model
        The step, changed in place.
    carried : sequence of (ir.Value, ir.Value)
        Its old and new weights and states.

    Returns
    -------
    list of (ir.Value, ir.Value)
        The old and new weights, states and tables, in the same order.
    dict
        The taps of each table, under its index.
    """
    graph, result, found = model.graph, list(carried), dict[int, MetTaps]()
    names = graph_names(graph)
    for index, (old, new) in enumerate(carried):
        kernel = _read(graph, old, new)
        if kernel is not None:
            result[index] = _carry(graph, names, kernel, old, new)
            found[index] = kernel.taps
    if found:
        RemoveUnusedNodesPass()(model)
        add_products(graph)
        # the runtime computes products that nothing reads in the body of a loop
        RemoveUnusedNodesPass()(model)
    return result, found


def _carry(
    graph: ir.Graph, names: set[str], kernel: _Kernel, old: ir.Value, new: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Replace a weight by its table; return the old and the new one."""
    shape = kernel.taps.table
    table = ir.Value(name=unique_name(f"{old.name}_taps", names), type=old.type, shape=ir.Shape(shape))
    rows = _reshaped(graph, names, table, shape_of(kernel.rows).numpy())
    if rows is not table:
        graph.insert_before(graph[0], maker(rows))
    ir.convenience.replace_all_uses_with(kernel.rows, rows)
    change = _reshaped(graph, names, kernel.change, shape)
    moved = computed("Add", [table, change], name=unique_name(f"{new.name}_taps", names), like=table)
    graph.insert_before(maker(new), [*([maker(change)] if change is not kernel.change else []), maker(moved)])
    graph.inputs[list(graph.inputs).index(old)] = table
    graph.outputs[list(graph.outputs).index(new)] = moved
    return table, moved


def _reshaped(graph: ir.Graph, names: set[str], x: ir.Value, sizes: Sequence[int]) -> ir.Value:
    """Return `x`, or the result of a new node that reshapes it."""
    if shape_of(x) == tuple(sizes):
        return x
    target = add_initializer(graph, unique_name(f"{x.name}_shape", names), np.array(sizes, np.int64))
    value = computed("Reshape", [x, target], name=unique_name(f"{x.name}_table", names))
    value.type, value.shape = x.type, ir.Shape(sizes)
    return value


def _read(graph: ir.Graph, old: ir.Value, new: ir.Value) -> _Kernel | None:
    """Return a kernel of which some taps are met, or None for another weight."""
    add, readers = new.producer(), {node for node, _ in old.uses()}
    if (
        new.uses()
        or add is None
        or add.op_type != "Add"
        or add not in readers
        or len(readers) != 2
        or len(old.uses()) != 2
    ):
        return None
    (reshape,) = readers - {add}
    pick = _only_reader(reshape.outputs[0]) if reshape.op_type == "Reshape" else None
    matrix = None if pick is None or pick.op_type != "MatMul" else constant(pick.inputs[1])
    if pick is None or matrix is None or pick.inputs[0] is not reshape.outputs[0] or not _picks(matrix):
        return None
    sizes = tuple(shape_of(old).numpy())
    if len(sizes) < 2 or math.prod(sizes[1:]) % len(matrix):
        # the product regroups the numbers of several rows
        return None
    taps = MetTaps(sizes, matrix)
    given = add.inputs[1] if add.inputs[0] is old else add.inputs[0]
    change = None if given is None else _change(graph, given, taps)
    return None if change is None else _Kernel(taps, pick.outputs[0], change)


def _picks(matrix: np.ndarray) -> bool:
    """Tell whether the columns are some of those of the identity."""
    if matrix.ndim != 2:
        return False
    taps, met = matrix.shape
    return met < taps and np.array_equal(matrix, np.eye(taps)[:, matrix.argmax(axis=0)])


def _change(graph: ir.Graph, given: ir.Value, taps: MetTaps) -> ir.Value | None:
    """Return the met part of a change that holds zeros for the other taps.

    Cases: ``MatMul(rows, t)`` of rows [m c, met] and the transpose t of the matrix; ``MatMul(a, d)`` with few
    terms n, where d [n, c taps] is such a product, reshaped.
    """
    product = _product_below(given)
    if product is None:
        return None
    a, d = operands(product)
    if _is_spread(product, taps):
        return _below_reshapes(a)
    parts = _product_below(d)
    if parts is None or not _is_spread(parts, taps) or attribute(product, "transB", 0):
        return None
    (m, width), names = taps.table, graph_names(graph)
    if product.outputs[0].shape is None or product.outputs[0].shape[0] != m:
        return None
    rows = _below_reshapes(first(parts))
    narrow = _reshaped(graph, names, rows, [fixed_size(d, 0), width])
    change = computed(
        product.op_type, [a, narrow], dict(product.attributes), name=unique_name(f"{given.name}_taps", names)
    )
    change.type, change.shape = given.type, ir.Shape([m, width])
    graph.insert_before(product, [*([] if narrow is rows else [maker(narrow)]), maker(change)])
    return change


def _is_spread(product: ir.Node, taps: MetTaps) -> bool:
    """Tell whether a product is one with the transpose of the matrix."""
    factor = constant(product.inputs[1])
    if factor is None or attribute(product, "alpha", 1.0) != 1.0 or attribute(product, "transA", 0):
        return False
    return np.array_equal(factor.T if not attribute(product, "transB", 0) else factor, taps.matrix)


def _product_below(value: ir.Value | None) -> ir.Node | None:
    """Return the product of two factors that a value is, or a Reshape of."""
    node = None if value is None else _below_reshapes(value).producer()
    is_product = node is not None and node.op_type in ("MatMul", "Gemm") and len(node.inputs) == 2
    return node if is_product else None


def _below_reshapes(value: ir.Value) -> ir.Value:
    node = value.producer()
    while node is not None and node.op_type == "Reshape" and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def _only_reader(value: ir.Value) -> ir.Node | None:
    """Return the node that reads a value, if it is the only one."""
    readers = [node for node, _ in value.uses()]
    return readers[0] if len(readers) == 1 and not value.is_graph_output() else None
