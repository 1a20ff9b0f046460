"""The score of predicted normal distributions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from onnxsgd.losses import LARGEST_LOG_VARIANCE

__all__ = ["score_normal"]


def score_normal(y: np.ndarray, raw: np.ndarray, sample_weight: ArrayLike | None) -> float:
    """Return the mean logarithm of the normal density of targets, in nats.

    Parameters
    ----------
    y : ndarray of shape (n_samples, n_targets)
        The targets.
    raw : ndarray of shape (n_samples, 2 * n_targets)
        Means, and then logarithms of variances.
    sample_weight : array-like of shape (n_samples,) or None
        Weights of the samples.
    """
    mean, logarithm = np.hsplit(raw.astype(np.float64), 2)
    logarithm = logarithm.clip(-LARGEST_LOG_VARIANCE, LARGEST_LOG_VARIANCE)
    densities = -(np.log(2 * np.pi) + logarithm + (y - mean) ** 2 * np.exp(-logarithm)) / 2
    weight = None if sample_weight is None else np.asarray(sample_weight, np.float64)
    return float(np.average(densities.mean(axis=1), weights=weight))
