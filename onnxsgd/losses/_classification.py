"""Classification losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from onnxsgd.losses._base import Loss, Targets, clip, indicator

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = ["CrossEntropy", "Hinge", "LogLoss", "ModifiedHuber", "Perceptron", "SquaredHinge"]


@dataclass(frozen=True)
class LogLoss(Loss):
    """Binary cross-entropy of each output: logistic regression, or one against the rest.

    ::

        value = log(1 + exp(z)) - y_true z,  z = raw_prediction
        gradient = 1 / (1 + exp(-z)) - y_true

    computed as ``max(z, 0) + log(1 + exp(-|z|)) - y_true z``, which is finite for every z.
    """

    targets: ClassVar[Targets] = "indicator"
    probabilities: ClassVar[str | None] = "sigmoid"

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        # Where, not Abs: a linear model starts at 0, where the derivative must be 1/2, and that of Abs is 0.
        positive = op.Greater(raw_prediction, 0.0)
        minus_size = op.Where(positive, op.Neg(raw_prediction), raw_prediction)
        softplus = op.Add(op.Relu(raw_prediction), op.Log(op.Add(op.Exp(minus_size), 1.0)))
        return op.Sub(softplus, op.Mul(y_true, raw_prediction))

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
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

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        log_probability = op.LogSoftmax(raw_prediction, axis=-1)
        return op.Neg(op.ReduceSum(op.Mul(y_true, log_probability), axes=[1], keepdims=1))

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
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

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        lack = op.Sub(self.threshold, op.Mul(y_true, raw_prediction))
        return op.Where(op.Less(lack, 0.0), op.Mul(lack, 0.0), lack)

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        beyond = op.Greater(op.Mul(y_true, raw_prediction), self.threshold)
        return op.Mul(y_true, op.Sub(indicator(op, beyond, y_true), 1.0))


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

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        lack = _lack(op, y_true, raw_prediction)
        return op.Mul(lack, lack)

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
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

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        lack = _lack(op, y_true, raw_prediction)
        linear = op.Sub(op.Mul(lack, 4.0), 4.0)
        return op.Where(op.Greater(lack, 2.0), linear, op.Mul(lack, lack))

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        lack = op.Sub(1.0, op.Mul(y_true, raw_prediction))
        return op.Mul(op.Mul(y_true, -2.0), clip(op, lack, 0.0, 2.0))


def _lack(op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
    return op.Relu(op.Sub(1.0, op.Mul(y_true, raw_prediction)))
