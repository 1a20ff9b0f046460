"""Rounds of training on shards: gradients averaged at each update, or updates of each shard averaged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict

import numpy as np

from onnxsgd.engine.step.batches import Batches, EpochPlan
from onnxsgd.engine.step.buffers import Tensors, all_finite
from onnxsgd.engine.step.divided_step import UpdateRunner
from onnxsgd.engine.step.dropout_masks import KEYS
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.exceptions import ParameterError
from onnxsgd.sharding.changes import Change, GradientWork, add_changes
from onnxsgd.sharding.executor import Executor, Handle, reduced
from onnxsgd.sharding.shard_tasks import LocalWork, gradient_of_rows, local_updates
from onnxsgd.sharding.shards import Shards
from onnxsgd.training.checkpoints import Checkpoints, Position, Progress
from onnxsgd.training.coordinates import held_buffers
from onnxsgd.training.epochs import (
    Numbers,
    Runners,
    last_finite_error,
    numbers_of_epochs,
    penalty_value,
)
from onnxsgd.training.fit_plan import FitPlan, Recipe
from onnxsgd.training.kept_state import KeptState
from onnxsgd.training.progress_forms import require
from onnxsgd.training.state import FitState, output_unit

__all__ = ["BatchTasks", "GradientRounds", "HeldTensors", "LocalRounds", "OuterStep", "TasksOfShards"]

#: The kind of the tensor that holds the velocity of the outer step.
_VELOCITY = "outer_velocity"
#: The rate of the outer step, and the largest factor of the mean change: the momentum is then 0.9, that of
#: the source. ``benchmarks/shards.py`` has the losses that follow.
_OUTER_RATE, _MOST = 0.7, 7.0
#: 1 / (1 - 0.9) is no whole number.
_ROUNDING = 1e-6
#: The bounds of seeds.
_SEEDS = 1 << 31


class BatchTasks(Protocol):
    """The tasks of the gradient of a batch."""

    def submit(
        self, state: Handle, rows: np.ndarray, weight: np.ndarray, factor: float, keys: tuple[int, ...]
    ) -> list[Handle]:
        """Return the tasks of rows with these weights, at weights whose handle is `state`."""


class GradientRounds:
    """The runner of updates, each of which follows the gradient of all tasks: one round.

    Parameters
    ----------
    executor : Executor
        The engine.
    tasks : BatchTasks
        Makes the tasks of a batch.
    update : UpdateRunner
        The update on the client.
    scalars : sequence of str
        The names of the numbers of an update.
    """

    is_whole = True

    def __init__(
        self, executor: Executor, tasks: BatchTasks, update: UpdateRunner, scalars: Sequence[str]
    ) -> None:
        self._executor, self._tasks, self._update = executor, tasks, update
        self._keys = [scalars.index(name) for name in KEYS if name in scalars]

    @property
    def n_done(self) -> int:
        """Batches done by the last call to :meth:`run`."""
        return self._update.buffers.n_done

    def run(self, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray) -> None:
        """Make one update for each batch, until a loss is not finite; see ``StepRunner``."""
        buffers = self._update.buffers
        buffers.restart()
        for number, rows in enumerate(plan.rows):
            weight = plan.sample_weight[number, :, 0]
            keys = tuple(int(key) for key in scalars[number, self._keys])
            change = self._gradient(rows, weight, float(plan.factors[number]), keys)
            losses[number] = change.loss
            with np.errstate(over="ignore", invalid="ignore"):
                self._update.update(change.tensors, scalars[number])
            if not math.isfinite(change.loss):
                break

    def _gradient(self, rows: np.ndarray, weight: np.ndarray, factor: float, keys: tuple[int, ...]) -> Change:
        """Return the gradient of a batch."""
        executor, counts = self._executor, weight != 0
        state = executor.source(self._update.buffers.weights())
        tasks = self._tasks.submit(state, np.asarray(rows[counts], np.int64), weight[counts], factor, keys)
        total = reduced(executor, add_changes, tasks)
        (change,) = executor.results([total])
        executor.release([state, *tasks, total])
        found: Change = change
        return found


class TasksOfShards:
    """The tasks of a batch whose rows lie in shards: one for each shard with some.

    Parameters
    ----------
    shards : Shards
        The shards; samples are counted over all of them, shard after shard.
    batch_size : int
        Rows of a batch of all shards together.
    """

    def __init__(self, shards: Shards, batch_size: int) -> None:
        self._shards = shards
        self._starts = np.concatenate([[0], np.cumsum(shards.n_rows)])
        # the rows of a shard in a batch differ from batch to batch: calls of one size, several for many rows
        share = -(-batch_size // len(shards.handles))
        self._most_rows = min(batch_size, 1 << (share - 1).bit_length())

    def submit(
        self, state: Handle, rows: np.ndarray, weight: np.ndarray, factor: float, keys: tuple[int, ...]
    ) -> list[Handle]:
        """Return the tasks of the rows of a batch."""
        owners = np.searchsorted(self._starts, rows, "right") - 1
        shards, tasks = self._shards, []
        for number, shard in enumerate(shards.handles):
            own = owners == number
            if own.any():
                work = GradientWork(
                    rows[own] - self._starts[number], weight[own], factor, self._most_rows, (*keys, number)
                )
                tasks.append(shards.executor.submit(gradient_of_rows, shards.fit, shard, state, work))
        return tasks


class HeldTensors:
    """Weights and their states on the client, in the coordinates of the updates.

    Parameters
    ----------
    tensors : dict of ndarray
        Arrays of their shapes and types.
    """

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = {key: np.zeros_like(array) for key, array in tensors.items()}

    def load(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> None:
        """Take these values; missing ones become zero."""
        for key, array in self.tensors.items():
            given = tensors.get(key)
            self.tensors[key] = np.zeros_like(array) if given is None else np.array(given, array.dtype)

    def snapshot(self) -> Tensors:
        """Return a copy of the present values."""
        return {key: array.copy() for key, array in self.tensors.items()}


@dataclass(frozen=True)
class OuterStep:
    """The step that follows the mean change of the shards, a Nesterov step.

    ::

        v = momentum v + change
        w = w + rate (change + momentum v)

    States of weights, such as the moments of an optimizer, become the means of those of the shards.

    Parameters
    ----------
    rate, momentum : float
        The rate and the momentum; 1 and 0: weights become the means of those of the shards.

    References
    ----------
    A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023.
    """

    rate: float = 1.0
    momentum: float = 0.0

    @classmethod
    def of(cls, recipe: Recipe, weights: Sequence[float], sync_every: int) -> OuterStep:
        """Return the step for shards of these weights, in rounds of so many updates.

        In an epoch n shards make as many updates as one machine, n at a time: their mean change, times n,
        goes as far. A momentum m at the rate r takes r / (1 - m) times the change. In rounds of at
        most half the updates over which the optimizer averages gradients, its momentum spans rounds: a second
        one is too much, and the rate is n. A rate that training finds is near the largest one at which it
        converges: the weights become the means.
        """
        shares = np.array(weights) / np.sum(weights)
        # shards of other sizes count as fewer of one size
        factor = min(1.0 / float(np.sum(shares**2)), _MOST)
        if recipe.is_auto or factor <= 1.0:
            return cls()
        if 2 * sync_every <= recipe.optimizer.averaged_updates + _ROUNDING:
            return cls(factor)
        return cls(_OUTER_RATE, 1.0 - _OUTER_RATE / factor)

    def places(self, tensors: Tensors, trained: Sequence[str]) -> Tensors:
        """Return tensors with places for velocities, if there is a momentum."""
        if not self.momentum:
            return tensors
        return tensors | {(name, _VELOCITY): tensors[name, WEIGHT] for name in trained}

    def after(self, tensors: Tensors, change: Tensors) -> Tensors:
        """Return the tensors after a mean change."""
        new = dict(tensors)
        for key, moved in change.items():
            name, kind = key
            velocity = tensors.get((name, _VELOCITY)) if kind == WEIGHT else None
            if velocity is None:
                step = self.rate * moved if kind == WEIGHT else moved
                new[key] = (tensors[key] + step).astype(moved.dtype)
                continue
            velocity = self.momentum * velocity + moved
            new[name, _VELOCITY] = velocity.astype(moved.dtype)
            step = self.rate * (moved + self.momentum * velocity)
            new[key] = (tensors[key] + step).astype(moved.dtype)
        return new


class LocalProgress(TypedDict):
    """The progress of :class:`LocalRounds`: nothing beside the state."""


class LocalRounds:
    """Epochs of rounds in which each shard makes updates of its own.

    A shard with fewer rows makes fewer updates, with the numbers of those at the same place of the epoch. The
    mean of the changes counts each shard by the weight of its rows.

    Parameters
    ----------
    shards : Shards
        The shards.
    sync_every : int
        The updates of the largest shard in a round; an epoch ends with a round.
    outer : OuterStep
        The step that follows the mean change.
    runners, batches, plan, state, n_epochs, checkpoints, kept : objects
        As in :class:`~onnxsgd.training.epochs.Epochs`; the batches are those of the largest shard.
    """

    form = LocalProgress

    def __init__(
        self,
        shards: Shards,
        sync_every: int,
        outer: OuterStep,
        runners: Runners,
        batches: Batches,
        plan: FitPlan,
        state: FitState,
        n_epochs: int,
        checkpoints: Checkpoints | None = None,
        kept: KeptState | None = None,
    ) -> None:
        if checkpoints is not None and checkpoints.every.is_within_epochs:
            raise ParameterError(
                "checkpoint_every counts updates or seconds, and with sync_every above 1 the state is whole "
                "at the ends of epochs: count epochs, or give sync_every=1."
            )
        self._shards, self._sync_every, self._outer = shards, sync_every, outer
        self._runners, self._batches, self._plan, self._state = runners, batches, plan, state
        self._checkpoints, self._kept = checkpoints, KeptState() if kept is None else kept
        self._n_batches = [-(-n // batches.batch_size) for n in shards.n_rows]
        self._output_unit = output_unit(plan, state) if plan.step_spec.output_weights else 1.0

    @property
    def has_next(self) -> bool:
        """True: the samples are taken in each epoch."""
        return True

    def progress(self) -> Progress:
        """Return nothing: an epoch needs the state alone."""
        return {}

    def resume(self, progress: Progress) -> None:
        """Continue from the state alone."""

    def check_position(self, position: Position) -> None:
        """Refuse any place inside an epoch."""
        require(False, "position", "None: epochs of these rounds continue at their ends")

    def run(self, count: int = 1, *, limit: float | None = None, rates: np.ndarray | None = None) -> None:
        """Make epochs of rounds; record their objectives; see :meth:`Epochs.run`."""
        if self._checkpoints is not None:
            self._checkpoints.take_position()
            # standardised weights are rounded on their way into a checkpoint and back
            self._runners.buffers.load(self._state.tensors)
        length = self._batches.n_updates
        for number in range(count):
            of_epoch = None if rates is None else rates[number * length : (number + 1) * length]
            if not self._run_epoch(limit, of_epoch):
                n_missing = count - number
                rate = self._state.eta if rates is None else float(rates[-1])
                self._state.record(np.full(n_missing, math.inf), np.full(n_missing, rate))
                self._kept.keep(self._state)
                return

    def _run_epoch(self, limit: float | None, rates: np.ndarray | None) -> bool:
        """Make the rounds of an epoch; return False if training diverged below the limit."""
        plan, state, batches = self._plan, self._state, self._batches
        numbers = numbers_of_epochs(plan, state, batches, 1, rates, self._output_unit)
        is_drawn = plan.recipe.shuffle or plan.step_spec.draws
        seed = int(state.random_state.randint(0, _SEEDS)) if is_drawn else 0
        held, n_done, loss, weight = held_buffers(self._runners.buffers), 0, 0.0, 0.0
        is_finite = True
        try:
            for first in range(0, batches.n_batches, self._sync_every):
                part = slice(first, min(first + self._sync_every, batches.n_batches))
                change = self._round(held.tensors, part, numbers, seed)
                with np.errstate(over="ignore", invalid="ignore"):
                    tensors = self._outer.after(held.tensors, change.tensors)
                is_finite = math.isfinite(change.loss) and all(map(all_finite, tensors.values()))
                if not is_finite:
                    break
                held.tensors, n_done = tensors, part.stop
                loss, weight = loss + change.loss, weight + change.weight
        except BaseException:
            self._move(numbers, n_done)
            raise
        if limit is not None and not (is_finite and loss <= limit * weight):
            return False
        self._move(numbers, n_done)
        if not is_finite:
            raise last_finite_error(state, state.t + 1, float(numbers.used[n_done]))
        objective = loss / weight + penalty_value(plan, state, state.weights())
        state.record(np.array([objective]), state.factor * numbers.last_rates(1))
        self._kept.keep(state)
        return True

    def _move(self, numbers: Numbers, n_done: int) -> None:
        """Move the state to so many updates of the epoch, those of whole rounds."""
        if n_done:
            self._state.tensors = self._runners.buffers.snapshot()
            numbers.move(self._state, n_done)
            self._kept.keep(self._state)

    def _round(self, tensors: Tensors, part: slice, numbers: Numbers, seed: int) -> Change:
        """Return the mean change of the shards in some updates of an epoch."""
        shards, executor, n_nominal = self._shards, self._shards.executor, self._batches.n_batches
        kept = {key: array for key, array in tensors.items() if key[1] != _VELOCITY}
        state, tasks = executor.source(kept), []
        for number, shard in enumerate(shards.handles):
            n_own = self._n_batches[number]
            own = slice(n_own * part.start // n_nominal, n_own * part.stop // n_nominal)
            # the last of the nominal updates that each own one stands for
            batches = np.arange(own.start, own.stop)
            nominal = -(-(batches + 1) * n_nominal // n_own) - 1
            work = LocalWork(
                batches=own, numbers=numbers.table[nominal], rates=numbers.used[nominal],
                seed=(seed, number) if self._plan.recipe.shuffle else None,
                mask_seed=(seed, number, part.start),
                share=shards.summaries[number].weight / shards.weight,
            )  # fmt: skip
            tasks.append(executor.submit(local_updates, shards.fit, shard, state, work))
        total = reduced(executor, add_changes, tasks)
        (change,) = executor.results([total])
        executor.release([state, *tasks, total])
        found: Change = change
        return found
