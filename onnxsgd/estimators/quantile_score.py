"""The score of several quantiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import d2_pinball_score

__all__ = ["score_quantiles"]


def score_quantiles(
    y: ArrayLike, predictions: np.ndarray, levels: Sequence[float], sample_weight: ArrayLike | None
) -> float:
    """Return the mean over the levels of the share of pinball loss that is explained, scikit-learn's D2.

    Parameters
    ----------
    y : array-like of shape (n_samples,) or (n_samples, 1)
        The target.
    predictions : ndarray of shape (n_samples, n_levels)
        A column for each level.
    levels : sequence of float
        The levels.
    sample_weight : array-like of shape (n_samples,) or None
        Weights of the samples.
    """
    target = np.ravel(y)
    scores = [
        d2_pinball_score(target, column, alpha=level, sample_weight=sample_weight)
        for column, level in zip(predictions.T, levels, strict=True)
    ]
    return float(np.mean(scores))
