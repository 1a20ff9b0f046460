"""Schedules of scikit-learn: constant, inverse scaling, Bottou's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from onnxsgd._settable import check_number
from onnxsgd.exceptions import ParameterError
from onnxsgd.schedules._schedule import NumberedSchedule, Schedule

__all__ = ["Constant", "InvScaling", "Optimal"]


@dataclass(frozen=True)
class Constant(Schedule):
    """The same rate at each update.

    Parameters
    ----------
    eta0 : float, default=0.01
        The rate, > 0.
    """

    eta0: float = 0.01

    def __post_init__(self) -> None:
        check_number("eta0", self.eta0, above=0)

    @property
    def initial(self) -> float:
        return self.eta0

    def rate(self, t: int, eta: float) -> float:
        return self.eta0

    def rates(self, t: int, eta: float, count: int) -> np.ndarray:
        return np.full(count, self.rate(t, eta), np.float64)


@dataclass(frozen=True)
class InvScaling(NumberedSchedule):
    """A rate that decreases with a power of the update's number.

    ::

        rate = eta0 / t^power_t

    Parameters
    ----------
    eta0 : float, default=0.01
        The first rate, > 0.
    power_t : float, default=0.25
        The exponent.
    """

    eta0: float = 0.01
    power_t: float = 0.25

    def __post_init__(self) -> None:
        check_number("eta0", self.eta0, above=0)
        check_number("power_t", self.power_t)

    @property
    def initial(self) -> float:
        return self.eta0

    def rate(self, t: int, eta: float) -> float:
        return self.eta0 / t**self.power_t


@dataclass(frozen=True)
class Optimal(NumberedSchedule):
    """Bottou's schedule, whose scale follows from the strength of the penalty.

    ::

        rate = 1 / (alpha (t0 + t - 1)),  t0 = 1 / (alpha s),  s = sqrt(1 / sqrt(alpha))

    so that the first rate is `s`, the size that a weight is expected to have.

    Parameters
    ----------
    alpha : float, default=1e-4
        The strength of the penalty, > 0.

    References
    ----------
    L. Bottou, "Stochastic Gradient Descent Tricks", Neural Networks: Tricks of the Trade, 2012.
    """

    alpha: float = 1e-4

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha)
        if not self.alpha > 0:
            raise ParameterError(
                f"alpha={self.alpha!r} is not accepted: alpha must be > 0 since learning_rate is 'optimal'."
            )

    @property
    def initial(self) -> float:
        return math.sqrt(1.0 / math.sqrt(self.alpha))

    def rate(self, t: int, eta: float) -> float:
        return 1.0 / (self.alpha * (1.0 / (self.initial * self.alpha) + t - 1))
