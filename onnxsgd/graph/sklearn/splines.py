"""A converter of SplineTransformer, which skl2onnx 1.20 lacks: a few nodes for each degree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx

from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.sklearn.converter_nodes import ConverterNodes

if TYPE_CHECKING:
    from skl2onnx.algebra.onnx_operator import OnnxOperator
    from skl2onnx.common._container import ModelComponentContainer
    from skl2onnx.common._topology import Operator, Scope

__all__ = ["convert_splines", "infer_splines_shape"]

#: Extrapolations that a graph has: "error" would have to stop it.
_EXTRAPOLATIONS = ("constant", "continue", "periodic")
_ZERO, _ONE = np.zeros(1, np.float32), np.ones(1, np.float32)


def infer_splines_shape(operator: Operator) -> None:
    """Set the type and the shape of the output for skl2onnx, or refuse the parameters."""
    from skl2onnx.common.data_types import FloatTensorType

    splines = operator.raw_operator
    if splines.extrapolation not in _EXTRAPOLATIONS:
        legal = ", ".join(map(repr, _EXTRAPOLATIONS))
        raise UnsupportedError(f"extrapolation={splines.extrapolation!r}, and it may be one of {legal}")
    if splines.degree == 0:
        raise UnsupportedError("degree=0, and it may be 1 or more")
    # a parameter of scikit-learn 1.8
    if getattr(splines, "handle_missing", "error") != "error":
        raise UnsupportedError(f"handle_missing={splines.handle_missing!r}, and it may be 'error'")
    rows = operator.inputs[0].get_first_dimension()
    operator.outputs[0].type = FloatTensorType([rows, splines.n_features_out_])


def convert_splines(scope: Scope, operator: Operator, container: ModelComponentContainer) -> None:
    """Write the recursion of de Boor and Cox for all features, knots and samples at once."""
    splines, w = operator.raw_operator, ConverterNodes(operator, container.target_opset)
    knots = np.stack([spline.t for spline in splines.bsplines_])
    degree = splines.degree
    table = _constant(knots)
    first, last = (w.Slice(table, *_bounds(start, start + 1)) for start in (degree, -degree - 1))
    x = w.features()
    x = w.Unsqueeze(_inside(w, x, first, last, splines.extrapolation), np.array([2]))
    basis = _indicators(w, x, table, degree, knots.shape[1])
    for order in range(1, degree + 1):
        basis = _raised(w, x, basis, table, order, knots.shape[1])
    coef = splines.bsplines_[0].c
    coef = coef if splines.include_bias else coef[:, :-1]
    if coef.shape[0] != coef.shape[1]:
        basis = w.MatMul(basis, _constant(coef))
    w.finish(w.Reshape(basis, np.array([-1, splines.n_features_out_])), scope, container)


def _inside(
    w: ConverterNodes, x: OnnxOperator, first: OnnxOperator, last: OnnxOperator, extrapolation: str
) -> OnnxOperator:
    """Return the places where the splines are evaluated, by the first and the last knot of the data."""
    if extrapolation == "continue":
        return x
    first, last = (w.Reshape(knot, np.array([1, -1])) for knot in (first, last))
    if extrapolation == "constant":
        return w.Min(w.Max(x, first), last)
    period = w.Sub(last, first)
    # of a constant column, whose splines are 0
    period = w.Where(w.Equal(period, 0), _ONE, period)
    return w.Sub(x, w.Mul(w.Floor(w.Div(w.Sub(x, first), period)), period))


def _indicators(
    w: ConverterNodes, x: OnnxOperator, table: np.ndarray, degree: int, n_knots: int
) -> OnnxOperator:
    """Return the splines of degree 0: the interval of each number, the outer ones without an end."""
    n_intervals = n_knots - 1 - 2 * degree
    inner = w.Slice(table, *_bounds(degree + 1, degree + n_intervals))
    is_above = w.Cast(w.GreaterOrEqual(x, inner), to=onnx.TensorProto.FLOAT)
    ones = w.Add(w.Mul(x, 0), 1)
    lower, upper = w.Concat(ones, is_above, axis=2), w.Concat(is_above, w.Mul(x, 0), axis=2)
    # by the intervals before and after those of the data
    return w.Pad(w.Sub(lower, upper), np.array([0, 0, degree, 0, 0, degree]))


def _raised(
    w: ConverterNodes, x: OnnxOperator, basis: OnnxOperator, table: np.ndarray, order: int, n_knots: int
) -> OnnxOperator:
    """Return the splines of a degree from those of the degree below."""
    n_splines = n_knots - order - 1
    left = w.Slice(table, *_bounds(0, n_splines + 1))
    right = w.Slice(table, *_bounds(order, n_knots))
    width = w.Sub(right, left)
    # splines between equal knots are 0
    is_empty = w.Equal(width, 0)
    basis = w.Where(is_empty, _ZERO, basis)
    rising = w.Mul(w.Div(w.Sub(x, left), w.Where(is_empty, _ONE, width)), basis)
    falling = w.Sub(basis, rising)
    return w.Add(w.Slice(rising, *_bounds(0, n_splines)), w.Slice(falling, *_bounds(1, n_splines + 1)))


def _bounds(start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the operands of a Slice along the last axis of tables with a row for each feature."""
    stop = np.iinfo(np.int64).max if stop == 0 else stop
    return np.array([start]), np.array([stop]), np.array([-1])


def _constant(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float32)
