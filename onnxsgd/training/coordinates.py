"""Training in standardised coordinates: first layers of centred and scaled data, rates of the last layer.

A layer z = x W + b of raw data x is the layer z = x' W' + b' of standardised data::

    x' = (x - m) / s,   W' = s W,   b' = b + m W

The functions are the same; gradients of W' have one scale for all columns. Weights are converted on the way
into the buffers of the training step and back, so that all other code sees those of raw data. Weights of
the last layer stay as they are, and have rates in units of the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cache
from typing import Any

import numpy as np
from scipy import sparse

from onnxsgd._records import record
from onnxsgd.data.column_scales import FEW_ROWS, telling_scales
from onnxsgd.data.moments import Moments, factor_of_few
from onnxsgd.data.one_thread import sum_of_multiples
from onnxsgd.data.preconditioner import preconditioner
from onnxsgd.engine.step.batches import Batches, Standard
from onnxsgd.engine.step.buffers import Buffers, Tensors
from onnxsgd.engine.step.step_spec import StepSpec
from onnxsgd.engine.step.update import (
    AVERAGE,
    CONSTANT_STATES,
    PENALTY_SCALE,
    PRECONDITIONER,
    RATE_SCALE,
    START,
    WEIGHT,
)
from onnxsgd.graph.reading.first_layers import FirstLayer, columns_of

__all__ = [
    "BuffersInPlace", "Coordinates", "StandardisedBuffers", "held_buffers", "make_coordinates",
    "make_standards", "share_of_columns",
]  # fmt: skip

#: The columns that the first rate is for. Fits of one epoch on 1,000 to 3,000 rows of 300 to 3,000 columns
#: have a mean accuracy of 0.68 and an R2 of 0.69 with 34, 0.68 and 0.59 with 113, 0.50 and 0.01 without it.
_FEW_COLUMNS = 32


@record
class Coordinates:
    """The change of coordinates of the first layers, and the units of the last one.

    Attributes
    ----------
    layers : tuple of FirstLayer
        The layers.
    standards : dict of Standard
        The shift and the scale of the columns of each of their inputs.
    rate_scales : dict of ndarray
        The factors of the rate of weights of the last layer, in a shape that multiplies them.
    """

    layers: tuple[FirstLayer, ...]
    standards: Mapping[str, Standard]
    rate_scales: Mapping[str, np.ndarray] = field(default_factory=dict)
    #: The constant states, the scales of coefficients and the shifts of features, made when they are needed.
    _constants: Tensors = field(default_factory=dict, init=False, repr=False)
    _scales: dict[str, np.ndarray] = field(default_factory=dict, init=False, repr=False)
    _shifts: dict[str, tuple[np.ndarray | None, np.ndarray]] = field(
        default_factory=dict, init=False, repr=False
    )

    def constants(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> Tensors:
        """Return the constant states of weights of these shapes.

        They are factors of penalties and of rates, and preconditioners. The l2 penalty of a weight W' has the
        factors 1 / s^2, for W' / s = W.
        """
        known = self._constants
        if not known:
            for layer in self.layers:
                weight = tensors[layer.weight, WEIGHT]
                root = self._penalty_root(layer, weight)
                known[layer.weight, PENALTY_SCALE] = (root * root).astype(weight.dtype)
                matrix = self.standards[layer.feature].preconditioner
                if matrix is not None:
                    known[layer.weight, PRECONDITIONER] = matrix.astype(weight.dtype)
            if self.rate_scales:
                with _quiet():
                    for name, scale in self.rate_scales.items():
                        known[name, RATE_SCALE] = _bounded(scale, tensors[name, WEIGHT].dtype)
        return known

    def constant_keys(self) -> tuple[tuple[str, str], ...]:
        """Return the keys of the constant states in a stream, which has no preconditioner."""
        keys = [(layer.weight, PENALTY_SCALE) for layer in self.layers]
        for name in self.rate_scales:
            keys.append((name, RATE_SCALE))
        return tuple(keys)

    def put_constants(self, tensors: Tensors) -> None:
        """Write those of a stream to their places among weights and states, in a quiet context."""
        for layer in self.layers:
            # without a penalty its factors are none of the states
            place = tensors.get((layer.weight, PENALTY_SCALE))
            if place is not None:
                root = self._penalty_root(layer, tensors[layer.weight, WEIGHT])
                np.multiply(root, root, out=place)
        for name, scale in self.rate_scales.items():
            place = tensors[name, RATE_SCALE]
            place[...] = _bounded(scale, place.dtype)

    def _penalty_root(self, layer: FirstLayer, weight: np.ndarray) -> np.ndarray:
        """Return the roots of the factors of the penalty, bounded before their squares overflow."""
        return np.minimum(np.reciprocal(self._scale(layer, weight)), _largest_root(weight.dtype))

    def spec(self, spec: StepSpec, constants: Tensors) -> StepSpec:
        """Return the specification of a training step in these coordinates."""
        shapes = {
            kind: tuple((name, array.shape) for (name, k), array in constants.items() if k == kind)
            for kind in CONSTANT_STATES
        }
        penalty_scales = tuple((n, shape) for n, shape in shapes[PENALTY_SCALE] if n in spec.penalised)
        axes = {layer.weight: int(layer.is_transposed) for layer in self.layers}
        preconditioned = tuple((name, axes[name]) for name, _ in shapes[PRECONDITIONER])
        return replace(
            spec, penalty_scales=penalty_scales, rate_scales=shapes[RATE_SCALE], preconditioned=preconditioned
        )

    def standardised(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> Tensors:
        """Return weights of raw data, averages and starts of them, for standardised data; others as given.

        Finite numbers beyond the range of their type become its largest ones.
        """
        return self._converted(self.standardise, tensors)

    def raw(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> Tensors:
        """Return weights of standardised data, and averages of them, for raw data; the inverse of these."""
        return self._converted(self.make_raw, tensors)

    def standardise(self, tensors: Tensors, change: _Change | None = None) -> None:
        """Change weights of raw data, averages and starts of them, to those for standardised data, in place.

        Numbers beyond the range of their type become infinite, in a context of the caller that ignores it,
        unless `change` does otherwise.
        """
        change = change or _rounded
        for layer in self.layers:
            for kind in (WEIGHT, AVERAGE, START):
                weight = tensors.get((layer.weight, kind))
                if weight is None:
                    continue
                if kind != START and layer.intercept is not None:
                    # which may be that of several layers
                    change(np.add, tensors[layer.intercept, kind], self._step(layer, weight))
                change(np.multiply, weight, self._scale(layer, weight))

    def make_raw(self, tensors: Tensors, change: _Change | None = None) -> None:
        """Change weights of standardised data, and averages of them, to those for raw data, in place."""
        change = change or _rounded
        for layer in self.layers:
            for kind in (WEIGHT, AVERAGE):
                weight = tensors.get((layer.weight, kind))
                if weight is None:
                    continue
                change(np.divide, weight, self._scale(layer, weight))
                if layer.intercept is not None:
                    change(np.subtract, tensors[layer.intercept, kind], self._step(layer, weight))

    def _converted(
        self, convert: Callable[[Tensors, _Change], None], tensors: Mapping[tuple[str, str], np.ndarray]
    ) -> Tensors:
        """Return converted weights; finite ones beyond the range of their type become its largest numbers.

        Where nothing overflows, as a rule, the results are not looked at: the processor reports it. A weight
        that diverged shows it in the results.
        """
        converted = self._copied(tensors)
        try:
            with np.errstate(over="raise", invalid="ignore"):
                convert(converted, _rounded)
        except FloatingPointError:
            converted = self._copied(tensors)
            with _quiet():
                convert(converted, _bounded_change)
        return converted

    def _copied(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> Tensors:
        """Return the same tensors, with copies of all that are converted."""
        copied = dict(tensors)
        for layer in self.layers:
            for name in (layer.weight, layer.intercept or layer.weight):
                for kind in (WEIGHT, AVERAGE, START):
                    if (name, kind) in tensors:
                        copied[name, kind] = tensors[name, kind].copy(order="K")
        return copied

    def _scale(self, layer: FirstLayer, weight: np.ndarray) -> np.ndarray:
        """Return the scales in a shape that multiplies the coefficients."""
        scales = self._scales
        if layer.weight not in scales:
            factor = self.standards[layer.feature].factor.reshape(-1)
            scales[layer.weight] = layer.spread(np.reciprocal(factor, dtype=np.float64), weight.shape)
        return scales[layer.weight]

    def _step(self, layer: FirstLayer, weight: np.ndarray) -> np.ndarray:
        """Return m W, by which the intercepts differ, in float64."""
        centred, shift = self._centred(layer.feature)
        part = weight if centred is None else weight.take(centred, int(layer.is_transposed))
        # shifts have 64 bits, and the product too
        return sum_of_multiples(shift, part.T if layer.is_transposed else part)

    def _centred(self, feature: str) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the columns that have a shift, None for all, and their shifts.

        Few columns of sparse data have one, and few weights start no threads of BLAS.
        """
        shifts = self._shifts
        if feature not in shifts:
            shift = self.standards[feature].shift.reshape(-1)
            centred = shift.nonzero()[0]
            columns = None if len(centred) == len(shift) else centred
            shifts[feature] = columns, (shift if columns is None else shift[columns]).astype(np.float64)
        return shifts[feature]


#: Changes an array in place: computes with float64 numbers, and rounds the results to the type of the array.
_Change = Callable[[np.ufunc, np.ndarray, np.ndarray], None]


def _quiet() -> np.errstate:
    """Return a context without warnings.

    A context around each operation would take as long as the operations.
    """
    return np.errstate(over="ignore", invalid="ignore")


def _rounded(operation: np.ufunc, array: np.ndarray, numbers: np.ndarray) -> None:
    """Change an array; results beyond the range of its type become infinite."""
    operation(array, numbers, out=array)


def _bounded_change(operation: np.ufunc, array: np.ndarray, numbers: np.ndarray) -> None:
    """Change an array; finite results beyond the range of its type become its largest numbers."""
    array[...] = _bounded(operation(array, numbers), array.dtype)


def _bounded(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return float64 numbers in another type; finite ones beyond its range become its largest ones."""
    if array.dtype == dtype:
        # numbers that are not finite stay
        return array
    largest = float(np.finfo(dtype).max)
    return np.where(np.isfinite(array), np.clip(array, -largest, largest), array).astype(dtype)


@cache
def _largest_root(dtype: np.dtype[np.floating]) -> np.ndarray:
    """Return the root of the largest number of a type, without axes: see :func:`~.moments._limits`."""
    return np.array(math.sqrt(float(np.finfo(dtype).max)))


def make_coordinates(
    layers: tuple[FirstLayer, ...],
    features: Mapping[str, Any],
    moments: Mapping[str, Moments],
    row_weight: float,
) -> Coordinates:
    """Return the coordinates in which a stream standardises the columns of the first layers' inputs."""
    return Coordinates(layers, make_standards(columns_of(layers), features, moments, row_weight=row_weight))


def make_standards(
    columns: tuple[tuple[str, int, bool], ...],
    features: Mapping[str, Any],
    moments: Mapping[str, Moments],
    data: Batches | None = None,
    n_rows: int = 0,
    penalty: float | None = None,
    *,
    row_weight: float | None = None,
    centres_sparse: bool = False,
) -> dict[str, Standard]:
    """Return the standardisation of some columns, those of :func:`~.first_layers.columns_of`.

    Columns are not centred where that is impossible: where a layer has no trained intercept, or pads data
    with zeros, as convolutions do, or where they are sparse, without `centres_sparse`. They then have root
    mean squares of 1. A channel of a convolution is one column.

    With the `data` of a fit, or some of its `n_rows` rows, columns of dense tables that outnumber these have
    the scales of :func:`~.column_scales.telling_scales`. With the `penalty` of a linear model, the strength
    of its l2 penalty, so have fewer columns, from 33 on, as the choice takes a part of small fits; and there
    may be a :func:`~.preconditioner.preconditioner`. With the `row_weight` of a stream, that of a row, scales
    of its first rows are larger than their deviation.
    """
    standards = {}
    for name, axis, is_centred in columns:
        dtype = features[name].dtype
        known = moments[name]
        if len(known.count) != features[name].shape[axis]:
            known = known.whole
        scale = known.deviation(dtype) if is_centred else known.size(dtype)
        if row_weight is not None and is_centred and len(known.total):
            factor = factor_of_few(float(known.total[0]) / row_weight)
            if factor > 1.0:
                scale = scale * np.where(known.are_dense, factor, 1.0)
        is_dense_table = len(features[name].shape) == 2 and not sparse.issparse(features[name])
        rows = data if data is not None and is_dense_table and data.target.ndim == 2 else None
        is_wide = penalty is not None and len(scale) > _FEW_COLUMNS and FEW_ROWS * len(scale) > n_rows
        if rows is not None and (is_wide or len(scale) > n_rows):
            scale = telling_scales(features[name], rows.target, rows.sample_weight, known.centre, scale)
        centre = known.mean_of_rows if centres_sparse else known.centre
        shift = centre if is_centred else np.zeros_like(known.mean)
        shift, factor = shift.astype(dtype), np.reciprocal(scale).astype(dtype)
        if axis != -1:
            shape = (-1, *(1 for _ in features[name].shape[2:]))
            shift, factor = shift.reshape(shape), factor.reshape(shape)
        matrix = None
        if rows is not None and penalty is not None:
            given = features[name], rows.target, rows.sample_weight, shift
            matrix = preconditioner(*given, 1.0 / factor.astype(np.float64), penalty)
        standards[name] = Standard(shift, factor, matrix)
    return standards


def share_of_columns(
    standards: Mapping[str, Standard], moments: Mapping[str, Moments], *, is_linear: bool
) -> float:
    """Return the largest share of the first rate that the number of columns allows.

    An update of a linear model moves the coefficients of all columns, and with them the predictions of its
    own rows in proportion to the number of columns. Sparse columns have rates of their own instead, and
    networks, whose first rate is small, learn as well from any number.
    """
    if not is_linear:
        return 1.0
    most = _FEW_COLUMNS
    for name, of in standards.items():
        n_columns = len(of.factor)
        if n_columns > most and of.factor.ndim == 1 and moments[name].crowding(n_columns) == 1.0:
            most = n_columns
    return _FEW_COLUMNS / most


class StandardisedBuffers:
    """Buffers of the training step, seen as weights of raw data.

    Parameters
    ----------
    buffers : Buffers
        The buffers of weights of standardised data.
    coordinates : Coordinates
        The coordinates.
    """

    def __init__(self, buffers: Any, coordinates: Coordinates) -> None:
        self._buffers, self._coordinates = buffers, coordinates
        self._starts: Tensors = {}

    def load(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> None:
        """Copy these values into the buffers."""
        # as they were given: weights that go there and back are rounded
        self._starts = {key: array for key, array in tensors.items() if key[1] == START}
        converted = self._coordinates.standardised(tensors)
        converted.update(self._coordinates.constants(tensors))
        self._buffers.load(converted)

    @property
    def layers(self) -> tuple[FirstLayer, ...]:
        """The first layers."""
        return self._coordinates.layers

    def set_rate_scales(self, scales: Mapping[str, np.ndarray]) -> None:
        """Replace the factors of rates from the next :meth:`load` on; those of the same weights."""
        self._coordinates = replace(self._coordinates, rate_scales=scales)

    @property
    def held(self) -> Any:
        """The buffers of weights of standardised data."""
        return self._buffers

    def raw(self, tensors: Tensors) -> Tensors:
        """Return weights of standardised data for raw data."""
        return self._coordinates.raw(tensors)

    def standardised(self, tensors: Tensors) -> Tensors:
        """Return weights of raw data for standardised data."""
        return self._coordinates.standardised(tensors)

    def snapshot(self) -> Tensors:
        """Return a copy of the present values."""
        held = self._held_numbers()
        try:
            with np.errstate(over="raise", invalid="ignore"):
                # these are copies already
                self._coordinates.make_raw(held)
        except FloatingPointError:
            held = self._coordinates.raw(self._held_numbers())
        held.update(self._starts)
        return held

    def _held_numbers(self) -> Tensors:
        """Return a copy of the values of the buffers, without constants."""
        held: Tensors = self._buffers.snapshot()
        for key in self._coordinates.constants(held):
            held.pop(key, None)
        return held


class BuffersInPlace:
    """Buffers of the training step in this process, whose weights are converted where they lie.

    Few weights take less time there than in further arrays.

    Parameters
    ----------
    buffers : Buffers
        The buffers of weights of standardised data.
    coordinates : Coordinates
        The coordinates.
    constants : tuple of (str, str)
        The keys of the constant states.
    """

    def __init__(
        self, buffers: Buffers, coordinates: Coordinates, constants: tuple[tuple[str, str], ...]
    ) -> None:
        self._buffers, self._coordinates, self._constants = buffers, coordinates, constants
        self._given: Mapping[tuple[str, str], np.ndarray] = {}

    def load(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> None:
        """Copy these values into the buffers; those beyond the range of their type become infinite."""
        self._given = tensors
        self._buffers.load(tensors)
        present = self._buffers.present
        self._coordinates.standardise(present)
        self._coordinates.put_constants(present)

    def finite_snapshot(self) -> Tensors | None:
        """Return a copy of the values after the last update, once; None if one of them is not finite."""
        self._coordinates.make_raw(self._buffers.present)
        raw = self._buffers.finite_snapshot(without=self._constants)
        if raw is not None:
            for layer in self._coordinates.layers:
                if (layer.weight, START) in raw:
                    # as it was given: weights that go there and back are rounded
                    raw[layer.weight, START] = self._given[layer.weight, START]
        return raw


def held_buffers(buffers: Any) -> Any:
    """Return the buffers of a training step themselves, in the coordinates that it computes in."""
    return buffers.held if isinstance(buffers, StandardisedBuffers) else buffers
