"""Regression losses with a logarithmic link: half the deviance of a distribution of positive targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from onnxsgd.losses._base import Link, Loss, Targets, set_number

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = ["Gamma", "Poisson", "Tweedie"]

_POWER = "a number <= 0 or >= 1: there is no distribution between"


@dataclass(frozen=True)
class Tweedie(Loss):
    """Half the Tweedie deviance: targets whose variance is a power of their mean, as costs of insurance.

    ::

        value = y^(2-p) / ((1-p) (2-p)) - y m^(1-p) / (1-p) + m^(2-p) / (2-p),  m = exp(raw_prediction)
        gradient = m^(2-p) - y m^(1-p)

    where p is `power` and y the target. The prediction is m. With ``power=1`` the value is that of
    :class:`Poisson`, with 2 that of :class:`Gamma`; with 0 it is the squared error of m. Next to 1 and 2
    large terms of the value cancel, not of the gradient: at 1.0001 its error in float32 is 5e-4.

    Parameters
    ----------
    power : float, default=1.5
        The exponent of the mean in the variance, <= 0 or >= 1. Targets are >= 0 below 2 and > 0 from 2 on;
        any real numbers with 0 and less.

    References
    ----------
    B. Jorgensen, "Exponential Dispersion Models", Journal of the Royal Statistical Society B 49, 1987.
    """

    power: float = 1.5
    link: ClassVar[Link] = "log"

    def __post_init__(self) -> None:
        set_number(self, "power", lambda power: power <= 0 or power >= 1, _POWER)

    @property
    def targets(self) -> Targets:  # type: ignore[override]
        """The values of `y_true`."""
        if self.power <= 0:
            return "real"
        return "non-negative" if self.power < 2 else "positive"

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        if self.power == 1:
            return _poisson_value(op, y_true, raw_prediction)
        if self.power == 2:
            return _gamma_value(op, y_true, raw_prediction)
        first, second = 1.0 - self.power, 2.0 - self.power
        # powers below 0 accept targets below 0: their first term is 0, as in scikit-learn
        base = y_true if self.power == 0 else op.Relu(y_true)
        own = op.Mul(op.Pow(base, second), 1.0 / (first * second))
        linear = op.Mul(y_true, op.Mul(op.Exp(op.Mul(raw_prediction, first)), 1.0 / first))
        mean = op.Mul(op.Exp(op.Mul(raw_prediction, second)), 1.0 / second)
        return op.Add(op.Sub(own, linear), mean)

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        mean = op.Exp(op.Mul(raw_prediction, 2.0 - self.power))
        return op.Sub(mean, op.Mul(y_true, op.Exp(op.Mul(raw_prediction, 1.0 - self.power))))


@dataclass(frozen=True)
class Poisson(Loss):
    """Half the Poisson deviance: counts, frequencies, rates.

    ::

        value = m - y + y log(y / m),  m = exp(raw_prediction)
        gradient = m - y

    where y is the target, >= 0; the prediction is m.

    References
    ----------
    P. McCullagh, J. A. Nelder, "Generalized Linear Models", Chapman and Hall, 1989.
    """

    targets: ClassVar[Targets] = "non-negative"
    link: ClassVar[Link] = "log"

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return _poisson_value(op, y_true, raw_prediction)

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return op.Sub(op.Exp(raw_prediction), y_true)


@dataclass(frozen=True)
class Gamma(Loss):
    """Half the gamma deviance: positive targets with a constant relative error, as durations and amounts.

    ::

        value = log(m / y) + y / m - 1,  m = exp(raw_prediction)
        gradient = 1 - y / m

    where y is the target, > 0; the prediction is m.

    References
    ----------
    P. McCullagh, J. A. Nelder, "Generalized Linear Models", Chapman and Hall, 1989.
    """

    targets: ClassVar[Targets] = "positive"
    link: ClassVar[Link] = "log"

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return _gamma_value(op, y_true, raw_prediction)

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return op.Sub(1.0, op.Mul(y_true, op.Exp(op.Neg(raw_prediction))))


def _poisson_value(op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
    # y (exp(d) - 1 - d) with d = log(m / y) loses fewer digits where y is large; y log(y) is 0 at 0
    some = op.Where(op.Greater(y_true, 0.0), y_true, op.Add(op.Mul(y_true, 0.0), 1.0))
    difference = op.Sub(raw_prediction, op.Log(some))
    return op.Sub(op.Mul(some, op.Exp(difference)), op.Mul(y_true, op.Add(difference, 1.0)))


def _gamma_value(op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
    difference = op.Sub(raw_prediction, op.Log(y_true))
    return op.Sub(op.Add(difference, op.Exp(op.Neg(difference))), 1.0)
