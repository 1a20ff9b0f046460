"""Regression losses that are likelihoods of a distribution with several parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from onnxsgd.losses._base import Link, Loss, clip, indicator

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = ["LARGEST_LOG_VARIANCE", "GaussianNLL"]

#: The bound of logarithms of variances: squares of 1e6, divided by the least variance, are finite in float32.
LARGEST_LOG_VARIANCE = 60.0


@dataclass(frozen=True)
class GaussianNLL(Loss):
    """Negative logarithm of a normal density, whose mean and variance are both predicted.

    ::

        value = (c + r^2 exp(-c) + |s - c|) / 2,  r = m - y_true,  c = clip(s, -60, 60)
        gradient of m = r exp(-c)
        gradient of s = (1 - r^2 exp(-c)) / 2 where |s| <= 60, sign(s) / 2 elsewhere

    For targets whose scatter depends on the data. A target has two raw predictions, the mean m and the
    logarithm s of the variance: of k targets, k means and then k logarithms. Within the bounds the value is
    that of ``torch.nn.GaussianNLLLoss(full=False)``, where `m` is the input and ``exp(s)`` the variance; the
    last term leads logarithms back that have left them.

    References
    ----------
    D. A. Nix, A. S. Weigend, "Estimating the mean and variance of the target probability distribution", IEEE
    International Conference on Neural Networks, 1994.
    """

    link: ClassVar[Link] = "normal"
    score_factors: ClassVar[tuple[float, ...]] = (1.0, 0.0)
    #: The loss of a normal target is 1/2 plus half the logarithm of its variance.
    unit: ClassVar[float | None] = 0.5

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual, log_variance, clipped, precision = _parts(op, y_true, raw_prediction)
        square = op.Mul(op.Mul(residual, residual), precision)
        excess = op.Abs(op.Sub(log_variance, clipped))
        losses = op.Mul(op.Add(op.Add(clipped, square), excess), 0.5)
        return op.ReduceSum(losses, axes=[1], keepdims=1)

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        residual, log_variance, clipped, precision = _parts(op, y_true, raw_prediction)
        scaled = op.Mul(residual, precision)
        inside = indicator(op, op.Equal(log_variance, clipped), residual)
        slope = op.Mul(inside, op.Sub(1.0, op.Mul(residual, scaled)))
        outside = op.Sign(op.Sub(log_variance, clipped))
        return op.Concat(scaled, op.Mul(op.Add(slope, outside), 0.5), axis=1)

    def score_offsets(self, residual: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
        variance = np.average(residual**2, axis=0, weights=sample_weight)
        # a constant target has no variance
        least = np.finfo(np.float64).tiny
        logarithm = np.log(np.where(np.isfinite(variance), np.maximum(variance, least), 1.0))
        bound = LARGEST_LOG_VARIANCE
        return np.concatenate([np.zeros(len(variance)), np.clip(logarithm, -bound, bound)])


def _parts(
    op: Builder, y_true: ir.Value, raw_prediction: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """Return the residual, the logarithm of the variance, the same clipped, and the inverse variance."""
    (mean, log_variance), (target, _) = _halves(op, raw_prediction), _halves(op, y_true)
    clipped = clip(op, log_variance, -LARGEST_LOG_VARIANCE, LARGEST_LOG_VARIANCE)
    return op.Sub(mean, target), log_variance, clipped, op.Exp(op.Neg(clipped))


def _halves(op: Builder, table: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the left and the right half of the columns, of any number: not Slice, which needs it."""
    both = op.Reshape(table, [0, 2, -1])
    return op.Gather(both, 0, axis=1), op.Gather(both, 1, axis=1)
