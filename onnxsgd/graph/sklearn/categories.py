"""Categories of fitted encoders that float32 does not hold."""

from __future__ import annotations

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, TargetEncoder

__all__ = ["has_large_categories", "large_category"]


def has_large_categories(value: object) -> bool:
    """Tell whether a OneHotEncoder in a fitted estimator has categories that float32 does not tell apart.

    Its converter casts columns of numbers to integers, after the cast to the type of the graph.
    """
    if isinstance(value, OneHotEncoder):
        return large_category(value) is not None
    if isinstance(value, BaseEstimator):
        return any(has_large_categories(entry) for entry in vars(value).values())
    return isinstance(value, list | tuple) and any(has_large_categories(entry) for entry in value)


def large_category(encoder: OneHotEncoder | OrdinalEncoder | TargetEncoder) -> float | None:
    """Return an integer among the categories that float32 does not hold; None: there is none."""
    for categories in getattr(encoder, "categories_", ()):
        if categories.dtype.kind not in "iuf":
            continue
        numbers = categories[np.isfinite(categories)]
        with np.errstate(over="ignore"):
            is_lost = (numbers == np.round(numbers)) & (numbers.astype(np.float32) != numbers)
        if is_lost.any():
            number: float = numbers[is_lost][0].item()
            return number
    return None
