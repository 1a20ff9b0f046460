"""Updates of a fit in several processes of this machine: each has the gradient of a part of a batch."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise

import numpy as np

from onnxsgd.data.row_tables import as_array
from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.divided_step import of_rows
from onnxsgd.runtime.events import decided
from onnxsgd.sharding.changes import GradientWork
from onnxsgd.sharding.client_step import client_step
from onnxsgd.sharding.executor import Executor, Handle
from onnxsgd.sharding.gradient_step import GradientStep, gradient_of_share
from onnxsgd.sharding.process_choice import choose_processes
from onnxsgd.sharding.process_executor import ProcessExecutor
from onnxsgd.sharding.rounds import GradientRounds
from onnxsgd.training.epochs import Runners
from onnxsgd.training.program import KnownStep, Program
from onnxsgd.training.state import FitState

__all__ = ["process_runners", "runners_in_processes"]


def runners_in_processes(
    n_jobs: int, program: Program, batches: Batches, state: FitState, max_iter: int, opened: ExitStack
) -> Runners | None:
    """Return the runners of a fit in several processes; None: one process is faster.

    Parameters
    ----------
    n_jobs : int
        The most processes.
    program, batches, state, max_iter : objects
        As in :func:`~.process_choice.choose_processes`, and the state before the fit.
    opened : ExitStack
        Gets the processes, which end their work with it.
    """
    n_processes, reason = choose_processes(n_jobs, program, batches, max_iter)
    runners = None
    if n_processes > 1:
        try:
            with ExitStack() as stack:
                executor = ProcessExecutor(n_processes, _shared_bytes(n_processes, batches, state))
                stack.enter_context(executor)
                runners = process_runners(executor, n_processes, program, batches, state)
                opened.push(stack.pop_all())
        except OSError as error:
            n_processes, reason = 1, f"memory or processes cannot be had: {error}"
    decided("processes", "%d: %s", n_processes, reason)
    return runners


def _shared_bytes(n_processes: int, batches: Batches, state: FitState) -> int:
    """Return the bytes that the processes of a fit share: the data, the weights, and their gradients."""
    of_data = sum(table.nbytes for table in (*batches.features.values(), batches.target))
    of_weights = sum(array.nbytes for array in state.weights().values())
    return int(of_data + (n_processes + 1) * of_weights)


def process_runners(
    executor: Executor, n_processes: int, program: Program, batches: Batches, state: FitState
) -> Runners:
    """Return the runners of a fit whose gradients are computed by an engine that shares memory.

    The batches are those of one process. The sum of the gradients of their parts is that of the whole, but
    for rounding.

    Parameters
    ----------
    executor : Executor
        The engine.
    n_processes : int
        The parts of a batch.
    program : Program
        The graph, and the settings of the fit.
    batches : Batches
        The data.
    state : FitState
        The state before the fit.
    """
    found = client_step(program, batches, batches.standards, state)
    update = found.update_runner()
    most_rows = -(-batches.batch_size // n_processes)
    step = program.compiled(KnownStep(of_rows(found.spec, most_rows)), 1).compiled.step
    shapes = tuple((name, array.shape) for name, array in found.weights.items())
    shared = replace(
        batches, target=as_array(batches.target), sample_weight=np.empty(0), blocks=None, columns=None
    )
    gradient = executor.source(GradientStep(step, shared, shapes, program.plan.n_threads or 1))
    tasks = _TasksOfParts(executor, gradient, n_processes, most_rows)
    runner = GradientRounds(executor, tasks, update, found.spec.scalars)
    return Runners(found.loaded(update.buffers, state), runner, lambda: runner)


class _TasksOfParts:
    """The tasks of a batch: one for each part of equal size, in the order of the rows."""

    def __init__(self, executor: Executor, gradient: Handle, n_parts: int, most_rows: int) -> None:
        self._executor, self._gradient = executor, gradient
        self._n_parts, self._most_rows = n_parts, most_rows

    def submit(
        self, state: Handle, rows: np.ndarray, weight: np.ndarray, factor: float, keys: tuple[int, ...]
    ) -> list[Handle]:
        """Return the tasks of the rows of a batch."""
        cuts = [len(rows) * number // self._n_parts for number in range(self._n_parts + 1)]
        return [
            self._executor.submit(
                gradient_of_share, self._gradient, state,
                GradientWork(rows[start:stop], weight[start:stop], factor, self._most_rows),
            )
            for start, stop in pairwise(cuts)
            if start < stop
        ]  # fmt: skip
