"""The task of a worker process: the gradient of some rows of data that all processes read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onnxsgd._cached_property import cached_property
from onnxsgd.engine.step.batches import Batches, EpochPlan
from onnxsgd.engine.step.buffers import Buffers
from onnxsgd.engine.step.divided_step import GRADIENT
from onnxsgd.engine.step.single_step import StepRunner
from onnxsgd.engine.step.training_step import CompiledStep
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.runtime.sessions import make_session
from onnxsgd.sharding.changes import Change, GradientWork

__all__ = ["GradientStep", "gradient_of_share"]


@dataclass(frozen=True)
class GradientStep:
    """The compiled gradient of some rows, and the data.

    Attributes
    ----------
    step : CompiledStep
        The step of :func:`~onnxsgd.engine.step.divided_step.of_rows`.
    batches : Batches
        All rows.
    shapes : tuple of (str, tuple of int)
        The shape of each weight.
    n_threads : int
        Threads of the session.
    """

    step: CompiledStep
    batches: Batches
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    n_threads: int = 1

    @cached_property
    def runner(self) -> StepRunner:
        """The runner of the step, which a worker makes once in a fit."""
        dtype = self.batches.target.dtype
        tensors = {
            (name, kind): np.empty(shape, dtype) for name, shape in self.shapes for kind in (WEIGHT, GRADIENT)
        }
        session = make_session(self.step.model, self.n_threads)
        return StepRunner(session, self.step, Buffers(tensors), self.batches)


def gradient_of_share(step: GradientStep, weights: Mapping[str, np.ndarray], work: GradientWork) -> Change:
    """Return the part of some rows in the gradient of a batch; no more than one call of the runtime takes.

    Its arrays are those of the runner, which the next task of the worker changes: an engine copies them.
    """
    runner = step.runner
    runner.buffers.load({(name, WEIGHT): array for name, array in weights.items()})
    rows = np.zeros((1, work.most_rows), np.intp)
    weight = np.zeros((1, work.most_rows, 1), step.batches.target.dtype)
    rows[0, : len(work.rows)], weight[0, : len(work.rows), 0] = work.rows, work.weight
    losses = np.full(1, np.nan)
    plan = EpochPlan(rows, weight, np.full(1, work.factor), np.ones(1))
    runner.run(plan, np.zeros((1, len(step.step.scalars))), losses)
    found = runner.buffers.sets[runner.buffers.current]
    tensors = {key: array for key, array in found.items() if key[1] == GRADIENT}
    return Change(tensors, float(losses[0]), 1.0)
