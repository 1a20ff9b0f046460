"""Batches of sequences: buckets of similar lengths with a mask, groups of one length without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxsgd.data.batch_source import Batch
from onnxsgd.data.sequences import Ragged, Sequences

__all__ = ["SequenceBatches"]

#: Batches of a window, whose rows are sorted by length. Of batches of 32 rows with uniform lengths from 1 to
#: 100, 48 % is padding without windows, 11 % with windows of 8 batches, 6 % with 16, 3 % with 32; a larger
#: window leaves less to chance.
_WINDOW = 16


@dataclass(frozen=True)
class SequenceBatches:
    """The batches of an epoch, drawn anew in each.

    With a mask, the samples are in random order; in each window of 16 batches they are sorted by length and
    cut into batches. Without one, those of each length are cut into batches. In both cases the batches have
    then a random order. Without shuffling, batches with a mask are neighbours, and others hold the next
    samples of one length.

    Attributes
    ----------
    sequences : Sequences
        The features.
    y : ndarray of shape [n_samples, ...] or Ragged
        The targets; a sequence for each sample too, if elements have them.
    sample_weight : ndarray of shape [n_samples] or None
        The weights of the samples.
    n_rows : int
        The samples of a batch; the last batches have fewer.
    fill : float, str or None
        The target of padding, where sequences of targets are padded: then to one of four lengths between two
        powers of two.
    random_state : RandomState or None
        Draws the order; None: samples keep theirs.
    """

    sequences: Sequences
    y: np.ndarray | Ragged
    sample_weight: np.ndarray | None
    n_rows: int
    random_state: np.random.RandomState | None = None
    fill: float | str | None = None

    def __len__(self) -> int:
        if self.sequences.is_padded:
            return -(-len(self.sequences) // self.n_rows)
        return sum(-(-len(group) // self.n_rows) for group in self.sequences.groups())

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for rows in self.orders():
            batch = self.batch(rows)
            yield batch.X, batch.y, batch.sample_weight

    def take(self, rows: np.ndarray) -> SequenceBatches:
        """Return the batches of the given samples."""
        weight = None if self.sample_weight is None else self.sample_weight[rows]
        return replace(
            self, sequences=self.sequences.take(rows), y=self.y.take(rows, axis=0), sample_weight=weight
        )

    def first(self) -> Batch:
        """Return the first batch of samples in the order that was given."""
        return self.batch(next(_in_turn(self._groups(), self.n_rows)))

    def batch(self, rows: np.ndarray) -> Batch:
        """Return the given samples, padded to the longest one."""
        weight = None if self.sample_weight is None else self.sample_weight[rows]
        target, size = self.y.take(rows, axis=0), None
        if isinstance(target, Ragged):
            size = int(target.lengths.max())
            if self.fill is not None:
                size = next(iter(self.sequences.fixed.values()), _round_up(size))
            target = target.padded(size, 0 if self.fill is None else self.fill)
        return Batch(self.sequences.arrays(rows, size), target, weight)

    def orders(self) -> list[np.ndarray]:
        """Return the samples of each batch of an epoch."""
        groups, size = self._groups(), self.n_rows
        if self.random_state is None:
            return list(_in_turn(groups, size))
        if not self.sequences.is_padded:
            batches = [part for group in groups for part in _cut(self.random_state.permutation(group), size)]
        else:
            lengths = self.sequences.lengths.max(axis=1)
            mixed = self.random_state.permutation(len(lengths))
            windows = (rows[lengths[rows].argsort(kind="stable")] for rows in _cut(mixed, _WINDOW * size))
            batches = [part for window in windows for part in _cut(window, size)]
        return [batches[number] for number in self.random_state.permutation(len(batches))]

    def _groups(self) -> list[np.ndarray]:
        """Return the samples that may share a batch."""
        sequences = self.sequences
        return [np.arange(len(sequences))] if sequences.is_padded else sequences.groups()


def _round_up(length: int) -> int:
    """Return the next length of which a doubling has four: steps of elements are compiled for each."""
    unit = 1 << max(0, (length - 1).bit_length() - 3)
    return -(-length // unit) * unit


def _cut(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Return runs of so many rows; the last one may have fewer."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _in_turn(groups: list[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Yield batches of neighbours in each group, in the order of their last rows."""
    batches = [part for group in groups for part in _cut(group, size)]
    yield from sorted(batches, key=lambda rows: int(rows[-1]))
