"""The last linear layer of a graph: the weights whose scale is that of the target."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxsgd._cached_property import cached_property
from onnxsgd.graph.nodes import attribute, constant, first, operands, required, standard_operator

__all__ = ["NO_LAYER", "OutputLayer", "OutputWeight", "output_layer"]


@dataclass(frozen=True)
class OutputWeight:
    """A trained weight of the last layer.

    Attributes
    ----------
    name : str
        The weight.
    start : int
        The first of the outputs that it computes.
    factors : tuple of float
        The factor between the product, or the sum, and each of these outputs.
    shape : tuple of int
        The shape of a number for each output that broadcasts to the weight; ones for a weight without an
        axis of outputs.
    """

    name: str
    start: int
    factors: tuple[float, ...]
    shape: tuple[int, ...]

    @property
    def columns(self) -> slice:
        """The outputs."""
        return slice(self.start, self.start + len(self.factors))

    def unit(self, scales: np.ndarray) -> np.ndarray:
        """Return the change of the weight that changes the outputs by their scales.

        A weight without an axis of outputs has the root mean square over them.
        """
        units = np.abs(scales[self.columns] / self.factors)
        if math.prod(self.shape) != len(units):
            return np.full(self.shape, np.sqrt(np.mean(units**2)))
        return units.reshape(self.shape)

    def scaled(self, weight: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Return the weight whose outputs have these factors; the largest one without an axis of outputs."""
        own = scales[self.columns]
        return weight * (own.reshape(self.shape) if math.prod(self.shape) == len(own) else own.max())


@dataclass(frozen=True)
class OutputLayer:
    """The last layer, of one product or of a sum of several.

    Attributes
    ----------
    weights : tuple of OutputWeight
        Its trained weights, those next to the output first.
    offset : tuple of float, or None
        The outputs where all of these weights are zero; None: they depend on data.
    """

    weights: tuple[OutputWeight, ...]
    offset: tuple[float, ...] | None

    @cached_property
    def is_even(self) -> bool:
        """True if the rates of all weights have the same unit."""
        return len({(part.start, tuple(map(abs, part.factors))) for part in self.weights}) < 2 and all(
            len(part.factors) == 1 for part in self.weights
        )


#: A last layer without weights.
NO_LAYER = OutputLayer((), None)


@dataclass(frozen=True)
class _Place:
    """A value on the way back from the output.

    Attributes
    ----------
    value : ir.Value
        The value.
    start : int
        The first of the outputs that it enters.
    factors : ndarray
        The factor between the value and each of these outputs.
    is_aligned : bool
        Whether the last axis of the value is that of these outputs.
    """

    value: ir.Value
    start: int
    factors: np.ndarray
    is_aligned: bool

    def times(self, factor: np.ndarray | float) -> _Place:
        """Return the place with further factors: one, or one for each output."""
        return replace(self, factors=self.factors * factor)


def output_layer(model: ir.Model, weights: Collection[str], n_outputs: int) -> OutputLayer:
    """Return the last layer of `model`, which has one output: the last trained weights of each way to it.

    Cases: Gemm, MatMul and Conv with a trained weight; sums and differences of several; before the output,
    in any order, constants as factors, divisors and summands, frozen products, changes of form, columns of a
    Concat, and functions such as Relu and Clip that keep the scale. A way with another operator has no
    weights here.
    """
    reader = _Reader(frozenset(weights), n_outputs)
    reader.read(_Place(model.graph.outputs[0], 0, np.ones(n_outputs), True))
    offset = None if reader.offset is None else tuple(reader.offset.tolist())
    return OutputLayer(tuple(reader.found.values()), offset)


class _Reader:
    def __init__(self, weights: frozenset[str], n_outputs: int) -> None:
        self.found: dict[str, OutputWeight] = {}
        self.offset: np.ndarray | None = np.zeros(n_outputs)
        self._weights = weights
        self._passed: set[ir.Value] = set()

    def read(self, output: _Place) -> None:
        """Follow all ways from the output; a value on several of them is followed once."""
        places = [output]
        while places:
            place = places.pop(0)
            if place.value in self._passed:
                self.offset = None
            elif self._is_trained(place.value):
                self._record(place)
            elif (known := constant(place.value)) is not None:
                self._add_constant(place, known)
            else:
                self._passed.add(place.value)
                places.extend(self._operands(place))

    def _operands(self, place: _Place) -> Iterator[_Place]:
        node = place.value.producer()
        operator = "" if node is None else standard_operator(node)
        if node is None or operator not in _READERS:
            self.offset = None
        elif operator in ("Gemm", "MatMul", "Conv"):
            yield from self._product(node, place)
        elif operator == "Mul" and (trained := next(filter(self._is_trained, operands(node)), None)):
            self._record(replace(place, value=trained))
        else:
            sources = list(_READERS[operator](node, place))
            if operator in _PIECEWISE or not sources:
                self.offset = None
            yield from sources

    def _product(self, node: ir.Node, place: _Place) -> Iterator[_Place]:
        alpha = float(attribute(node, "alpha", 1.0))
        weight = required(node, 1)
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            # the intercept of a Conv has another axis
            kept = replace(
                place, value=node.inputs[2], is_aligned=place.is_aligned and node.op_type == "Gemm"
            )
            yield kept.times(float(attribute(node, "beta", 1.0)))
        if self._is_trained(weight):
            self._record(replace(place.times(alpha), value=weight), attribute(node, "transB", 0) == 1)
        elif self._is_trained(first(node)):
            self._record(replace(place.times(alpha), value=first(node), is_aligned=False))
        else:
            self.offset = None
            if (frozen := constant(weight)) is not None and frozen.size:
                size = _size(frozen.T if attribute(node, "transB", 0) else frozen, place)
                yield replace(place.times(alpha * size), value=first(node), is_aligned=False)

    def _is_trained(self, value: ir.Value) -> bool:
        return value.name in self._weights

    def _record(self, place: _Place, is_transposed: bool = False) -> None:
        value, n = place.value, len(place.factors)
        usable = bool(np.isfinite(place.factors).all() and place.factors.all())
        if value.shape is None or not usable or value.name in self.found:
            return
        axis = 0 if is_transposed else len(value.shape) - 1
        shape = [1] * len(value.shape)
        if place.is_aligned and value.shape and value.shape[axis] == n:
            shape[axis] = n
        factors = tuple(place.factors.tolist())
        self.found[str(value.name)] = OutputWeight(str(value.name), place.start, factors, tuple(shape))

    def _add_constant(self, place: _Place, known: np.ndarray) -> None:
        row = _row(known, place)
        if self.offset is None or row is None:
            self.offset = None
        else:
            self.offset[place.start : place.start + len(place.factors)] += row * place.factors


def _size(frozen: np.ndarray, place: _Place) -> np.ndarray | float:
    """Return the norm of frozen coefficients: of those of each output, or the mean square over outputs."""
    n, squares = len(place.factors), frozen.astype(np.float64) ** 2
    if place.is_aligned and squares.ndim == 2 and squares.shape[1] == n:
        return np.asarray(np.sqrt(squares.sum(axis=0)))
    return math.sqrt(squares.sum() / n)


def _row(known: np.ndarray, place: _Place) -> np.ndarray | None:
    """Return a constant as one number, or as one for each output; None if it is neither."""
    n = len(place.factors)
    if known.size == 1 or (place.is_aligned and known.shape and known.size == known.shape[-1] == n):
        return known.astype(np.float64).reshape(-1)
    return None


def _source(node: ir.Node, place: _Place) -> Iterator[_Place]:
    """Follow the first operand, in the same order of elements."""
    yield replace(place, value=first(node))


def _form(node: ir.Node, place: _Place) -> Iterator[_Place]:
    """Follow the first operand, whose last axis may be another one."""
    source, n = first(node), len(place.factors)
    last = [None if not value.shape else value.shape[-1] for value in (source, place.value)]
    keeps = node.op_type != "Transpose" and last == [n, n]
    yield replace(place, value=source, is_aligned=place.is_aligned and (keeps or n == 1))


def _negative(node: ir.Node, place: _Place) -> Iterator[_Place]:
    yield replace(place.times(-1.0), value=first(node))


def _sum(node: ir.Node, place: _Place) -> Iterator[_Place]:
    for index, value in enumerate(operands(node)):
        is_subtracted = node.op_type == "Sub" and index == 1
        yield replace(place.times(-1.0 if is_subtracted else 1.0), value=value)


def _scaled(node: ir.Node, place: _Place) -> Iterator[_Place]:
    """Follow the operand that a constant multiplies or divides."""
    known = [constant(value) for value in operands(node)]
    index = 1 if known[1] is not None else 0
    factor = known[index]
    if factor is None or (node.op_type == "Div" and index == 0):
        return
    row = _row(factor, place)
    if row is None:
        row = np.sqrt(np.mean(factor.astype(np.float64) ** 2, keepdims=True)).reshape(-1)
    with np.errstate(divide="ignore", over="ignore"):
        yield replace(
            place.times(1.0 / row if node.op_type == "Div" else row), value=operands(node)[1 - index]
        )


def _variable(node: ir.Node, place: _Place) -> Iterator[_Place]:
    """Follow the operands that are not constant."""
    for value in operands(node):
        if constant(value) is None:
            yield replace(place, value=value)


def _columns(node: ir.Node, place: _Place) -> Iterator[_Place]:
    """Follow the parts of a Concat of the outputs."""
    parts = operands(node)
    widths = [value.shape[-1] if value.shape else None for value in parts]
    ranks = {len(value.shape) for value in parts if value.shape}
    is_last = attribute(node, "axis") in {-1, *(rank - 1 for rank in ranks)}
    known = [width for width in widths if isinstance(width, int)]
    if not (place.is_aligned and is_last and len(known) == len(parts) and sum(known) == len(place.factors)):
        return
    start = 0
    for value, width in zip(parts, known, strict=True):
        yield replace(
            place, value=value, start=place.start + start, factors=place.factors[start : start + width]
        )
        start += width


#: Operators that are piecewise linear, with slopes of about 1.
_PIECEWISE = frozenset({"Abs", "Clip", "LeakyRelu", "Max", "Min", "Relu"})

#: The operands to follow, by operator.
_READERS: dict[str, Callable[[ir.Node, _Place], Iterator[_Place]]] = {
    **dict.fromkeys(("Identity", "Cast"), _source),
    **dict.fromkeys(("Abs", "Clip", "LeakyRelu", "Relu"), _source),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"), _form),
    **dict.fromkeys(("Add", "Sub", "Sum"), _sum),
    **dict.fromkeys(("Mul", "Div"), _scaled),
    **dict.fromkeys(("Max", "Min"), _variable),
    **dict.fromkeys(("Gemm", "MatMul", "Conv"), _source),
    "Concat": _columns,
    "Neg": _negative,
}
