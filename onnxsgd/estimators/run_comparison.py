"""Plots of several trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from onnxsgd.estimators.curves import draw_curve, fitted_epochs, make_room, pyplot, spans_magnitudes
from onnxsgd.exceptions import ParameterError, ParameterTypeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from sklearn.base import BaseEstimator

__all__ = ["RunComparison"]

#: The dashes of one fit after another, beside their colours.
_DASHES = ("-", "--", "-.", ":")
#: Panels in a row of a new figure, and the size of one in inches.
_IN_A_ROW, _WIDTH, _HEIGHT = 2, 5.0, 4.0


@dataclass(frozen=True)
class _Quantity:
    """A quantity that one panel compares.

    Attributes
    ----------
    label : str
        The label of its axis.
    values : mapping of str to sequence of float
        Its values by the names of the fits that have it.
    is_score : bool
        Whether the largest value of each fit is marked.
    """

    label: str
    values: Mapping[str, Sequence[float]]
    is_score: bool = False


class RunComparison:
    """The losses, the validation scores, the rates and the norms of updates of several fits.

    :meth:`onnxsgd.TrainingDisplay.from_estimators` makes one.

    Parameters
    ----------
    estimators : mapping of str to estimator
        The fitted estimators by name.
    rate, update_norm : bool, default=False
        Whether learning rates, and norms of updates, are drawn.

    Attributes
    ----------
    figure_ : matplotlib.figure.Figure
        The figure.
    loss_ax_, score_ax_, rate_ax_, norm_ax_ : matplotlib.axes.Axes or None
        The axes with the losses, with the scores if there are any, with the rates and the norms on demand.
    loss_lines_, score_lines_, rate_lines_, norm_lines_ : dict of matplotlib.lines.Line2D
        The curves by name; the best score of each has a mark.
    """

    def __init__(
        self, estimators: Mapping[str, BaseEstimator], *, rate: bool = False, update_norm: bool = False
    ) -> None:
        if not isinstance(estimators, Mapping):
            raise ParameterTypeError(
                "estimators must be a mapping of names to fitted estimators, not "
                f"{type(estimators).__name__}."
            )
        if not estimators:
            raise ParameterError("estimators is empty: there is nothing to compare.")
        fits = {str(name): fitted_epochs(est) for name, est in estimators.items()}
        models = {name: est for name, (est, _) in fits.items()}
        losses = _recorded(models, "loss_curve_")
        scores = _recorded(models, "validation_scores_")
        rates = _recorded(models, "learning_rates_") if rate else {}
        norms = _recorded(models, "update_norms_") if update_norm else {}
        if rate and not rates:
            raise ParameterError("None of the estimators keeps learning_rates_, which rate=True draws.")
        if update_norm and not norms:
            raise ParameterError(
                "None of the estimators recorded update_norms_, which update_norm=True draws: fit them with "
                "record_update_norms=True."
            )
        score_name = next((score_name for name, (_, score_name) in fits.items() if name in scores), "")
        self._names = list(fits)
        self._quantities = {
            "loss": _Quantity("training loss", losses),
            "score": _Quantity(score_name, scores, is_score=True),
            "rate": _Quantity("rate", rates),
            "norm": _Quantity("norm of update", norms),
        }

    def plot(self, axes: Sequence[Axes] | None = None) -> Self:
        """Draw the curves.

        Parameters
        ----------
        axes : sequence of matplotlib.axes.Axes or None, default=None
            One for each quantity that these fits have, in the order of the attributes; None: those of a new
            figure.

        Returns
        -------
        RunComparison
            The same object, with the attributes of the drawn artists.
        """
        shown = [key for key, quantity in self._quantities.items() if quantity.values]
        panels = _new_axes(len(shown)) if axes is None else np.ravel(np.asarray(axes, dtype=object))
        if len(panels) != len(shown):
            raise ParameterError(f"axes has {len(panels)} axes; these fits are drawn on {len(shown)}.")
        self.figure_ = panels[0].figure
        make_room(self.figure_)
        found = dict(zip(shown, panels, strict=True))
        self.loss_ax_, self.loss_lines_ = self._draw(found, "loss")
        self.score_ax_, self.score_lines_ = self._draw(found, "score")
        self.rate_ax_, self.rate_lines_ = self._draw(found, "rate")
        self.norm_ax_, self.norm_lines_ = self._draw(found, "norm")
        # beside the axes that are farthest to the right, and of these the highest: it covers no curve
        outermost = max(panels, key=lambda ax: (round(ax.get_position().x1, 6), ax.get_position().y1))
        outermost.legend(
            handles=list(self.loss_lines_.values()), loc="upper left", bbox_to_anchor=(1.0, 1.0),
            frameon=False,
        )  # fmt: skip
        return self

    def _draw(self, panels: Mapping[str, Axes], key: str) -> tuple[Any, dict[str, Line2D]]:
        """Draw one quantity of all fits that have it; return its axes, None without any, and its lines."""
        ax, quantity, lines = panels.get(key), self._quantities[key], {}
        if ax is None:
            return None, {}
        for number, name in enumerate(self._names):
            values = quantity.values.get(name)
            if values is None:
                continue
            style = {"color": f"C{number % 10}", "linestyle": _DASHES[number % len(_DASHES)]}
            lines[name] = draw_curve(ax, values, label=name, **style)
            if quantity.is_score:
                best = int(np.argmax(values))
                ax.plot(best + 1, values[best], "o", color=style["color"], markerfacecolor="none")
        ax.set(xlabel="epoch", ylabel=quantity.label)
        if key in ("rate", "norm") and spans_magnitudes([*chain.from_iterable(quantity.values.values())]):
            ax.set_yscale("log")
        return ax, lines


def _recorded(models: Mapping[str, Any], attribute: str) -> dict[str, Sequence[float]]:
    """Return an attribute of the models that have it."""
    found = {name: getattr(model, attribute, None) for name, model in models.items()}
    return {name: values for name, values in found.items() if values is not None}


def _new_axes(count: int) -> list[Axes]:
    n_columns = min(count, _IN_A_ROW)
    n_rows = -(-count // n_columns)
    size = (_WIDTH * n_columns, _HEIGHT * n_rows)
    figure, axes = pyplot().subplots(n_rows, n_columns, squeeze=False, figsize=size, layout="constrained")
    for unused in axes.ravel()[count:]:
        figure.delaxes(unused)
    return list(axes.ravel()[:count])
