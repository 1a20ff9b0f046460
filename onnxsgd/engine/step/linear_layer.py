"""The only layer of a linear model, as a matrix of coefficients and intercepts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxsgd.engine.step.buffers import Tensors
from onnxsgd.engine.step.linear_truncation import UNIT
from onnxsgd.graph.append import appending
from onnxsgd.losses import Loss, SquaredError

__all__ = ["Copies", "LinearLayer", "make_copies"]

#: Views of arrays, each with one whose numbers it takes.
Copies = list[tuple[np.ndarray, np.ndarray]]


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
    def unit(self) -> float:
        """The unit of intercepts and of the column of targets."""
        return UNIT if self.is_truncated else 1.0

    def scanned(self, target: ir.Value) -> list[ir.Value]:
        """Return the target, if an update reads it apart from the data."""
        return [] if self.folds_target else [target]

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

    def raw_predictions(self, graph: ir.Graph, score: ir.Value, target: ir.Value) -> ir.Value:
        """Return the raw predictions of many batches from their first products."""
        if not self.folds_target:
            return score
        with appending(graph) as op:
            raw = op.Add(score, target)
        raw.type, raw.shape = score.type, score.shape
        return raw


def make_copies(copies: Copies) -> None:
    """Copy the second view of each pair to the first one."""
    for target, source in copies:
        target[...] = source
