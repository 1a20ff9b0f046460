"""The specification of a training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsgd._cache_keys import cache_key
from onnxsgd.engine.step.update import AVERAGE_RATE, L1_TOTAL, state_names
from onnxsgd.losses import Loss
from onnxsgd.optimizers import Optimizer

__all__ = ["StepSpec"]


@dataclass(frozen=True)
class StepSpec:
    """The parameters of a step, beside the graph. Equal specifications compile to the same step.

    Attributes
    ----------
    weights : tuple of str
        The initializers that are trained.
    penalised : frozenset of str
        Those of them that penalties apply to.
    loss : Loss
        The loss.
    optimizer : Optimizer
        The update rule; its numbers are inputs of the step.
    l1, l2 : bool
        Whether there is a penalty of that kind; its strength is an input of the step.
    average : bool
        Whether running averages of the weights are kept.
    batch_size : int
        Rows of a batch.
    n_outputs : int
        Columns of the raw prediction and of the target.
    engine : str
        The gradient engine.
    row_shapes : tuple of (str, tuple of int)
        The shape of a row of each feature; needed only for those whose shape the graph leaves open.
    """

    weights: tuple[str, ...]
    penalised: frozenset[str]
    loss: Loss
    optimizer: Optimizer
    l1: bool
    l2: bool
    average: bool
    batch_size: int
    n_outputs: int
    engine: str
    row_shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """The cache key of the compiled step: the present specification, less the optimizer's numbers."""
        return (
            self.weights, self.penalised, cache_key(self.loss), self.optimizer.structure, self.l1, self.l2,
            self.average, self.batch_size, self.n_outputs, self.engine, self.row_shapes,
        )  # fmt: skip

    def states(self, weight: str) -> tuple[str, ...]:
        """Return the names of the tensors kept for `weight`."""
        return state_names(self.optimizer, l1=self.l1 and weight in self.penalised, average=self.average)

    @property
    def scalars(self) -> tuple[str, ...]:
        """The names of the scalar inputs of a step."""
        names = tuple(self.optimizer.scalars(np.ones(1), np.ones(1), 0.0))
        return (*names, *((L1_TOTAL,) if self.l1 else ()), *((AVERAGE_RATE,) if self.average else ()))
