"""The record of the norms of updates."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from onnxsgd.training.loop import Observer
from onnxsgd.training.state import FitState

__all__ = ["UpdateNorms"]


class UpdateNorms(Observer):
    """Records the norm of the change of the trained weights over each epoch.

    ::

        norm = sqrt(sum((w_end - w_begin)^2))

    Parameters
    ----------
    records : bool
        Whether norms are to be recorded; if not, the observer is not active.
    statistics : collection of str
        The running statistics beside the weights, which do not count.
    """

    def __init__(self, records: bool, statistics: Collection[str] = ()) -> None:
        self._records, self._statistics = records, statistics

    @property
    def is_active(self) -> bool:
        """True if norms are recorded."""
        return self._records

    def epoch_begins(self, state: FitState) -> None:
        """Keep the weights, which the epoch replaces by other arrays."""
        self._before = state.weights()

    def epoch_ends(self, state: FitState) -> bool:
        """Record the norm, infinite after a divergence; never ask to stop."""
        n_missing = len(state.loss_curve) - 1 - len(state.update_norms)
        state.update_norms.extend([math.nan] * n_missing)
        has_diverged = math.isinf(state.loss_curve[-1])
        state.update_norms.append(math.inf if has_diverged else self._norm(state.weights()))
        return False

    def _norm(self, after: dict[str, np.ndarray]) -> float:
        changes = (
            np.subtract(after[name], before, dtype=np.float64)
            for name, before in self._before.items()
            if name not in self._statistics
        )
        return math.sqrt(sum(float(np.square(change).sum()) for change in changes))
