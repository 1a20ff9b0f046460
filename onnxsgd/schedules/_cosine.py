"""Schedules made of half cosines: one, several that restart, one up and one down."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from onnxsgd._settable import check_count, check_number
from onnxsgd.schedules._schedule import PlannedSchedule

__all__ = ["Cosine", "CosineRestarts", "OneCycle"]

_MOST_CYCLES = 10_000


def _fall(share: float) -> float:
    """Return half a cosine, from 1 at share 0 to 0 at share 1."""
    return 0.5 + 0.5 * np.cos(np.pi * share)


class _CosineFall(PlannedSchedule):
    """A fall from the first rate to the least one."""

    eta0: float
    eta_min: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("eta0", self.eta0, above=0)
        check_number("eta_min", self.eta_min, least=0, most=self.eta0)

    @property
    def initial(self) -> float:
        return self.eta0

    @abstractmethod
    def done(self, t: int) -> float:
        """Return the share of the fall before update `t`."""

    def rate(self, t: int, eta: float) -> float:
        return self.eta_min + (self.eta0 - self.eta_min) * _fall(self.done(t))


@dataclass(frozen=True)
class Cosine(_CosineFall):
    """Half a cosine: a fall that is slow at first and at the end.

    ::

        rate = eta_min + (eta0 - eta_min) (1 + cos(pi (t - 1) / n_updates)) / 2

    Parameters
    ----------
    eta0 : float, default=0.01
        The first rate, > 0.
    eta_min : float, default=0.0
        The rate behind the last update, from 0 to `eta0`.
    n_updates : int or None, default=None
        The number of updates. None: that of ``fit``.

    References
    ----------
    I. Loshchilov, F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017, equation 5;
    ``torch.optim.lr_scheduler.CosineAnnealingLR`` with `T_max` = `n_updates`, up to there.
    """

    eta0: float = 0.01
    eta_min: float = 0.0
    n_updates: int | None = None

    def done(self, t: int) -> float:
        return np.minimum(t - 1, self.length) / self.length


@dataclass(frozen=True)
class CosineRestarts(_CosineFall):
    """Half cosines that restart at the first rate, each longer than the one before.

    ::

        rate = eta_min + (eta0 - eta_min) (1 + cos(pi (t - 1 - start) / length)) / 2

    for the last `start` that is not above ``t - 1``: the lengths are proportional to ``1, growth, growth^2,
    ...``, as whole numbers, and their sum is `n_updates`.

    Parameters
    ----------
    eta0 : float, default=0.01
        The first rate of each cycle, > 0.
    eta_min : float, default=0.0
        The rate behind the last update of a cycle, from 0 to `eta0`.
    n_cycles : int, default=3
        The number of cycles, up to 10,000.
    growth : float, default=2.0
        The length of a cycle in lengths of the one before, >= 1.
    n_updates : int or None, default=None
        The number of updates of all cycles. None: that of ``fit``.

    References
    ----------
    I. Loshchilov, F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017;
    ``torch.optim.lr_scheduler.CosineAnnealingWarmRestarts`` with `T_mult` = `growth` and `T_0` the length of
    the first cycle.
    """

    eta0: float = 0.01
    eta_min: float = 0.0
    n_cycles: int = 3
    growth: float = 2.0
    n_updates: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("n_cycles", self.n_cycles, most=_MOST_CYCLES)
        check_number("growth", self.growth, least=1)

    def done(self, t: int) -> float:
        spans = _cycles(self.length, self.n_cycles, self.growth)
        cycles: float = 0.0
        for start, length in spans:
            cycles = cycles + np.minimum(np.maximum((t - 1 - start) / length, 0.0), 1.0)
        return cycles - np.minimum(np.floor(cycles), len(spans) - 1.0)


@lru_cache(maxsize=16)
def _cycles(n_updates: int, n_cycles: int, growth: float) -> list[tuple[float, float]]:
    """Return the start and the length of each cycle of one update or more."""
    # scaled by the last power: no overflow with many cycles
    weights = growth ** np.arange(1.0 - n_cycles, 1.0)
    ends = np.unique([0.0, *np.rint(n_updates * np.cumsum(weights) / weights.sum())])
    return list(zip(ends[:-1].tolist(), np.diff(ends).tolist(), strict=True))


@dataclass(frozen=True)
class OneCycle(PlannedSchedule):
    """A rise to the largest rate and a fall to almost zero, each a half cosine.

    ::

        rise   rate = eta0 (start_factor + (1 - start_factor) (1 - cos(pi (t - 1) / s)) / 2)
        fall   rate = eta0 (end_factor + (1 - end_factor) (1 + cos(pi (t - 1 - s) / (n_updates - 1 - s))) / 2)

    with ``s = rise n_updates - 1``. The momentum of the optimizer stays as it is.

    Parameters
    ----------
    eta0 : float, default=0.01
        The largest rate, > 0.
    rise : float, default=0.3
        The share of the updates in which the rate rises, between 0 and 1.
    start_factor : float, default=0.04
        The first rate, in shares of `eta0`, between 0 and 1.
    end_factor : float, default=4e-6
        The last rate, in shares of `eta0`, from 0 to 1.
    n_updates : int or None, default=None
        The number of updates. None: that of ``fit``.

    References
    ----------
    L. N. Smith, N. Topin, "Super-Convergence: Very Fast Training of Neural Networks Using Large Learning
    Rates", 2018; ``torch.optim.lr_scheduler.OneCycleLR`` with `max_lr` = `eta0`, `pct_start` = `rise`,
    `div_factor` = ``1 / start_factor``, `final_div_factor` = ``start_factor / end_factor``,
    `cycle_momentum` = False.
    """

    eta0: float = 0.01
    rise: float = 0.3
    start_factor: float = 0.04
    end_factor: float = 4e-6
    n_updates: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("eta0", self.eta0, above=0)
        check_number("rise", self.rise, above=0, below=1)
        check_number("start_factor", self.start_factor, above=0, below=1)
        check_number("end_factor", self.end_factor, least=0, below=1)

    @property
    def initial(self) -> float:
        return self.eta0 * self.start_factor

    def rate(self, t: int, eta: float) -> float:
        # at least one update each, in fits of few updates too
        n_up = max(1.0, self.rise * self.length - 1.0)
        n_down = max(1.0, self.length - 1.0 - n_up)
        up = np.minimum((t - 1) / n_up, 1.0)
        down = np.minimum(np.maximum((t - 1 - n_up) / n_down, 0.0), 1.0)
        rising = (1.0 - self.start_factor) * _fall(up)
        return self.eta0 * (self.end_factor + (1.0 - self.end_factor) * _fall(down) - rising)
