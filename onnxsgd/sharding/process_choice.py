"""The choice between one process and several for the updates of a fit."""

from __future__ import annotations

import numpy as np

from onnxsgd.data.row_tables import Converted, EncodedLabels, is_mapped
from onnxsgd.engine.step.batches import Batches
from onnxsgd.runtime.cores import count_cores
from onnxsgd.runtime.sessions import has_several_threads
from onnxsgd.training.fit_plan import FitPlan
from onnxsgd.training.program import Program

__all__ = ["choose_processes"]

#: Units of work are multiplications in products of a table of rows and a matrix, in one thread; those of
#: other layers take so many. ``benchmarks/jobs.py`` has the times that these numbers come from.
_OTHER = 4
#: The units of a round; of each trained number in it, which is copied to the workers and updated; and of the
#: gradients that are added for it.
_ROUND, _OF_NUMBER, _OF_SUM = 60_000_000, 290, 60
#: The share of the work of both kinds that threads of one process divide.
_THREADED_TABLES, _THREADED_OTHERS = 0.95, 0.6
#: The least speed of several processes, in units of that of one in as many threads, with which they are used.
_LEAST_SPEED = 1.2
#: The units that a fit must save: workers take some two seconds to start.
_START = 250_000_000_000
#: The epochs that a fit is taken to have, at most: `max_iter` is a bound that few fits reach.
_EPOCHS = 10
#: The multiplications of an update in units of those of the forward pass.
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
    plan, n_threads = program.plan, program.plan.n_threads or 1
    obstacle = _obstacle(plan, batches)
    if obstacle is not None:
        return 1, obstacle
    n_processes = min(n_jobs, batches.batch_size, max(1, count_cores() // n_threads))
    if n_processes == 1:
        return 1, f"n_threads={n_threads} takes the cores"
    counted = program.multiplications(batches)
    n_numbers = sum(array.size for array in plan.learner.initial_weights().values())
    of_tables = _PASSES * counted.of_tables
    others = _PASSES * _OTHER * (counted.total - counted.of_tables)
    work = of_tables + others
    of_round = _ROUND + (_OF_NUMBER + _OF_SUM * (n_processes - 1)) * n_numbers
    in_processes = work / n_processes + of_round
    if work < _LEAST_SPEED * in_processes:
        return 1, "an update is short"
    has_threads = plan.n_threads is None and has_several_threads(_PASSES * batches.batch_size * n_numbers)
    if has_threads:
        divided = _THREADED_TABLES * of_tables + _THREADED_OTHERS * others
        in_threads = work - divided + divided / n_processes
        if in_threads < _LEAST_SPEED * in_processes:
            return 1, "its threads are as fast"
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
