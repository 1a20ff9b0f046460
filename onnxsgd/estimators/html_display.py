"""The display of an estimator: one line as text, a card and the diagram of scikit-learn in notebooks."""

from __future__ import annotations

from copy import copy
from typing import Any, Self

from sklearn import get_config
from sklearn.base import BaseEstimator
from sklearn.utils import estimator_html_repr

from onnxsgd.estimators.card import write_card
from onnxsgd.estimators.card_rows import read_card
from onnxsgd.estimators.inner_model import is_fitted
from onnxsgd.estimators.summary import show_in_full, summarize

__all__ = ["HtmlDisplay"]

#: The attribute that is a graph: to look at it would convert it.
_GRAPH = "onnx_model_"


class _Attributes:
    """An object that has the attributes of an estimator but the graph."""


class HtmlDisplay(BaseEstimator):
    """The part of an estimator that displays it.

    Alone in a notebook it is a card, above the diagram of scikit-learn; inside the diagrams of pipelines and
    searches the card stands above its parameters (from scikit-learn 1.7 on).
    """

    #: Whether the card is shown already, above the diagram.
    _has_card: bool = False
    model: Any

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return BaseEstimator.__repr__(self._with_summary(), N_CHAR_MAX)

    def __dir__(self) -> list[str]:
        """Return the names of the attributes that are there, without a conversion of the graph."""
        public = [name for name in object.__dir__(self) if not name.startswith("_")]
        private = [name for name in object.__dir__(self) if name.startswith("_")]
        return private + [n for n in public if (is_fitted(self) if n == _GRAPH else hasattr(self, n))]

    def _repr_html_inner(self) -> str:
        shown = copy(self)
        shown._has_card = True
        return f"{self._card()}{estimator_html_repr(shown)}"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle = {"text/plain": repr(self)}
        if get_config()["display"] == "diagram":
            bundle["text/html"] = self._repr_html_inner()
        return bundle

    def _get_params_html(self, *args: Any, **kwargs: Any) -> Any:
        shown = self._with_summary()
        params = BaseEstimator._get_params_html(shown, *args, **kwargs)
        if shown.model is not self.model:
            params = show_in_full(params, shown.model)
        if not self._has_card:
            html = f"{self._card()}{params._repr_html_inner()}"
            params._html_repr = lambda: html
        return params

    def _get_fitted_attr_html(self, *args: Any, **kwargs: Any) -> Any:
        shown = _Attributes()
        for name in dir(self):
            if name.endswith("_") and not name.startswith("_") and name != _GRAPH:
                setattr(shown, name, getattr(self, name))
        attributes = BaseEstimator._get_fitted_attr_html(shown, *args, **kwargs)
        attributes.estimator_class = type(self)
        return attributes

    def _card(self) -> str:
        """Return the card, or nothing if a parameter has a value that cannot be described."""
        try:
            return write_card(read_card(self))
        except Exception:
            # a display must not fail; fit reports the value
            return ""

    def _with_summary(self) -> Self:
        """Return a copy for display, with one line for the graph."""
        shown = copy(self)
        shown.model = summarize(self.model)
        return shown
