"""The cumulative l1 penalty in the short loop of a linear model.

The penalty stops a weight w at exactly zero: of all that it could have received so far, u, it has received q,
and each update applies the difference. Then ``Y = w + q`` moves as a weight without penalty does, and ::

    w = Y - clip(Y, -u, u),   q = clip(Y, -u, u)

so that two operators take the place of eleven. With the decay d of an l2 penalty,
``Y' = (1 - d) Y + d q + change``. The loop counts weights in scales s, ``Y = s V``, and moves V by
``d / (1 - d) clip(V, -u / s, u / s) + change / s'``.

All columns of the table are clipped. Those of intercepts and targets count in units so large that the bounds
are nothing beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxsgd.engine.step.buffers import Tensors
from onnxsgd.engine.step.update import L1_DEBT, WEIGHT

if TYPE_CHECKING:
    from onnxsgd._builder import Builder
    from onnxsgd.engine.step.linear_layer import LinearLayer

__all__ = ["BOUNDS", "DECAY_SHARE", "UNIT", "LinearTruncation", "truncated"]

#: The inputs of an update: the bounds, and the share of the clipped part where weights decay.
BOUNDS, DECAY_SHARE = ("lower", "upper"), "decay_share"
#: The unit of intercepts and targets: a power of two, which rounds nothing. Bounds of 1 change them by 5e-20.
UNIT = 2.0**64
#: The difference from a truncated weight, in units of the last place, that rounding explains.
_ROUNDING = 64


def truncated(
    op: Builder, weights: ir.Value, lower: ir.Value, upper: ir.Value, decay_share: ir.Value | None = None
) -> tuple[ir.Value, ir.Value]:
    """Return the weights of an update, truncated, and those that its change is added to."""
    clipped = op.Clip(weights, lower, upper)
    kept = weights if decay_share is None else op.Add(weights, op.Mul(clipped, decay_share))
    found = op.Sub(weights, clipped)
    for value in (kept, found):
        value.type, value.shape = weights.type, weights.shape
    return found, kept


class LinearTruncation:
    """The weights of a linear model with an l1 penalty, and its bounds in a call of the loop.

    Parameters
    ----------
    layer : LinearLayer
        The model.
    column : int
        The column of the numbers of an update that has the penalty so far.
    """

    def __init__(self, layer: LinearLayer, column: int) -> None:
        self._layer, self._column = layer, column
        self._last = 0.0

    def is_known(self, tensors: Tensors) -> bool:
        """Tell whether the weights are those that their penalty leaves; others have been set by hand."""
        weights, debts = (tensors[self._layer.weight, kind] for kind in (WEIGHT, L1_DEBT))
        bound, free = np.abs(debts).max(), weights - debts
        error = np.abs(free - np.clip(free, -bound, bound) - weights)
        return bool((error <= _ROUNDING * np.finfo(weights.dtype).eps * (np.abs(weights) + bound)).all())

    def begin(
        self, tensors: Tensors, scalars: np.ndarray, scales: np.ndarray, arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Take the numbers of the updates of a call.

        Parameters
        ----------
        tensors : dict of ndarray
            The present weights and states.
        scalars : ndarray of shape [n_batches, n_scalars]
            The numbers.
        scales : ndarray of shape [n_batches + 1]
            The scales before each update, and after all.
        arrays : dict of ndarray
            The inputs of the graph, to be filled.
        """
        totals = scalars[:, self._column]
        before = np.append(np.abs(tensors[self._layer.weight, L1_DEBT]).max(), totals[:-1])
        lower, upper = (arrays[name][: len(totals)] for name in BOUNDS)
        upper[...] = before / scales[:-1]
        np.negative(upper, out=lower)
        if self._layer.is_penalised:
            arrays[DECAY_SHARE][: len(totals)] = scales[:-1] / scales[1:] - 1.0
        self._last = float(totals[-1])

    def load(self, weights: np.ndarray, tensors: Tensors) -> None:
        """Add the penalty that was received to weights in the table of the loop."""
        n = self._layer.n_features
        weights[:, :n] -= self._rows(tensors)
        weights[:, n:] *= weights.dtype.type(UNIT)

    def store(self, weights: np.ndarray, tensors: Tensors) -> None:
        """Truncate the weights of the table, and store the penalty that they have received."""
        n = self._layer.n_features
        clipped = np.clip(weights[:, :n], -self._last, self._last)
        weights[:, :n] -= clipped
        weights[:, n:] /= weights.dtype.type(UNIT)
        self._rows(tensors)[...] = -clipped

    def _rows(self, tensors: Tensors) -> np.ndarray:
        """Return the penalty of each output, negative for positive weights."""
        debts = tensors[self._layer.weight, L1_DEBT]
        return debts if self._layer.is_transposed else debts.T
