"""Recorded quantities of a training, and their curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from onnxsgd.exceptions import MissingRuntimeError, ParameterError, ParameterTypeError

if TYPE_CHECKING:
    from matplotlib.lines import Line2D
    from sklearn.base import BaseEstimator

__all__ = [
    "draw_curve",
    "fitted_epochs",
    "make_room",
    "pyplot",
    "read_norms",
    "read_rates",
    "spans_magnitudes",
]

#: Values that differ by more than this factor are drawn on a logarithmic scale.
_LOGARITHMIC = 20


def fitted_epochs(est: BaseEstimator) -> tuple[Any, str]:
    """Return the last step of a pipeline, or the estimator itself, and the name of its score.

    Raises
    ------
    ParameterTypeError
        If it has no loss curve.
    ParameterError
        If it has no epoch to show.
    """
    final: Any = est.steps[-1][1] if hasattr(est, "steps") else est
    check_is_fitted(final)
    if not hasattr(final, "loss_curve_"):
        raise ParameterTypeError(
            f"{type(final).__name__} keeps no loss_curve_: est must be an OnnxSGDRegressor or an "
            "OnnxSGDClassifier, or a pipeline that ends in one."
        )
    if not len(final.loss_curve_):
        raise ParameterError("est has finished no epoch: there is nothing to show.")
    names = {"regressor": "R² on validation data", "classifier": "accuracy on validation data"}
    kind = getattr(final, "_estimator_type", None) or final.__sklearn_tags__().estimator_type
    return final, names.get(str(kind), "validation score")


def read_rates(est: BaseEstimator) -> Sequence[float]:
    """Return the learning rates of a fit.

    Raises
    ------
    ParameterTypeError
        If it keeps none.
    """
    if not hasattr(est, "learning_rates_"):
        raise ParameterTypeError(f"{type(est).__name__} keeps no learning_rates_, which rate=True draws.")
    return list(est.learning_rates_)


def read_norms(est: BaseEstimator) -> Sequence[float]:
    """Return the norms of the updates of a fit.

    Raises
    ------
    ParameterTypeError
        If estimators of this class keep none.
    ParameterError
        If they were not recorded.
    """
    if not hasattr(est, "update_norms_"):
        raise ParameterTypeError(
            f"{type(est).__name__} keeps no update_norms_, which update_norm=True draws."
        )
    if est.update_norms_ is None:
        raise ParameterError(
            "est recorded no update_norms_, which update_norm=True draws: fit it with "
            "record_update_norms=True."
        )
    return list(est.update_norms_)


def draw_curve(ax: Any, values: Sequence[float], **style: Any) -> Line2D:
    """Draw the values of the epochs; one alone is a point."""
    marker = "." if len(values) == 1 else None
    line: Line2D
    (line,) = ax.plot(np.arange(1, len(values) + 1), values, marker=marker, **style)
    ax.xaxis.get_major_locator().set_params(integer=True)
    return line


def spans_magnitudes(values: Sequence[float]) -> bool:
    """Tell whether the positive values need a logarithmic scale."""
    positive = [value for value in values if 0 < value < np.inf]
    return bool(positive) and max(positive) > _LOGARITHMIC * min(positive)


def make_room(figure: Any) -> None:
    """Let a figure without a layout keep axes and labels apart: scores have their labels on the right."""
    whole = getattr(figure, "figure", None) or figure
    if whole.get_layout_engine() is None:
        whole.set_layout_engine("constrained")


def pyplot() -> Any:
    """Return matplotlib.pyplot.

    Raises
    ------
    MissingRuntimeError
        If it is not installed.
    """
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise MissingRuntimeError(
            "TrainingDisplay needs matplotlib: install it, or install onnxsgd[plot]."
        ) from error
    return matplotlib.pyplot
