"""Constant hidden units, so that a loop over batches carries intercepts of later layers with the weights.

A hidden unit that is -1 for each sample makes the intercepts of the next layer, with the sign changed, a row
of its weight, as a column of ones in the data does with those of the first layer: the product that computes
the next weight computes the next intercepts too, and the forward pass adds none.

The unit has the weight K = 2^100 of the constant of its own layer, and no others. An activation that divides
negative numbers by K makes -1 of -K, and of those of other units, down to -1e22, quotients that rounding
loses; -1 is below zero all the same, so that the mask of ReLU stops the gradient, and K stays K. With a
larger K the quotients of usual numbers would be subnormal, and slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxsgd.engine.step.fuse import is_steep_mask
from onnxsgd.engine.step.joined_intercepts import LANES, Joined, is_plain, plain_sum, sum_of
from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import attribute, graph_of, is_fixed_float32, shape_of
from onnxsgd.runtime.editions import runtime_version

__all__ = ["add_constant_units"]

#: The weight of a constant unit.
_UNIT = 2.0**100
#: The most rows of a batch. ``benchmarks/constants.py``, whole fits of layers of 100 and some 50 units with
#: onnxruntime 1.32: 0.93 of the time with 1 row, 0.94 to 0.97 with 4, 0.95 to 0.98 with 10, 0.92 to 0.97 with
#: 16, 1.00 to 1.04 with 24, 1.00 with 31. Layers of 200 and 100 units take 0.99 to 1.01.
_MOST_ROWS = 16
#: The first version of onnxruntime whose LeakyRelu has no branches. The loop alone, layers of 100 and 50
#: units, 10 rows, takes 0.97 of the time with 1.22 to 1.24, 0.94 to 0.96 with 1.32, but 1.48 with 1.19 and
#: 1.20. The larger ones of the numbers and a table of floors make a constant there too, in the time saved.
_WITHOUT_BRANCHES = (1, 22)


def add_constant_units(
    graph: ir.Graph, carried: Sequence[tuple[ir.Value, ir.Value]], joined: Sequence[Joined]
) -> list[Joined]:
    """Let a step read and return tables of weight and intercepts in layers that follow those of `joined`.

    Case: ``h = Relu(x W)`` of a table W whose intercepts are joined; ``z = Gemm(h, V, c)``, the mask of the
    gradient of h and ``V' = Gemm<transA=1>(h, g, V)``, or its transpose, alone read it; ``c' = Gemm(ones, g,
    c)``; the update of W, and the gradient of an earlier layer, alone read the product of that mask with
    ``Gemm(g, V)``. The same again for the layer of z. The numbers stay the same but for rounding.

    Parameters
    ----------
    graph : ir.Graph
        The step, changed in place: intercepts are no longer inputs and outputs.
    carried : sequence of (ir.Value, ir.Value)
        Its old and new weights and states.
    joined : sequence of Joined
        The tables of first layers.

    Returns
    -------
    list of Joined
        All tables.
    """
    if runtime_version() < _WITHOUT_BRANCHES:
        return list(joined)
    names, found = graph_names(graph), list[Joined]()
    for first in joined:
        tables = [first]
        # each hidden layer is found after the tables before it are joined
        while (layer := _Hidden.read(tables[-1], dict(carried))) is not None:
            places = {old: index for index, (old, _) in enumerate(carried)}
            if layer.intercept not in places:
                break
            layer.join(names)
            tables[-1] = replace(tables[-1], unit=-_UNIT * tables[-1].constant)
            weight, intercept = places[layer.weight], places[layer.intercept]
            tables.append(Joined(weight, intercept, layer.weight, layer.axis, constant=-1.0))
        found.extend(tables)
    return found


@dataclass(frozen=True)
class _Hidden:
    """A layer of hidden units, and the next one, whose weight and intercepts are updated by products.

    Attributes
    ----------
    before, weight, intercept : ir.Value
        The table of the layer; weight and intercepts of the next one.
    widened : tuple of ir.Value
        The tables [n_rows, n_units] of the layer.
    relu, forward, update, change : ir.Node
        The activation; the products of the next layer that read its inputs, and the update of its intercepts.
    axis_before, axis : int
        The axes of the inputs in both tables.
    """

    before: ir.Value
    weight: ir.Value
    intercept: ir.Value
    widened: tuple[ir.Value, ...]
    relu: ir.Node
    forward: ir.Node
    update: ir.Node
    change: ir.Node
    axis_before: int
    axis: int
    after: Mapping[ir.Value, ir.Value]

    @classmethod
    def read(cls, joined: Joined, after: Mapping[ir.Value, ir.Value]) -> _Hidden | None:
        """Return the layer of a table; None if the layer or the next one has another form."""
        relu = _activation_of(joined.table)
        if relu is None or not _is_narrow(units := relu.outputs[0]):
            return None
        mask = next((node for node, _ in units.uses() if is_steep_mask(node)), None)
        forward = next((node for node, index in units.uses() if _is_layer(node, index)), None)
        if mask is None or forward is None or len(units.uses()) != 3:
            return None
        weight, intercept = forward.inputs[1], forward.inputs[2]
        if weight is None or intercept is None or weight not in after or intercept not in after:
            return None
        axis = attribute(forward, "transB", 0)
        update = plain_sum(after[weight], weight)
        if update is None or not _is_turned(update, 1, 0) or update.inputs[axis] is not units:
            return None
        gradient = update.inputs[1 - axis]
        change = None if gradient is None else sum_of(gradient, intercept, after[intercept])
        if gradient is None or change is None or not _is_turned(change, 0, 0):
            return None
        readers = {node for node, _ in gradient.uses()}
        back = next(iter(readers - {update, change}), None)
        if back is None or len(gradient.uses()) != 3 or gradient.is_graph_output():
            return None
        if not _is_turned(back, 0, 1 - axis) or back.inputs != (gradient, weight) or not is_plain(back):
            return None
        gradients = _masked(back.outputs[0], mask.outputs[0])
        own = plain_sum(after[joined.table], joined.table)
        if gradients is None or own is None or gradients not in own.inputs[:2] or len(weight.uses()) != 3:
            return None
        # the update, and the gradient of an earlier layer
        if any(joined.table not in node.inputs for node, _ in gradients.uses()):
            return None
        widened = (relu.inputs[0], units, mask.outputs[0], back.outputs[0], gradients)
        return cls(
            joined.table, weight, intercept, tuple(filter(None, widened)), relu, forward, update, change,
            joined.axis, axis, after,
        )  # fmt: skip

    def join(self, names: set[str]) -> None:
        """Add a constant unit, widen both tables, and remove the intercepts."""
        graph = graph_of(self.forward)
        for value in self.widened:
            _widen(value, 1)
        for table, axis in ((self.before, 1 - self.axis_before), (self.weight, self.axis)):
            _widen(table, axis)
            _widen(self.after[table], axis)
        self.relu.op_type = "LeakyRelu"
        self.relu.attributes["alpha"] = ir.AttrFloat32("alpha", 1 / _UNIT)
        self.forward.resize_inputs(2)
        graph.outputs.remove(self.change.outputs[0])
        graph.remove(self.change, safe=True)
        graph.inputs.remove(self.intercept)
        self.weight.name = unique_name(f"{self.weight.name}_joined", names)


def _activation_of(table: ir.Value) -> ir.Node | None:
    """Return the ReLU of the layer of a table whose intercepts are joined; None if another node reads it."""
    for node, index in table.uses():
        if index == 1 and len(node.inputs) == 2 and not attribute(node, "transA", 0):
            score = node.outputs[0]
            readers = [reader for reader, _ in score.uses()]
            if [reader.op_type for reader in readers] == ["Relu"] and not score.is_graph_output():
                return readers[0]
    return None


def _is_narrow(units: ir.Value) -> bool:
    """Tell whether the tables of a hidden layer have few rows, and room for one more column."""
    if not is_fixed_float32(units) or units.is_graph_output():
        return False
    sizes = shape_of(units).numpy()
    return len(sizes) == 2 and sizes[0] <= _MOST_ROWS and sizes[1] % LANES != 0


def _is_layer(node: ir.Node, index: int | None) -> bool:
    """Tell whether a node multiplies its input of this number by a weight, and adds intercepts."""
    return index == 0 and is_plain(node) and len(node.inputs) == 3 and not attribute(node, "transA", 0)


def _is_turned(node: ir.Node, a: int, b: int) -> bool:
    """Tell whether a product reads its factors in these forms: 1 for a transpose."""
    return (attribute(node, "transA", 0), attribute(node, "transB", 0)) == (a, b)


def _masked(gradients: ir.Value, mask: ir.Value) -> ir.Value | None:
    """Return the product of two tables, element by element, that alone reads them."""
    if len(gradients.uses()) != 1 or len(mask.uses()) != 1 or gradients.is_graph_output():
        return None
    ((node, _),) = gradients.uses()
    is_product = node.op_type == "Mul" and set(node.inputs) == {gradients, mask}
    return node.outputs[0] if is_product and not node.outputs[0].is_graph_output() else None


def _widen(value: ir.Value, axis: int) -> None:
    """Declare a tensor with one more element along an axis."""
    sizes = list(shape_of(value).numpy())
    sizes[axis] += 1
    value.shape = ir.Shape(sizes)
