"""Text in scikit-learn pipelines: vectorizers, which scikit-learn computes and nothing trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import validate_data

from onnxsgd.exceptions import ParameterError, UnsupportedError
from onnxsgd.graph.columns import column_names, is_mapping

__all__ = ["TextPart", "check_texts", "has_text", "split_text"]

#: A TfidfVectorizer is a CountVectorizer.
_VECTORIZERS = (CountVectorizer, HashingVectorizer)
#: Rows that are kept to prove that a converted text part makes the same features.
_SAMPLE = 100


@dataclass(frozen=True)
class TextPart:
    """The steps of a pipeline up to the last that vectorizes text; scikit-learn computes them.

    Attributes
    ----------
    transformer : transformer
        These steps, fitted.
    sample : object
        Some of the first data, which :meth:`to_onnx` of the estimators compares features on.
    """

    transformer: Any
    sample: Any

    def features(self, X: Any) -> Any:
        """Return the features of `X` from :func:`check_texts`, a CSR matrix where they are sparse."""
        made = self.transformer.transform(X)
        return made.tocsr() if sparse.issparse(made) else np.asarray(made)


def has_text(model: Any) -> bool:
    """Tell whether a pipeline, fitted or not, has a step that vectorizes text."""
    return any(_vectorizes(step) for step in _steps(model))


def _vectorizes(step: Any) -> bool:
    if isinstance(step, FrozenEstimator):
        return _vectorizes(step.estimator)
    if isinstance(step, ColumnTransformer):
        parts = [entry[1] for entry in getattr(step, "transformers_", step.transformers)]
    elif isinstance(step, FeatureUnion):
        parts = [entry[1] for entry in step.transformer_list]
    elif isinstance(step, Pipeline):
        parts = [part for _, part in step.steps]
    else:
        return isinstance(step, _VECTORIZERS)
    return any(_vectorizes(part) for part in parts)


def _steps(model: Any) -> list[Any]:
    """Return the steps of a pipeline, with those of pipelines in it; of anything else, nothing."""
    return [step for _, step in _named_steps(model)]


def _named_steps(model: Any) -> list[tuple[str, Any]]:
    while isinstance(model, FrozenEstimator | GridSearchCV | RandomizedSearchCV):
        model = getattr(model, "best_estimator_", model.estimator)
    if not isinstance(model, Pipeline):
        return []
    last_name, last = model.steps[-1]
    return [*model.steps[:-1], *(_named_steps(last) or [(last_name, last)])]


def check_texts(estimator: Any, X: Any, *, model: Any = None, reset: bool) -> Any:
    """Return `X` for a pipeline with text: a frame, or texts in one dimension.

    Parameters
    ----------
    estimator : estimator
        Its names of features are set, or compared with those of `X`.
    X : list, array, series or frame
        Texts; a frame or a table where the first step selects columns.
    model : estimator
        The pipeline, or its first steps.
    reset : bool
        Whether the names are set.

    Raises
    ------
    ParameterError
        If `X` is one text, a dictionary, or has several columns for a vectorizer, which takes one.
    """
    if isinstance(X, str | bytes) or is_mapping(X):
        raise ParameterError(f"X is a {type(X).__name__}: it must be a list, an array or a frame of texts.")
    names = column_names(X)
    if names is not None:
        validate_data(estimator, X, reset=reset, skip_check_array=True)
    elif reset:
        for name in ("n_features_in_", "feature_names_in_"):
            vars(estimator).pop(name, None)
    steps = _steps(model) or [model]
    if isinstance(steps[0], ColumnTransformer) or not _vectorizes(steps[0]):
        return X
    width = len(names) if names is not None else (np.shape(X)[1] if getattr(X, "ndim", 1) > 1 else 1)
    if width != 1:
        raise ParameterError(
            f"X has {width} columns and {type(steps[0]).__name__} takes one column of texts: select it, or "
            "put a ColumnTransformer before it."
        )
    if names is not None:
        return np.asarray(X[X.columns[0]], dtype=object)
    return X.ravel() if getattr(X, "ndim", 1) > 1 else X


def split_text(estimator: Any, X: Any) -> tuple[TextPart, Any]:
    """Return the text part of a fitted pipeline, and the steps behind it as an estimator.

    Parameters
    ----------
    estimator : estimator
        Fitted, with a step that vectorizes text.
    X : object
        The first data, from :func:`check_texts`.

    Raises
    ------
    UnsupportedError
        If the vectorizer is in the last step, which is the one that predicts.
    """
    steps = _named_steps(estimator)
    last = max(number for number, (_, step) in enumerate(steps) if _vectorizes(step))
    if last == len(steps) - 1:
        raise UnsupportedError(
            f"The last step of the pipeline, {type(steps[-1][1]).__name__}, vectorizes text itself: put the "
            "vectorizer in a step of its own before it."
        )
    before, behind = steps[: last + 1], steps[last + 1 :]
    n_samples = X.shape[0] if hasattr(X, "shape") else len(X)
    sample = _safe_indexing(X, np.arange(min(_SAMPLE, n_samples)))
    part = TextPart(before[0][1] if len(before) == 1 else Pipeline(before), sample)
    return part, behind[0][1] if len(behind) == 1 else Pipeline(behind)
