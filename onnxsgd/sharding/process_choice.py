"""The choice between one process and several for the updates of a fit."""

from __future__ import annotations

import numpy as np

from onnxsgd.data.row_tables import Converted, EncodedLabels, is_mapped
from onnxsgd.engine.step.batches import Batches
from onnxsgd.training.fit_plan import FitPlan
from onnxsgd.training.program import Program

__all__ = ["choose_processes"]

#: A round takes as long as so many multiplications in one thread, and each trained number adds some: the
#: weights are copied to the workers, gradients back, and are added. ``benchmarks/jobs.py`` has the times.
_ROUND, _OF_NUMBER = 60_000_000, 350
#: The least speed of several processes, in units of that of one, with which they are used.
_LEAST_SPEED = 1.2
#: The multiplications of all updates that must be saved: workers take some two seconds to start.
_START = 250_000_000_000
#: The epochs that a fit is taken to have, at most: `max_iter` is a bound that few fits reach.
_EPOCHS = 10
#: The multiplications of both gradients and of the forward pass, in units of those of the latter.
_PASSES = 3


def choose_processes(n_jobs: int, program: Program, batches: Batches, max_iter: int) -> tuple[int, str]:
    """Return the number of processes for the updates of a fit, and the reason.

    The result follows from sizes alone: with the same `n_jobs`, a fit has the same bits.

    Parameters
    ----------
    n_jobs : int
        The most processes.
    program : Program
        The graph, and the settings of the fit.
    batches : Batches
        The data.
    max_iter : int
        The most epochs.
    """
    obstacle = _obstacle(program.plan, batches)
    if obstacle is not None:
        return 1, obstacle
    counted = program.multiplications(batches)
    if program.plan.n_threads is None and 2 * counted.of_tables > counted.total:
        return 1, "threads are faster where most products are of a table of rows and a matrix"
    n_numbers = sum(array.size for array in program.plan.learner.initial_weights().values())
    n_processes = min(n_jobs, batches.batch_size)
    work = _PASSES * counted.total
    in_processes = work / n_processes + _ROUND + _OF_NUMBER * n_numbers
    if work < _LEAST_SPEED * in_processes:
        return 1, "an update is short"
    if (work - in_processes) * batches.n_updates * min(max_iter, _EPOCHS) < _START:
        return 1, "the updates are few"
    return n_processes, "updates are long"


def _obstacle(plan: FitPlan, batches: Batches) -> str | None:
    """Return the reason why gradients of parts of a batch cannot be added, or data not be shared; or None."""
    spec = plan.step_spec
    found = {
        f"the data are on {plan.device}": plan.device.keeps_data,
        "sparse data are trained in one": batches.is_sparse,
        "only arrays in memory are shared": not _are_in_memory(batches),
        "batch_norm='train' takes statistics of whole batches": bool(spec.statistics),
        "masks of dropout would be others": spec.draws,
        "gradients are accumulated": spec.accumulates,
        "the loss is a function of Python": not plan.loss.is_formula,
    }
    return next((reason for reason, holds in found.items() if holds), None)


def _are_in_memory(batches: Batches) -> bool:
    tables = batches.features.values()
    is_array = all(isinstance(table, np.ndarray) and not is_mapped(table) for table in tables)
    return is_array and isinstance(batches.target, np.ndarray | Converted | EncodedLabels)
