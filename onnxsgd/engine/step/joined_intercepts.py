"""Intercepts of first layers that a loop over batches carries in one table with the weight.

A column of ones beside the inputs makes the intercepts a row of the weight: the product that computes the
next weight computes the next intercepts too, and the forward pass adds none. The update of a layer of 100
units on 20 inputs saves 0.3 us with 10 rows, 2 us with 256.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import (
    attribute,
    constant,
    element_type,
    graph_of,
    maker,
    required,
    shape_of,
)

if TYPE_CHECKING:
    from onnxsgd._builder import Builder

__all__ = ["LANES", "Joined", "is_plain", "join_intercepts", "plain_sum", "sum_of"]

#: The most inputs of such a layer, whose rows are copied beside the ones. ``benchmarks/constants.py``, whole
#: fits, 100 units, batches of 32: 0.95 to 1.01 of the time with 5 to 31 inputs, 0.98 to 1.02 with 41 and 60.
_MOST_INPUTS = 32
#: The most rows of a batch where a layer has fewer units: to copy rows takes longer than their sum. An epoch
#: of one unit takes 0.95 of the time with 32 rows, 0.98 with 64, 1.01 with 128, 1.02 with 256; of 16 units,
#: 1.02 with 256.
_MOST_ROWS, _MANY_UNITS = 64, 32
#: The columns of a product that the runtime computes together: one more needs others where all are in use.
LANES = 16


@dataclass(frozen=True)
class Joined:
    """A weight and intercepts in one table.

    Attributes
    ----------
    weight, intercept : int
        Their indices among the weights and states.
    table : ir.Value
        The table, an input of the step.
    axis : int
        The axis of the table at whose end the intercepts are.
    constant : float
        The number that the intercepts are multiplied by in the layer: 1 or -1.
    unit : float or None
        The weight of that number in a further output of the layer, whose other weights are zero; None: the
        layer has none.
    """

    weight: int
    intercept: int
    table: ir.Value
    axis: int
    constant: float = 1.0
    unit: float | None = None

    def taken(self, op: Builder, weight: ir.Value, intercept: ir.Value) -> ir.Value:
        """Return the table that the loop begins with."""
        row = op.Reshape(intercept, [1, -1] if self.axis == 0 else [-1, 1])
        table = op.Concat(weight, row if self.constant == 1 else op.Neg(row), axis=self.axis)
        if self.unit is None:
            return table
        column = np.zeros(shape_of(self.table).numpy()[self.axis], element_type(self.table).numpy())
        column[-1] = self.unit
        further = op.initializer(ir.tensor(np.expand_dims(column, 1 - self.axis)), f"{self.table.name}_unit")
        return op.Concat(table, further, axis=1 - self.axis)

    def put_back(self, op: Builder, table: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return weight and intercepts after the loop."""
        sizes = list(shape_of(self.table).numpy())
        if self.unit is not None:
            table, _ = op.Split(table, [sizes[1 - self.axis] - 1, 1], axis=1 - self.axis, _outputs=2)
        weight, row = op.Split(table, [sizes[self.axis] - 1, 1], axis=self.axis, _outputs=2)
        intercept = op.Reshape(row, [1, -1])
        return weight, intercept if self.constant == 1 else op.Neg(intercept)


def join_intercepts(graph: ir.Graph, carried: Sequence[tuple[ir.Value, ir.Value]]) -> list[Joined]:
    """Let a step read and return tables of weight and intercepts where both are updated by plain products.

    Case: ``z = Gemm(x, W, b)`` of an input x that has few columns, ``W' = Gemm<transA=1>(x, g, W)`` and
    ``b' = Gemm(ones, g, b)``, or the same with transposes of W, z and g; nothing else reads x, W and b. The
    numbers stay the same but for rounding.

    Parameters
    ----------
    graph : ir.Graph
        The step, changed in place: the intercepts are no longer inputs and outputs, and x has a column more.
    carried : sequence of (ir.Value, ir.Value)
        Its old and new weights and states.

    Returns
    -------
    list of Joined
        The tables.
    """
    names, found = graph_names(graph), list[Joined]()
    places = {old: index for index, (old, _) in enumerate(carried)}
    for index, (old, new) in enumerate(carried):
        layer = _Layer.read(old, new)
        if layer is None or layer.intercept not in places:
            continue
        place = places[layer.intercept]
        change = layer.change_of(*carried[place])
        if change is None:
            continue
        axis = layer.join(change)
        old.name = unique_name(f"{old.name}_joined", names)
        found.append(Joined(index, place, old, axis))
    return found


@dataclass(frozen=True)
class _Layer:
    """The nodes around a weight that is updated by one product.

    Attributes
    ----------
    forward, update : ir.Node
        The products that read the weight.
    inputs : ir.Value
        The inputs of the layer.
    gradient : ir.Value
        The other factor of the update.
    intercept : ir.Value
        The intercepts.
    """

    forward: ir.Node
    update: ir.Node
    inputs: ir.Value
    gradient: ir.Value
    intercept: ir.Value

    @classmethod
    def read(cls, old: ir.Value, new: ir.Value) -> _Layer | None:
        """Return the layer of a weight; None if it has another form."""
        update = plain_sum(new, old)
        readers = [node for node, _ in old.uses()]
        if update is None or len(readers) != 2:
            return None
        forward = readers[0] if readers[1] is update else readers[1]
        if not is_plain(forward) or len(forward.inputs) < 3 or old not in forward.inputs[:2]:
            return None
        inputs = forward.inputs[1 - forward.inputs[:2].index(old)]
        if inputs is None or inputs not in update.inputs[:2] or not _is_narrow_feature(inputs):
            return None
        n_rows, n_inputs = shape_of(inputs).numpy()
        if n_rows > _MOST_ROWS and math.prod(shape_of(old).numpy()) < _MANY_UNITS * n_inputs:
            return None
        gradient = update.inputs[1 - update.inputs[:2].index(inputs)]
        intercept = _below_reshape(forward.inputs[2])
        if gradient is None or intercept is None:
            return None
        return cls(forward, update, inputs, gradient, intercept)

    def change_of(self, old: ir.Value, new: ir.Value) -> ir.Node | None:
        """Return the product that adds the sum of the gradients to the intercepts; None: another one does."""
        return sum_of(self.gradient, old, new)

    def join(self, change: ir.Node) -> int:
        """Widen inputs and weight, and remove the intercepts; return the axis of the table that has them."""
        graph = graph_of(self.forward)
        axis = self.update.inputs[:2].index(self.inputs)
        n_rows, n_inputs = shape_of(self.inputs).numpy()
        self.inputs.shape = ir.Shape([n_rows, n_inputs + 1])
        sizes = list(shape_of(self.update.outputs[0]).numpy())
        sizes[axis] += 1
        for value in (required(self.update, 2), self.update.outputs[0]):
            value.shape = ir.Shape(sizes)
        added = required(self.forward, 2)
        self.forward.resize_inputs(2)
        graph.outputs.remove(change.outputs[0])
        graph.remove([change, *([] if added is self.intercept else [maker(added)])], safe=True)
        graph.inputs.remove(self.intercept)
        return axis


def sum_of(gradient: ir.Value, old: ir.Value, new: ir.Value) -> ir.Node | None:
    """Return the product that adds the sum of the rows of `gradient` to intercepts that one layer reads."""
    change = plain_sum(new, old)
    if change is None or change.inputs[1] is not gradient or len(old.uses()) != 2:
        return None
    ones = constant(change.inputs[0])
    return change if ones is not None and ones.shape[0] == 1 and bool((ones == 1).all()) else None


def plain_sum(new: ir.Value, old: ir.Value) -> ir.Node | None:
    """Return the node of ``new = Gemm(a, b, old)``, if nothing in the graph reads `new`."""
    node = new.producer()
    if node is None or len(node.inputs) != 3 or node.inputs[2] is not old or not is_plain(node):
        return None
    return None if new.uses() else node


def is_plain(node: ir.Node) -> bool:
    """Tell whether a node is a product of matrices without factors."""
    return node.op_type == "Gemm" and attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1.0


def _is_narrow_feature(value: ir.Value) -> bool:
    """Tell whether a value is an input of few columns that the two products of a layer read."""
    if not value.is_graph_input() or value.shape is None or len(value.uses()) != 2:
        return False
    sizes = value.shape.numpy() if value.shape.is_static() else ()
    return len(sizes) == 2 and sizes[1] <= _MOST_INPUTS and sizes[1] % LANES != 0


def _below_reshape(value: ir.Value | None) -> ir.Value | None:
    """Return an input, or one that a node reshapes for a single reader."""
    node = None if value is None else value.producer()
    if value is None or node is None:
        return value
    return node.inputs[0] if node.op_type == "Reshape" and len(value.uses()) == 1 else None
