"""Plots of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from onnxsgd.exceptions import MissingRuntimeError, ParameterError, ParameterTypeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from sklearn.base import BaseEstimator

    from onnxsgd.estimators.run_comparison import RunComparison

__all__ = ["TrainingDisplay", "fitted_epochs", "make_room", "pyplot"]

#: Rates that differ by more than this factor are drawn on a logarithmic scale.
_LOGARITHMIC = 20
#: The axes of rates: left and width in shares of the axes above, bottom and height in inches.
_RATE_BOX = (0.0, -0.85, 1.0, 0.7)


class TrainingDisplay:
    """A plot of the loss of each epoch, of the score on validation data, if any, and of the learning rate.

    Use :meth:`from_estimator` to make one, :meth:`from_estimators` to compare several fits. Needs matplotlib,
    which ``pip install 'onnxsgd[plot]'`` installs.

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
    learning_rates : sequence of float or None, default=None
        The learning rate at the end of each epoch, drawn below the loss; None: it is not drawn.

    Attributes
    ----------
    ax_ : matplotlib.axes.Axes
        The axes with the loss.
    score_ax_ : matplotlib.axes.Axes or None
        The axes with the score, which share the epochs.
    rate_ax_ : matplotlib.axes.Axes or None
        The axes with the rate, below, which share the epochs too.
    figure_ : matplotlib.figure.Figure
        The figure of all.
    loss_line_, score_line_, rate_line_ : matplotlib.lines.Line2D or None
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
        learning_rates: Sequence[float] | None = None,
    ) -> None:
        self.loss_curve = loss_curve
        self.validation_scores = validation_scores
        self.estimator_name = estimator_name
        self.score_name = score_name
        self.learning_rates = learning_rates

    @classmethod
    def from_estimator(cls, est: BaseEstimator, ax: Axes | None = None, *, rate: bool = False) -> Self:
        """Draw the training of a fitted estimator.

        Parameters
        ----------
        est : OnnxSGDRegressor or OnnxSGDClassifier
            The fitted estimator, or a pipeline that ends in one.
        ax : matplotlib.axes.Axes or None, default=None
            The axes to draw on; None: those of a new figure.
        rate : bool, default=False
            Whether the learning rate is drawn below.

        Returns
        -------
        TrainingDisplay
            The plot, drawn.

        Raises
        ------
        ParameterTypeError
            If `est` has no loss curve, or, with `rate`, no learning rates.
        ParameterError
            If it has no epoch to show.
        MissingRuntimeError
            If matplotlib is not installed.
        """
        final, score_name = fitted_epochs(est)
        display = cls(
            final.loss_curve_,
            getattr(final, "validation_scores_", None),
            estimator_name=type(final).__name__,
            score_name=score_name,
            learning_rates=_rates(final) if rate else None,
        )
        return display.plot(ax=ax)

    @classmethod
    def from_estimators(
        cls, estimators: Mapping[str, BaseEstimator], axes: Sequence[Axes] | None = None
    ) -> RunComparison:
        """Draw the trainings of several fitted estimators into one figure, to compare them.

        Parameters
        ----------
        estimators : mapping of str to OnnxSGDRegressor or OnnxSGDClassifier
            The fitted estimators, or pipelines that end in one, by the names that the legend shows.
        axes : sequence of matplotlib.axes.Axes or None, default=None
            One for the losses and, if one of the fits has validation scores, one for these; None: those of a
            new figure.

        Returns
        -------
        RunComparison
            The plot, drawn, with the attributes `figure_`, `loss_ax_`, `score_ax_`, and the lines of each
            fit by name, `loss_lines_` and `score_lines_`.

        Raises
        ------
        ParameterTypeError
            If `estimators` is no mapping, or one of them has no loss curve.
        ParameterError
            If there are none, if one has no epoch to show, or if the number of `axes` is another one.
        MissingRuntimeError
            If matplotlib is not installed.
        """
        # imported on use: that module imports this one
        from onnxsgd.estimators.run_comparison import RunComparison

        return RunComparison(estimators).plot(axes)

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
            ax = pyplot().subplots(layout="constrained")[1]
        make_room(ax.figure)
        epochs = np.arange(1, len(self.loss_curve) + 1)
        self.ax_, self.figure_ = ax, ax.figure
        (self.loss_line_,) = ax.plot(epochs, self.loss_curve, color="C0", label="training loss")
        ax.set(xlabel="epoch", ylabel="training loss", title=self.estimator_name or "")
        ax.xaxis.get_major_locator().set_params(integer=True)
        self.score_ax_ = self.score_line_ = self.best_line_ = None
        if self.validation_scores is not None:
            self._plot_scores(epochs, self.validation_scores)
        self.rate_ax_ = self.rate_line_ = None
        if self.learning_rates is not None:
            self._plot_rates(epochs, self.learning_rates)
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
        axes.legend(
            handles=[self.loss_line_, self.score_line_, self.best_line_], loc="center right", fontsize="small"
        )

    def _plot_rates(self, epochs: np.ndarray, rates: Sequence[float]) -> None:
        # imported on use: it is an optional dependency
        from matplotlib.transforms import ScaledTranslation, blended_transform_factory

        # heights in inches: layouts then find room for a size that does not depend on theirs
        whole = self.ax_.transAxes
        inches = self.ax_.figure.dpi_scale_trans + ScaledTranslation(0, 0, whole)
        place = blended_transform_factory(whole, inches)
        axes = self.rate_ax_ = self.ax_.inset_axes(_RATE_BOX, transform=place, sharex=self.ax_)
        (self.rate_line_,) = axes.plot(epochs, rates, color="C2")
        positive = [rate for rate in rates if rate > 0]
        if positive and max(positive) > _LOGARITHMIC * min(positive):
            axes.set_yscale("log")
        axes.set(xlabel="epoch", ylabel="rate")
        self.ax_.set_xlabel("")
        self.ax_.tick_params(labelbottom=False)


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


def _rates(est: BaseEstimator) -> Sequence[float]:
    if not hasattr(est, "learning_rates_"):
        raise ParameterTypeError(f"{type(est).__name__} keeps no learning_rates_, which rate=True draws.")
    return list(est.learning_rates_)


def make_room(figure: Figure) -> None:
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
