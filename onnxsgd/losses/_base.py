"""Base class of the losses, and helpers of their formulas."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from onnxsgd._settable import Settable, as_float
from onnxsgd.exceptions import ParameterError, ParameterTypeError

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = ["TINY", "Link", "Loss", "Targets", "check_choices", "clip", "indicator", "set_flag", "set_number"]

Targets = Literal["real", "non-negative", "positive", "sign", "indicator"]
Link = Literal["identity", "log", "normal", "sorted"]


#: The smallest divisor: a normal number of float32.
TINY = 1e-30


class Loss(Settable, ABC):
    """Base class of the losses.

    Attributes
    ----------
    targets : {"real", "non-negative", "positive", "sign", "indicator"}
        The values of `y_true`: any real number, those >= 0, or those > 0 (regression), -1 and +1 (margin
        losses), or 0 and 1.
    link : {"identity", "log", "normal", "sorted"}
        Of a regression, the function of the prediction that is the raw prediction. "normal": raw predictions
        are means, then logarithms of variances; "sorted": predictions are raw predictions in order.
    score_factors : tuple of float
        Of a regression, one number for each raw prediction of a target: 1, or 0 if it does not have the unit
        of the target. Those of several targets are side by side: the first of each, the second of each;
        `y_true` is repeated likewise.
    unit : float or None
        Of a loss without a least value, the difference that counts as large, for one target; None: the
        least value is 0.
    probabilities : {None, "sigmoid", "softmax", "modified_huber"}
        Of a classification, the function from raw predictions to probabilities; None if there is none.
    is_joint : bool
        Of a classification, True if the raw predictions of the classes are compared with each other: each
        class has an output, also of two, and a sample has one label.
    """

    targets: ClassVar[Targets] = "real"
    link: ClassVar[Link] = "identity"
    score_factors: ClassVar[tuple[float, ...]] = (1.0,)
    unit: ClassVar[float | None] = None
    probabilities: ClassVar[str | None] = None
    is_joint: ClassVar[bool] = False

    @abstractmethod
    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        """Build the loss: [n_samples, n_outputs], or [n_samples, 1] if outputs are summed already."""

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value | None:
        """Build the derivative of the loss by `raw_prediction`, of the same shape; None: by the engine."""
        return None

    @property
    def is_formula(self) -> bool:
        """True if the loss is made of ONNX operators; False: Python computes it."""
        return True

    def score_offsets(self, residual: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
        """Return the raw predictions beside a given prediction times `score_factors`.

        Parameters
        ----------
        residual : ndarray of shape (n_samples, n_targets)
            The targets less the prediction.
        sample_weight : ndarray of shape (n_samples,)
            Weights of the samples.

        Returns
        -------
        ndarray of shape (n_targets * len(score_factors),)
            Zeros, unless the loss overrides it.
        """
        return np.zeros(residual.shape[1] * len(self.score_factors))

    def scores_of_shares(self, mean: np.ndarray, least: float) -> np.ndarray:
        """Return the raw predictions that know of a classification the shares of its classes alone.

        They are the first scores of a linear model whose rate is found: those whose probabilities are the
        shares, unless the loss overrides it.

        Parameters
        ----------
        mean : ndarray of shape (n_outputs,)
            The weighted mean of `y_true`.
        least : float
            The share that a class without a sample has.

        Returns
        -------
        ndarray of shape (n_outputs,)
            Zeros where the loss has no probabilities.
        """
        if self.probabilities == "sigmoid":
            shares = np.clip((mean + 1.0) / 2.0 if self.targets == "sign" else mean, least, 1.0 - least)
            return np.asarray(np.log(shares / (1.0 - shares)))
        if self.probabilities == "softmax":
            logarithms = np.log(np.maximum(mean / max(mean.sum(), TINY), least))
            return np.asarray(logarithms - logarithms.mean())
        return mean if self.probabilities == "modified_huber" else np.zeros_like(mean)


def clip(op: Builder, value: ir.Value, lower: float, upper: float) -> ir.Value:
    return op.Min(op.Max(value, lower), upper)


def indicator(op: Builder, condition: ir.Value, like: ir.Value) -> ir.Value:
    # Not CastLike: it needs opset 15.
    return op.Cast(condition, to=like.dtype)


#: The legal values of attributes that are arguments of losses given by users.
_CHOICES: dict[str, tuple[str | None, ...]] = {
    "targets": get_args(Targets),
    "link": ("identity", "log"),
    "probabilities": (None, "sigmoid", "softmax", "modified_huber"),
}


def check_choices(loss: Loss) -> None:
    """Check the attributes of a loss whose user names them."""
    for name, legal in _CHOICES.items():
        given: Any = getattr(loss, name)
        # arrays compare element by element
        if not (given is None or isinstance(given, str)) or given not in legal:
            raise ParameterError(f"{name}={given!r:.100} is not accepted: it must be one of {list(legal)}.")


def set_number(loss: Loss, name: str, legal: Callable[[float], bool], expected: str) -> None:
    """Check a parameter of `loss`, and convert it to a Python float: formulas take no numpy scalars."""
    given = getattr(loss, name)
    if not isinstance(given, Real):
        raise ParameterTypeError(f"{name}={given!r:.100} is not accepted: it must be {expected}.")
    number = as_float(given)
    if not (math.isfinite(number) and legal(number)):
        raise ParameterError(f"{name}={given!r:.100} is not accepted: it must be {expected}.")
    object.__setattr__(loss, name, number)


def set_flag(loss: Loss, name: str) -> None:
    """Check a parameter of `loss` that is True or False, and convert it to a Python bool."""
    given = getattr(loss, name)
    if not isinstance(given, bool | np.bool_):
        raise ParameterTypeError(f"{name}={given!r} is not accepted: it must be True or False.")
    object.__setattr__(loss, name, bool(given))
