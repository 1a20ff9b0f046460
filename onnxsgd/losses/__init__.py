"""Losses, each as two short ONNX formulas: the value and its gradient.

A loss compares `y_true` and `raw_prediction`, two tensors of shape [n_samples, n_outputs] and of the
same real type, element by element or row by row. It neither sums nor weights rows and samples. `op`
builds ONNX operators by name (``op.Sub(a, b)``); a Python number among the operands becomes a constant
of the other operand's type.

For a custom loss, derive from :class:`Loss` and define `value`; without `gradient` the engine
differentiates `value`. :func:`onnxsgd.testing.check_gradients` compares the two numerically.

At a kink the derivative is that of scikit-learn's ``SGDRegressor`` and ``SGDClassifier``, so that weights
agree with theirs step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from typing import Any

from onnxsgd.losses._base import Link, Loss, Targets
from onnxsgd.losses._callable import FromCallable
from onnxsgd.losses._classification import (
    CrossEntropy,
    Focal,
    Hinge,
    LogLoss,
    ModifiedHuber,
    MulticlassHinge,
    MultinomialFocal,
    Perceptron,
    SquaredHinge,
)
from onnxsgd.losses._dense import DenseLoss as DenseLoss
from onnxsgd.losses._deviance import Gamma, Poisson, Tweedie
from onnxsgd.losses._graph import FromONNX
from onnxsgd.losses._likelihood import LARGEST_LOG_VARIANCE, GaussianNLL
from onnxsgd.losses._regression import (
    AbsoluteError,
    Elastic,
    EpsilonInsensitive,
    Huber,
    LogCosh,
    Quantile,
    SquaredEpsilonInsensitive,
    SquaredError,
)

__all__ = [
    "CLASSIFICATION_LOSSES",
    "LARGEST_LOG_VARIANCE",
    "MULTINOMIAL_LOSSES",
    "REGRESSION_LOSSES",
    "AbsoluteError",
    "CrossEntropy",
    "Elastic",
    "EpsilonInsensitive",
    "Focal",
    "FromCallable",
    "FromONNX",
    "Gamma",
    "GaussianNLL",
    "Hinge",
    "Huber",
    "Link",
    "LogCosh",
    "LogLoss",
    "Loss",
    "ModifiedHuber",
    "MulticlassHinge",
    "MultinomialFocal",
    "Perceptron",
    "Poisson",
    "Quantile",
    "SquaredEpsilonInsensitive",
    "SquaredError",
    "SquaredHinge",
    "Targets",
    "Tweedie",
    "make_loss",
]

#: The losses that ``OnnxSGDRegressor(loss=...)`` accepts by name.
REGRESSION_LOSSES: dict[str, type[Loss]] = {
    "squared_error": SquaredError,
    "absolute_error": AbsoluteError,
    "elastic": Elastic,
    "huber": Huber,
    "epsilon_insensitive": EpsilonInsensitive,
    "squared_epsilon_insensitive": SquaredEpsilonInsensitive,
    "quantile": Quantile,
    "log_cosh": LogCosh,
    "gaussian_nll": GaussianNLL,
    "poisson": Poisson,
    "gamma": Gamma,
    "tweedie": Tweedie,
}

#: The losses that ``OnnxSGDClassifier(loss=...)`` accepts by name.
CLASSIFICATION_LOSSES: dict[str, type[Loss]] = {
    "log_loss": LogLoss,
    "hinge": Hinge,
    "squared_hinge": SquaredHinge,
    "modified_huber": ModifiedHuber,
    "perceptron": Perceptron,
    "multiclass_hinge": MulticlassHinge,
    "focal": Focal,
    "squared_error": SquaredError,
    "huber": Huber,
    "epsilon_insensitive": EpsilonInsensitive,
    "squared_epsilon_insensitive": SquaredEpsilonInsensitive,
}


#: The losses that these names denote for a graph that compares the scores of its classes.
MULTINOMIAL_LOSSES: dict[str, type[Loss]] = {"log_loss": CrossEntropy, "focal": MultinomialFocal}


def make_loss(loss: str | Loss, table: dict[str, type[Loss]], epsilon: float) -> Loss:
    """Return `loss` as an object; `epsilon` is the parameter of those losses in `table` that have one."""
    if not isinstance(loss, str):
        return loss
    cls = table[loss]
    return cls(epsilon=epsilon) if _takes_epsilon(cls) else _plain(cls)  # type: ignore[call-arg]


#: Whether a loss has the parameter `epsilon`.
_takes_epsilon: Callable[[Any], bool] = lru_cache(
    lambda cls: any(field.name == "epsilon" for field in fields(cls))
)
#: The loss of a class without it, which all calls share.
_plain: Callable[[Any], Loss] = lru_cache(lambda cls: cls())
