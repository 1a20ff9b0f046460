"""The last linear layer of a graph: the weights whose scale is that of the target."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxsgd._cached_property import cached_property
from onnxsgd.graph.nodes import (
    attribute,
    constant,
    first,
    fixed_size,
    operands,
    rank,
    required,
    standard_operator,
)

__all__ = ["NO_LAYER", "OutputLayer", "OutputWeight", "output_layer"]


@dataclass(frozen=True, eq=False)
class OutputWeight:
    """A trained weight of the last layer.

    Attributes
    ----------
    name : str
        The weight.
    outputs : ndarray of int
        The outputs that it computes.
    factors : ndarray
        The factor between the product, or the sum, and each of these outputs.
    shape : tuple of int
        The shape of a number for each channel that broadcasts to the weight; ones for a weight without an
        axis of outputs.
    channels : ndarray of int
        The channel of each output, a place in `shape`: an output alone, all pixels of a convolution, or all
        steps of a product.
    """

    name: str
    outputs: np.ndarray
    factors: np.ndarray
    shape: tuple[int, ...]
    channels: np.ndarray

    @cached_property
    def counts(self) -> np.ndarray:
        """The number of outputs of each channel."""
        return np.bincount(self.channels, minlength=math.prod(self.shape))

    def means(self, values: np.ndarray) -> np.ndarray:
        """Return the mean over the outputs of each channel, from a value for each output of the weight."""
        return np.bincount(self.channels, values, len(self.counts)) / self.counts

    def unit(self, scales: np.ndarray) -> np.ndarray:
        """Return the change of the weight that changes the outputs by their scales.

        For several outputs of a channel it is the root mean square over them.
        """
        units = np.zeros(len(self.counts))
        # squares of scales may be beyond the range of their type
        shares = np.abs(scales[self.outputs] / self.factors) / np.sqrt(self.counts)[self.channels]
        np.hypot.at(units, self.channels, shares)
        return units.reshape(self.shape)

    def scaled(self, weight: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Return the weight whose outputs have these factors; the largest one of each channel."""
        factors = np.full(len(self.counts), -np.inf)
        # those of predictions that overflow are no numbers
        with np.errstate(invalid="ignore"):
            np.maximum.at(factors, self.channels, scales[self.outputs])
        return weight * factors.reshape(self.shape)


@dataclass(frozen=True, eq=False)
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
        if any(len(part.outputs) > 1 for part in self.weights):
            return False
        return len({(int(part.outputs[0]), abs(float(part.factors[0]))) for part in self.weights}) < 2

    def pooled(self, values: np.ndarray) -> np.ndarray:
        """Return values for each output as means over the outputs that share weights."""
        values = np.array(values, np.float64)
        for part in self.weights:
            values[part.outputs] = part.means(values[part.outputs])[part.channels]
        return values


#: A last layer without weights.
NO_LAYER = OutputLayer((), None)


@dataclass(frozen=True, eq=False)
class _Place:
    """A value on the way back from the output.

    Attributes
    ----------
    value : ir.Value
        The value.
    outputs : ndarray of int
        The outputs that it enters. If aligned, an array with the axes of the value, of which that of the
        samples has one place, as have axes over which outputs are means.
    factors : ndarray
        The factor between the value and each of these outputs, of the same shape.
    is_aligned : bool
        Whether it is known which elements of the value enter which of these outputs.
    """

    value: ir.Value
    outputs: np.ndarray
    factors: np.ndarray
    is_aligned: bool = True

    def times(self, factor: np.ndarray | float) -> _Place:
        """Return the place with further factors: one, or an array that broadcasts to the outputs."""
        return replace(self, factors=self.factors * factor)

    def moved(self, value: ir.Value, change: Callable[[np.ndarray], np.ndarray]) -> _Place:
        """Return the place of another value, whose elements have changed places."""
        return replace(self, value=value, outputs=change(self.outputs), factors=change(self.factors))

    def mixed(self, value: ir.Value) -> _Place:
        """Return the place of a value whose elements enter unknown outputs: that of a single one is known."""
        place = self.moved(value, np.ravel)
        return replace(place, is_aligned=self.is_aligned and self.outputs.size == 1)

    def spread(self, table: np.ndarray) -> np.ndarray | None:
        """Return a table with a number for each output, of the shape of these; None if it has others."""
        if table.size == 1:
            return np.full(self.outputs.shape, table.item())
        if not self.is_aligned:
            return None
        try:
            found = np.broadcast_to(table, np.broadcast_shapes(table.shape, self.outputs.shape))
        except ValueError:
            return None
        return found.reshape(self.outputs.shape) if found.size == self.outputs.size else None


def output_layer(model: ir.Model, weights: Collection[str], sizes: tuple[int, ...]) -> OutputLayer:
    """Return the last layer of `model`, which has one output: the last trained weights of each way to it.

    Cases: Gemm, MatMul, Conv and ConvTranspose with a trained weight, of tables, pixels and steps; sums and
    differences of several; before the output, in any order, constants as factors, divisors and summands,
    frozen products, changes of form, means, other sizes of pictures, parts of a Concat, and functions such as
    Relu and Clip that keep the scale. A way with another operator has no weights here.

    Parameters
    ----------
    model : ir.Model
        The graph.
    weights : collection of str
        The trained weights.
    sizes : tuple of int
        The shape of the output for a sample.
    """
    n_outputs = math.prod(sizes)
    reader = _Reader(frozenset(weights), n_outputs)
    outputs = np.arange(n_outputs).reshape(1, *sizes)
    reader.read(_Place(model.graph.outputs[0], outputs, np.ones(outputs.shape)))
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
        elif operator in _PRODUCTS:
            yield from self._product(node, place)
        elif operator == "Mul" and (trained := next(filter(self._is_trained, operands(node)), None)):
            self._record(replace(place, value=trained))
        else:
            sources = list(_READERS[operator](node, place))
            if operator in _PIECEWISE or not sources:
                self.offset = None
            yield from sources

    def _product(self, node: ir.Node, place: _Place) -> Iterator[_Place]:
        """Record the weight of a product, or follow its data; its intercept is a summand."""
        alpha, weight = float(attribute(node, "alpha", 1.0)), required(node, 1)
        place = _channels_last(node, weight, place)
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            beta = float(attribute(node, "beta", 1.0))
            yield replace(place.times(beta), value=node.inputs[2])
        if self._is_trained(weight):
            self._record(replace(place.times(alpha), value=weight), _axis_of_channels(node, weight))
        elif self._is_trained(first(node)):
            self._record(replace(place.times(alpha), value=first(node), is_aligned=False))
        else:
            self.offset = None
            if (frozen := constant(weight)) is not None and frozen.size:
                size = _size(frozen, _axis_of_channels(node, weight), place)
                yield replace(place.times(alpha * size), value=first(node), is_aligned=False)

    def _is_trained(self, value: ir.Value) -> bool:
        return value.name in self._weights

    def _record(self, place: _Place, axis: int | None = None) -> None:
        """Record a weight with channels along an axis, or a summand or factor that broadcasts."""
        value = place.value
        usable = bool(np.isfinite(place.factors).all() and place.factors.all())
        if value.shape is None or not usable or value.name in self.found:
            return
        sizes = [fixed_size(value, i) for i in range(len(value.shape))]
        shape = tuple(n if axis in (None, i) else 1 for i, n in enumerate(sizes))
        channels = place.spread(np.arange(math.prod(shape)).reshape(shape if axis is None else -1))
        if channels is None:
            shape, channels = (1,) * len(sizes), np.zeros(place.outputs.size, int)
        self.found[str(value.name)] = OutputWeight(
            str(value.name), place.outputs.ravel(), place.factors.ravel(), shape, channels.ravel()
        )

    def _add_constant(self, place: _Place, known: np.ndarray) -> None:
        row = place.spread(known)
        if self.offset is None or row is None:
            self.offset = None
        else:
            self.offset[place.outputs] += row.astype(np.float64) * place.factors


def _axis_of_channels(node: ir.Node, weight: ir.Value) -> int:
    """Return the axis of a weight that has a place for each channel of the product."""
    if node.op_type in ("Conv", "ConvTranspose"):
        # of groups, ConvTranspose has the channels of one alone, which do not broadcast to all
        return int(node.op_type == "ConvTranspose")
    return 0 if attribute(node, "transB", 0) else (rank(weight) or 1) - 1


def _channels_last(node: ir.Node, weight: ir.Value, place: _Place) -> _Place:
    """Return the place of a product with the channels as the last axis."""
    n_after = (rank(weight) or 2) - 2 if node.op_type in ("Conv", "ConvTranspose") else 0
    if n_after >= place.outputs.ndim:
        return place.mixed(place.value)
    return place.moved(place.value, lambda table: np.moveaxis(table, -1 - n_after, -1))


def _size(frozen: np.ndarray, axis: int, place: _Place) -> np.ndarray | float:
    """Return the norm of frozen coefficients: of those of each channel, or the mean square over channels."""
    squares = np.moveaxis(frozen.astype(np.float64) ** 2, axis, -1)
    squares = squares.sum(axis=tuple(range(squares.ndim - 1)))
    found = place.spread(squares)
    return math.sqrt(squares.mean()) if found is None else np.asarray(np.sqrt(found))


def _source(node: ir.Node, place: _Place) -> Iterator[_Place]:
    """Follow the first operand, whose axes are the same; means of pixels, and other sizes, keep a shift."""
    yield replace(place, value=first(node))


def _mean(node: ir.Node, place: _Place) -> Iterator[_Place]:
    """Follow the operand of a mean: the axes that are left out come back with one place."""
    known = constant(node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "axes")
    axes = () if known is None else tuple(int(axis) for axis in known)
    if attribute(node, "keepdims", 1):
        yield replace(place, value=first(node))
    elif axes and place.is_aligned and len(axes) + place.outputs.ndim == rank(first(node)):
        yield place.moved(first(node), lambda table: np.expand_dims(table, axes))
    else:
        yield place.mixed(first(node))


def _form(node: ir.Node, place: _Place) -> Iterator[_Place]:
    """Follow the first operand, which has the same elements in the same order, with other axes."""
    sizes = _sizes_before(first(node), place)
    if sizes is None:
        yield place.mixed(first(node))
    else:
        yield place.moved(first(node), lambda table: table.reshape(sizes))


def _sizes_before(source: ir.Value, place: _Place) -> tuple[int, ...] | None:
    """Return the sizes of the outputs of a place with the axes before a change of form.

    None: axes have unknown sizes, or there are several elements for an output, or outputs for an element.
    """
    value = place.value
    if not place.is_aligned or rank(value) != place.outputs.ndim or not source.shape:
        return None
    pairs = zip(value.shape or (), place.outputs.shape, strict=True)
    is_open = [not isinstance(size, int) for size in source.shape]
    # the axis of the samples, which alone may differ: the first one of a graph for batches of one size
    samples = is_open.index(True) if any(is_open) else 0
    sizes = [size if isinstance(size, int) else 1 for size in source.shape]
    sizes[samples] = 1
    steps, rest = divmod(place.outputs.size, max(1, math.prod(sizes)))
    if sum(is_open) > 1 or rest or not steps or sum(size != known for size, known in pairs) > 1:
        return None
    sizes[samples] = steps
    return tuple(sizes)


def _transposed(node: ir.Node, place: _Place) -> Iterator[_Place]:
    """Follow the first operand, with the axes in their order before."""
    order = attribute(node, "perm", range(place.outputs.ndim)[::-1])
    if place.is_aligned and len(order) == place.outputs.ndim:
        yield place.moved(first(node), lambda table: table.transpose(np.argsort(order)))
    else:
        yield place.mixed(first(node))


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
    if known[index] is None or (node.op_type == "Div" and index == 0):
        return
    factor = np.asarray(known[index], np.float64)
    row = place.spread(factor)
    size = math.sqrt(np.mean(factor**2)) if row is None else row
    with np.errstate(divide="ignore", over="ignore"):
        yield replace(
            place.times(np.divide(1.0, size) if node.op_type == "Div" else size),
            value=operands(node)[1 - index],
        )


def _variable(node: ir.Node, place: _Place) -> Iterator[_Place]:
    """Follow the operands that are not constant."""
    for value in operands(node):
        if constant(value) is None:
            yield replace(place, value=value)


def _parts(node: ir.Node, place: _Place) -> Iterator[_Place]:
    """Follow the parts of a Concat of the outputs."""
    parts, n_axes = operands(node), place.outputs.ndim
    if not place.is_aligned or any(rank(value) != n_axes for value in parts):
        return
    axis = attribute(node, "axis") % n_axes
    widths = [value.shape[axis] for value in parts if value.shape is not None]
    known = [width for width in widths if isinstance(width, int)]
    if len(known) != len(parts) or sum(known) != place.outputs.shape[axis]:
        return
    stops = np.cumsum(known)[:-1]
    found = (np.split(table, stops, axis) for table in (place.outputs, place.factors))
    for value, outputs, factors in zip(parts, *found, strict=True):
        yield replace(place, value=value, outputs=outputs, factors=factors)


#: Operators that are piecewise linear, with slopes of about 1.
_PIECEWISE = frozenset({"Abs", "Clip", "LeakyRelu", "Max", "Min", "Relu"})

#: Operators with a weight.
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

#: The operands to follow, by operator.
_READERS: dict[str, Callable[[ir.Node, _Place], Iterator[_Place]]] = {
    **dict.fromkeys(("Identity", "Cast"), _source),
    **dict.fromkeys(("Abs", "Clip", "LeakyRelu", "Relu"), _source),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "Resize"), _source),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _form),
    **dict.fromkeys(("Add", "Sub", "Sum"), _sum),
    **dict.fromkeys(("Mul", "Div"), _scaled),
    **dict.fromkeys(("Max", "Min"), _variable),
    **dict.fromkeys(_PRODUCTS, _source),
    "Concat": _parts,
    "Neg": _negative,
    "ReduceMean": _mean,
    "Transpose": _transposed,
}
