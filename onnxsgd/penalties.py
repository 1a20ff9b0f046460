"""Penalties on the weights: multiples of norms, added to the mean loss.

::

    penalty = l1 ||w||_1 + l2 / 2 ||w||_2^2

summed over all trained weights; intercepts are never penalised. The names and the strengths are those of
scikit-learn's ``SGDRegressor`` and ``SGDClassifier``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from onnxsgd.exceptions import ParameterError

__all__ = ["PENALTIES", "Penalty", "make_penalty"]

#: Weights of a block. Products of more than 10,000 numbers would start the threads of BLAS.
_BLOCK = 8192


@dataclass(frozen=True)
class Penalty:
    """The strengths of the two norms.

    Attributes
    ----------
    l1, l2 : float or None
        Coefficients of the absolute norm and of half the squared norm, >= 0; None: no such term.
    """

    l1: float | None = None
    l2: float | None = None

    def value(self, weights: Iterable[np.ndarray]) -> float:
        """Return the penalty on `weights`, summed in float64."""
        total = 0.0
        for weight in weights:
            for block in _blocks(weight):
                wide = block.astype(np.float64)
                if self.l1:
                    total += self.l1 * float(np.abs(wide).sum())
                if self.l2:
                    total += self.l2 * 0.5 * float(np.vdot(wide, wide))
        return total


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the elements of an array in blocks, which stay in the cache."""
    flat = array.reshape(-1)
    for start in range(0, len(flat), _BLOCK):
        yield flat[start : start + _BLOCK]


#: The constructor of each named penalty, from the strength `alpha` and the share `l1_ratio`.
PENALTIES: dict[str | None, Callable[[float, float], Penalty]] = {
    "l2": lambda alpha, l1_ratio: Penalty(l2=alpha),
    "l1": lambda alpha, l1_ratio: Penalty(l1=alpha),
    "elasticnet": lambda alpha, l1_ratio: Penalty(l1=alpha * l1_ratio, l2=alpha * (1.0 - l1_ratio)),
    None: lambda alpha, l1_ratio: Penalty(),
}


def make_penalty(name: str | None, alpha: float, l1_ratio: float) -> Penalty:
    """Return the penalty `name`.

    Parameters
    ----------
    name : {"l2", "l1", "elasticnet", None}
        The norms.
    alpha : float
        The strength, >= 0.
    l1_ratio : float
        The share of the absolute norm in "elasticnet", from 0 to 1.

    Raises
    ------
    ParameterError
        If `name` is none of these.
    """
    if name not in PENALTIES:
        raise ParameterError(f"penalty={name!r} is not accepted: it must be one of {list(PENALTIES)}.")
    return PENALTIES[name](alpha, l1_ratio)
