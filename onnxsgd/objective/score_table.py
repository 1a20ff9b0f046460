"""Scores of :func:`onnxsgd.add_loss_output`: the table of losses by name, and the sum over a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

from onnxsgd._settable import did_you_mean
from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.losses import (
    CLASSIFICATION_LOSSES,
    REGRESSION_LOSSES,
    AbsoluteError,
    Loss,
    Targets,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = ["SCORES", "ProbabilityLogLoss", "ResidualSquare", "check_shape", "make_score", "weighted_loss"]


@dataclass(frozen=True)
class ResidualSquare(Loss):
    """The squared error without the factor 1/2.

    ::

        value = (raw_prediction - y_true)^2
        gradient = 2 (raw_prediction - y_true)
    """

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual = op.Sub(raw_prediction, y_true)
        return op.Mul(residual, residual)

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        return op.Mul(op.Sub(raw_prediction, y_true), 2.0)


@dataclass(frozen=True)
class ProbabilityLogLoss(Loss):
    """Cross-entropy of probabilities, for a graph that has no raw predictions.

    ::

        value = -sum_k y_true_k log(q_k),  q_k = clip(p_k, eps, 1 - eps) / sum_j clip(p_j, eps, 1 - eps)

    `raw_prediction` holds the probabilities p, `y_true` is 1 in the column of the class and 0 elsewhere. A
    clipped probability has no gradient; a loss on raw predictions (``"log_loss"``) has one everywhere.

    Parameters
    ----------
    eps : float, default=1e-6
        The bound that probabilities are clipped to, from 1e-30 (a float32 number) to less than 0.5.
    """

    eps: float = 1e-6
    targets: ClassVar[Targets] = "indicator"

    def __post_init__(self) -> None:
        if not isinstance(self.eps, Real):
            raise ParameterTypeError(f"eps={self.eps!r} is not accepted: it must be a number.")
        if not 1e-30 <= self.eps < 0.5:
            raise ParameterError(f"eps={self.eps!r} is not accepted: it must be >= 1e-30 and < 0.5.")
        object.__setattr__(self, "eps", float(self.eps))

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        clipped = op.Clip(raw_prediction, min=self.eps, max=1.0 - self.eps)
        # log(a / b) as a difference: the gradient of Div would need one more product.
        log_total = op.Log(op.ReduceSum(clipped, axes=[1], keepdims=1))
        return op.ReduceSum(op.Mul(y_true, op.Sub(log_total, op.Log(clipped))), axes=[1], keepdims=1)


#: The scores by name. Those of ``REGRESSION_LOSSES`` and ``CLASSIFICATION_LOSSES`` have the same formula
#: here, except "squared_error", which is not halved here.
SCORES: dict[str, type[Loss]] = {
    **REGRESSION_LOSSES,
    **CLASSIFICATION_LOSSES,
    "squared_error": ResidualSquare,
    "l2": ResidualSquare,
    "l1": AbsoluteError,
    "log": ProbabilityLogLoss,
}


def make_score(name: str | Loss, options: Mapping[str, object]) -> Loss:
    """Return the loss that `name` and `options` describe.

    Raises
    ------
    ParameterTypeError
        If `name` is neither a name nor a loss, or an option is unknown.
    ParameterError
        If the name is unknown, or an option has a value that is not accepted.
    """
    if isinstance(name, Loss):
        _refuse_unknown(options, [], f"the loss object {name!r}")
        return name
    if not isinstance(name, str):
        raise ParameterTypeError(f"score_name={name!r} is not accepted: it must be a string or a Loss.")
    if name not in SCORES:
        raise ParameterError(
            f"score_name={name!r} is not known: it must be one of {sorted(SCORES)}."
            f"{did_you_mean(name, SCORES)}"
        )
    score: Any = SCORES[name]
    _refuse_unknown(options, [field.name for field in fields(score)], f"score_name={name!r}")
    loss: Loss = score(**options)
    return loss


def weighted_loss(
    op: Builder,
    loss: Loss,
    y_true: ir.Value,
    raw_prediction: ir.Value,
    weight: ir.Value | None = None,
) -> ir.Value:
    """Build the loss of a batch, of shape [1, 1].

    ::

        sum_i weight_i sum_k value_ik

    Parameters
    ----------
    op : onnxscript.OpBuilder
        Builds the nodes.
    loss : Loss
        Its `value` is summed.
    y_true, raw_prediction : ir.Value
        Of shape [n_samples, n_outputs], both of the same real type, which is the type of the result.
    weight : ir.Value, optional
        Of shape [n_samples, 1] and the same type: a weight of shape [n_samples] would broadcast to
        [n_samples, n_samples]. None weighs every sample 1.
    """
    value = loss.value(op, y_true, raw_prediction)
    check_shape(loss, "value", value, raw_prediction)
    if weight is not None:
        value = op.Mul(value, weight)
    return op.ReduceSum(value, keepdims=1)


def check_shape(loss: Loss, formula: str, value: ir.Value, raw_prediction: ir.Value) -> None:
    """Refuse a formula of another shape than that of the raw predictions, as far as shapes are known.

    A vector of n losses and a column of n weights would broadcast to an n by n matrix.

    Parameters
    ----------
    loss : Loss
        The loss.
    formula : {"value", "gradient"}
        The formula of the loss. A value may have one column for all outputs together.
    value, raw_prediction : ir.Value
        The result of the formula and its operand.

    Raises
    ------
    ParameterError
        If the shape is known, and differs.
    """
    found, wanted = value.shape, raw_prediction.shape
    if found is None or wanted is None:
        return
    accepted = f"{wanted} or [{wanted[0]}, 1]" if formula == "value" else f"{wanted}"
    columns = {1, wanted[1]} if formula == "value" else {wanted[1]}
    is_accepted = len(found) == 2 and _may_equal(found[0], {wanted[0]}) and _may_equal(found[1], columns)
    if not is_accepted:
        raise ParameterError(
            f"The {formula} of the loss {loss!r} has shape {found}: for raw predictions of shape {wanted} it "
            f"must be {accepted}."
        )


def _may_equal(size: int | ir.SymbolicDim, sizes: set[int | ir.SymbolicDim]) -> bool:
    """Return whether a size is, or may be, one of several."""
    return size in sizes or not isinstance(size, int) or not all(isinstance(other, int) for other in sizes)


def _refuse_unknown(options: Mapping[str, object], legal: list[str], owner: str) -> None:
    unknown = sorted(set(options) - set(legal))
    if unknown:
        accepted = f"it accepts {legal}" if legal else "it accepts none"
        raise ParameterTypeError(f"Keyword arguments {unknown} are not accepted by {owner}: {accepted}.")
