"""Text in scikit-learn pipelines: vectorizers, computed by scikit-learn and never trained."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import validate_data

from onnxsgd.data.columns import column_names, is_mapping, with_numbers
from onnxsgd.data.kept_frames import check_kept_frame, frame_of, is_kept_frame, kept_frame
from onnxsgd.exceptions import ParameterError, UnsupportedError

__all__ = ["TextPart", "check_texts", "has_text", "split_text"]

#: A TfidfVectorizer is a CountVectorizer.
_VECTORIZERS = (CountVectorizer, HashingVectorizer)
#: Rows kept to verify that a converted text part makes the same features; those in files, and the characters
#: of their texts: a file of a model does not become one of documents.
_SAMPLE, _IN_FILES, _LENGTH = 100, 8, 100


@dataclass(frozen=True)
class TextPart:
    """The steps of a pipeline up to the last that vectorizes text; scikit-learn computes them.

    Attributes
    ----------
    transformer : transformer
        These steps, fitted.
    sample : object
        Some of the first data, on which ``to_onnx`` of the estimators compares features; a frame in its plain
        form, if a file had it.
    """

    transformer: Any
    sample: Any

    def __post_init__(self) -> None:
        if is_kept_frame(self.sample):
            check_kept_frame(self.sample)

    def features(self, X: object) -> Any:
        """Return the features of `X`, a result of :func:`check_texts`; a CSR matrix if they are sparse."""
        made = self.transformer.transform(X)
        return made.tocsr() if sparse.issparse(made) else np.asarray(made)

    def data(self) -> Any:
        """Return the sample as data."""
        return frame_of(self.sample) if is_kept_frame(self.sample) else self.sample

    def in_short(self) -> TextPart:
        """Return the part with the beginnings of a few texts of the sample, for files."""
        if self.sample is None or is_kept_frame(self.sample):
            return self
        return TextPart(self.transformer, _in_short(self.sample))


def has_text(model: object) -> bool:
    """Tell whether an estimator, fitted or not, is or holds a vectorizer of text, at any depth."""
    return next(_vectorizers_in(model), None) is not None


def _vectorizers_in(model: object) -> Iterator[Any]:
    """Yield the vectorizers in an estimator, in its parameters, and in lists and tuples of these."""
    if isinstance(model, list | tuple):
        for entry in model:
            yield from _vectorizers_in(entry)
    elif isinstance(model, BaseEstimator):
        model = _unwrapped(model)
        if isinstance(model, _VECTORIZERS):
            yield model
            return
        # parameters only, without fitted attributes; get_params would take ten times as long
        for name, value in vars(model).items():
            if not name.endswith("_") and isinstance(value, BaseEstimator | list | tuple):
                yield from _vectorizers_in(value)


def _vectorizes(step: object) -> bool:
    """Tell whether a step is a vectorizer, alone or beside other transformers."""
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


def _unwrapped(model: BaseEstimator) -> Any:
    """Return the estimator inside a wrapper with the same predictions."""
    while isinstance(model, FrozenEstimator | GridSearchCV | RandomizedSearchCV):
        model = getattr(model, "best_estimator_", model.estimator)
    return model


def _regressor(model: TransformedTargetRegressor) -> Any:
    return getattr(model, "regressor_", model.regressor)


def _divide(model: BaseEstimator) -> tuple[list[tuple[str, Any]], Any]:
    """Return the steps up to the last that vectorizes text, and the rest as an estimator.

    Raises
    ------
    UnsupportedError
        If a vectorizer is not in a step of a pipeline before the one that predicts.
    """
    model = _unwrapped(model)
    if isinstance(model, TransformedTargetRegressor):
        before, regressor = _divide(_regressor(model))
        rest = copy(model)
        rest.regressor_ = regressor
        return before, rest
    if not isinstance(model, Pipeline):
        raise _misplaced(model)
    steps, (name, last) = model.steps[:-1], model.steps[-1]
    if has_text(last):
        before, rest = _divide(last)
        return [*steps, *before], rest
    for _, step in steps:
        if has_text(step) and not _vectorizes(step):
            raise _misplaced(step)
    first = 1 + max(number for number, (_, step) in enumerate(steps) if _vectorizes(step))
    return steps[:first], last if first == len(steps) else Pipeline([*steps[first:], (name, last)])


def _misplaced(model: BaseEstimator) -> UnsupportedError:
    name, vectorizer = type(model).__name__, type(next(_vectorizers_in(model))).__name__
    place = f"{name} vectorizes text itself" if name == vectorizer else f"{name} holds a {vectorizer}"
    return UnsupportedError(
        f"{place}: put the {vectorizer} in a separate step, alone or in a ColumnTransformer, in a pipeline "
        f"before the step that predicts: make_pipeline({vectorizer}(...), {_after(name, vectorizer)}(...))."
    )


def _after(name: str, vectorizer: str) -> str:
    return "LogisticRegression" if name == vectorizer else name


def _first_step(model: BaseEstimator) -> Any:
    """Return the step that receives the data."""
    model = _unwrapped(model)
    if isinstance(model, TransformedTargetRegressor):
        return _first_step(_regressor(model))
    return _first_step(model.steps[0][1]) if isinstance(model, Pipeline) else model


def check_texts(estimator: BaseEstimator, X: Any, *, model: BaseEstimator | None = None, reset: bool) -> Any:
    """Return `X` for a pipeline with text: a frame, or texts in one dimension.

    Parameters
    ----------
    estimator : estimator
        Its names of features are set, or compared with those of `X`.
    X : list, array, series or frame
        Texts; a frame or a table where the first step selects columns.
    model : estimator
        The pipeline, or, without `reset`, its first steps.
    reset : bool
        Whether the names are set.

    Raises
    ------
    ParameterError
        If `X` is one text, a dictionary, or has several columns for a vectorizer, which takes one.
    UnsupportedError
        If a vectorizer is not in a step of a pipeline before the one that predicts.
    """
    if reset:
        _divide(model)
    if isinstance(X, str | bytes) or is_mapping(X):
        raise ParameterError(f"X is a {type(X).__name__}: it must be a list, an array or a frame of texts.")
    names = column_names(X)
    if names is not None:
        validate_data(estimator, X, reset=reset, skip_check_array=True)
    elif reset:
        for name in ("n_features_in_", "feature_names_in_"):
            vars(estimator).pop(name, None)
    first = _first_step(model)
    if isinstance(first, ColumnTransformer) or not _vectorizes(first):
        return with_numbers(X)
    width = len(names) if names is not None else (np.shape(X)[1] if getattr(X, "ndim", 1) > 1 else 1)
    if width != 1:
        raise ParameterError(
            f"X has {width} columns and {type(first).__name__} takes one column of texts: select it, or "
            "put a ColumnTransformer before it."
        )
    if names is not None:
        return np.asarray(X[X.columns[0]], dtype=object)
    return X.ravel() if getattr(X, "ndim", 1) > 1 else X


def split_text(estimator: BaseEstimator, X: Any) -> tuple[TextPart, Any]:
    """Return the text part of a fitted pipeline, and the later steps as an estimator.

    Parameters
    ----------
    estimator : estimator
        Fitted, with a step that vectorizes text.
    X : object
        The first data, from :func:`check_texts`; None: the part gets no sample.

    Raises
    ------
    UnsupportedError
        If a vectorizer is not in a step of a pipeline before the one that predicts.
    """
    before, behind = _divide(estimator)
    transformer = before[0][1] if len(before) == 1 else Pipeline(before)
    if X is None:
        return TextPart(transformer, None), behind
    return TextPart(transformer, _first_rows(X, _SAMPLE)), behind


def _first_rows(X: Any, most: int) -> Any:
    n_samples = X.shape[0] if hasattr(X, "shape") else len(X)
    return _safe_indexing(X, np.arange(min(most, n_samples)))


def _in_short(sample: Any) -> Any:
    """Return the first rows of a sample, of a frame in its plain form, and the first characters of texts."""
    rows = _first_rows(sample, _IN_FILES)
    if isinstance(rows, np.ndarray):
        return np.array([_beginning(text) for text in rows.flat], dtype=object).reshape(rows.shape)
    if column_names(rows) is None:
        # a list or a series
        return [_beginning(text) for text in rows]
    kept = kept_frame(rows)
    for column in kept["columns"]:
        column[-1] = [_beginning(value) for value in column[-1]]
    return kept


def _beginning(text: object) -> object:
    return text[:_LENGTH] if isinstance(text, str) else text
