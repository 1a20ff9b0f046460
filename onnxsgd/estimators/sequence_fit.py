"""Training on sequences of different lengths, in batches of padded or of equally long ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from onnxsgd.data.batch_source import Batch, BatchSource
from onnxsgd.data.refusals import as_target
from onnxsgd.data.samples import Samples
from onnxsgd.data.sequence_batches import SequenceBatches
from onnxsgd.data.sequences import Ragged, check_targets, gather
from onnxsgd.data.targets import check_sample_weight
from onnxsgd.estimators.batch_fit import BatchTraining
from onnxsgd.estimators.parameters import refuse_blocks
from onnxsgd.learner.model_source import read_source
from onnxsgd.training.fit_plan import DENSE_ROWS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["SequenceTraining"]

#: The kinds of numbers and of labels, after numpy's letters.
_TARGETS = frozenset("biufUOS")


class SequenceTraining(BatchTraining):
    """The half of the base class that trains on sequences of different lengths.

    Each of their batches is trained as one of an iterable.
    """

    def _sequence_batches(
        self, X: object, y: ArrayLike | None, sample_weight: ArrayLike | None, resuming: bool
    ) -> SequenceBatches:
        """Check sequences and the number of their targets; return their batches, in the order given."""
        refuse_blocks(self.shuffle, "holds sequences of different lengths")
        y = self._require_target(X, y)
        source = None if resuming else read_source(self.model)
        sequences = self._sequences_of(X, source, resuming)
        target = gather(y, "y", _TARGETS)
        if not isinstance(target, Ragged):
            target = target.toarray() if sparse.issparse(target) else as_target(target)
        check_targets(sequences, target, "X", "y")
        fill = None
        if isinstance(target, Ragged):
            self._follows_lengths = True
            fill = self._padding_label(target) if sequences.is_padded else None
            sequences = sequences if fill is not None else sequences.ungrouped()
        rows = np.empty(len(target))
        weight = None if sample_weight is None else check_sample_weight(sample_weight, rows)
        n_rows = int(self.batch_size or DENSE_ROWS) * int(self.gradient_accumulation_steps)
        batches = SequenceBatches(sequences, target, weight, n_rows, fill=fill)
        return batches if weight is None or weight.all() else batches.take(np.flatnonzero(weight))

    def _balance(self, y: np.ndarray | Ragged | None) -> None:
        """Compute weights of classes by all labels of sequences; None: the data are no sequences."""

    def _forget_lengths(self) -> None:
        """Begin without sequences of targets."""
        for name in ("_follows_lengths", "_padded_with"):
            self.__dict__.pop(name, None)

    def _padding_label(self, y: Ragged) -> int | str | None:
        """Return the target of padding, which counts nothing; None: such targets have none."""
        return None

    def _read_first_sequences(
        self,
        batches: SequenceBatches,
        resuming: bool,
        classes: ArrayLike | None = None,
        in_parts: bool = False,
    ) -> Samples:
        """Check the first batch, which determines the graph; in a fit all targets are known."""
        y = np.concatenate(batches.y.arrays) if isinstance(batches.y, Ragged) else batches.y
        everything = Batch(None, y)
        return self._read_first(
            batches.first(), resuming, None if in_parts else lambda: [everything], classes
        )

    def _sequence_source(self, batches: SequenceBatches) -> BatchSource:
        """Return the epochs of batches, in random order with ``shuffle=True``."""
        drawn = self._state.random_state if self.shuffle else None
        return BatchSource(replace(batches, random_state=drawn), None, None, is_cut=True)

    def _hold_out_sequences(self, batches: SequenceBatches) -> tuple[SequenceBatches, tuple[Samples, ...]]:
        """Return the samples to train on, in their order, and those to validate on."""
        if isinstance(batches.y, Ragged):
            # elements have no classes to keep the shares of
            target = np.empty(len(batches.y))
        else:
            target, _ = self._read_target(batches.y, True, None)
        rows, held_out, share = self._split_rows(target, self._state.random_state)
        aside = batches.take(held_out)
        validation = self._read_groups(aside.sequences, aside.y, aside.sample_weight, share)
        return batches.take(np.sort(rows)), validation
