"""Plots of a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from onnxsgd.exceptions import MissingRuntimeError, ParameterError, ParameterTypeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from sklearn.base import BaseEstimator

__all__ = ["TrainingDisplay"]


class TrainingDisplay:
    """A plot of the loss of each epoch, and of the score on validation data, if any.

    Use :meth:`from_estimator` to make one. Needs matplotlib, which ``pip install 'onnxsgd[plot]'`` installs.

    Parameters
    ----------
    loss_curve : sequence of float
        The objective of each epoch.
    validation_scores : sequence of float or None, default=None
        The score after each epoch, of the same length.
    estimator_name : str or None, default=None
        The title.
    score_name : str, default="validation score"
        The name of the score.

    Attributes
    ----------
    ax_ : matplotlib.axes.Axes
        The axes with the loss.
    score_ax_ : matplotlib.axes.Axes or None
        The axes with the score, which share the epochs.
    figure_ : matplotlib.figure.Figure
        The figure of both.
    loss_line_, score_line_ : matplotlib.lines.Line2D or None
        The curves.
    best_line_ : matplotlib.lines.Line2D or None
        The mark at the best score.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onnxsgd import OnnxSGDClassifier, TrainingDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> model = OnnxSGDClassifier(max_iter=20, tol=None, random_state=0).fit(X, y)
    >>> display = TrainingDisplay.from_estimator(model)  # doctest: +SKIP
    """

    def __init__(
        self,
        loss_curve: Sequence[float],
        validation_scores: Sequence[float] | None = None,
        *,
        estimator_name: str | None = None,
        score_name: str = "validation score",
    ) -> None:
        self.loss_curve = loss_curve
        self.validation_scores = validation_scores
        self.estimator_name = estimator_name
        self.score_name = score_name

    @classmethod
    def from_estimator(cls, est: BaseEstimator, ax: Axes | None = None) -> Self:
        """Draw the training of a fitted estimator.

        Parameters
        ----------
        est : OnnxSGDRegressor or OnnxSGDClassifier
            The fitted estimator, or a pipeline that ends in one.
        ax : matplotlib.axes.Axes or None, default=None
            The axes to draw on; None: those of a new figure.

        Returns
        -------
        TrainingDisplay
            The plot, drawn.

        Raises
        ------
        ParameterTypeError
            If `est` has no loss curve.
        ParameterError
            If it has no epoch to show.
        MissingRuntimeError
            If matplotlib is not installed.
        """
        final = est.steps[-1][1] if hasattr(est, "steps") else est
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
        display = cls(
            final.loss_curve_,
            getattr(final, "validation_scores_", None),
            estimator_name=type(final).__name__,
            score_name=names.get(str(kind), "validation score"),
        )
        return display.plot(ax=ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib.axes.Axes or None, default=None
            The axes to draw on; None: those of a new figure.

        Returns
        -------
        TrainingDisplay
            The same object, with the attributes of the drawn artists.
        """
        if ax is None:
            ax = _pyplot().subplots(layout="constrained")[1]
        epochs = np.arange(1, len(self.loss_curve) + 1)
        self.ax_, self.figure_ = ax, ax.figure
        (self.loss_line_,) = ax.plot(epochs, self.loss_curve, color="C0", label="training loss")
        ax.set(xlabel="epoch", ylabel="training loss", title=self.estimator_name or "")
        ax.xaxis.get_major_locator().set_params(integer=True)
        self.score_ax_ = self.score_line_ = self.best_line_ = None
        if self.validation_scores is not None:
            self._plot_scores(epochs, self.validation_scores)
        return self

    def _plot_scores(self, epochs: np.ndarray, scores: Sequence[float]) -> None:
        axes = self.score_ax_ = self.ax_.twinx()
        (self.score_line_,) = axes.plot(epochs, scores, color="C1", label=self.score_name)
        axes.set_ylabel(self.score_name)
        best = int(np.argmax(scores))
        label = f"best: {scores[best]:.3g} at epoch {epochs[best]}"
        (self.best_line_,) = axes.plot(
            epochs[best], scores[best], "o", color="C1", markerfacecolor="none", label=label
        )
        # The upper axes draw the legend; otherwise their curve would cross it.
        axes.legend(handles=[self.loss_line_, self.score_line_, self.best_line_], loc="center right")


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise MissingRuntimeError(
            "TrainingDisplay needs matplotlib: install it, or install onnxsgd[plot]."
        ) from error
    return matplotlib.pyplot
