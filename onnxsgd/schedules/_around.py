"""Schedules around another one: a warm-up before it, epochs in place of its updates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from onnxsgd._settable import check_count, check_number
from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.schedules._function import FunctionSchedule
from onnxsgd.schedules._schedule import Schedule

__all__ = ["ByEpoch", "ScheduleAround", "WarmUp"]

#: The share of a fit that a warm-up takes unless its updates are given.
_WARM_UP = 0.1


class ScheduleAround(Schedule):
    """A schedule that changes another one.

    Attributes
    ----------
    schedule : str, Schedule or callable
        The other one. An estimator makes a name an object, with its own `eta0`, `power_t` and `alpha`.
    """

    schedule: str | Schedule | Callable[[int], float]

    def __post_init__(self) -> None:
        if not (isinstance(self.schedule, str | Schedule) or callable(self.schedule)):
            raise ParameterTypeError(
                f"schedule={self.schedule!r} is not accepted: it must be a name, a Schedule or a callable."
            )

    @abstractmethod
    def around(self, schedule: Schedule) -> Self:
        """Return the same change of another schedule."""

    @property
    def inner(self) -> Schedule:
        """The other schedule as an object."""
        if isinstance(self.schedule, Schedule):
            return self.schedule
        if isinstance(self.schedule, str):
            raise ParameterError(
                f"{self!r} has no rates yet: its name gets them as the learning_rate of an estimator. Alone, "
                "it takes a Schedule."
            )
        return FunctionSchedule(self.schedule)

    @property
    def has_formula(self) -> bool:  # type: ignore[override]
        return self.inner.has_formula

    def for_batches(self, rates: np.ndarray, batch_size: int) -> np.ndarray:
        return self.inner.for_batches(rates, batch_size)

    def after_epoch(
        self, value: float, eta: float, memory: tuple[float, ...]
    ) -> tuple[float, tuple[float, ...]]:
        return self.inner.after_epoch(value, eta, memory)

    def after_plateau(self, eta: float) -> float | None:
        return self.inner.after_plateau(eta)


@dataclass(frozen=True)
class WarmUp(ScheduleAround):
    """A rise to the first rate of another schedule, which then begins.

    ::

        rate = eta0 (start_factor + (1 - start_factor) (t - 1) / n_updates)  for t <= n_updates

    where `eta0` is the first rate of the other one; its update 1 is number ``n_updates + 1``, and its length
    the rest of the fit. A plateau during the rise does not count.

    Parameters
    ----------
    schedule : str, Schedule or callable
        The other schedule: a name, whose numbers are those of the estimator, or an object.
    n_updates : int or None, default=None
        The number of updates of the rise. None: a tenth of those of ``fit``.
    start_factor : float, default=0.1
        The first rate, as a share of the rate at the end of the rise, > 0 and < 1.

    References
    ----------
    P. Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, section 2.2;
    ``torch.optim.lr_scheduler.LinearLR`` with `total_iters` = `n_updates`, before the other one in
    ``SequentialLR``.
    """

    schedule: str | Schedule | Callable[[int], float]
    n_updates: int | None = None
    start_factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_updates is not None:
            check_count("n_updates", self.n_updates)
        check_number("start_factor", self.start_factor, above=0, below=1)

    def around(self, schedule: Schedule) -> Self:
        return replace(self, schedule=schedule)

    @property
    def initial(self) -> float:
        return self.start_factor * self.inner.initial

    def initial_at(self, t: int) -> float:
        if self.n_updates is None or t < self.n_updates:
            return self.initial
        return self.inner.initial_at(t - self.n_updates)

    @property
    def n_warm_up(self) -> int:
        return self._length + self.inner.n_warm_up

    @property
    def last_update(self) -> int | None:
        last = self.inner.last_update
        return None if last is None else self._length + last

    @property
    def _length(self) -> int:
        """The number of updates of the rise, once it is known."""
        if self.n_updates is None:
            raise self._without_length()
        return self.n_updates

    def _without_length(self) -> ParameterError:
        """Return the error of a rise of unknown length."""
        return ParameterError(
            f"learning_rate={self!r} needs a number of updates: give n_updates, a whole number >= 1, or call "
            "fit first (with steps_per_epoch, on a generator of batches), of which the rise then takes a "
            "tenth."
        )

    def for_epochs(self, n_updates: int | None) -> Schedule:
        return self.around(self.inner.for_epochs(n_updates))

    def for_updates(self, n_updates: int | None) -> Schedule:
        if self.n_updates is None and n_updates is None:
            raise self._without_length()
        length = self.n_updates or max(1, round(_WARM_UP * (n_updates or 0)))
        left = None if n_updates is None else n_updates - length
        if left is None or left > 0:
            return replace(self, schedule=self.inner.for_updates(left), n_updates=length)
        try:
            inner = self.inner.for_updates(None)
        except ParameterError:
            raise ParameterError(
                f"n_updates={length} of learning_rate={self!r} is not accepted: the rise leaves none of the "
                f"{n_updates} updates of fit to the schedule behind it. It must be a whole number from 1 to "
                f"{(n_updates or 0) - 1}."
            ) from None
        return replace(self, schedule=inner, n_updates=length)

    def _share(self, t: Any) -> Any:
        """Return the share of the first rate at update `t`."""
        return np.minimum(self.start_factor + (1.0 - self.start_factor) * (t - 1) / self._length, 1.0)

    def rate(self, t: int, eta: float) -> float:
        # the other one knows its own rate: the present one without the share of the update before
        own = eta / self._share(np.maximum(t - 1, 1))
        return self._share(t) * self.inner.rate(np.maximum(t - self._length, 1), own)

    def rates(self, t: int, eta: float, count: int) -> np.ndarray:
        first = self.inner.initial
        n_rising = min(max(self._length - t + 1, 0), count)
        rising = first * self._share(np.arange(t, t + n_rising, dtype=np.float64))
        if n_rising == count:
            return rising
        start = max(t - self._length, 1)
        rest = self.inner.rates(start, first if start == 1 else eta, count - n_rising)
        return np.concatenate([rising, rest])


@dataclass(frozen=True)
class ByEpoch(ScheduleAround):
    """Another schedule, whose rate changes from epoch to epoch instead of from update to update.

    ::

        rate = rate of the other one at number 1 + floor((t - 1) / n_updates)

    All numbers of updates of the other one are numbers of epochs.

    Parameters
    ----------
    schedule : str, Schedule or callable
        The other schedule: a name, whose numbers are those of the estimator, an object, or a function of the
        number of the epoch, 1, 2, ...
    n_updates : int or None, default=None
        The number of updates of an epoch. None: that of the last ``fit``, also in ``partial_fit``.
    """

    schedule: str | Schedule | Callable[[int], float]
    n_updates: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_updates is not None:
            check_count("n_updates", self.n_updates)

    def around(self, schedule: Schedule) -> Self:
        return replace(self, schedule=schedule)

    @property
    def initial(self) -> float:
        return self.inner.initial

    @property
    def n_warm_up(self) -> int:
        return self._length * self.inner.n_warm_up

    @property
    def last_update(self) -> int | None:
        last = self.inner.last_update
        return None if last is None else self._length * last

    @property
    def _length(self) -> int:
        """The number of updates of an epoch, once it is known."""
        if self.n_updates is None:
            raise ParameterError(
                f"learning_rate={self!r} needs the number of updates of an epoch: give n_updates, a whole "
                "number >= 1, or call fit first (with steps_per_epoch, on a generator of batches)."
            )
        return self.n_updates

    def for_epochs(self, n_updates: int | None) -> Schedule:
        known = self if self.n_updates is not None else replace(self, n_updates=n_updates)
        # to the other one, an epoch is an update
        return replace(known, n_updates=known._length, schedule=self.inner.for_epochs(1))

    def for_updates(self, n_updates: int | None) -> Schedule:
        n_epochs = None if n_updates is None else -(-n_updates // self._length)
        return self.around(self.inner.for_updates(n_epochs))

    def rate(self, t: int, eta: float) -> float:
        return self.inner.rate((t - 1) // self._length + 1, eta)

    def rates(self, t: int, eta: float, count: int) -> np.ndarray:
        epochs = np.arange(t - 1, t - 1 + count) // self._length
        first = int(epochs[0])
        return self.inner.rates(first + 1, eta, int(epochs[-1]) - first + 1)[epochs - first]
