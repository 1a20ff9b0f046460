"""The results of a shard in a round, their sums, and the rows of a batch: the light part of the tasks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxsgd.engine.step.buffers import Tensors

__all__ = ["Change", "GradientWork", "add_changes"]


@dataclass(frozen=True)
class Change:
    """The result of a shard in a round, or the sum of several.

    Attributes
    ----------
    tensors : dict of ndarray
        The gradient, or the change of weights and of their states, times the share of the shard.
    loss, weight : float
        The sum of the losses of the rows, by their weights, and the sum of these.
    """

    tensors: Tensors
    loss: float
    weight: float


def add_changes(first: Change, second: Change) -> Change:
    """Return the sum of two results."""
    tensors = {key: array + second.tensors[key] for key, array in first.tensors.items()}
    return Change(tensors, first.loss + second.loss, first.weight + second.weight)


@dataclass(frozen=True)
class GradientWork:
    """The rows of a shard in one batch of an update.

    Attributes
    ----------
    rows : ndarray of shape [n_rows]
        Their indices in the shard.
    weight : ndarray of shape [n_rows]
        Their weights, normalised over the whole batch.
    factor : float
        The factor of the gradient.
    most_rows : int
        The rows of one call of the runtime.
    seed : tuple of int
        Seeds the masks of dropout.
    """

    rows: np.ndarray
    weight: np.ndarray
    factor: float
    most_rows: int
    seed: tuple[int, ...] = ()
