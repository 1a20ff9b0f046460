"""Lowering activations that have no registered gradient.

The replacements are chosen so that their gradients are right as well: finite where an exponential
overflows, and at a kink the value that the literature gives. That is why a branch is a Where whose unused
side is fed a harmless number, and not a difference of two Relus.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxsgd.graph.model import PARAMETER
from onnxsgd.graph.rewriting import Table, Writer, attribute, constant, first, operands

__all__ = ["ACTIVATION_RULES", "softplus"]


def softplus(w: Writer, x: ir.Value) -> ir.Value:
    """Write log(1 + exp(x)) as ``(x + |x|) / 2 + log(1 + exp(-|x|))``: no overflow, slope 1/2 at zero."""
    size = w.op.Abs(x)
    positive_part = w.op.Mul(w.op.Add(x, size), 0.5)
    return w.op.Add(positive_part, w.op.Log(w.op.Add(w.op.Exp(w.op.Neg(size)), 1.0)))


def _softplus(w: Writer, node: ir.Node) -> ir.Value:
    """``log(1 + exp(x))``."""
    return softplus(w, first(node))


def _exponential_unit(w: Writer, x: ir.Value, alpha: float, width: float = 1.0) -> ir.Value:
    """Write x where it is positive, else ``alpha (exp(x / width) - 1)``."""
    positive = w.op.Greater(x, 0.0)
    below = w.op.Where(positive, 0.0, x)
    curve = w.op.Sub(w.op.Exp(below if width == 1.0 else w.op.Div(below, width)), 1.0)
    return w.op.Where(positive, x, curve if alpha == 1.0 else w.op.Mul(curve, alpha))


def _elu(w: Writer, node: ir.Node) -> ir.Value:
    """``x`` where it is positive, else ``alpha (exp(x) - 1)``."""
    return _exponential_unit(w, first(node), attribute(node, "alpha", 1.0))


def _celu(w: Writer, node: ir.Node) -> ir.Value:
    """``x`` where it is positive, else ``alpha (exp(x / alpha) - 1)``."""
    alpha = attribute(node, "alpha", 1.0)
    return _exponential_unit(w, first(node), alpha, alpha)


def _selu(w: Writer, node: ir.Node) -> ir.Value:
    """``gamma x`` where x is positive, else ``gamma alpha (exp(x) - 1)``."""
    unit = _exponential_unit(w, first(node), attribute(node, "alpha", 1.67326319217681884765625))
    return w.op.Mul(unit, attribute(node, "gamma", 1.05070102214813232421875))


def _prelu(w: Writer, node: ir.Node) -> ir.Value:
    """``slope x`` where x is negative, else ``x``."""
    x, slope = operands(node)
    slope.metadata_props[PARAMETER] = "weight"
    return w.op.Where(w.op.Less(x, 0.0), w.op.Mul(x, slope), x)


def _thresholded_relu(w: Writer, node: ir.Node) -> ir.Value:
    """``x`` where it is above alpha, else 0."""
    x = first(node)
    return w.op.Where(w.op.Greater(x, attribute(node, "alpha", 1.0)), x, 0.0)


def _hard_sigmoid(w: Writer, node: ir.Node) -> ir.Value:
    """``clip(alpha x + beta, 0, 1)``."""
    slope, offset = attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5)
    return w.op.Clip(w.op.Add(w.op.Mul(first(node), slope), offset), 0.0, 1.0)


def _hard_swish(w: Writer, node: ir.Node) -> ir.Value:
    """``x clip(x / 6 + 1/2, 0, 1)``."""
    x = first(node)
    return w.op.Mul(x, w.op.Clip(w.op.Add(w.op.Mul(x, 1 / 6), 0.5), 0.0, 1.0))


def _mish(w: Writer, node: ir.Node) -> ir.Value:
    """``x tanh(log(1 + exp(x)))``."""
    return w.op.Mul(first(node), w.op.Tanh(softplus(w, first(node))))


def _gelu(w: Writer, node: ir.Node) -> ir.Value:
    """``x Phi(x)`` with the normal distribution Phi, or the usual approximation of it by a tanh."""
    x = first(node)
    if attribute(node, "approximate", "none") == "tanh":
        cubic = w.op.Mul(w.op.Mul(x, x), w.op.Mul(x, 0.044715))
        bend = w.op.Tanh(w.op.Mul(w.op.Add(x, cubic), math.sqrt(2 / math.pi)))
    else:
        bend = w.op.Erf(w.op.Mul(x, math.sqrt(0.5)))
    return w.op.Mul(w.op.Mul(x, 0.5), w.op.Add(bend, 1.0))


def _softsign(w: Writer, node: ir.Node) -> ir.Value:
    """``x / (1 + |x|)``."""
    return w.op.Div(first(node), w.op.Add(w.op.Abs(first(node)), 1.0))


def _sinh(w: Writer, node: ir.Node) -> ir.Value:
    """``(exp(x) - exp(-x)) / 2``."""
    x = first(node)
    return w.op.Mul(w.op.Sub(w.op.Exp(x), w.op.Exp(w.op.Neg(x))), 0.5)


def _cosh(w: Writer, node: ir.Node) -> ir.Value:
    """``(exp(x) + exp(-x)) / 2``."""
    x = first(node)
    return w.op.Mul(w.op.Add(w.op.Exp(x), w.op.Exp(w.op.Neg(x))), 0.5)


def _tan(w: Writer, node: ir.Node) -> ir.Value:
    """``sin(x) / cos(x)``."""
    return w.op.Div(w.op.Sin(first(node)), w.op.Cos(first(node)))


def _sigmoid_as_quotient(w: Writer, node: ir.Node) -> ir.Value | None:
    """``exp(-log(1 + exp(x)))`` for ``1 / (1 + exp(x))``, whose gradient is 0 times infinity for large x.

    Not a Sigmoid, which the runtime clamps: behind a normalisation over classes, all of them far on the
    negative side, that would change probabilities.
    """
    *numerator, denominator = operands(node)
    if numerator and not _is_one(numerator[0]):
        return None
    total = denominator.producer()
    if total is None or total.op_type != "Add" or not any(_is_one(value) for value in total.inputs):
        return None
    exponential = next((value.producer() for value in operands(total) if not _is_one(value)), None)
    if exponential is None or exponential.op_type != "Exp":
        return None
    return w.op.Exp(w.op.Neg(softplus(w, first(exponential))))


def _is_one(value: ir.Value | None) -> bool:
    array = constant(value)
    return array is not None and array.ndim == 0 and array.dtype.kind == "f" and array == 1.0


#: What replaces activations of the standard domain.
ACTIVATION_RULES: Table = {
    ("", "Celu"): _celu,
    ("", "Cosh"): _cosh,
    ("", "Div"): _sigmoid_as_quotient,
    ("", "Elu"): _elu,
    ("", "Gelu"): _gelu,
    ("", "HardSigmoid"): _hard_sigmoid,
    ("", "HardSwish"): _hard_swish,
    ("", "Mish"): _mish,
    ("", "PRelu"): _prelu,
    ("", "Reciprocal"): _sigmoid_as_quotient,
    ("", "Selu"): _selu,
    ("", "Sinh"): _sinh,
    ("", "Softplus"): _softplus,
    ("", "Softsign"): _softsign,
    ("", "Tan"): _tan,
    ("", "ThresholdedRelu"): _thresholded_relu,
}
