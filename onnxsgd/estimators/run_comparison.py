"""Plots of several trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from onnxsgd.estimators.display import fitted_epochs, make_room, pyplot
from onnxsgd.exceptions import ParameterError, ParameterTypeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from sklearn.base import BaseEstimator

__all__ = ["RunComparison"]

#: The dashes of one fit after another, beside their colours.
_DASHES = ("-", "--", "-.", ":")


class RunComparison:
    """The losses, and the validation scores, of several fits.

    :meth:`onnxsgd.TrainingDisplay.from_estimators` makes one.

    Parameters
    ----------
    estimators : mapping of str to estimator
        The fitted estimators by name.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure.
    loss_ax_, score_ax_ : matplotlib.axes.Axes or None
        The axes with the losses, and with the scores if there are any.
    loss_lines_, score_lines_ : dict of matplotlib.lines.Line2D
        The curves by name; the best score of each has a mark.
    """

    def __init__(self, estimators: Mapping[str, BaseEstimator]) -> None:
        if not isinstance(estimators, Mapping):
            raise ParameterTypeError(
                "estimators must be a mapping of names to fitted estimators, not "
                f"{type(estimators).__name__}."
            )
        if not estimators:
            raise ParameterError("estimators is empty: there is nothing to compare.")
        self._fits = {str(name): fitted_epochs(est) for name, est in estimators.items()}
        self._scores = {
            name: getattr(est, "validation_scores_", None) for name, (est, _) in self._fits.items()
        }

    def plot(self, axes: Sequence[Axes] | None = None) -> Self:
        """Draw the curves.

        Parameters
        ----------
        axes : sequence of matplotlib.axes.Axes or None, default=None
            One for the losses and, if there are validation scores, one for these; None: those of a new
            figure.

        Returns
        -------
        RunComparison
            The same object, with the attributes of the drawn artists.
        """
        has_scores = any(scores is not None for scores in self._scores.values())
        count = 2 if has_scores else 1
        panels = self._new_axes(count) if axes is None else np.ravel(np.asarray(axes, dtype=object))
        if len(panels) != count:
            raise ParameterError(f"axes has {len(panels)} axes; these fits are drawn on {count}.")
        self.figure_ = panels[0].figure
        make_room(self.figure_)
        self.loss_ax_, self.score_ax_ = panels[0], panels[1] if has_scores else None
        self.loss_lines_: dict[str, Line2D] = {}
        self.score_lines_: dict[str, Line2D] = {}
        for number, (name, (est, score_name)) in enumerate(self._fits.items()):
            style = {"color": f"C{number % 10}", "linestyle": _DASHES[number % len(_DASHES)]}
            self.loss_lines_[name] = _curve(self.loss_ax_, est.loss_curve_, "training loss", name, style)
            scores = self._scores[name]
            if self.score_ax_ is not None and scores is not None:
                self.score_lines_[name] = _curve(self.score_ax_, scores, score_name, name, style)
                best = int(np.argmax(scores))
                self.score_ax_.plot(best + 1, scores[best], "o", color=style["color"], markerfacecolor="none")
        self.loss_ax_.legend()
        return self

    def _new_axes(self, count: int) -> Any:
        _, axes = pyplot().subplots(1, count, squeeze=False, figsize=(5.0 * count, 4.0), layout="constrained")
        return axes.ravel()


def _curve(ax: Any, values: Sequence[float], label: str, name: str, style: dict[str, str]) -> Any:
    (line,) = ax.plot(np.arange(1, len(values) + 1), values, label=name, **style)
    ax.set(xlabel="epoch", ylabel=label)
    ax.xaxis.get_major_locator().set_params(integer=True)
    return line
