"""Gradients of the operators that work element by element.

Each line gives, for each input, the gradient as a formula in the inputs ``n.a``, ``n.b``, ``n.c``, the
output ``n.y`` and its gradient ``n.g``, which may still have to be broadcast: a product does that by itself.
Where inputs are broadcast, ``_fit`` sums the formula back to the shape of its input.

At points without a derivative, these values are taken: ::

    Relu, LeakyRelu, PRelu, ThresholdedRelu ...   the slope of the left side at the kink
    HardSigmoid, HardSwish                         the slope of the outer side at both kinks
    Abs                                            0 at 0
    Max, Min                                       operands that tie share the gradient evenly
    Clip                                           1 at both bounds, 0 for a bound that x equals
    Sqrt, Log, Pow ...                             infinite where the derivative is
    Pow                                            0 for a zero exponent, and towards an exponent of base 0
"""

from __future__ import annotations

import math

from onnxsgd.gradient.portable.rules.quantization import is_quantized
from onnxsgd.gradient.portable.writing.broadcasting import sum_to
from onnxsgd.gradient.portable.writing.call import Call, Rule, Rules
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["ELEMENTWISE"]


def _fit(index: int, formula: Rule) -> Rule:
    """Return `formula` summed to the shape of the input at `index`."""
    return lambda n: sum_to(formula(n), n.y, n.input(index))


def _neg_g(n: Call) -> Tensor:
    """Return the negated gradient of the second operand, summed first, which is less work."""
    return -sum_to(n.g, n.y, n.b)


def _power_base(n: Call) -> Tensor:
    exponent = n.b.cast(n.a.dtype)
    known = n.constant(1)
    if known is not None and known.size == 1:
        p = float(known.reshape(()))
        return n.g * (n.a ** (p - 1) * p if p else 0 * n.a)
    return n.g * op.Where(op.Equal(exponent, 0.0), exponent, exponent * n.a ** (exponent - 1))


def _power_exponent(n: Call) -> Tensor:
    positive = n.a > 0
    return n.g * n.y * op.Where(positive, op.Log(op.Where(positive, n.a, 1.0)), 0.0)


def _shared_extreme(n: Call, index: int) -> Tensor:
    """Return the gradient of Max or Min; operands that tie share it evenly."""
    if len(n.inputs) == 1:
        return n.g
    hits = [op.Equal(x, n.y).cast(n.y.dtype) for x in n.inputs if x is not None]
    ties = hits[0]
    for hit in hits[1:]:
        ties = ties + hit
    return sum_to(n.g * hits[index] / ties, n.y, n.input(index))


def _shared_mean(n: Call, index: int) -> Tensor:
    return sum_to(n.g / len(n.inputs), n.y, n.input(index)) if len(n.inputs) > 1 else n.g


def _gelu(n: Call) -> Tensor:
    x = n.x
    if n.attribute("approximate", "none") == "tanh":
        t = op.Tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x)))
        inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * (x * x))
        return n.g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner)
    u = x * math.sqrt(0.5)
    return 0.5 * n.g * (1 + op.Erf(u) + x * op.Exp(math.log(math.sqrt(2 / math.pi)) - u * u))


def _mish(n: Call) -> Tensor:
    t = op.Tanh(op.Softplus(n.x))
    return n.g * (t + n.x * (1 - t * t) * op.Sigmoid(n.x))


def _swish(n: Call) -> Tensor:
    alpha = n.attribute("alpha", 1.0)
    s = op.Sigmoid(alpha * n.x)
    return n.g * (s + alpha * (n.x * s) * (1 - s))


def _elu(n: Call) -> Tensor:
    # For x <= 0, y = alpha (e^x - 1), so that alpha e^x = y + alpha: no exponential of a large x is taken.
    return n.g * op.Where(n.x > 0, 1.0, n.y + n.attribute("alpha", 1.0))


def _celu(n: Call) -> Tensor:
    return n.g * op.Exp(op.Min(n.x, 0.0) / n.attribute("alpha", 1.0))


def _selu(n: Call) -> Tensor:
    alpha = n.attribute("alpha", 1.6732631921768188)
    gamma = n.attribute("gamma", 1.0507010221481323)
    return n.g * op.Where(n.x > 0, gamma, n.y + alpha * gamma)


def _leaky(n: Call) -> Tensor:
    slope = n.attribute("alpha", 0.01)
    return n.g * ((n.x > 0).cast(n.x.dtype) * (1 - slope) + slope)


def _hard_sigmoid(n: Call) -> Tensor:
    return n.g * ((n.y > 0).cast(n.x.dtype) * (n.y < 1)) * n.attribute("alpha", 0.2)


def _hard_swish(n: Call) -> Tensor:
    inside = (n.x > -3).cast(n.x.dtype) * (n.x < 3)
    return n.g * (inside * (n.x / 3 + 0.5) + (n.x >= 3))


def _shrink(n: Call) -> Tensor:
    return n.g * (op.Abs(n.x) > n.attribute("lambd", 0.5))


def _clip_low(n: Call) -> Tensor:
    """Return the gradient of a lower bound: where it is the result, and no smaller upper bound is."""
    below = op.And(n.x < n.b, op.Equal(n.y, n.b))
    return sum_to(n.g * below, n.y, n.b)


def _clip_high(n: Call) -> Tensor:
    low = n.optional(1)
    above = n.x if low is None else op.Max(n.x, low)
    return sum_to(n.g * (above > n.c), n.y, n.c)


#: Operators with one input.
_UNARY: Rules = {
    "Abs": (lambda n: n.g * op.Sign(n.x),),
    "Acos": (lambda n: -n.g / op.Sqrt(1 - n.x * n.x),),
    "Acosh": (lambda n: n.g / op.Sqrt(n.x * n.x - 1),),
    "Asin": (lambda n: n.g / op.Sqrt(1 - n.x * n.x),),
    "Asinh": (lambda n: n.g / op.Sqrt(n.x * n.x + 1),),
    "Atan": (lambda n: n.g / (n.x * n.x + 1),),
    "Atanh": (lambda n: n.g / (1 - n.x * n.x),),
    "Cast": (lambda n: n.g if is_quantized(n.x.value) else n.g.cast(n.x.dtype),),
    "Celu": (_celu,),
    "Cos": (lambda n: -n.g * op.Sin(n.x),),
    "Cosh": (lambda n: n.g * op.Sinh(n.x),),
    "Elu": (_elu,),
    # The factor 2 / sqrt(pi) is in the exponent, where it takes no further operator.
    "Erf": (lambda n: n.g * op.Exp(math.log(2 / math.sqrt(math.pi)) - n.x * n.x),),
    "Exp": (lambda n: n.g * n.y,),
    "Gelu": (_gelu,),
    "HardSigmoid": (_hard_sigmoid,),
    "HardSwish": (_hard_swish,),
    "Identity": (lambda n: n.g,),
    "LeakyRelu": (_leaky,),
    "Log": (lambda n: n.g / n.x,),
    "Mish": (_mish,),
    "Neg": (lambda n: -n.g,),
    "Reciprocal": (lambda n: -n.g * (n.y * n.y),),
    "Relu": (lambda n: n.g * (n.y > 0),),
    "Selu": (_selu,),
    "Shrink": (_shrink,),
    "Sigmoid": (lambda n: n.g * (n.y * (1 - n.y)),),
    "Sin": (lambda n: n.g * op.Cos(n.x),),
    "Sinh": (lambda n: n.g * op.Cosh(n.x),),
    "Softplus": (lambda n: n.g * op.Sigmoid(n.x),),
    "Softsign": (lambda n: n.g / (1 + op.Abs(n.x)) ** 2,),
    "Sqrt": (lambda n: n.g / (2 * n.y),),
    "Swish": (_swish,),
    "Tan": (lambda n: n.g * (1 + n.y * n.y),),
    "Tanh": (lambda n: n.g * (1 - n.y * n.y),),
    "ThresholdedRelu": (lambda n: n.g * (n.x > n.attribute("alpha", 1.0)),),
}

#: Operators with several inputs, which are broadcast against each other.
_BROADCAST: Rules = {
    "Add": (_fit(0, lambda n: n.g), _fit(1, lambda n: n.g)),
    "CastLike": (lambda n: n.g.cast(n.x.dtype), None),
    "Clip": (lambda n: n.g * op.Equal(n.x, n.y), _clip_low, _clip_high),
    "Div": (_fit(0, lambda n: n.g / n.b), _fit(1, lambda n: -n.g * n.y / n.b)),
    "Max": _shared_extreme,
    "Mean": _shared_mean,
    "Min": _shared_extreme,
    "Mod": (_fit(0, lambda n: n.g), _fit(1, lambda n: n.g * ((n.y - n.a) / n.b))),
    "Mul": (_fit(0, lambda n: n.g * n.b), _fit(1, lambda n: n.g * n.a)),
    "Pow": (_fit(0, _power_base), _fit(1, _power_exponent)),
    "PRelu": (
        _fit(0, lambda n: n.g * op.Where(n.x > 0, 1.0, n.b)),
        _fit(1, lambda n: n.g * op.Min(n.x, 0.0)),
    ),
    "Sub": (_fit(0, lambda n: n.g), _neg_g),
    "Sum": lambda n, index: sum_to(n.g, n.y, n.input(index)),
    "Where": (
        None,
        _fit(1, lambda n: n.g * n.a),
        _fit(2, lambda n: n.g - n.g * n.a),
    ),
}

ELEMENTWISE: Rules = {**_UNARY, **_BROADCAST}
