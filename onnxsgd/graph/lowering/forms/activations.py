"""Activations written out.

The forms have right gradients as well: finite if an exponential overflows, and at a kink the documented
value. Hence a branch is a Where whose unused side gets a harmless number, not a difference of two Relus.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, first, operands
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["ACTIVATION_FORMS", "softplus"]


def softplus(w: Writer, x: ir.Value) -> ir.Value:
    """Write log(1 + exp(x)) as ``(x + |x|) / 2 + log(1 + exp(-|x|))``: no overflow, slope 1/2 at zero."""
    size = w.op.Abs(x)
    positive_part = w.op.Mul(w.op.Add(x, size), 0.5)
    return w.op.Add(positive_part, w.op.Log(w.op.Add(w.op.Exp(w.op.Neg(size)), 1.0)))


def _softplus(w: Writer, node: ir.Node) -> ir.Value:
    """``log(1 + exp(x))``."""
    return softplus(w, first(node))


def _exponential_unit(w: Writer, x: ir.Value, alpha: float, width: float = 1.0) -> ir.Value:
    """Write x if it is positive, else ``alpha (exp(x / width) - 1)``."""
    positive = w.op.Greater(x, 0.0)
    below = w.op.Where(positive, 0.0, x)
    curve = w.op.Sub(w.op.Exp(below if width == 1.0 else w.op.Div(below, width)), 1.0)
    return w.op.Where(positive, x, curve if alpha == 1.0 else w.op.Mul(curve, alpha))


def _elu(w: Writer, node: ir.Node) -> ir.Value:
    """``x`` if it is positive, else ``alpha (exp(x) - 1)``."""
    return _exponential_unit(w, first(node), attribute(node, "alpha", 1.0))


def _celu(w: Writer, node: ir.Node) -> ir.Value:
    """``x`` if it is positive, else ``alpha (exp(x / alpha) - 1)``."""
    alpha = attribute(node, "alpha", 1.0)
    return _exponential_unit(w, first(node), alpha, alpha)


def _selu(w: Writer, node: ir.Node) -> ir.Value:
    """``gamma x`` if x is positive, else ``gamma alpha (exp(x) - 1)``."""
    unit = _exponential_unit(w, first(node), attribute(node, "alpha", 1.67326319217681884765625))
    return w.op.Mul(unit, attribute(node, "gamma", 1.05070102214813232421875))


def _prelu(w: Writer, node: ir.Node) -> ir.Value:
    """``x`` if it is positive, else ``slope x``."""
    x, slope = operands(node)
    return w.op.Where(w.op.Greater(x, 0.0), x, w.op.Mul(x, slope))


def _thresholded_relu(w: Writer, node: ir.Node) -> ir.Value:
    """``x`` if it is above alpha, else 0."""
    x = first(node)
    return w.op.Where(w.op.Greater(x, attribute(node, "alpha", 1.0)), x, 0.0)


def _hard_sigmoid(w: Writer, node: ir.Node) -> ir.Value:
    """``clip(alpha x + beta, 0, 1)``; not as a Clip, which is differentiable at its bounds."""
    slope, offset = attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5)
    line = w.op.Add(w.op.Mul(first(node), slope), offset)
    return _between(w, line, line, 0.0, 1.0)


def _hard_swish(w: Writer, node: ir.Node) -> ir.Value:
    """``x clip(x / 6 + 1/2, 0, 1)``."""
    x = first(node)
    return w.op.Mul(x, _between(w, w.op.Add(w.op.Mul(x, 1 / 6), 0.5), x, -3.0, 3.0))


def _between(w: Writer, line: ir.Value, x: ir.Value, low: float, high: float) -> ir.Value:
    """Write `line` where ``low < x < high``, 0 below and 1 above."""
    above = w.op.GreaterOrEqual(x, high)
    outside = w.op.Or(above, w.op.LessOrEqual(x, low))
    return w.op.Where(outside, w.op.Cast(above, to=x.dtype), line)


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


#: The forms of activations.
ACTIVATION_FORMS: Table = {
    ("", "Celu"): _celu,
    ("", "Cosh"): _cosh,
    ("", "Elu"): _elu,
    ("", "Gelu"): _gelu,
    ("", "HardSigmoid"): _hard_sigmoid,
    ("", "HardSwish"): _hard_swish,
    ("", "Mish"): _mish,
    ("", "PRelu"): _prelu,
    ("", "Selu"): _selu,
    ("", "Sinh"): _sinh,
    ("", "Softplus"): _softplus,
    ("", "Softsign"): _softsign,
    ("", "Tan"): _tan,
    ("", "ThresholdedRelu"): _thresholded_relu,
}
