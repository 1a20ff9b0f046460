"""Base classes of the schedules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from onnxsgd._settable import Settable, check_count
from onnxsgd.exceptions import ParameterError

__all__ = ["NumberedSchedule", "PlannedSchedule", "Schedule"]


class Schedule(Settable, ABC):
    """Base class of the schedules.

    Attributes
    ----------
    has_formula : bool
        True, the default: `rate` is arithmetic that ``export_training_step`` can export, ``+ - * / // **``,
        and minimum, maximum, floor, sqrt, exp, log, cos of numpy, without branches; others are refused. False
        leaves rates without a formula to the reader of the manifest.
    """

    has_formula: ClassVar[bool] = True

    @property
    @abstractmethod
    def initial(self) -> float:
        """The rate of the first update."""

    def initial_at(self, t: int) -> float:
        """Return the rate to begin with after `t` updates of another schedule; by default the first one."""
        return self.initial

    @abstractmethod
    def rate(self, t: int, eta: float) -> float:
        """Return the rate of update `t`, counted from 1, where `eta` is the current rate."""

    @property
    def last_update(self) -> int | None:
        """The last update of a schedule that ends; None, the default: it has no end.

        Before it, a training loss that improves no more does not end ``fit``. Afterwards the rate stays.
        """
        return None

    @property
    def n_warm_up(self) -> int:
        """The updates before which a loss, or a score, that improves no more is no plateau; by default 0."""
        return 0

    def for_epochs(self, n_updates: int | None) -> Schedule:
        """Return the schedule for epochs of `n_updates` updates; by default the same for any number.

        It is called before `for_updates`.

        Parameters
        ----------
        n_updates : int or None
            The updates of an epoch of the last call to ``fit``. None: ``fit`` was not called. A schedule that
            needs the number refuses None with a ParameterError.
        """
        return self

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

    def after_epoch(
        self, value: float, eta: float, memory: tuple[float, ...]
    ) -> tuple[float, tuple[float, ...]]:
        """Return the rate after an epoch, and the numbers to remember; by default those given.

        Parameters
        ----------
        value : float
            The mean objective of the epoch, or, with early stopping, the negative score.
        eta : float
            The current rate.
        memory : tuple of float
            The numbers that the call before returned; empty in the first one of a schedule.
        """
        return eta, memory

    def after_plateau(self, eta: float) -> float | None:
        """Return the rate after a plateau by `tol` and `n_iter_no_change`, or None, the default, to stop."""
        return None


class NumberedSchedule(Schedule):
    """A schedule whose `rate` is a formula of numpy in the number of the update alone."""

    def rates(self, t: int, eta: float, count: int) -> np.ndarray:
        numbers: Any = np.arange(t, t + count, dtype=np.float64)
        # a power that overflows gives a rate of 0
        with np.errstate(over="ignore"):
            return np.asarray(self.rate(numbers, eta))


class PlannedSchedule(NumberedSchedule):
    """A schedule that ends after a number of updates, by default that of ``fit``.

    Attributes
    ----------
    n_updates : int or None
        The number of updates; None: it is unknown.
    """

    n_updates: int | None

    def __post_init__(self) -> None:
        if self.n_updates is not None:
            check_count("n_updates", self.n_updates)

    @property
    def last_update(self) -> int | None:
        return self.n_updates

    @property
    def length(self) -> int:
        """The number of updates, once it is known."""
        if self.n_updates is None:
            raise self.without_length()
        return self.n_updates

    def for_updates(self, n_updates: int | None) -> Schedule:
        if self.n_updates is not None:
            return self
        if n_updates is None:
            raise self.without_length()
        return type(self)(**{**self.get_params(deep=False), "n_updates": n_updates})

    def without_length(self) -> ParameterError:
        """Return the error of a schedule of unknown length."""
        return ParameterError(
            f"learning_rate={self!r} needs a number of updates: give n_updates, a whole number >= 1, or call "
            "fit first (with steps_per_epoch, on a generator of batches), whose max_iter epochs the "
            "schedule then lasts."
        )
