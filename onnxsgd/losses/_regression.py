"""Regression losses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.losses._base import Link, Loss, clip, indicator, set_number

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = [
    "AbsoluteError",
    "Elastic",
    "EpsilonInsensitive",
    "Huber",
    "LogCosh",
    "Quantile",
    "SquaredEpsilonInsensitive",
    "SquaredError",
]


@dataclass(frozen=True)
class SquaredError(Loss):
    """Half the squared error, the usual choice for regression.

    ::

        value = (raw_prediction - y_true)^2 / 2
        gradient = raw_prediction - y_true
    """

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual = op.Sub(raw_prediction, y_true)
        return op.Mul(op.Mul(residual, residual), 0.5)

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return op.Sub(raw_prediction, y_true)


@dataclass(frozen=True)
class AbsoluteError(Loss):
    """Absolute error: the median instead of the mean, robust to outliers.

    ::

        value = |raw_prediction - y_true|
        gradient = sign(raw_prediction - y_true), 0 at 0

    References
    ----------
    R. Koenker, G. Bassett, "Regression Quantiles", Econometrica 46, 1978: the quantile 1/2.
    """

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return op.Abs(op.Sub(raw_prediction, y_true))

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return op.Sign(op.Sub(raw_prediction, y_true))


@dataclass(frozen=True)
class Elastic(Loss):
    """A mixture of absolute and squared error.

    ::

        value = l1_weight |r| + l2_weight r^2,  r = raw_prediction - y_true
        gradient = l1_weight sign(r) + 2 l2_weight r

    Parameters
    ----------
    l1_weight, l2_weight : float, default=0.5
        Weights of the two errors, not negative and not both zero.
    """

    l1_weight: float = 0.5
    l2_weight: float = 0.5

    def __post_init__(self) -> None:
        for name in ("l1_weight", "l2_weight"):
            set_number(self, name, lambda weight: weight >= 0, "a number >= 0")
        if self.l1_weight == 0 and self.l2_weight == 0:
            raise ParameterError("l1_weight and l2_weight are both 0: at least one must be > 0.")

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual = op.Sub(raw_prediction, y_true)
        return op.Add(
            op.Mul(op.Abs(residual), self.l1_weight), op.Mul(op.Mul(residual, residual), self.l2_weight)
        )

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual = op.Sub(raw_prediction, y_true)
        return op.Add(op.Mul(op.Sign(residual), self.l1_weight), op.Mul(residual, 2.0 * self.l2_weight))


@dataclass(frozen=True)
class Huber(Loss):
    """Squared error for small residuals, absolute error for large ones.

    ::

        value = r^2 / 2                        where |r| <= epsilon,  r = raw_prediction - y_true
                epsilon |r| - epsilon^2 / 2    elsewhere
        gradient = clip(r, -epsilon, epsilon)

    Parameters
    ----------
    epsilon : float, default=0.1
        The residual above which the loss is linear, in the unit of y, > 0, at most 1e18.

    References
    ----------
    P. J. Huber, "Robust Estimation of a Location Parameter", Annals of Mathematical Statistics 35, 1964.
    """

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        # its square is a number of float32
        set_number(self, "epsilon", lambda epsilon: 0 < epsilon <= 1e18, "a number > 0, at most 1e18")

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual = op.Sub(raw_prediction, y_true)
        size = op.Abs(residual)
        linear = op.Sub(op.Mul(size, self.epsilon), 0.5 * self.epsilon**2)
        large = op.Greater(size, self.epsilon)
        return op.Where(large, linear, op.Mul(op.Mul(residual, residual), 0.5))

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return clip(op, op.Sub(raw_prediction, y_true), -self.epsilon, self.epsilon)


@dataclass(frozen=True)
class LogCosh(Loss):
    """Squared error for small residuals, absolute error for large ones, smooth everywhere.

    ::

        value = log(cosh(r)),  r = raw_prediction - y_true
        gradient = tanh(r)

    computed as ``|r| + log(1 + exp(-2 |r|)) - log(2)``, which is finite for every r. The change from square
    to line is at residuals of about 1: scale the target to choose it, or take :class:`Huber`.

    References
    ----------
    P. J. Green, "Bayesian reconstructions from emission tomography data using a modified EM algorithm",
    IEEE Transactions on Medical Imaging 9, 1990.
    """

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        size = op.Abs(op.Sub(raw_prediction, y_true))
        rest = op.Log(op.Add(op.Exp(op.Mul(size, -2.0)), 1.0))
        return op.Sub(op.Add(size, rest), math.log(2.0))

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return op.Tanh(op.Sub(raw_prediction, y_true))


@dataclass(frozen=True)
class EpsilonInsensitive(Loss):
    """Absolute error beyond a tolerance, the loss of linear support vector regression.

    ::

        value = max(0, |r| - epsilon),  r = raw_prediction - y_true
        gradient = sign(r) where |r| > epsilon, 0 elsewhere

    Parameters
    ----------
    epsilon : float, default=0.1
        Residuals up to this size, in the unit of y, cost nothing, >= 0.

    References
    ----------
    V. N. Vapnik, "The Nature of Statistical Learning Theory", Springer, 1995.
    """

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        set_number(self, "epsilon", lambda epsilon: epsilon >= 0, "a number >= 0")

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return _excess(op, op.Sub(raw_prediction, y_true), self.epsilon)

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual = op.Sub(raw_prediction, y_true)
        beyond = op.Greater(op.Abs(residual), self.epsilon)
        return op.Mul(op.Sign(residual), indicator(op, beyond, raw_prediction))


@dataclass(frozen=True)
class SquaredEpsilonInsensitive(Loss):
    """Squared error beyond a tolerance.

    ::

        value = max(0, |r| - epsilon)^2,  r = raw_prediction - y_true
        gradient = 2 sign(r) max(0, |r| - epsilon)

    Parameters
    ----------
    epsilon : float, default=0.1
        Residuals up to this size, in the unit of y, cost nothing, >= 0.

    References
    ----------
    C.-H. Ho, C.-J. Lin, "Large-scale Linear Support Vector Regression", Journal of Machine Learning
    Research 13, 2012.
    """

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        set_number(self, "epsilon", lambda epsilon: epsilon >= 0, "a number >= 0")

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        excess = _excess(op, op.Sub(raw_prediction, y_true), self.epsilon)
        return op.Mul(excess, excess)

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual = op.Sub(raw_prediction, y_true)
        return op.Mul(op.Mul(op.Sign(residual), 2.0), _excess(op, residual, self.epsilon))


@dataclass(frozen=True)
class Quantile(Loss):
    """The pinball loss, whose minimum is a quantile of y.

    ::

        value = quantile r            where r >= 0,  r = y_true - raw_prediction
                (quantile - 1) r      elsewhere
        gradient = -quantile where r >= 0, 1 - quantile elsewhere

    With several levels there is one target, of which each level has a raw prediction; their losses are added.
    Predictions are the raw predictions of a sample in ascending order: they do not cross, a linear model
    stays linear in each level, and the sum of the losses is never larger than that of the raw predictions.

    Parameters
    ----------
    quantile : float or sequence of float, default=0.5
        The quantile to predict, strictly between 0 and 1, or several levels in ascending order.

    References
    ----------
    R. Koenker, G. Bassett, "Regression Quantiles", Econometrica 46, 1978. V. Chernozhukov, I. Fernandez-Val,
    A. Galichon, "Quantile and Probability Curves Without Crossing", Econometrica 78, 2010.
    """

    quantile: float | Sequence[float] = 0.5

    def __post_init__(self) -> None:
        given = self.quantile
        # arrays without axes call themselves iterable
        if isinstance(given, Iterable) and not isinstance(given, str) and getattr(given, "ndim", 1) > 0:
            self._set_levels(list(given))
        else:
            set_number(self, "quantile", _is_level, "a number strictly between 0 and 1")
            self._set_form("identity", (1.0,))

    def _set_levels(self, given: list[object]) -> None:
        """Check several levels, and keep them as a tuple of Python floats."""
        expected = "numbers strictly between 0 and 1 in ascending order, at least two"
        if not all(isinstance(level, Real) for level in given):
            raise ParameterTypeError(f"quantile={self.quantile!r} is not accepted: it must be {expected}.")
        levels = tuple(float(level) for level in given)  # type: ignore[arg-type]
        is_ascending = all(first < second for first, second in pairwise(levels))
        if len(levels) < 2 or not is_ascending or not all(map(_is_level, levels)):
            raise ParameterError(f"quantile={self.quantile!r} is not accepted: it must be {expected}.")
        # the same object in a clone, as scikit-learn requires
        kept = self.quantile if type(self.quantile) is tuple and self.quantile == levels else levels
        object.__setattr__(self, "quantile", kept)
        self._set_form("sorted", (1.0,) * len(levels))

    def _set_form(self, link: Link, score_factors: tuple[float, ...]) -> None:
        object.__setattr__(self, "link", link)
        object.__setattr__(self, "score_factors", score_factors)

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual = op.Sub(y_true, raw_prediction)
        over = op.Less(residual, 0.0)
        return op.Where(over, op.Mul(residual, self._shifted(-1.0)), op.Mul(residual, self._shifted(0.0)))

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        over = op.Greater(raw_prediction, y_true)
        return op.Sub(indicator(op, over, raw_prediction), self._shifted(0.0))

    def _shifted(self, shift: float) -> float | list[float]:
        """Return the level plus a number, or all levels as a row."""
        if isinstance(self.quantile, Sequence):
            return [float(level) + shift for level in self.quantile]
        return self.quantile + shift

    def score_offsets(self, residual: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
        order = np.argsort(residual[:, 0], kind="stable")
        below = np.cumsum(sample_weight[order])
        places = np.searchsorted(below, np.multiply(self.quantile, below[-1]))
        return residual[order[np.minimum(places, len(order) - 1)], 0]


def _is_level(level: float) -> bool:
    return 0 < level < 1


def _excess(op: Builder, residual: ir.Value, epsilon: float) -> ir.Value:
    return op.Relu(op.Sub(op.Abs(residual), epsilon))
