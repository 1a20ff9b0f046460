"""Lengths of the samples of a sequence: steps after the end of a sample have no part in gradients."""

from __future__ import annotations

import onnx_ir as ir

from onnxsgd.gradient.portable.rules.indexing import positions
from onnxsgd.gradient.portable.writing.broadcasting import dim_of, number
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["Lengths"]


class Lengths:
    """The number of steps that each sample of sequences (time, directions, batch, features) has.

    Parameters
    ----------
    counts : Tensor
        Integers of shape (batch,). A sample may have no steps.
    sequence : Tensor
        Its first axis is that of time.

    Attributes
    ----------
    within : Tensor
        True at the steps that a sample has, (time, 1, batch, 1).
    """

    def __init__(self, counts: Tensor, sequence: Tensor) -> None:
        self._counts = counts.cast(ir.DataType.INT64)
        steps = positions(sequence, dim_of(sequence, 0), 3)
        ends = op.Unsqueeze(self._counts, [0, 1, 3])
        self.within: Tensor = steps < ends
        self._last: Tensor = op.Equal(steps, ends - 1)

    def kept(self, sequence: Tensor) -> Tensor:
        """Return `sequence` with zeros after the ends, even in place of NaN."""
        zeroed: Tensor = op.Where(self.within, sequence, number(sequence, 0))
        return zeroed.known_as(sequence.dims)

    def at_ends(self, state: Tensor, sequence: Tensor) -> Tensor:
        """Return a sequence like `sequence` that holds `state` at the last step of each sample."""
        placed: Tensor = op.Where(self._last, op.Unsqueeze(state, [0]), number(state, 0))
        return placed.known_as(sequence.dims)

    def flipped(self, sequence: Tensor) -> Tensor:
        """Return `sequence`, (time, batch, features), with the steps of each sample reversed to its end."""
        back: Tensor = op.ReverseSequence(sequence, self._counts, batch_axis=1, time_axis=0)
        return back.known_as(sequence.dims)
