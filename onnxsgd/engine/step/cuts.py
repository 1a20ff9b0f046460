"""The places where the samples of an epoch are cut into batches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["Cuts"]


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
        """Return the cuts of so many samples.

        Parameters
        ----------
        n_samples : int
            The number of samples of the epoch.
        batch_size : int
            The most samples of a batch.
        n_accumulated : int
            The most batches of an update.
        is_even : bool
            Whether the numbers of samples of two updates, and of two batches of an update, differ by at most
            one: the first ones have the larger number. Otherwise all have as many as they can, and the last
            one has the rest. The number of updates is the same.
        """
        divide, most = _divided if is_even else _full, batch_size * n_accumulated
        of_updates = divide(n_samples, most)
        if n_accumulated == 1:
            return Cuts(of_updates, None)
        parts = {size: divide(size, batch_size) for size in set(of_updates.tolist())}
        of_each = [parts[size] for size in of_updates.tolist()]
        return Cuts(np.concatenate(of_each), np.arange(len(of_each)).repeat(list(map(len, of_each))))

    @property
    def starts(self) -> np.ndarray:
        """The place of the first sample of each batch in the order of the epoch."""
        starts: np.ndarray = self.n_rows.cumsum() - self.n_rows
        return starts

    def filled(self, batch_size: int) -> np.ndarray:
        """Return the places of the samples of all batches in that order, [n_batches, batch_size].

        The next ones fill a short batch up, or else the last one of all: a batch of neighbours stays one.
        """
        starts, n_rows = self.starts[:, None], self.n_rows
        places: np.ndarray = np.minimum(starts + np.arange(batch_size), starts[-1] + n_rows[-1] - 1)
        return places


def _divided(number: int, most: int) -> np.ndarray:
    """Return the sizes of as few parts of a number as there can be, which differ by at most one."""
    count = -(-number // most)
    sizes = np.full(count, number // count)
    sizes[: number % count] += 1
    return sizes


def _full(number: int, most: int) -> np.ndarray:
    """Return the sizes of parts of a number, the largest ones and a rest."""
    sizes = np.full(-(-number // most), most)
    sizes[-1] -= sizes.sum() - number
    return sizes
