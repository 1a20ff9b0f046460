"""The places where the samples of an epoch are cut into batches."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

__all__ = ["Cuts"]

#: Samples up to which cuts are kept: to make them takes as long as some updates.
_FEW = 16_384


class Cuts(NamedTuple):
    """The places where the samples of an epoch are cut into batches.

    Attributes
    ----------
    n_rows : ndarray of shape [n_batches]
        The number of samples of each batch, which are neighbours in the order of the epoch.
    updates : ndarray of shape [n_batches] or None
        The index of the update of each batch; None: each batch has its own.
    """

    n_rows: np.ndarray
    updates: np.ndarray | None

    @staticmethod
    def of(n_samples: int, batch_size: int, n_accumulated: int = 1, *, is_even: bool = False) -> Cuts:
        """Return the cuts of so many samples; the arrays are shared, and not to be changed.

        Parameters
        ----------
        n_samples : int
            The number of samples of the epoch.
        batch_size : int
            The most samples of a batch.
        n_accumulated : int
            The most batches of an update.
        is_even : bool
            Whether all updates have the same number of samples, but for one. Otherwise all have as many as
            they can, and the last one has the rest. The number of updates is the same.
        """
        found = _kept if n_samples <= _FEW else _cuts
        return found(n_samples, batch_size, n_accumulated, is_even)

    @property
    def starts(self) -> np.ndarray:
        """The place of the first sample of each batch in the order of the epoch."""
        starts: np.ndarray = self.n_rows.cumsum() - self.n_rows
        return starts

    def filled(self, batch_size: int) -> np.ndarray:
        """Return the places of the samples of all batches in that order, [n_batches, batch_size].

        The last sample of a short batch fills it up.
        """
        within = np.minimum(np.arange(batch_size), self.n_rows[:, None] - 1)
        places: np.ndarray = self.starts[:, None] + within
        return places


def _cuts(n_samples: int, batch_size: int, n_accumulated: int, is_even: bool) -> Cuts:
    most = batch_size * n_accumulated
    n_updates = -(-n_samples // most)
    if is_even:
        of_updates = np.full(n_updates, n_samples // n_updates)
        of_updates[: n_samples % n_updates] += 1
    else:
        of_updates = np.full(n_updates, most)
        of_updates[-1] = n_samples - most * (n_updates - 1)
    if n_accumulated == 1:
        return _read_only(Cuts(of_updates, None))
    n_batches = -(-of_updates // batch_size)
    n_rows = np.full(n_batches.sum(), batch_size)
    n_rows[n_batches.cumsum() - 1] = of_updates - batch_size * (n_batches - 1)
    return _read_only(Cuts(n_rows, np.arange(n_updates).repeat(n_batches)))


def _read_only(cuts: Cuts) -> Cuts:
    for array in cuts:
        if array is not None:
            array.flags.writeable = False
    return cuts


_kept = lru_cache(maxsize=64)(_cuts)
