"""The stopping rule: a number of epochs, a loss or a score that no longer improves."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Plateau", "Stopping"]


@dataclass(frozen=True)
class Stopping:
    """The end of a fit.

    Attributes
    ----------
    max_iter : int
        The largest number of epochs.
    tol : float or None
        The smallest improvement that counts; None: all epochs are made.
    n_iter_no_change : int
        Epochs without an improvement before training stops.
    on_score : bool
        Whether the score on validation data is to improve, otherwise the loss.
    in_parts : bool
        Whether the data are a part of a stream: one epoch, at the present rate.
    in_epoch : bool
        Whether such a part is one of the batches of an epoch: whatever interrupts it ends the epoch, and its
        loss is no sign that the data have changed.
    """

    max_iter: int
    tol: float | None
    n_iter_no_change: int = 1
    on_score: bool = False
    in_parts: bool = False
    in_epoch: bool = False


@dataclass
class Plateau:
    """A counter of successive epochs without improvement, as in scikit-learn's SGD estimators.

    Parameters
    ----------
    tol : float or None
        The least improvement that counts; None: the plateau is never reached.
    patience : int
        The number of such epochs that make a plateau.
    best : float
        The lowest value so far (of a score, its negative).
    count : int
        Epochs in a row without improvement.
    """

    tol: float | None
    patience: int
    best: float = math.inf
    count: int = 0

    def reached(self, value: float) -> bool:
        """Record the value of one more epoch; return whether this is a plateau."""
        improved = self.tol is None or value <= self.best - self.tol
        self.count = 0 if improved else self.count + 1
        self.best = min(self.best, value)
        return self.count >= self.patience
