"""Steps of fitted estimators whose converters write other predictions than theirs, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import StackingClassifier
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, TargetEncoder

from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.sklearn.categories import large_category

__all__ = ["refuse_step"]


def refuse_step(step: object) -> None:
    """Refuse a fitted step that skl2onnx 1.20 converts to something else; each can go when that is mended.

    Raises
    ------
    UnsupportedError
        It names the step, the reason, and the step to take instead.
    """
    find = _OBJECTIONS.get(type(step))
    # the unfitted template of an ensemble is not converted
    if find is not None and hasattr(step, "n_features_in_") and (objection := find(step)) is not None:
        raise UnsupportedError(f"{type(step).__name__} {objection}.")


def _of_categories(encoder: OrdinalEncoder | TargetEncoder) -> str | None:
    if (category := large_category(encoder)) is not None:
        return (
            f"has the category {category}, and its converter takes numbers as float32, which holds integers "
            "up to 2**24: fit it on texts, as of astype(str), or take OneHotEncoder"
        )
    if any(found is not None for found in getattr(encoder, "infrequent_categories_", ())):
        return (
            f"has infrequent categories (max_categories={encoder.max_categories!r}, "
            f"min_frequency={encoder.min_frequency!r}), which its converter loses: leave both None"
        )
    return None


def _of_indicators(encoder: OneHotEncoder) -> str | None:
    if (category := large_category(encoder, np.float64)) is None:
        return None
    return (
        f"has the category {category}, and float64 holds integers up to 2**53: fit it on texts, as of "
        "astype(str)"
    )


def _of_missing_values(imputer: SimpleImputer) -> str | None:
    if type(imputer.missing_values).__name__ == "NAType":
        return "has no converter for missing_values=pd.NA: take numpy.nan, and columns of the type object"
    if imputer.indicator_ is None or not len(imputer.indicator_.features_):
        return None
    return "has no converter for the columns of add_indicator=True: take add_indicator=False"


def _of_neighbours(imputer: KNNImputer) -> str:
    return "has a converter whose graph is not valid: take SimpleImputer"


def _of_scores(stack: StackingClassifier) -> str | None:
    """Return the objection to members whose labels, or scores of two classes, are taken for probabilities."""
    members = [name for name, member in stack.estimators if member != "drop"]
    for name, method in zip(members, stack.stack_method_, strict=True):
        if method == "predict" or (method == "decision_function" and len(stack.classes_) == 2):
            return (
                f"takes {method!r} of its member {name!r}, and its converter knows probabilities alone: take "
                "members with predict_proba, and stack_method='predict_proba'"
            )
    return None


def _of_processes(classifier: GaussianProcessClassifier) -> str:
    return "has a converter whose graph onnxruntime cannot run: take LogisticRegression or MLPClassifier"


#: The functions that return the objection to a step, if there is one.
_OBJECTIONS: dict[type, Callable[[Any], str | None]] = {
    GaussianProcessClassifier: _of_processes,
    KNNImputer: _of_neighbours,
    OneHotEncoder: _of_indicators,
    OrdinalEncoder: _of_categories,
    SimpleImputer: _of_missing_values,
    StackingClassifier: _of_scores,
    TargetEncoder: _of_categories,
}
