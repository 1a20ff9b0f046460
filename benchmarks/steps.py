"""Training steps: every contestant on every workload, with the check that they do equal work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from contestants import BASELINE, CONTESTANTS, Contestant
from limits import sgemm_rate
from measure import Samples, interleave
from trainers import Train
from trainers.plain_numpy import mean_loss, products_alone, train_reference
from workloads import Task, Workload, make_task

__all__ = ["LIMITS", "Effort", "Result", "run_workload"]

#: Rows of the tables without training: the time of the products with the BLAS of numpy, and their time at
#: the rate of a large product in the fastest library.
LIMITS = ("products alone", "sgemm limit")

#: Tolerance of the loss after an epoch against the reference, as a share of the improvement of the epoch.
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Result:
    """The measurements of one contestant on one task.

    Attributes
    ----------
    workload, batch_size, contestant : str, int, str
        The task and the contestant.
    best, median : float
        Seconds for one update of `batch_size` rows.
    ratio_best, ratio_median : float
        The best time over our best time; the median over the rounds of its time over ours.
    n_cores : float
        Cores that were busy.
    gflops : float
        1e9 floating-point operations of the products per second, in the median.
    loss : float or None
        The mean loss after one epoch without shuffling; None for a limit.
    reference_loss : float or None
        The expected loss, if the contestant makes the same updates as all.
    """

    workload: str
    batch_size: int
    contestant: str
    best: float
    median: float
    ratio_best: float
    ratio_median: float
    n_cores: float
    gflops: float
    loss: float | None
    reference_loss: float | None


@dataclass(frozen=True)
class Effort:
    """The settings of a measurement.

    Attributes
    ----------
    n_rounds : int
        Blocks of each contestant.
    block_seconds : float
        Length of a block.
    clock : {"wall", "cpu"}
        The clock, see :func:`measure.interleave`.
    slow_starters : bool
        Whether contestants take part whose start takes seconds.
    """

    n_rounds: int
    block_seconds: float
    clock: str
    slow_starters: bool


def run_workload(workload: Workload, batch_size: int, n_threads: int, effort: Effort) -> list[Result]:
    """Measure all contestants on one workload.

    Raises
    ------
    RuntimeError
        If the losses after an epoch do not agree.
    """
    task = make_task(workload, batch_size, n_threads)
    trains = dict(_make_trains(task, CONTESTANTS, effort))
    losses = {name: mean_loss(task, train(1, False)) for name, train in trains.items()}
    reference = mean_loss(task, train_reference(task)(1, False))
    same = [c.name for c in CONTESTANTS if c.name in trains and c.same_updates(task)]
    _check_equal_work(task, {name: losses[name] for name in same}, reference)
    rate = sgemm_rate(n_threads, effort.clock)
    blocks: dict[str, Callable[[int], object]] = {name: _epochs(train) for name, train in trains.items()}
    products = products_alone(task)
    blocks[LIMITS[0]] = lambda n: products(n * task.n_updates)
    samples = interleave(blocks, effort.n_rounds, effort.block_seconds, effort.clock)
    samples[LIMITS[1]] = _at_rate(task, max(rate, sgemm_rate(n_threads, effort.clock)), effort)
    ours = samples[BASELINE]
    return [
        Result(
            workload.name, batch_size, name, s.best / task.n_updates, s.median / task.n_updates,
            s.best / ours.best, s.ratio_to(ours), s.n_cores, 1e-9 * task.flop * task.n_updates / s.median,
            losses.get(name), reference if name in same else None,
        )
        for name, s in samples.items()
    ]  # fmt: skip


def _make_trains(
    task: Task, contestants: Iterable[Contestant], effort: Effort
) -> Iterator[tuple[str, Train]]:
    """Yield the contestants that support the task and whose libraries are installed."""
    for contestant in contestants:
        if not contestant.takes(task) or (contestant.slow_start and not effort.slow_starters):
            continue
        try:
            yield contestant.name, contestant.make(task)
        except ImportError as error:
            print(f"{contestant.name} does not take part: {error}", file=sys.stderr)


def _epochs(train: Train) -> Callable[[int], object]:
    return lambda n_epochs: train(n_epochs, True)


def _at_rate(task: Task, rate: float, effort: Effort) -> Samples:
    """Return the times of the products alone at `rate` operations per second."""
    seconds = [task.flop * task.n_updates / rate] * effort.n_rounds
    return Samples(effort.clock, seconds, seconds)


def _check_equal_work(task: Task, losses: dict[str, float], reference: float) -> None:
    gain = abs(mean_loss(task, task.initial) - reference)
    wrong = {name: loss for name, loss in losses.items() if not abs(loss - reference) <= _TOLERANCE * gain}
    if wrong:
        raise RuntimeError(
            f"{task.workload.name}, batch size {task.batch_size}: the loss after an epoch should be "
            f"{reference:.6f}; it is {wrong}. The contestants do not do the same work."
        )
