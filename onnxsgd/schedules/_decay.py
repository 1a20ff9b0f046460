"""Schedules that fall by factors, or with a power of the share of updates that is left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxsgd._settable import check_count, check_number
from onnxsgd.schedules._schedule import PlannedSchedule, Schedule

__all__ = ["Exponential", "Polynomial", "Step"]

#: Factors of a fit, unless `every` names the updates between them.
_N_FACTORS = 3


@dataclass(frozen=True)
class _Decay(PlannedSchedule):
    """A rate that is multiplied by a factor over a number of updates."""

    eta0: float = 0.01
    factor: float = 0.1
    every: int | None = None
    n_updates: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("eta0", self.eta0, above=0)
        check_number("factor", self.factor, above=0, below=1)
        if self.every is not None:
            check_count("every", self.every)

    @property
    def initial(self) -> float:
        return self.eta0

    def for_updates(self, n_updates: int | None) -> Schedule:
        return self if self.every is not None else super().for_updates(n_updates)

    def factors(self, t: int) -> float:
        """Return the number of factors before update `t`, a fraction within one."""
        every = self.length / _N_FACTORS if self.every is None else self.every
        done = t - 1 if self.n_updates is None else np.minimum(t - 1, self.n_updates - 1)
        return done / every


@dataclass(frozen=True)
class Step(_Decay):
    """A constant rate, multiplied by a factor after every so many updates.

    ::

        rate = eta0 factor^floor((t - 1) / every)

    Parameters
    ----------
    eta0 : float, default=0.01
        The first rate, > 0.
    factor : float, default=0.1
        The factor of each step, between 0 and 1.
    every : int or None, default=None
        The updates between two steps. None: a third of `n_updates`.
    n_updates : int or None, default=None
        The updates after which the rate stays. None: those of ``fit`` if `every` is None, without an end
        otherwise.

    References
    ----------
    K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2;
    ``torch.optim.lr_scheduler.StepLR`` with `step_size` = `every`, `gamma` = `factor`.
    """

    def rate(self, t: int, eta: float) -> float:
        return self.eta0 * self.factor ** np.floor(self.factors(t))


@dataclass(frozen=True)
class Exponential(_Decay):
    """A rate that falls by the same share at each update.

    ::

        rate = eta0 factor^((t - 1) / every)

    Parameters
    ----------
    eta0 : float, default=0.01
        The first rate, > 0.
    factor : float, default=0.1
        The factor of the rate over `every` updates, between 0 and 1.
    every : int or None, default=None
        The updates over which the rate falls by that factor. None: a third of `n_updates`.
    n_updates : int or None, default=None
        The updates after which the rate stays. None: those of ``fit`` if `every` is None, without an end
        otherwise.

    References
    ----------
    ``torch.optim.lr_scheduler.ExponentialLR`` with `gamma` = `factor` and `every` = 1.
    """

    def rate(self, t: int, eta: float) -> float:
        return self.eta0 * self.factor ** self.factors(t)


@dataclass(frozen=True)
class Polynomial(PlannedSchedule):
    """A fall with a power of the share of updates that is left, by default linear.

    ::

        rate = eta_min + (eta0 - eta_min) (1 - (t - 1) / n_updates)^power

    Parameters
    ----------
    eta0 : float, default=0.01
        The first rate, > 0.
    power : float, default=1.0
        The exponent, > 0.
    eta_min : float, default=0.0
        The rate behind the last update, from 0 to `eta0`.
    n_updates : int or None, default=None
        The number of updates. None: that of ``fit``.

    References
    ----------
    L.-C. Chen, G. Papandreou, I. Kokkinos, K. Murphy, A. L. Yuille, "DeepLab", IEEE TPAMI 40(4), 2018,
    section 4.1.2; ``torch.optim.lr_scheduler.PolynomialLR`` with `total_iters` = `n_updates`.
    """

    eta0: float = 0.01
    power: float = 1.0
    eta_min: float = 0.0
    n_updates: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("eta0", self.eta0, above=0)
        check_number("power", self.power, above=0)
        check_number("eta_min", self.eta_min, least=0, most=self.eta0)

    @property
    def initial(self) -> float:
        return self.eta0

    def rate(self, t: int, eta: float) -> float:
        left = 1.0 - np.minimum(t - 1, self.length) / self.length
        return self.eta_min + (self.eta0 - self.eta_min) * left**self.power
