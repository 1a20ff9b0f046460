"""Weights in units of a root of the rate, so that a loop over batches multiplies no gradient by it.

A network of L trained layers with ReLUs, without its intercepts, multiplies its predictions by a^L where each
weight is a times as large. If the targets are so too, the gradient of the squared error with respect to a
weight is a^(2L-1) times as large, and with ``a^(2L-2)`` the rate of an update, the change of a weight is its
rate times its gradient, in its unit: the update has lost a factor. An intercept of layer k has the unit a^k,
and its gradients are multiplied by a^(2k-2), in the place of ones. The exponents are counted in the graph,
whatever its layers, and a graph in which they disagree stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxsgd.engine.step.fuse import is_steep_mask
from onnxsgd.engine.step.joined_intercepts import plain_sum
from onnxsgd.engine.step.weight_decay import decay_of, is_decayed, root_of, undecayed
from onnxsgd.graph.nodes import attribute, constant, is_fixed_float32, shape_of

if TYPE_CHECKING:
    from onnxsgd._builder import Builder

__all__ = ["MOST_ROWS", "ScaledWeights", "is_in_range", "scale_weights"]

#: The most rows of a batch. ``benchmarks/constants.py``, whole fits of layers of 100 and some 50 units with
#: onnxruntime 1.32 and 1.19: 0.98 of the time with 4 rows, 0.98 and 0.99 with 10, 0.99 with 16, 0.98 with 32,
#: 1.00 with 64.
MOST_ROWS = 32
#: The rates of a single sample, those of a batch divided by its rows, at which gradients of the loop are 1e-4
#: to 100 times those of a loop without units.
_LEAST_RATE, _MOST_RATE = 1e-8, 1e2

#: Operators whose result is c times as large for any c > 0 if the first operand is, and forms of a tensor.
_HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "Neg", "Reshape", "Transpose", "Identity"})


def is_in_range(rate: float) -> bool:
    """Tell whether numbers stay far from the ends of float32 with this rate of a single sample."""
    return _LEAST_RATE <= rate <= _MOST_RATE


def scale_weights(
    graph: ir.Graph,
    carried: Sequence[tuple[ir.Value, ir.Value]],
    target: ir.Value,
    factor: ir.Value,
    *,
    only_rows: bool = False,
) -> ScaledWeights | None:
    """Let a step read and return weights in units of a root of the rate.

    Case: the gradient of the predictions p is ``Mul(Sub(p, target), factor)``; all other nodes are products,
    ReLUs and their masks; each update is a Gemm that adds a product to the weight.

    Parameters
    ----------
    graph : ir.Graph
        The step, changed in place: its last output is p, and `factor` is no longer an input.
    carried : sequence of (ir.Value, ir.Value)
        Its old and new weights and states.
    target : ir.Value
        The targets, in the unit of the predictions.
    factor : ir.Value
        Minus the rate of a single sample, for each row.
    only_rows : bool
        Whether rows must be able to have factors; see :class:`ScaledWeights`.

    Returns
    -------
    ScaledWeights or None
        The units; None if the step has another form, and stays as it is.
    """
    slope = _slope(graph, target, factor)
    if slope is None:
        return None
    difference, product = slope
    units = _Units(dict(carried), target, product)
    if not units.read(graph) or units.of_predictions < 2 or (only_rows and not units.are_of_rows):
        return None
    rate = 2 * units.of_predictions - 2
    sums: list[tuple[ir.Node, int, int]] = []
    for node, state, unit in units.updates:
        missing = units.known[state].unit + rate - unit
        place = next((i for i, value in enumerate(node.inputs[:2]) if constant(value) is not None), None)
        if missing and place is None:
            return None
        if missing and place is not None:
            sums.append((node, place, missing))
    prediction = difference.inputs[0]
    difference.replace_input_with(0, target)
    difference.replace_input_with(1, prediction)
    for node, index in list(product.outputs[0].uses()):
        node.replace_input_with(index, difference.outputs[0])
    graph.remove(product, safe=True)
    graph.inputs.remove(factor)
    return ScaledWeights(
        tuple(units.known[old].unit for old, _ in carried),
        units.of_predictions,
        tuple(sums),
        units.are_of_rows,
    )


@dataclass(frozen=True)
class ScaledWeights:
    """The units of a loop, as exponents of the unit of a weight.

    Attributes
    ----------
    units : tuple of int
        Those of the weights and states.
    of_predictions : int
        That of predictions and targets.
    sums : tuple of (ir.Node, int, int)
        Products with a constant, the number of that input, and the exponent of its factor.
    are_of_rows : bool
        Whether rows of the features and targets that are r times as large have the gradients of r^2 times
        the rate.
    """

    units: tuple[int, ...]
    of_predictions: int
    sums: tuple[tuple[ir.Node, int, int], ...]
    are_of_rows: bool

    def powers(self, op: Builder, factors: ir.Value) -> Powers:
        """Return the powers of the unit, given minus the rates of all rows, [n_batches, batch_size, 1]."""
        first = op.Slice(factors, [0, 0, 0], [1, 1, 1], [0, 1, 2])
        return Powers(op.Neg(first), 1.0 / (2 * self.of_predictions - 2))

    def scale_sums(self, op: Builder, powers: Powers) -> None:
        """Let the sums of the loop read their constants in units, from outside of it."""
        for node, index, exponent in self.sums:
            array = constant(node.inputs[index])
            ones = np.ones([1, 1], np.float32) if array is None else array
            given = op.initializer(ir.tensor(ones), f"{node.outputs[0].name}_ones")
            node.replace_input_with(index, op.Mul(given, powers.of(op, exponent, ones.ndim)))

    def in_units(self, op: Builder, powers: Powers, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Return weights and states in their units."""
        ranks = (len(shape_of(value)) for value in values)
        return [
            op.Mul(value, powers.of(op, unit, rank))
            for value, unit, rank in zip(values, self.units, ranks, strict=True)
        ]

    def put_back(
        self,
        op: Builder,
        powers: Powers,
        values: Sequence[ir.Value],
        before: Sequence[ir.Value],
        after: Sequence[ir.Value],
    ) -> list[ir.Value]:
        """Return new weights and states, given the old ones, and both in units; unchanged ones stay."""
        ranks = (len(shape_of(value)) for value in values)
        return [
            op.Add(value, op.Mul(op.Sub(new, old), powers.of(op, -unit, rank)))
            for value, old, new, unit, rank in zip(values, before, after, self.units, ranks, strict=True)
        ]


@dataclass(frozen=True)
class Powers:
    """Powers of the unit of a weight, each computed once.

    Attributes
    ----------
    rate : ir.Value of shape [1, 1, 1]
        The rate of a single sample.
    root : float
        The exponent of the rate that makes the unit.
    """

    rate: ir.Value
    root: float
    _known: dict[tuple[int, int], ir.Value] = field(default_factory=dict)

    def of(self, op: Builder, exponent: int, rank: int) -> ir.Value:
        """Return a power, of one number in so many axes."""
        if (exponent, rank) not in self._known:
            power = op.Pow(self.rate, exponent * self.root)
            self._known[exponent, rank] = op.Reshape(power, [1] * rank)
        return self._known[exponent, rank]

    def times(self, op: Builder, exponent: int, rows: ir.Value) -> ir.Value:
        """Return the product of a power and rows of all batches, of known sizes but for their number.

        Columns are multiplied as one row: with a number the runtime multiplies their elements one by one.
        """
        sizes = [size if isinstance(size, int) else -1 for size in shape_of(rows)]
        product = op.Mul(op.Reshape(rows, [1, -1]), self.of(op, exponent, 2))
        return op.Reshape(product, sizes)


@dataclass(frozen=True)
class _Unit:
    """The unit of a value, as the exponents of three factors.

    Attributes
    ----------
    unit : int
        That of the unit of a weight.
    rows : int
        That of the factors of its rows, if these have factors of their own.
    rates : int
        That of the rate, which is multiplied by no longer.
    """

    unit: int
    rows: int
    rates: int = 0

    def __mul__(self, other: _Unit) -> _Unit:
        """Return the unit of a product."""
        return _Unit(self.unit + other.unit, self.rows + other.rows, self.rates + other.rates)


_NONE = _Unit(0, 0)


class _Units:
    """The units of the values of a step.

    Parameters
    ----------
    after : mapping of ir.Value to ir.Value
        The new value of each weight and state.
    target : ir.Value
        The targets.
    product : ir.Node
        The product of the gradient of the predictions and the rate, which goes.
    """

    def __init__(self, after: Mapping[ir.Value, ir.Value], target: ir.Value, product: ir.Node) -> None:
        self._after, self._target, self._product = after, target, product
        self.known: dict[ir.Value, _Unit] = {}
        #: The updates: nodes, states, and the units of the products.
        self.updates: list[tuple[ir.Node, ir.Value, int]] = []
        self.of_predictions = 0
        self.are_of_rows = True

    def read(self, graph: ir.Graph) -> bool:
        """Find all units; tell whether they agree."""
        if len(graph.outputs) != len(self._after) + 1:
            return False
        skipped = {self._target, *self._after, *self._product.inputs}
        for value in graph.inputs:
            if value not in skipped:
                if not is_fixed_float32(value):
                    return False
                self.known[value] = _Unit(0, 1) if decay_of(value) is None else _NONE
        for node in graph:
            unit = self._of_result(node)
            if unit is None or len(node.outputs) != 1:
                return False
            self.known[node.outputs[0]] = unit
        return {id(old) for _, old, _ in self.updates} == {id(old) for old in self._after}

    def _of_result(self, node: ir.Node) -> _Unit | None:
        """Return the unit of the result of a node; None if its operands have no common one."""
        if node is self._product:
            error = self._of(node.inputs[0])
            return None if error is None else error * _Unit(0, 0, 1)
        if node.op_type in ("Gemm", "MatMul"):
            return self._of_product(node)
        if node.op_type == "HardSigmoid":
            return _NONE if is_steep_mask(node) and self._of(node.inputs[0]) is not None else None
        if node.op_type in _HOMOGENEOUS:
            state = root_of(node.inputs[0])
            # an intercept in another shape, whose unit the layer tells
            return self._of(node.inputs[0]) or (_PENDING if state in self._after else None)
        if node.op_type not in ("Mul", "Sub"):
            return None
        if is_decayed(node.outputs[0]):
            # of a weight, whose unit the layer tells
            return _PENDING
        first, second = (self._of(value) for value in node.inputs)
        if node.op_type == "Mul" and first is not None and second is not None:
            return first * second
        if node.op_type == "Sub" and node.inputs[1] is self._target and first is not None:
            self.known[self._target], self.of_predictions = first, first.unit
            self.are_of_rows &= first.rows == 1
            return first
        return None

    def _of_product(self, node: ir.Node) -> _Unit | None:
        """Return the unit of a product of matrices, or of its sum with a third operand."""
        factors = node.inputs[:2]
        for value in factors:
            state = root_of(value)
            if value is not None and state is not None and self._is_new(state):
                self.known[state] = self.known[value] = _Unit(1, 0)
        first, second = (self._of(value) for value in factors)
        if first is None or second is None:
            return None
        unit = first * second
        self.are_of_rows &= all(constant(value) is None for value in factors)
        added = node.inputs[2] if len(node.inputs) > 2 else None
        if added is None:
            self.are_of_rows &= unit.rows == 1
            return unit
        if attribute(node, "beta", 1.0) != 1.0:
            return None
        old = undecayed(added)
        if old in self._after and old in self.known and plain_sum(self._after[old], added) is node:
            self.updates.append((node, old, unit.unit))
            self.are_of_rows &= unit.rows == 2
            return self.known[old] if unit.rates == 1 else None
        self.are_of_rows = False
        state = root_of(added)
        if state is not None and self._is_new(state):
            self.known[state] = self.known[added] = unit
        own = self._of(added)
        is_same = own is not None and (own.unit, own.rates) == (unit.unit, unit.rates)
        return own if is_same and not unit.rates else None

    def _is_new(self, state: ir.Value) -> bool:
        """Tell whether a value is a weight or a state that no layer has read before."""
        return state in self._after and state not in self.known

    def _of(self, value: ir.Value | None) -> _Unit | None:
        """Return the unit of a value; None if it is not known."""
        if value is None or constant(value) is not None:
            return None if value is None else _NONE
        unit = self.known.get(value)
        return None if unit is _PENDING else unit


#: The unit of a form of an intercept before its layer is read.
_PENDING = _Unit(0, -1)


def _slope(graph: ir.Graph, target: ir.Value, factor: ir.Value) -> tuple[ir.Node, ir.Node] | None:
    """Return the nodes of the gradient of the predictions: a difference, and its product with the rate."""
    if len(target.uses()) != 1 or len(factor.uses()) != 1:
        return None
    ((difference, index),), ((product, _),) = target.uses(), factor.uses()
    if difference.op_type != "Sub" or index != 1 or difference.inputs[0] is not graph.outputs[-1]:
        return None
    error = difference.outputs[0]
    if product.op_type != "Mul" or product.inputs[0] is not error or len(error.uses()) != 1:
        return None
    is_fixed = is_fixed_float32(target) and is_fixed_float32(product.outputs[0])
    sizes = shape_of(target).numpy() if is_fixed else ()
    return (difference, product) if len(sizes) == 2 and sizes[0] <= MOST_ROWS else None
