"""Running averages of the weights of a linear model, computed after its short loop.

The weights after update k are the first ones and all changes so far, ``V_k+1 = V_0 + G_0 + ... + G_k``, and
their average is a sum with known shares. So it is one of the changes, ::

    sum_k share_k V_k+1 = (sum_k share_k) V_0 + sum_j (sum_(k >= j) share_k) G_j

and no update has to move it: one product takes the changes of all batches, as the loop returns the raw
predictions that they follow from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxsgd.engine.step.update import AVERAGE
from onnxsgd.graph.append import appending

if TYPE_CHECKING:
    from onnxsgd.engine.step.buffers import Buffers
    from onnxsgd.engine.step.linear_layer import LinearLayer

__all__ = ["LinearAverages", "add_changes"]


def add_changes(
    graph: ir.Graph, layer: LinearLayer, target: Sequence[ir.Value], score: ir.Value, backward: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Compute the sums of the changes of all batches with two shares; return the shares and the sums.

    Parameters
    ----------
    graph : ir.Graph
        The graph to add to.
    layer : LinearLayer
        The model.
    target : list of ir.Value of shape [n_batches, batch_size, n_outputs]
        The targets, if updates read them.
    score : ir.Value of shape [n_batches, batch_size, n_outputs], or rows of as many numbers
        The first product of each batch.
    backward : ir.Value of shape [n_batches, batch_size, width]
        The second factor of each change.

    Returns
    -------
    ir.Value of shape [n_samples, 1, 2]
        The shares, an input to be.
    ir.Value of shape [n_outputs, 2, width]
        The sums.
    """
    n_outputs, width = layer.n_outputs, layer.width
    shares = ir.Value(name="shares", type=score.type, shape=ir.Shape([None, 1, 2]))
    with appending(graph) as op:
        tables = []
        for value in (score, *target):
            table = op.Reshape(value, [-1, n_outputs])
            table.type, table.shape = score.type, ir.Shape([None, n_outputs])
            tables.append(table)
        gradient = layer.gradient(op, *tables)
        weighted = op.Mul(op.Reshape(gradient, [-1, n_outputs, 1]), shares)
        factors = op.Reshape(weighted, [-1, 2 * n_outputs]), op.Reshape(backward, [-1, width])
        changes = op.Reshape(op.Gemm(*factors, transA=1), [n_outputs, 2, width])
    changes.name, changes.type, changes.shape = "changes", score.type, ir.Shape([n_outputs, 2, width])
    return shares, changes


class LinearAverages:
    """The averages of a linear model beside the loop over its batches.

    Parameters
    ----------
    layer : LinearLayer
        The model.
    column : int
        The column of the numbers of an update that has the rate of averages.
    size : int
        The most batches of a call.
    dtype : type
        The type of the weights.
    """

    def __init__(self, layer: LinearLayer, column: int, size: int, dtype: type[np.generic]) -> None:
        self._layer, self._column = layer, column
        self._shares = np.zeros([size, layer.batch_size, 2], dtype)
        self._changes = np.zeros([layer.n_outputs, 2, layer.width], dtype)
        #: The shares of the average before a call, and those of the first change: the sums of all others.
        self._kept, self._totals = 0.0, np.zeros(2)

    def begin(self, scalars: np.ndarray, scales: np.ndarray) -> None:
        """Take the numbers of the updates of a call, and the scales of coefficients after each of them."""
        rates = scalars[:, self._column]
        rest = np.append(np.cumprod(1.0 - rates[::-1])[::-1], 1.0)
        of_weights = rates * rest[1:]
        both = np.stack([of_weights * scales, of_weights], axis=1)
        of_changes = np.cumsum(both[::-1], axis=0)[::-1]
        self._kept, self._totals = float(rest[0]), of_changes[0]
        self._shares[: len(rates)] = of_changes[:, None]

    def inputs(self, count: int) -> dict[str, np.ndarray]:
        """Return the inputs of the graph for so many batches."""
        return {"shares": self._shares[:count].reshape(-1, 1, 2)}

    @property
    def outputs(self) -> dict[str, np.ndarray]:
        """The outputs of the graph."""
        return {"changes": self._changes}

    def store(self, buffers: Buffers, weights: np.ndarray) -> None:
        """Compute the next averages from the present ones, and from the weights before the call."""
        layer, averages = self._layer, np.zeros_like(weights)
        layer.pack(buffers.sets[buffers.current], AVERAGE, averages)
        for columns, number in ((slice(layer.n_features), 0), (slice(layer.n_features, None), 1)):
            averages[:, columns] *= self._kept
            averages[:, columns] += self._totals[number] * weights[:, columns]
            averages[:, columns] += self._changes[:, number, columns]
        layer.unpack(averages, buffers.following, AVERAGE)
