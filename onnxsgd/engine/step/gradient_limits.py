"""Limits of the gradient of an update: of each element, and of the norm over all trained tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from onnxsgd._builder import Builder

__all__ = ["DESCENT", "MAX_NORM", "MAX_VALUE", "limit_gradients"]

#: The numbers of a step that hold the limits.
MAX_VALUE, MAX_NORM = "max_grad_value", "max_grad_norm"
#: Minus the rate, for optimizers that take gradients multiplied by it: the limits are those of the gradient.
DESCENT = "descent"
#: Added to the norm before the division, as in torch's ``clip_grad_norm_``.
_EPSILON = 1e-6


def limit_gradients(
    op: Builder,
    gradients: Mapping[str, ir.Value],
    scalars: Mapping[str, ir.Value],
    active: Mapping[str, ir.Value],
) -> dict[str, ir.Value]:
    """Return the gradients of all trained tensors within the limits that `scalars` hold.

    Elements first, then the norm of the result: the limits of both then hold. With :data:`DESCENT` the
    results are also multiplied by it.

    Parameters
    ----------
    op : Builder
        The builder of the step.
    gradients : mapping of str to ir.Value
        The gradient of each trained tensor, of known type.
    scalars : mapping of str to ir.Value
        The numbers of the step.
    active : mapping of str to ir.Value
        Of tensors that may be frozen, the number that is 0 then: they are no part of the norm.
    """
    limited = dict(gradients)
    if MAX_VALUE in scalars:
        limited = {name: _within(op, value, scalars[MAX_VALUE]) for name, value in limited.items()}
    factor = _norm_factor(op, limited, scalars[MAX_NORM], active) if MAX_NORM in scalars else None
    descent = scalars.get(DESCENT)
    for name, value in limited.items():
        of_value = [_as_type_of(op, number, value) for number in (factor, descent) if number is not None]
        for number in of_value:
            limited[name] = _like(op.Mul(limited[name], number), value)
    return limited


def _within(op: Builder, gradient: ir.Value, limit: ir.Value) -> ir.Value:
    """Return a gradient with elements between plus and minus the limit."""
    limit = _as_type_of(op, limit, gradient)
    return _like(op.Max(op.Min(gradient, limit), op.Neg(limit)), gradient)


def _norm_factor(
    op: Builder, gradients: Mapping[str, ir.Value], limit: ir.Value, active: Mapping[str, ir.Value]
) -> ir.Value:
    """Return the factor, at most 1, that brings the norm over all tensors to the limit, in float64.

    Squares of large gradients, which the limit is for, overflow in float32: from 1.8e19 on.
    """
    squares = {
        name: op.ReduceSumSquare(_as_double(op, value), keepdims=0) for name, value in gradients.items()
    }
    for name, number in active.items():
        squares[name] = op.Mul(squares[name], _as_double(op, number))
    total, *others = squares.values()
    for square in others:
        total = op.Add(total, square)
    norm = op.Add(op.Sqrt(total), _EPSILON)
    return _typed(op.Min(op.Div(_as_double(op, limit), norm), 1.0), ir.DataType.DOUBLE)


def _as_double(op: Builder, value: ir.Value) -> ir.Value:
    if value.dtype == ir.DataType.DOUBLE:
        return value
    double = op.Cast(value, to=ir.DataType.DOUBLE)
    double.shape = value.shape
    return _typed(double, ir.DataType.DOUBLE)


def _as_type_of(op: Builder, number: ir.Value, value: ir.Value) -> ir.Value:
    """Return a number in the type of a gradient."""
    if number.dtype == value.dtype or value.dtype is None:
        return number
    return _typed(op.Cast(number, to=value.dtype), value.dtype)


def _typed(value: ir.Value, dtype: ir.DataType) -> ir.Value:
    value.type = ir.TensorType(dtype)
    return value


def _like(value: ir.Value, other: ir.Value) -> ir.Value:
    """Declare a value to have the type and the shape of another."""
    value.type, value.shape = other.type, other.shape
    return value
