"""Losses of samples with a label for each element: pixels, tokens, steps of a series."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnxsgd.losses._base import TINY, Loss, Targets

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxsgd._builder import Builder

__all__ = ["DenseLoss"]


@dataclass(frozen=True)
class DenseLoss(Loss):
    """The mean of a classification loss over the elements of a sample.

    ::

        value = sum_e weight_e loss_e / sum_e weight_e

    `raw_prediction` holds the flattened scores of a sample, [n_samples, n_outputs]. `y_true` holds the number
    of the class of each element, [n_samples, n_elements]; if `is_weighted`, the weights of the elements
    follow, [n_samples, 2 n_elements]. A sample whose weights are all 0 has neither value nor gradient.

    Parameters
    ----------
    of_element : Loss
        The loss of an element.
    sizes : tuple of int
        The sizes of the axes of the scores of a sample.
    class_axis : int or None
        The axis of the classes among them, the first or the last; None: one score for each element.
    is_weighted : bool
        Whether elements have weights.
    """

    of_element: Loss
    sizes: tuple[int, ...]
    class_axis: int | None
    is_weighted: bool = False

    @property
    def targets(self) -> Targets:  # type: ignore[override]
        """The values of the targets of an element."""
        return self.of_element.targets

    @property
    def probabilities(self) -> str | None:  # type: ignore[override]
        """The function from scores of an element to probabilities."""
        return self.of_element.probabilities

    @property
    def n_scores(self) -> int:
        """The number of scores of an element."""
        return 1 if self.class_axis is None else self.sizes[self.class_axis]

    @property
    def n_elements(self) -> int:
        """The number of elements of a sample."""
        return self.n_outputs // self.n_scores

    @property
    def n_outputs(self) -> int:
        """The number of scores of a sample."""
        return math.prod(self.sizes)

    @property
    def n_targets(self) -> int:
        """The number of columns of `y_true`."""
        return (2 if self.is_weighted else 1) * self.n_elements

    def value(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value:
        value = self.of_element.value(op, self._encode(op, y_true), self._split(op, raw_prediction))
        if self.n_scores > 1:
            # one column already, or one for each class
            value = op.ReduceSum(value, axes=[1], keepdims=1)
        value = op.Mul(op.Reshape(value, [-1, self.n_elements]), self._shares(op, y_true))
        return op.ReduceSum(value, axes=[1], keepdims=1)

    def gradient(self, op: Builder, y_true: ir.Value, raw_prediction: ir.Value) -> ir.Value | None:
        slope = self.of_element.gradient(op, self._encode(op, y_true), self._split(op, raw_prediction))
        if slope is None:
            return None
        shares = self._shares(op, y_true)
        if self.is_weighted:
            shares = op.Reshape(shares, [-1, 1])
        slope = op.Mul(slope, shares)
        if self.class_axis == 0:
            slope = op.Reshape(slope, [-1, self.n_elements, self.n_scores])
            slope = op.Transpose(slope, perm=[0, 2, 1])
        return op.Reshape(slope, [-1, self.n_outputs])

    def _split(self, op: Builder, raw_prediction: ir.Value) -> ir.Value:
        """Return the scores with a row for each element."""
        scores = raw_prediction
        if self.class_axis == 0:
            scores = op.Reshape(scores, [-1, self.n_scores, self.n_elements])
            scores = op.Transpose(scores, perm=[0, 2, 1])
        return self._declare(op.Reshape(scores, [-1, self.n_scores]), raw_prediction)

    def _encode(self, op: Builder, y_true: ir.Value) -> ir.Value:
        """Return the targets with a row for each element, and a column for each score."""
        index = op.Slice(y_true, [0], [self.n_elements], [1]) if self.is_weighted else y_true
        index = op.Reshape(index, [-1, 1])
        encoded = index
        if self.n_scores > 1:
            is_class = op.Equal(index, [float(number) for number in range(self.n_scores)])
            encoded = op.Cast(is_class, to=y_true.dtype)
        if self.targets == "sign":
            encoded = op.Sub(op.Mul(encoded, 2.0), 1.0)
        return self._declare(encoded, y_true)

    def _shares(self, op: Builder, y_true: ir.Value) -> ir.Value | float:
        """Return the share of each element in the mean over its sample."""
        if not self.is_weighted:
            return 1.0 / self.n_elements
        weight = op.Slice(y_true, [self.n_elements], [2 * self.n_elements], [1])
        return op.Div(weight, op.Max(op.ReduceSum(weight, axes=[1], keepdims=1), TINY))

    def _declare(self, rows: ir.Value, like: ir.Value) -> ir.Value:
        # loaded on use: importing the losses alone loads no onnx
        import onnx_ir as ir

        rows.type = like.type
        rows.shape = ir.Shape([None, self.n_scores])
        return rows
