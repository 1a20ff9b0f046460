"""The only layer of a linear model, as a matrix of coefficients and intercepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxsgd.engine.step.buffers import Tensors
from onnxsgd.engine.step.deferred_losses import add_losses
from onnxsgd.engine.step.linear_truncation import UNIT
from onnxsgd.graph.append import appending
from onnxsgd.losses import Hinge, LogLoss, Loss, ModifiedHuber, Perceptron, SquaredError, SquaredHinge

if TYPE_CHECKING:
    from onnxsgd._builder import Builder

__all__ = ["Copies", "LinearLayer", "make_copies"]

#: Views of arrays, each with one whose numbers it takes.
Copies = list[tuple[np.ndarray, np.ndarray]]
#: The losses of a margin, the raw prediction times the sign of its row, and the target of rows of sign 1: the
#: label itself is the sign, or 0 has the sign 1, and 1 the sign -1.
_TARGET_OF_MARGINS: dict[type[Loss], float] = {
    LogLoss: 0.0, Hinge: 1.0, Perceptron: 1.0, SquaredHinge: 1.0, ModifiedHuber: 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class LinearLayer:
    """The only layer of a linear model.

    Attributes
    ----------
    feature, weight, intercept : str, str, str or None
        The data input, the coefficients, the intercepts.
    is_transposed : bool
        Whether the coefficients have shape [n_outputs, n_features].
    n_features, n_outputs, batch_size : int
        Sizes.
    is_penalised : bool
        Whether the coefficients decay.
    is_truncated : bool
        Whether the coefficients have an l1 penalty.
    is_averaged : bool
        Whether the weights have running averages.
    loss : Loss
        The loss, with a gradient in closed form.
    """

    feature: str
    weight: str
    intercept: str | None
    is_transposed: bool
    n_features: int
    n_outputs: int
    batch_size: int
    is_penalised: bool
    is_truncated: bool
    is_averaged: bool
    loss: Loss

    @property
    def folds_target(self) -> bool:
        """True if the targets are a column of the data."""
        return type(self.loss) is SquaredError and self.n_outputs == 1

    @property
    def has_signs(self) -> bool:
        """True if the rows of the data have the signs of their labels: the first product is a margin.

        The derivative by the margin times the row with its sign is the gradient.
        """
        return type(self.loss) in _TARGET_OF_MARGINS and self.n_outputs == 1

    @property
    def reads_target(self) -> bool:
        """True if updates read the targets apart from the data."""
        return not (self.folds_target or self.has_signs)

    def complete(self, table: np.ndarray, target: np.ndarray) -> None:
        """Write a column of ones behind the features of a table, then minus the targets, or sign its rows."""
        table[:, self.n_features] = 1
        if self.folds_target:
            np.negative(target[:, 0], out=table[:, self.n_features + 1])
        elif self.has_signs:
            table *= self.signs(target)

    def signs(self, target: np.ndarray) -> np.ndarray:
        """Return the sign of each row; `target` and signs have one column."""
        return target if _TARGET_OF_MARGINS[type(self.loss)] else 1 - 2 * target

    @property
    def unit(self) -> float:
        """The unit of intercepts and of the column of targets."""
        return UNIT if self.is_truncated else 1.0

    def scanned(self, target: ir.Value) -> list[ir.Value]:
        """Return the target, if an update reads it apart from the data."""
        return [target] if self.reads_target else []

    @property
    def shape_of_scores(self) -> tuple[int, int]:
        """The shape of the first product.

        It is a row for one output whose updates read no target: the runtime has faster products for rows than
        for columns. An update of BlockAdam with batches of 32 takes 0.96 of the time with 10 features, 0.91
        with 30, and 0.86 with 64.
        """
        return (self.batch_size, self.n_outputs) if self.reads_target else (1, self.batch_size)

    def scores(self, op: Builder, forward: ir.Value, weights: ir.Value) -> ir.Value:
        """Build the first product."""
        factors = (forward, weights) if self.reads_target else (weights, forward)
        score = op.Gemm(*factors, transB=1)
        score.type, score.shape = weights.type, ir.Shape(self.shape_of_scores)
        return score

    def change(self, op: Builder, gradient: ir.Value, backward: ir.Value, *summand: ir.Value) -> ir.Value:
        """Build the product of the derivative of the loss with the rows, plus a summand."""
        return op.Gemm(gradient, backward, *summand, transA=int(self.reads_target))

    def gradient(self, op: Builder, score: ir.Value, target: ir.Value | None = None) -> ir.Value:
        """Build the derivative of the loss by the first product, with the `target` if updates read it."""
        if self.folds_target:
            return score
        made = self.loss.gradient(op, self._target_of_margins(op, score) if target is None else target, score)
        if made is None:
            raise LookupError(f"{self.loss} has no gradient in closed form")
        return made

    def losses(
        self, graph: ir.Graph, score: ir.Value, weight: ir.Value, target: ir.Value | None = None
    ) -> ir.Value:
        """Compute the losses of many batches from their first products; see :func:`~.add_losses`.

        There is no `target` where rows have the signs of their labels.
        """
        raw = score
        with appending(graph) as op:
            if target is None:
                target = self._target_of_margins(op, score)
            if self.folds_target:
                raw = op.Add(op.Reshape(score, [-1, self.batch_size, 1]), target)
                raw.type, raw.shape = target.type, target.shape
        return add_losses(graph, self.loss, target, raw, weight)

    def _target_of_margins(self, op: Builder, score: ir.Value) -> ir.Value:
        """Return the common target of all margins; a factor of 1 and a summand of 0 leave the graph."""
        dtype = (score.dtype or ir.DataType.FLOAT).numpy()
        number = np.full((1, 1), _TARGET_OF_MARGINS[type(self.loss)], dtype)
        made = op.initializer(ir.tensor(number, name="target_of_margins"))
        made.type, made.shape = score.type, ir.Shape([1, 1])
        return made

    @property
    def width(self) -> int:
        """The columns of the first product: features, intercept, target."""
        return self.n_features + 1 + self.folds_target

    def pack(self, tensors: Tensors, kind: str, matrix: np.ndarray) -> None:
        """Copy the tensors of one kind into a matrix whose columns are features and intercept.

        A tensor with one number for all features, or for all outputs, is spread over them.
        """
        make_copies(self.packing(tensors, kind, matrix))

    def unpack(self, matrix: np.ndarray, tensors: Tensors, kind: str) -> None:
        """Copy a matrix back into the tensors of one kind, in place; the inverse of :meth:`pack`."""
        make_copies(self.unpacking(matrix, tensors, kind))

    def packing(self, tensors: Tensors, kind: str, matrix: np.ndarray) -> Copies:
        """Return the copies that :meth:`pack` makes, for contiguous tensors of fixed address."""
        copies = [(matrix[:, : self.n_features], self._rows(tensors, kind))]
        if self.intercept is not None:
            copies.append((matrix[:, self.n_features], tensors[self.intercept, kind].reshape(-1)))
        return copies

    def unpacking(self, matrix: np.ndarray, tensors: Tensors, kind: str) -> Copies:
        """Return the copies that :meth:`unpack` makes."""
        rows = self._rows(tensors, kind)
        copies = [(rows, matrix[:, : rows.shape[1]])]
        if self.intercept is not None:
            intercept = tensors[self.intercept, kind]
            copies.append((intercept, matrix[:, self.n_features].reshape(intercept.shape)))
        return copies

    def _rows(self, tensors: Tensors, kind: str) -> np.ndarray:
        """Return the tensor of the coefficients with a row for each output."""
        coef = tensors[self.weight, kind]
        return coef if self.is_transposed else coef.T


def make_copies(copies: Copies) -> None:
    """Copy the second view of each pair to the first one."""
    for target, source in copies:
        target[...] = source
