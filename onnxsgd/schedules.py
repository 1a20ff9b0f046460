"""Learning-rate schedules: the rate of each update, as a function of the update's number.

A schedule is a small frozen object. ``rate(t, eta)`` gives the rate of update `t` (1, 2, ...), where `eta`
is the current rate; ``after_plateau(eta)`` gives the rate after the loss stops improving, or None to stop.
A plain callable ``t -> rate`` is accepted as well.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsgd._settable import Settable
from onnxsgd.exceptions import ParameterError, ParameterTypeError

__all__ = ["SCHEDULES", "Adaptive", "Auto", "Constant", "InvScaling", "Optimal", "Schedule", "make_schedule"]


class Schedule(Settable, ABC):
    """Base class of the schedules.

    Attributes
    ----------
    has_formula : bool
        True, the default: `rate` is arithmetic that ``export_training_step`` can export, ``+ - * / **``, and
        minimum, maximum, sqrt, exp, log, cos of numpy, without branches; others are refused. False leaves
        rates without a formula to the reader of the manifest.
    """

    has_formula: ClassVar[bool] = True

    @property
    @abstractmethod
    def initial(self) -> float:
        """The rate of the first update."""

    @abstractmethod
    def rate(self, t: int, eta: float) -> float:
        """Return the rate of update `t`, counted from 1, where `eta` is the current rate."""

    def for_updates(self, n_updates: int | None) -> Schedule:
        """Return the schedule of `n_updates` updates; by default the same for any number.

        A schedule that ends at the last update overrides it.

        Parameters
        ----------
        n_updates : int or None
            The largest number of updates of the last call to ``fit``, `max_iter` epochs of batches, which
            later calls of ``partial_fit`` may exceed. None: ``fit`` was not called. A schedule that needs
            the number refuses None with a ParameterError.
        """
        return self

    def rates(self, t: int, eta: float, count: int) -> np.ndarray:
        """Return the rates of `count` updates from `t` on, as a float64 vector."""
        rates = np.empty(count)
        for index in range(count):
            eta = rates[index] = self.rate(t + index, eta)
        return rates

    def for_batches(self, rates: np.ndarray, batch_size: int) -> np.ndarray:
        """Return these rates for batches of `batch_size` rows; by default the same for any number."""
        return rates

    def after_plateau(self, eta: float) -> float | None:
        """Return the rate after a plateau, or None to stop."""
        return None


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
        _check_positive("eta0", self.eta0)

    @property
    def initial(self) -> float:
        return self.eta0

    def rate(self, t: int, eta: float) -> float:
        return self.eta0

    def rates(self, t: int, eta: float, count: int) -> np.ndarray:
        return np.full(count, self.rate(t, eta))


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


@dataclass(frozen=True)
class Auto(Schedule):
    """A rate that training itself finds, for updates of normalised size (:class:`~.optimizers.BlockAdam`).

    ``fit`` starts with `eta0`, for batches of 32 samples, or with a share of it: the root of the ratio of the
    loss of the first weights to that of the best constant, at least 0.03. It looks at the mean loss of each
    window of one epoch, of 12 to 16 updates at least. Where an update gains a sixteen-hundredth of the loss,
    the rate of a linear model grows by half, up to 16 times. If the loss grows, it restores the weights
    before and divides the rate by 4; if it gains no more, the rate falls from update to update to zero. That
    ends training, unless its last window still gained a tenth of the loss: then training continues at a
    quarter of the rate. The best weights are returned.

    ``partial_fit`` follows drifts: its rate is `eta0` times a factor for each tensor, which grows where
    gradients agree and falls where they turn, between 0.03, at which it begins with good weights, and 4
    (`steering` of :class:`~.optimizers.BlockAdam`). In regression it begins anew where the loss is ten times
    that of each of the calls before, and leaves out a call of noise. ``benchmarks/defaults.py`` chose these
    numbers.

    Parameters
    ----------
    eta0 : float, default=0.05
        The first rate, > 0.
    """

    eta0: float = 0.05

    def __post_init__(self) -> None:
        _check_positive("eta0", self.eta0)

    @property
    def initial(self) -> float:
        return self.eta0

    def rate(self, t: int, eta: float) -> float:
        return eta

    def rates(self, t: int, eta: float, count: int) -> np.ndarray:
        return np.full(count, eta)

    def for_batches(self, rates: np.ndarray, batch_size: int) -> np.ndarray:
        return rates * math.sqrt(min(batch_size, _MOST_USEFUL_ROWS) / _USUAL_ROWS)


#: The rate is for batches of this many rows; it grows with the root of their number up to this one.
_USUAL_ROWS, _MOST_USEFUL_ROWS = 32, 1024


@dataclass(frozen=True)
class InvScaling(Schedule):
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
        _check_positive("eta0", self.eta0)

    @property
    def initial(self) -> float:
        return self.eta0

    def rate(self, t: int, eta: float) -> float:
        return self.eta0 / t**self.power_t

    def rates(self, t: int, eta: float, count: int) -> np.ndarray:
        return self.eta0 / np.arange(t, t + count, dtype=np.float64) ** self.power_t


@dataclass(frozen=True)
class Optimal(Schedule):
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
        if not self.alpha > 0:
            raise ParameterError(
                f"alpha={self.alpha!r} is not accepted: alpha must be > 0 since learning_rate is 'optimal'."
            )

    @property
    def initial(self) -> float:
        return math.sqrt(1.0 / math.sqrt(self.alpha))

    def rate(self, t: int, eta: float) -> float:
        return 1.0 / (self.alpha * (1.0 / (self.initial * self.alpha) + t - 1))


@dataclass(frozen=True)
class _Function(Schedule):
    """A plain callable ``t -> rate`` as a schedule."""

    has_formula: ClassVar[bool] = False

    function: Callable[[int], float]

    @property
    def initial(self) -> float:
        return self.rate(1, math.nan)

    def rate(self, t: int, eta: float) -> float:
        try:
            rate = float(self.function(t))
        except (TypeError, ValueError) as error:
            raise ParameterTypeError(
                f"learning_rate({t}) returned no number ({error}): a schedule must return finite "
                "numbers >= 0."
            ) from error
        if not 0 <= rate < math.inf:
            raise ParameterError(
                f"learning_rate({t}) returned {rate!r}: a schedule must return finite numbers >= 0."
            )
        return rate


#: The constructor of each named schedule, from the parameters `eta0`, `power_t` and `alpha`.
SCHEDULES: dict[str, Callable[[float, float, float], Schedule]] = {
    "constant": lambda eta0, power_t, alpha: Constant(eta0),
    "optimal": lambda eta0, power_t, alpha: Optimal(alpha),
    "invscaling": lambda eta0, power_t, alpha: InvScaling(eta0, power_t),
    "adaptive": lambda eta0, power_t, alpha: Adaptive(eta0),
    "auto": lambda eta0, power_t, alpha: Auto(),
}


def make_schedule(
    schedule: str | Schedule | Callable[[int], float], eta0: float, power_t: float, alpha: float
) -> Schedule:
    """Return `schedule` as an object.

    Parameters
    ----------
    schedule : {"constant", "optimal", "invscaling", "adaptive", "auto"}, Schedule or callable
        A name, an object, or a function of the update's number.
    eta0, power_t, alpha : float
        Parameters of a named schedule; an object has its own.

    Raises
    ------
    ParameterError
        If the name is unknown.
    ParameterTypeError
        If `schedule` is neither a name, nor a schedule, nor callable.
    """
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, str):
        if schedule not in SCHEDULES:
            raise ParameterError(
                f"learning_rate={schedule!r} is not accepted: it must be one of {sorted(SCHEDULES)}, "
                "a Schedule or a callable."
            )
        return SCHEDULES[schedule](eta0, power_t, alpha)
    if callable(schedule):
        return _Function(schedule)
    raise ParameterTypeError(
        f"learning_rate={schedule!r} is not accepted: it must be one of {sorted(SCHEDULES)}, "
        "a Schedule or a callable."
    )


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ParameterError(f"{name}={value!r} is not accepted: it must be a number > 0.")
