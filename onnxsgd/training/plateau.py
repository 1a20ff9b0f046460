"""When to stop: a loss or a score that no longer improves."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Plateau"]


@dataclass
class Plateau:
    """Counts the epochs in a row that bring no improvement, as scikit-learn's SGD estimators do.

    Parameters
    ----------
    tol : float or None
        The improvement that counts; None: the plateau is never reached.
    patience : int
        How many such epochs make a plateau.
    best : float
        The lowest value so far. (A score is given with its sign changed.)
    count : int
        Epochs in a row without improvement.
    """

    tol: float | None
    patience: int
    best: float = math.inf
    count: int = 0

    def reached(self, value: float) -> bool:
        """Take the value of one more epoch; return whether this is a plateau."""
        improved = self.tol is None or value <= self.best - self.tol
        self.count = 0 if improved else self.count + 1
        self.best = min(self.best, value)
        return self.count >= self.patience
