"""Inverse target transform of a TransformedTargetRegressor, as nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    RobustScaler,
    StandardScaler,
)

from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.rewriting import Writer, extend

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

__all__ = ["add_inverse_transform"]


def add_inverse_transform(model: ir.Model, transformer: BaseEstimator) -> None:
    """Apply ``transformer.inverse_transform`` to the only output of `model`, in place.

    Parameters
    ----------
    model : ir.Model
        A regression. It is changed.
    transformer : transformer
        Fitted on the target: a scaler, or a FunctionTransformer whose inverse is a numpy function in the
        table of this module.

    Raises
    ------
    UnsupportedError
        The transformer has no entry in the table.
    """
    write = _INVERSES.get(type(transformer))
    if write is None:
        known = ", ".join(sorted(kind.__name__ for kind in _INVERSES))
        raise UnsupportedError(
            f"A TransformedTargetRegressor with {transformer!r} cannot be converted; its transformer "
            f"may be one of {known}."
        )
    (output,) = model.graph.outputs
    name = str(output.name)
    output.name = f"{name}_transformed"
    result = extend(model.graph, name, lambda w: write(w, output, transformer))
    model.graph.outputs[:] = [result]


def _affine(factor: str | None, offset: str | None) -> Callable[[Writer, ir.Value, Any], ir.Value]:
    """Return the writer of ``x * factor + offset``, both attributes of the transformer."""

    def write(w: Writer, x: ir.Value, transformer: BaseEstimator) -> ir.Value:
        for attribute, op in ((factor, w.op.Mul), (offset, w.op.Add)):
            array = getattr(transformer, attribute or "", None)
            if array is not None:
                x = op(x, _tensor(w, str(attribute).rstrip("_"), array))
        return x

    return write


def _min_max(w: Writer, x: ir.Value, transformer: BaseEstimator) -> ir.Value:
    """``(x - min) / scale``."""
    shifted = w.op.Sub(x, _tensor(w, "min", transformer.min_))
    return w.op.Div(shifted, _tensor(w, "scale", transformer.scale_))


def _function(w: Writer, x: ir.Value, transformer: BaseEstimator) -> ir.Value:
    """Write a function of the table."""
    function = transformer.inverse_func
    if function not in _FUNCTIONS or transformer.inv_kw_args:
        known = ", ".join(sorted(f"numpy.{entry.__name__}" for entry in _FUNCTIONS if entry is not None))
        raise UnsupportedError(
            f"A TransformedTargetRegressor with inverse_func={function!r} cannot be converted; it may be "
            f"one of {known}."
        )
    return _FUNCTIONS[function](w, x)


def _tensor(w: Writer, name: str, array: np.ndarray) -> ir.Value:
    return w.tensor(
        f"target_{name}", np.asarray(array, np.float32), frozen="constant of the target's transformer"
    )


_FUNCTIONS: dict[Any, Callable[[Writer, ir.Value], ir.Value]] = {
    None: lambda w, x: w.op.Identity(x),
    np.exp: lambda w, x: w.op.Exp(x),
    np.expm1: lambda w, x: w.op.Sub(w.op.Exp(x), 1.0),
    np.log: lambda w, x: w.op.Log(x),
    np.log1p: lambda w, x: w.op.Log(w.op.Add(x, 1.0)),
    np.sqrt: lambda w, x: w.op.Sqrt(x),
    np.square: lambda w, x: w.op.Mul(x, x),
}

_INVERSES: dict[type, Callable[[Writer, ir.Value, Any], ir.Value]] = {
    FunctionTransformer: _function,
    MaxAbsScaler: _affine("scale_", None),
    MinMaxScaler: _min_max,
    RobustScaler: _affine("scale_", "center_"),
    StandardScaler: _affine("scale_", "mean_"),
}
