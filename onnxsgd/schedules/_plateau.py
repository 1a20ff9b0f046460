"""Schedules that follow the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsgd._settable import check_count, check_number
from onnxsgd.schedules._scaling import Constant

__all__ = ["Adaptive", "ReduceOnPlateau"]


class _Lowered(Constant):
    """A constant rate that is lowered between epochs."""

    def rate(self, t: int, eta: float) -> float:
        return np.minimum(eta, self.eta0)


@dataclass(frozen=True)
class Adaptive(_Lowered):
    """A constant rate that is divided each time the loss stops improving.

    It is lowered where scikit-learn's is: after `n_iter_no_change` epochs of a gain below `tol`, parameters
    of the estimator.

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
        check_number("divisor", self.divisor, above=1)
        check_number("eta_min", self.eta_min, least=0)

    def after_plateau(self, eta: float) -> float | None:
        return eta / self.divisor if eta > self.eta_min else None


@dataclass(frozen=True)
class ReduceOnPlateau(_Lowered):
    """A constant rate, multiplied by a factor when epochs bring no new best loss.

    ::

        a new best loss   loss < best - threshold |best|
        rate = max(factor rate, eta_min)  after more than patience epochs in a row without one

    With early stopping the score takes the place of the loss. The rate has numbers of its own for its
    plateaus, and falls with ``tol=None`` and in ``partial_fit`` too, each call of which is an epoch. `tol`
    and `n_iter_no_change` end training once the rate is `eta_min`.

    Parameters
    ----------
    eta0 : float, default=0.01
        The first rate, > 0.
    factor : float, default=0.1
        The factor of the rate on a plateau, between 0 and 1.
    patience : int, default=10
        The epochs in a row without a new best loss that leave the rate as it is, >= 0.
    threshold : float, default=1e-4
        The gain of a new best loss, as a share of the best one, >= 0.
    eta_min : float, default=1e-6
        The least rate, >= 0.

    References
    ----------
    ``torch.optim.lr_scheduler.ReduceLROnPlateau`` with `min_lr` = `eta_min`, `cooldown` = 0, `eps` = 0.
    """

    #: It depends on losses.
    has_formula: ClassVar[bool] = False

    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    eta_min: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("factor", self.factor, above=0, below=1)
        check_count("patience", self.patience, least=0)
        check_number("threshold", self.threshold, least=0)
        check_number("eta_min", self.eta_min, least=0)

    def after_epoch(
        self, value: float, eta: float, memory: tuple[float, ...]
    ) -> tuple[float, tuple[float, ...]]:
        best, n_bad = memory or (math.inf, 0)
        if value < best - (self.threshold * abs(best) if memory else 0.0):
            return eta, (value, 0)
        if n_bad < self.patience:
            return eta, (best, n_bad + 1)
        lowered = eta * self.factor
        # products of rounded factors end beside the least rate
        is_least = lowered < self.eta_min * (1 + 1e-9)
        return min(eta, self.eta_min if is_least else lowered), (best, 0)

    def after_plateau(self, eta: float) -> float | None:
        return eta if eta > self.eta_min else None
