"""The schedule whose rate training finds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from onnxsgd._settable import check_number
from onnxsgd.schedules._schedule import Schedule

__all__ = ["Auto"]


@dataclass(frozen=True)
class Auto(Schedule):
    """A rate that training itself finds, for updates of normalised size (:class:`~.optimizers.BlockAdam`).

    ``fit`` starts with `eta0`, for batches of 32 samples, or with a share of it: the root of the ratio of the
    loss of the first weights to that of the best constant, at least 0.03, and at most 0.1 for networks, whose
    units die at larger rates, and 32 over the number of dense columns for linear models, as an update moves
    all of them. It looks at the mean loss of each window of one epoch, of 12 to 16 updates at least. Where an
    update gains a sixteen-hundredth of the loss, the rate grows by half, that of a network up to `eta0`, that
    of a linear model up to 16 times. If the loss grows, it restores the weights before and divides the rate
    by 4; if it gains no more, the rate falls from update to update to zero. That ends training, unless its
    last window still gained a tenth of the loss: then training continues at a quarter of the rate. The best
    weights are returned.

    ``partial_fit`` follows drifts: its rate is `eta0`, or a tenth of it for networks and 0.3 of it for means
    and variances, times a factor for each tensor, which grows where gradients agree and falls where they
    turn, between 0.03, at which it begins with good weights of linear models and with a thousand columns (of
    more, the rate is smaller), and 4, of classifiers 10 (`steering` of :class:`~.optimizers.BlockAdam`).
    Its steps are along a mean of the gradient and the moment; in classification small gradients, as those of
    batches without a sample of a rare class, count little. In regression it begins anew where the loss is ten
    times that of each of the calls before, and leaves out a single call of such a loss. A call in which
    training diverges is made anew at a tenth of the rate. ``benchmarks/defaults.py`` and
    ``benchmarks/streams.py`` chose these numbers.

    Parameters
    ----------
    eta0 : float, default=0.05
        The first rate, > 0.
    """

    eta0: float = 0.05

    def __post_init__(self) -> None:
        check_number("eta0", self.eta0, above=0)

    @property
    def initial(self) -> float:
        return self.eta0

    def rate(self, t: int, eta: float) -> float:
        return eta

    def rates(self, t: int, eta: float, count: int) -> np.ndarray:
        rates = np.empty(count)
        rates.fill(eta)
        return rates

    def for_batches(self, rates: np.ndarray, batch_size: int) -> np.ndarray:
        return rates * math.sqrt(min(batch_size, _MOST_USEFUL_ROWS) / _USUAL_ROWS)


#: The rate is for batches of this many rows; it grows with the root of their number up to this one.
_USUAL_ROWS, _MOST_USEFUL_ROWS = 32, 1024
