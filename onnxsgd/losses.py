"""Losses, each as two short ONNX formulas: the value and its gradient.

A loss compares `y_true` and `raw_prediction`, two tensors of shape [n_samples, n_outputs] and of the
same real type, element by element or row by row. How rows and samples are summed and weighted is not
its business. `op` builds ONNX operators by name (``op.Sub(a, b)``); a Python number among the operands
becomes a constant of the other operand's type.

To write a loss of your own, derive from :class:`Loss` and give `value`; `gradient` may be left out, the
engine differentiates `value` then. :func:`onnxsgd.testing.check_gradients` compares the two numerically.

Where a loss has a kink the derivative is the one that scikit-learn's ``SGDRegressor`` and
``SGDClassifier`` use, so that weights follow theirs step by step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from onnxsgd.exceptions import ParameterError, ParameterTypeError

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "CLASSIFICATION_LOSSES",
    "REGRESSION_LOSSES",
    "AbsoluteError",
    "CrossEntropy",
    "Elastic",
    "EpsilonInsensitive",
    "Hinge",
    "Huber",
    "LogLoss",
    "Loss",
    "ModifiedHuber",
    "Perceptron",
    "Quantile",
    "SquaredEpsilonInsensitive",
    "SquaredError",
    "SquaredHinge",
    "make_loss",
]

Targets = Literal["real", "sign", "indicator"]


class Loss(ABC):
    """Base class of the losses.

    Attributes
    ----------
    targets : {"real", "sign", "indicator"}
        What `y_true` holds: any real number (regression), -1 and +1 (margin losses), or 0 and 1.
    probabilities : {None, "sigmoid", "softmax", "modified_huber"}
        How raw predictions become probabilities; None where they do not.
    """

    targets: ClassVar[Targets] = "real"
    probabilities: ClassVar[str | None] = None

    @abstractmethod
    def value(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        """Build the loss: [n_samples, n_outputs], or [n_samples, 1] where outputs are summed already."""

    def gradient(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value | None:
        """Build the derivative of the loss by `raw_prediction`, of the same shape; None: by the engine."""
        return None


@dataclass(frozen=True)
class SquaredError(Loss):
    """Half the squared error, the usual choice for regression.

    ::

        value = (raw_prediction - y_true)^2 / 2
        gradient = raw_prediction - y_true
    """

    def value(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual = op.Sub(raw_prediction, y_true)
        return op.Mul(op.Mul(residual, residual), 0.5)

    def gradient(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return op.Sub(raw_prediction, y_true)


@dataclass(frozen=True)
class AbsoluteError(Loss):
    """Absolute error: the median instead of the mean, robust to outliers.

    ::

        value = |raw_prediction - y_true|
        gradient = sign(raw_prediction - y_true), 0 at 0
    """

    def value(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return op.Abs(op.Sub(raw_prediction, y_true))

    def gradient(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
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
            _set_number(self, name, lambda weight: weight >= 0, "a number >= 0")
        if self.l1_weight == 0 and self.l2_weight == 0:
            raise ParameterError("l1_weight and l2_weight are both 0: at least one must be > 0.")

    def value(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual = op.Sub(raw_prediction, y_true)
        return op.Add(
            op.Mul(op.Abs(residual), self.l1_weight), op.Mul(op.Mul(residual, residual), self.l2_weight)
        )

    def gradient(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
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
        Where the loss becomes linear, in the unit of y, > 0.

    References
    ----------
    P. J. Huber, "Robust Estimation of a Location Parameter", Annals of Mathematical Statistics 35, 1964.
    """

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        _set_number(self, "epsilon", lambda epsilon: epsilon > 0, "a number > 0")

    def value(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual = op.Sub(raw_prediction, y_true)
        size = op.Abs(residual)
        linear = op.Sub(op.Mul(size, self.epsilon), 0.5 * self.epsilon**2)
        large = op.Greater(size, self.epsilon)
        return op.Where(large, linear, op.Mul(op.Mul(residual, residual), 0.5))

    def gradient(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return _clip(op, op.Sub(raw_prediction, y_true), -self.epsilon, self.epsilon)


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
    """

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        _set_number(self, "epsilon", lambda epsilon: epsilon >= 0, "a number >= 0")

    def value(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return _excess(op, op.Sub(raw_prediction, y_true), self.epsilon)

    def gradient(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual = op.Sub(raw_prediction, y_true)
        beyond = op.Greater(op.Abs(residual), self.epsilon)
        return op.Mul(op.Sign(residual), _indicator(op, beyond, raw_prediction))


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
    """

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        _set_number(self, "epsilon", lambda epsilon: epsilon >= 0, "a number >= 0")

    def value(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        excess = _excess(op, op.Sub(raw_prediction, y_true), self.epsilon)
        return op.Mul(excess, excess)

    def gradient(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual = op.Sub(raw_prediction, y_true)
        return op.Mul(op.Mul(op.Sign(residual), 2.0), _excess(op, residual, self.epsilon))


@dataclass(frozen=True)
class Quantile(Loss):
    """The pinball loss, whose minimum is a quantile of y.

    ::

        value = quantile r            where r >= 0,  r = y_true - raw_prediction
                (quantile - 1) r      elsewhere
        gradient = -quantile where r >= 0, 1 - quantile elsewhere

    Parameters
    ----------
    quantile : float, default=0.5
        The quantile to predict, strictly between 0 and 1.

    References
    ----------
    R. Koenker, G. Bassett, "Regression Quantiles", Econometrica 46, 1978.
    """

    quantile: float = 0.5

    def __post_init__(self) -> None:
        _set_number(self, "quantile", lambda q: 0 < q < 1, "a number strictly between 0 and 1")

    def value(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual = op.Sub(y_true, raw_prediction)
        over = op.Less(residual, 0.0)
        return op.Where(over, op.Mul(residual, self.quantile - 1.0), op.Mul(residual, self.quantile))

    def gradient(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        over = op.Greater(raw_prediction, y_true)
        return op.Sub(_indicator(op, over, raw_prediction), self.quantile)


@dataclass(frozen=True)
class LogLoss(Loss):
    """Binary cross-entropy of each output on its own: logistic regression, or one against the rest.

    ::

        value = log(1 + exp(z)) - y_true z,  z = raw_prediction
        gradient = 1 / (1 + exp(-z)) - y_true

    computed as ``max(z, 0) + log(1 + exp(-|z|)) - y_true z``, which is finite for every z.
    """

    targets: ClassVar[Targets] = "indicator"
    probabilities: ClassVar[str | None] = "sigmoid"

    def value(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        # Where, not Abs: a linear model starts at 0, where the derivative must be 1/2, and that of Abs is 0.
        positive = op.Greater(raw_prediction, 0.0)
        minus_size = op.Where(positive, op.Neg(raw_prediction), raw_prediction)
        softplus = op.Add(op.Relu(raw_prediction), op.Log(op.Add(op.Exp(minus_size), 1.0)))
        return op.Sub(softplus, op.Mul(y_true, raw_prediction))

    def gradient(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return op.Sub(op.Sigmoid(raw_prediction), y_true)


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Multinomial cross-entropy over the outputs: one class of several.

    ::

        value = -sum_k y_true_k log softmax(raw_prediction)_k
        gradient = softmax(raw_prediction) - y_true

    `y_true` is 1 in the column of the class and 0 elsewhere.
    """

    targets: ClassVar[Targets] = "indicator"
    probabilities: ClassVar[str | None] = "softmax"

    def value(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        log_probability = op.LogSoftmax(raw_prediction, axis=-1)
        return op.Neg(op.ReduceSum(op.Mul(y_true, log_probability), axes=[1], keepdims=1))

    def gradient(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return op.Sub(op.Softmax(raw_prediction, axis=-1), y_true)


@dataclass(frozen=True)
class Hinge(Loss):
    """The loss of the linear support vector machine.

    ::

        value = max(0, 1 - y_true raw_prediction)
        gradient = -y_true where y_true raw_prediction <= 1, 0 elsewhere
    """

    targets: ClassVar[Targets] = "sign"
    threshold: ClassVar[float] = 1.0

    def value(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        lack = op.Sub(self.threshold, op.Mul(y_true, raw_prediction))
        return op.Where(op.Less(lack, 0.0), op.Mul(lack, 0.0), lack)

    def gradient(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        beyond = op.Greater(op.Mul(y_true, raw_prediction), self.threshold)
        return op.Mul(y_true, op.Sub(_indicator(op, beyond, y_true), 1.0))


@dataclass(frozen=True)
class Perceptron(Hinge):
    """The loss of the perceptron, a hinge without a margin.

    ::

        value = max(0, -y_true raw_prediction)
        gradient = -y_true where y_true raw_prediction <= 0, 0 elsewhere

    References
    ----------
    F. Rosenblatt, "The Perceptron", Psychological Review 65, 1958.
    """

    threshold: ClassVar[float] = 0.0


@dataclass(frozen=True)
class SquaredHinge(Loss):
    """The square of the hinge, which is smooth.

    ::

        value = max(0, 1 - y_true raw_prediction)^2
        gradient = -2 y_true max(0, 1 - y_true raw_prediction)
    """

    targets: ClassVar[Targets] = "sign"

    def value(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        lack = _lack(op, y_true, raw_prediction)
        return op.Mul(lack, lack)

    def gradient(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return op.Mul(op.Mul(y_true, -2.0), _lack(op, y_true, raw_prediction))


@dataclass(frozen=True)
class ModifiedHuber(Loss):
    """A squared hinge that grows linearly for gross errors, and gives probabilities.

    ::

        value = max(0, 1 - m)^2   where m >= -1,  m = y_true raw_prediction
                -4 m              elsewhere
        gradient = -2 y_true clip(1 - m, 0, 2)

    References
    ----------
    T. Zhang, "Solving large scale linear prediction problems using stochastic gradient descent
    algorithms", ICML 2004.
    """

    targets: ClassVar[Targets] = "sign"
    probabilities: ClassVar[str | None] = "modified_huber"

    def value(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        lack = _lack(op, y_true, raw_prediction)
        linear = op.Sub(op.Mul(lack, 4.0), 4.0)
        return op.Where(op.Greater(lack, 2.0), linear, op.Mul(lack, lack))

    def gradient(self, op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        lack = op.Sub(1.0, op.Mul(y_true, raw_prediction))
        return op.Mul(op.Mul(y_true, -2.0), _clip(op, lack, 0.0, 2.0))


#: The losses that ``OnnxSGDRegressor(loss=...)`` accepts by name.
REGRESSION_LOSSES: dict[str, type[Loss]] = {
    "squared_error": SquaredError,
    "absolute_error": AbsoluteError,
    "elastic": Elastic,
    "huber": Huber,
    "epsilon_insensitive": EpsilonInsensitive,
    "squared_epsilon_insensitive": SquaredEpsilonInsensitive,
    "quantile": Quantile,
}

#: The losses that ``OnnxSGDClassifier(loss=...)`` accepts by name.
CLASSIFICATION_LOSSES: dict[str, type[Loss]] = {
    "log_loss": LogLoss,
    "hinge": Hinge,
    "squared_hinge": SquaredHinge,
    "modified_huber": ModifiedHuber,
    "perceptron": Perceptron,
    "squared_error": SquaredError,
    "huber": Huber,
    "epsilon_insensitive": EpsilonInsensitive,
    "squared_epsilon_insensitive": SquaredEpsilonInsensitive,
}


def make_loss(loss: str | Loss, table: dict[str, type[Loss]], epsilon: float) -> Loss:
    """Return `loss` as an object; `epsilon` is the parameter of those losses in `table` that have one."""
    if isinstance(loss, Loss):
        return loss
    cls = table[loss]
    takes_epsilon = any(field.name == "epsilon" for field in fields(cls))  # type: ignore[arg-type]
    return cls(epsilon=epsilon) if takes_epsilon else cls()  # type: ignore[call-arg]


def _excess(op: Any, residual: ir.Value, epsilon: float) -> ir.Value:
    return op.Relu(op.Sub(op.Abs(residual), epsilon))


def _lack(op: Any, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
    return op.Relu(op.Sub(1.0, op.Mul(y_true, raw_prediction)))


def _clip(op: Any, value: ir.Value, lower: float, upper: float) -> ir.Value:
    return op.Min(op.Max(value, lower), upper)


def _indicator(op: Any, condition: ir.Value, like: ir.Value) -> ir.Value:
    # Not CastLike: it needs opset 15.
    return op.Cast(condition, to=like.dtype)


def _set_number(loss: Loss, name: str, legal: Callable[[float], bool], expected: str) -> None:
    """Check a parameter of `loss`, and make a Python float of it: formulas take no numpy scalars."""
    given = getattr(loss, name)
    if not isinstance(given, Real):
        raise ParameterTypeError(f"{name}={given!r} is not accepted: it must be {expected}.")
    number = float(given)
    if not (math.isfinite(number) and legal(number)):
        raise ParameterError(f"{name}={given!r} is not accepted: it must be {expected}.")
    object.__setattr__(loss, name, number)
