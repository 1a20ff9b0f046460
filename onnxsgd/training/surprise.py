"""The loss of samples beyond that of a right model: the sign that a given model has much to learn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import expit, softmax

from onnxsgd.losses import CrossEntropy, LogLoss, Loss, SquaredError

__all__ = ["find_surprise"]


def find_surprise(
    loss: Loss,
    sample_losses: Callable[[np.ndarray, np.ndarray], np.ndarray],
    target: np.ndarray,
    sample_weight: np.ndarray,
) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return a function of raw predictions: the loss of each sample less the one that a right model has.

    Probabilities of classes tell their expected loss: it is linear in the targets, so that probabilities as
    targets have it. Of squared errors it is the loss of the predictions after the best scale and shift.

    Parameters
    ----------
    loss : Loss
        The loss.
    sample_losses : callable
        Returns the loss of each sample from targets and raw predictions.
    target : ndarray of shape [n_samples, n_outputs]
        The target, encoded for the loss.
    sample_weight : ndarray of shape [n_samples]
        Weights of the samples.

    Returns
    -------
    callable or None
        None: the loss, or the shape of the target, is another one.
    """
    if type(loss) not in (LogLoss, CrossEntropy, SquaredError) or target.ndim != 2:
        return None

    def right(raw: np.ndarray) -> np.ndarray:
        if loss.probabilities is None:
            fitted = _fitted(raw, target, sample_weight.astype(np.float64))
            return sample_losses(target, fitted.astype(raw.dtype))
        expected = expit(raw) if loss.probabilities == "sigmoid" else softmax(raw, axis=1)
        if loss.probabilities == "softmax":
            # a row of zeros is ignored
            expected *= target.sum(axis=1, keepdims=True)
        return sample_losses(expected.astype(target.dtype, copy=False), raw)

    return lambda raw: sample_losses(target, raw) - right(raw)


def _fitted(raw: np.ndarray, target: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return raw predictions after the scale and the shift of the least squares of each column."""
    share = weight / weight.sum()
    centred = raw - share @ raw
    spread = np.maximum(share @ (centred * centred), np.finfo(np.float64).tiny)
    fitted: np.ndarray = share @ target + centred * (share @ (centred * target) / spread)
    return fitted
