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


def large_category(
    encoder: OneHotEncoder | OrdinalEncoder | TargetEncoder, dtype: type[np.floating] = np.float32
) -> int | None:
    """Return an integer among the categories that a type does not hold; None: there is none."""
    exact = 2 ** (np.finfo(dtype).nmant + 1)
    for categories in getattr(encoder, "categories_", ()):
        if categories.dtype.kind not in "iuf":
            continue
        numbers = categories[np.isfinite(categories)]
        # numpy compares integers with float32 as float64
        for number in numbers[np.abs(numbers.astype(np.float64)) >= exact].tolist():
            with np.errstate(over="ignore"):
                held = float(dtype(number))
            if number == int(number) and held != number:
                return int(number)
    return None
