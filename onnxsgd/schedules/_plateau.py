"""Schedules that follow the loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxsgd.exceptions import ParameterError
from onnxsgd.schedules._scaling import Constant

__all__ = ["Adaptive"]


@dataclass(frozen=True)
class Adaptive(Constant):
    """A constant rate that is divided each time the loss stops improving.

    Parameters
    ----------
    eta0 : float, default=0.01
        The first rate, > 0.
    divisor : float, default=5.0
        The divisor of the rate on a plateau, > 1.
    eta_min : float, default=1e-6
        Training stops at a plateau once the rate is not above this value.
    """

    divisor: float = 5.0
    eta_min: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.divisor > 1:
            raise ParameterError(f"divisor={self.divisor!r} is not accepted: it must be a number > 1.")

    def rate(self, t: int, eta: float) -> float:
        return np.minimum(eta, self.eta0)

    def after_plateau(self, eta: float) -> float | None:
        return eta / self.divisor if eta > self.eta_min else None
