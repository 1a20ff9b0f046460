"""Plots of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from onnxsgd.estimators.curves import (
    draw_curve,
    fitted_epochs,
    make_room,
    pyplot,
    read_norms,
    read_rates,
    spans_magnitudes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from sklearn.base import BaseEstimator

    from onnxsgd.estimators.run_comparison import RunComparison

__all__ = ["TrainingDisplay"]

#: Axes below: their height, and the distance between the lower ends of two, in inches.
_HEIGHT, _STEP = 0.7, 0.85
#: The width of axes, in inches, from which on the legend has two columns.
_WIDE = 4.8
#: The height of a row of the legend, and of its margins, as multiples of the size of its letters.
_ROW, _MARGINS = 1.5, 1.6


class TrainingDisplay:
    """A plot of the loss of each epoch, of the score on validation data, of the rate and the norm of updates.

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
    update_norms : sequence of float or None, default=None
        The norm of the change of the weights over each epoch, drawn below too; None: it is not drawn.

    Attributes
    ----------
    ax_ : matplotlib.axes.Axes
        The axes with the loss.
    score_ax_ : matplotlib.axes.Axes or None
        The axes with the score, which share the epochs.
    rate_ax_, norm_ax_ : matplotlib.axes.Axes or None
        The axes with the rate, and with the norm of updates, below, which share the epochs too.
    figure_ : matplotlib.figure.Figure
        The figure of all.
    loss_line_, score_line_, rate_line_, norm_line_ : matplotlib.lines.Line2D or None
        The curves.
    best_line_ : matplotlib.lines.Line2D or None
        The mark at the best score, whose epoch a dotted line marks on all axes.

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
        update_norms: Sequence[float] | None = None,
    ) -> None:
        self.loss_curve = loss_curve
        self.validation_scores = validation_scores
        self.estimator_name = estimator_name
        self.score_name = score_name
        self.learning_rates = learning_rates
        self.update_norms = update_norms

    @classmethod
    def from_estimator(
        cls, est: BaseEstimator, ax: Axes | None = None, *, rate: bool = False, update_norm: bool = False
    ) -> Self:
        """Draw the training of a fitted estimator.

        Parameters
        ----------
        est : OnnxSGDRegressor or OnnxSGDClassifier
            The fitted estimator, or a pipeline that ends in one.
        ax : matplotlib.axes.Axes or None, default=None
            The axes to draw on; None: those of a new figure.
        rate : bool, default=False
            Whether the learning rate is drawn below.
        update_norm : bool, default=False
            Whether the norm of the change of the weights over each epoch is drawn below; `est` must have been
            fitted with ``record_update_norms=True``.

        Returns
        -------
        TrainingDisplay
            The plot, drawn.

        Raises
        ------
        ParameterTypeError
            If `est` has no loss curve, or, with `rate` or `update_norm`, is of a class that keeps no rates or
            no norms.
        ParameterError
            If it has no epoch to show, or recorded no norms.
        MissingRuntimeError
            If matplotlib is not installed.
        """
        final, score_name = fitted_epochs(est)
        display = cls(
            final.loss_curve_,
            getattr(final, "validation_scores_", None),
            estimator_name=type(final).__name__,
            score_name=score_name,
            learning_rates=read_rates(final) if rate else None,
            update_norms=read_norms(final) if update_norm else None,
        )
        return display.plot(ax=ax)

    @classmethod
    def from_estimators(
        cls,
        estimators: Mapping[str, BaseEstimator],
        axes: Sequence[Axes] | None = None,
        *,
        rate: bool = False,
        update_norm: bool = False,
    ) -> RunComparison:
        """Draw the trainings of several fitted estimators into one figure, to compare them.

        Parameters
        ----------
        estimators : mapping of str to OnnxSGDRegressor or OnnxSGDClassifier
            The fitted estimators, or pipelines that end in one, by the names that the legend shows.
        axes : sequence of matplotlib.axes.Axes or None, default=None
            One for the losses; if one of the fits has validation scores, one for these; and those that the
            next parameters ask for. None: those of a new figure.
        rate : bool, default=False
            Whether the learning rates are drawn too.
        update_norm : bool, default=False
            Whether the norms of the updates are drawn too, of fits with ``record_update_norms=True``.

        Returns
        -------
        RunComparison
            The plot, drawn, with the attributes `figure_`, `loss_ax_`, `score_ax_`, `rate_ax_`, `norm_ax_`,
            and the lines of each fit by name, `loss_lines_`, `score_lines_`, `rate_lines_`, `norm_lines_`.

        Raises
        ------
        ParameterTypeError
            If `estimators` is no mapping, or one of them has no loss curve.
        ParameterError
            If there are none, if one has no epoch to show, if the number of `axes` is another one, or if none
            has the rates or norms to be drawn.
        MissingRuntimeError
            If matplotlib is not installed.
        """
        # imported on use: that module imports this one
        from onnxsgd.estimators.run_comparison import RunComparison

        return RunComparison(estimators, rate=rate, update_norm=update_norm).plot(axes)

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
            ax = self._new_axes()
        make_room(ax.figure)
        self.ax_, self.figure_ = ax, ax.figure
        self.loss_line_ = draw_curve(ax, self.loss_curve, color="C0", label="training loss")
        ax.set(xlabel="epoch", ylabel="training loss", title=self.estimator_name or "")
        self.score_ax_: Axes | None = None
        self.score_line_: Line2D | None = None
        self.best_line_: Line2D | None = None
        self.rate_ax_, self.rate_line_ = self._plot_below(self.learning_rates, 0, "rate", "C2")
        place = 0 if self.learning_rates is None else 1
        self.norm_ax_, self.norm_line_ = self._plot_below(self.update_norms, place, "norm of\nupdate", "C3")
        if self.validation_scores is not None:
            self._plot_scores(self.validation_scores)
        return self

    def _new_axes(self) -> Axes:
        """Return the axes of a new figure of the usual size, and higher by the axes below."""
        plotting = pyplot()
        width, height = plotting.rcParams["figure.figsize"]
        n_below = sum(values is not None for values in (self.learning_rates, self.update_norms))
        size = (width, height + _STEP * n_below)
        axes: Axes = plotting.subplots(layout="constrained", figsize=size)[1]
        return axes

    def _plot_scores(self, scores: Sequence[float]) -> None:
        axes: Axes = self.ax_.twinx()
        line = draw_curve(axes, scores, color="C1", label=self.score_name)
        axes.set_ylabel(self.score_name)
        best = int(np.argmax(scores))
        label = f"best: {scores[best]:.3g} at epoch {best + 1}"
        (mark,) = axes.plot(best + 1, scores[best], "o", color="C1", markerfacecolor="none", label=label)
        for marked in (self.ax_, self.rate_ax_, self.norm_ax_):
            if marked is not None:
                marked.axvline(best + 1, color="C1", linestyle=":", linewidth=1, zorder=0)
        self._plot_legend(axes, [self.loss_line_, line, mark])
        self.score_ax_, self.score_line_, self.best_line_ = axes, line, mark

    def _plot_legend(self, axes: Axes, handles: Sequence[Line2D]) -> None:
        """Draw the legend between the axes and their title, where it covers no curve."""
        to_inches = axes.figure.dpi_scale_trans.inverted()
        n_columns = 2 if axes.get_window_extent().transformed(to_inches).width > _WIDE else 1
        legend = axes.legend(
            handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=n_columns,
            fontsize="small", frameon=False, borderaxespad=0.2,
        )  # fmt: skip
        n_rows = -(-len(handles) // n_columns)
        letters = float(legend.get_texts()[0].get_fontsize())
        self.ax_.set_title(self.ax_.get_title(), pad=letters * (_ROW * n_rows + _MARGINS))

    def _plot_below(self, values: Sequence[float] | None, place: int, name: str, color: str) -> Any:
        """Draw a quantity of the epochs below the loss; return its axes and its line, None without it."""
        if values is None:
            return None, None
        # imported on use: it is an optional dependency
        from matplotlib.transforms import ScaledTranslation, blended_transform_factory

        # heights in inches: layouts then find room for a size that does not depend on theirs
        whole = self.ax_.transAxes
        inches = self.ax_.figure.dpi_scale_trans + ScaledTranslation(0, 0, whole)
        box = (0.0, -_STEP * (place + 1), 1.0, _HEIGHT)
        axes = self.ax_.inset_axes(box, transform=blended_transform_factory(whole, inches), sharex=self.ax_)
        line = draw_curve(axes, values, color=color)
        if spans_magnitudes(values):
            axes.set_yscale("log")
        axes.set(xlabel="epoch", ylabel=name)
        above = self.ax_ if place == 0 else self.ax_.child_axes[place - 1]
        above.set_xlabel("")
        above.tick_params(labelbottom=False)
        return axes, line
