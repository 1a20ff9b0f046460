"""Training on sequences of different lengths, in batches of padded or of equally long ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from onnxsgd.data.batch_source import Batch, BatchSource
from onnxsgd.data.samples import Samples
from onnxsgd.data.sequence_batches import SequenceBatches
from onnxsgd.data.sequences import Ragged, gather, read_sequences
from onnxsgd.data.targets import check_sample_weight
from onnxsgd.estimators.batch_fit import BatchTraining
from onnxsgd.exceptions import ParameterError
from onnxsgd.learner.model_source import read_source
from onnxsgd.training.fit_plan import DENSE_ROWS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["SequenceTraining"]


class SequenceTraining(BatchTraining):
    """The half of the base class that trains on sequences of different lengths.

    Each of their batches is trained as one of an iterable.
    """

    shuffle: bool

    def _sequence_batches(
        self, X: object, y: ArrayLike | None, sample_weight: ArrayLike | None, resuming: bool
    ) -> SequenceBatches:
        """Check sequences and the number of their targets; return their batches, in the order given."""
        y = self._require_target(y)
        self._check_parts()
        source = None if resuming else read_source(self.model)
        sequences = read_sequences(X, self._graph_inputs(source, resuming))
        target = gather(y, "y")
        if isinstance(target, Ragged):
            raise ParameterError(
                f"y is a list of arrays of {target.lengths.min()} to {target.lengths.max()} elements: with X "
                "of sequences of different lengths, each sample has one target, or a row of them."
            )
        target = target.toarray() if sparse.issparse(target) else np.asarray(target)
        if target.ndim == 0 or len(target) != len(sequences):
            n_targets = len(target) if target.ndim else 0
            raise ParameterError(f"X has {len(sequences)} samples and y has {n_targets}.")
        weight = None if sample_weight is None else check_sample_weight(sample_weight, target)
        n_rows = (self.batch_size or DENSE_ROWS) * self.gradient_accumulation_steps
        batches = SequenceBatches(sequences, target, weight, n_rows)
        return batches if weight is None or weight.all() else batches.take(np.flatnonzero(weight))

    def _read_first_sequences(
        self, batches: SequenceBatches, resuming: bool, classes: ArrayLike | None = None
    ) -> Samples:
        """Check the first batch, which determines the graph; all targets are known."""
        everything = Batch(None, batches.y)
        return self._read_first(batches.first(), resuming, lambda: [everything], classes)

    def _sequence_source(self, batches: SequenceBatches) -> BatchSource:
        """Return the epochs of batches, in random order with ``shuffle=True``."""
        drawn = self._state.random_state if self.shuffle else None
        return BatchSource(replace(batches, random_state=drawn), None, None, is_cut=True)

    def _hold_out_sequences(self, batches: SequenceBatches) -> tuple[SequenceBatches, tuple[Samples, ...]]:
        """Return the samples to train on, in their order, and those to validate on."""
        target, _ = self._read_target(batches.y, True, None)
        rows, held_out, share = self._split_rows(target)
        aside = batches.take(held_out)
        validation = self._read_groups(aside.sequences, target[held_out], aside.sample_weight)
        self._check_scorable(target[held_out], share)
        return batches.take(np.sort(rows)), validation
