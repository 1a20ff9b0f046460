"""Epochs of updates over explicit state: order, rates, losses, the last finite weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from onnxsgd.engine.step.batches import Batches, EpochPlan
from onnxsgd.engine.step.buffers import Tensors
from onnxsgd.engine.step.dropout_masks import KEYS, draw_keys
from onnxsgd.engine.step.gradient_limits import DESCENT
from onnxsgd.engine.step.mixed_precision import LEAST_SCALE, LOSS_SCALE, SCALER, SKIPPED
from onnxsgd.engine.step.step_spec import OUTPUT_RATE, numbered
from onnxsgd.engine.step.update import AVERAGE_RATE, GRADIENT_SUM, IS_LAST, L1_TOTAL, START, average_rate
from onnxsgd.exceptions import ConvergenceError
from onnxsgd.optimizers import L1_STRENGTH, RATE
from onnxsgd.training.fit_plan import FitPlan
from onnxsgd.training.state import FitState, output_unit

__all__ = ["Epochs", "Runners", "penalty_value"]

#: Updates between two checks of the loss of a long epoch.
_PART = 4096
#: From this many samples on, keys are sorted by their halves.
#: ``benchmarks/constants.py``: 1.16 of the time with 500 samples, 0.97 with 1,000, 0.49 with 10,000, 0.37
#: with 100,000.
_LONG = 1000
#: Samples of epochs whose order is drawn at once: a draw of few takes longer than their sort.
_DRAWN = 4096


class Buffers(Protocol):
    """Weights and states, such as :class:`onnxsgd.engine.step.buffers.Buffers`."""

    def load(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> None:
        """Copy these values into the buffers."""

    def snapshot(self) -> Tensors:
        """Return a copy of the present values."""


class Runner(Protocol):
    """A runner of updates, such as :class:`onnxsgd.engine.step.single_step.StepRunner`."""

    n_done: int

    def run(self, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray) -> None:
        """Make one update for each batch."""


@dataclass(frozen=True)
class Runners:
    """The runners of the updates of a fit.

    Attributes
    ----------
    buffers : Buffers
        Weights and states, shared by the two.
    fastest : Runner
        The runner to use.
    single : callable
        Returns the runner of one batch in a call.
    give_back : callable or None
        Makes the runners free for another fit; they are not used afterwards.
    is_sparse : bool
        Whether updates touch the entries of sparse data only.
    skipped : callable or None
        Returns the number of updates that the last call to the fastest runner skipped, as their gradients
        were not finite in 16 bits; None: it skips none.
    """

    buffers: Buffers
    fastest: Runner
    single: Callable[[], Runner]
    give_back: Callable[[], None] | None = None
    is_sparse: bool = False
    skipped: Callable[[], int] | None = None

    @property
    def n_skipped(self) -> int:
        """The number of updates that the last call skipped."""
        return 0 if self.skipped is None else self.skipped()


class Epochs:
    """The epochs of a fit.

    Parameters
    ----------
    runners : Runners
        The runners of the updates.
    batches : Batches
        The data.
    plan : FitPlan
        The settings of the fit.
    state : FitState
        The state of the fit, changed in place.
    n_epochs : int
        The largest number of epochs.
    """

    def __init__(
        self, runners: Runners, batches: Batches, plan: FitPlan, state: FitState, n_epochs: int
    ) -> None:
        self._runners, self._batches, self._plan, self._state = runners, batches, plan, state
        self._drawn_together = max(1, min(n_epochs, _DRAWN // len(batches.target)))
        #: Orders of the samples that are drawn, but not used yet.
        self._ahead = np.empty((0, len(batches.target)), np.intp)

    @property
    def has_next(self) -> bool:
        """True: the samples are taken in each epoch."""
        return True

    def run(self, count: int = 1, *, limit: float | None = None, rates: np.ndarray | None = None) -> None:
        """Make one update for each batch of `count` epochs; record the objectives: mean loss plus penalty.

        Each update has one of the `rates`; None: those of the schedule.

        With a `limit`, the objective is infinite where training diverges: where numbers are no longer finite,
        or the mean loss of a part of a long epoch exceeds the limit. The caller then restores an earlier
        state.

        Raises
        ------
        ConvergenceError
            If the loss or a weight is no longer finite. The state then holds the last finite weights.
        """
        if count > 1 and self._runners.skipped is not None:
            self._run_one_by_one(count, limit, rates)
            return
        runners, batches, plan, state = self._runners, self._batches, self._plan, self._state
        updates = batches.plan(self._orders(count))
        numbers = _numbers(plan, state, batches, count, rates)
        if plan.step_spec.takes_scaled_gradient:
            updates = updates.descending(numbers.of_batches(numbers.used))
        losses = np.full(len(updates.totals), math.nan)
        n_whole = 0
        n_before = 0
        try:
            for part in _parts(len(losses), limit):
                n_before = part.start
                # all updates stay one object, whose weights a device need not receive again
                plan_of_part = updates if len(losses[part]) == len(losses) else updates.part(part)
                try:
                    runners.fastest.run(plan_of_part, numbers.of_part(part), losses[part])
                finally:
                    numbers.n_skipped += runners.n_skipped
                if limit is not None and not losses[part].mean() <= limit:
                    break
        finally:
            n_done = n_before + runners.fastest.n_done
            tensors = _snapshot(runners)
            is_finite = _all_finite(tensors) and bool(np.isfinite(losses[:n_done]).all())
            if is_finite:
                state.tensors = tensors
                numbers.move(state, n_done)
                n_whole = n_done // batches.n_batches
                objectives = updates.mean_losses(losses, count)[:n_whole]
                objectives = objectives + penalty_value(plan, state, state.weights())
                state.record(objectives, state.factor * numbers.last_rates(count)[:n_whole])
        if limit is not None and not (is_finite and n_done == len(losses)):
            n_missing = count - n_whole
            state.record(np.full(n_missing, math.inf), numbers.used[-n_missing:])
        elif not is_finite:
            _restore_last_finite(runners, updates, numbers, state)

    def _run_one_by_one(self, count: int, limit: float | None, rates: np.ndarray | None) -> None:
        """Make epochs whose numbers depend on the number of updates that earlier ones skipped."""
        of_epochs = [None] * count if rates is None else np.split(rates, count)
        for number, of_epoch in enumerate(of_epochs, start=1):
            self.run(limit=limit, rates=of_epoch)
            if limit is not None and math.isinf(self._state.loss_curve[-1]):
                last = self._state.learning_rates[-1]
                self._state.record(np.full(count - number, math.inf), np.full(count - number, last))
                break

    def _orders(self, count: int) -> np.ndarray:
        """Return the order of the samples in each of the next `count` epochs."""
        batches, random_state = self._batches, self._state.random_state
        n_samples = len(batches.target)
        if not self._plan.recipe.shuffle:
            return np.tile(np.arange(n_samples), (count, 1))
        if batches.is_mixed:
            draws = [_shifted(n_samples, batches.batch_size, random_state) for _ in range(count)]
            return np.stack(draws)
        while len(self._ahead) < count:
            drawn = _shuffled((self._drawn_together, n_samples), random_state)
            self._ahead = np.concatenate([self._ahead, drawn]) if len(self._ahead) else drawn
        orders, self._ahead = self._ahead[:count], self._ahead[count:]
        return orders


def _parts(n_updates: int, limit: float | None) -> list[slice]:
    """Return the parts of some updates, after each of which the loss is compared with the limit."""
    if limit is None or math.isinf(limit):
        return [slice(0, n_updates)]
    return [slice(start, start + _PART) for start in range(0, n_updates, _PART)]


def _shifted(n: int, size: int, random_state: np.random.RandomState) -> np.ndarray:
    """Return the numbers below `n`: runs of so many neighbours in random order, from a random one on.

    The batches of an epoch are then parts of the data, which need no copy.
    """
    n_runs, first = n // size, random_state.randint(n)
    runs = random_state.permutation(n_runs)[:, None] * size + np.arange(size)
    return (np.concatenate([runs.reshape(-1), np.arange(n_runs * size, n)]) + first) % n


def _shuffled(shape: tuple[int, int], random_state: np.random.RandomState) -> np.ndarray:
    """Return rows of the numbers below their length, each in random order.

    It sorts by random keys, for which numpy is faster than for its permutation. One pair of keys in four
    billion is equal and keeps its order.
    """
    keys = random_state.randint(0, 1 << 32, shape, np.uint32)
    if shape[1] < _LONG:
        pairs = keys.astype(np.uint64)
        pairs <<= np.uint64(32)
        pairs |= np.arange(shape[1], dtype=np.uint64)
        pairs.sort(axis=1)
        return pairs.astype(np.uint32)
    orders = np.empty(shape, np.intp)
    for row, order in zip(keys, orders, strict=True):
        # numpy sorts numbers of 16 bits by counting
        by_lower = (row & 0xFFFF).astype(np.uint16).argsort(kind="stable")
        by_both = (row >> 16).astype(np.uint16).take(by_lower).argsort(kind="stable")
        by_lower.take(by_both, out=order, mode="clip")
    return orders


@dataclass
class _Numbers:
    """The numbers of the next updates.

    Attributes
    ----------
    table : ndarray of shape [n_batches, n_scalars]
        The scalar inputs of each step.
    rates, used : ndarray of shape [n_updates]
        The learning rate of the schedule, and that of these batches.
    l1_totals : dict of ndarray of shape [n_updates]
        The l1 penalty that each weight could have received so far.
    missed : dict of ndarray of shape [n_updates]
        The updates in which weights that can be frozen were frozen so far.
    updates : ndarray of shape [n_batches] or None
        The index of the update of each batch; None: each batch has its own.
    own : tuple of int
        The columns of the numbers that each batch of an update has of its own.
    n_skipped : int
        The number of updates that were skipped so far; the numbers are then those of one epoch.
    """

    table: np.ndarray
    rates: np.ndarray
    used: np.ndarray
    l1_totals: Mapping[str, np.ndarray]
    missed: Mapping[str, np.ndarray]
    updates: np.ndarray | None = None
    own: tuple[int, ...] = ()
    n_skipped: int = 0

    def of_part(self, part: slice) -> np.ndarray:
        """Return the table of some batches: updates after skipped ones have the numbers of earlier ones."""
        if not self.n_skipped:
            return self.table[part]
        batches = np.arange(len(self.table))
        updates = batches if self.updates is None else self.updates
        last = np.flatnonzero(np.diff(updates, append=updates[-1] + 1))
        table = self.table[last[updates[part] - self.n_skipped]]
        table[:, self.own] = self.table[part, self.own]
        return table

    def last_rates(self, n_epochs: int) -> np.ndarray:
        """Return the rate of the last update of each epoch."""
        last = self.used.reshape(n_epochs, -1)[:, -1]
        return self.used[[max(0, len(self.used) - 1 - self.n_skipped)]] if self.n_skipped else last

    def of_batches(self, numbers: np.ndarray) -> np.ndarray:
        """Return numbers of updates for their batches."""
        return numbers if self.updates is None else numbers[self.updates]

    def n_begun(self, n_batches: int) -> int:
        """Return the number of updates that so many batches belong to."""
        return n_batches if self.updates is None or not n_batches else int(self.updates[n_batches - 1]) + 1

    def n_made(self, n_batches: int) -> int:
        """Return the number of updates that so many batches complete."""
        if self.updates is None or not 0 < n_batches < len(self.updates):
            return self.n_begun(n_batches)
        return int(self.updates[n_batches])

    def move(self, state: FitState, n_batches: int) -> None:
        """Advance `state` by the updates that so many batches complete, less the skipped ones."""
        n_updates = self.n_made(n_batches) - self.n_skipped
        if n_updates > 0:
            state.t += n_updates
            state.eta = float(self.rates[n_updates - 1])
            state.l1_totals = {name: float(a[n_updates - 1]) for name, a in self.l1_totals.items()}
            missed = {name: int(a[n_updates - 1]) for name, a in self.missed.items()}
            state.missed = {name: count for name, count in missed.items() if count}


def _numbers(
    plan: FitPlan, state: FitState, batches: Batches, n_epochs: int, rates: np.ndarray | None
) -> _Numbers:
    """Return the numbers of the next `n_epochs` epochs, with these rates, or else those of the schedule."""
    recipe, count = plan.recipe, n_epochs * batches.n_updates
    t = np.arange(state.t + 1, state.t + 1 + count, dtype=np.float64)
    if rates is None:
        rates = recipe.schedule.rates(state.t + 1, state.eta, count)
    used = recipe.schedule.for_batches(rates, batches.batch_size * batches.n_accumulated)
    spec = plan.step_spec
    numbers: dict[str, ArrayLike] = {}
    l1_totals: dict[str, np.ndarray] = {}
    missed: dict[str, np.ndarray] = {}
    for number, group in enumerate(plan.groups):
        found = group.numbers(recipe, state, t - state.slots_from, used, batches.n_updates)
        if spec.output_weights:
            found.numbers[OUTPUT_RATE] = np.multiply(found.numbers[RATE], output_unit(plan, state))
        if spec.l1:
            l1, penalised = group.penalty.l1 or 0.0, plan.penalised(group)
            before = state.l1_totals.get(penalised[0], 0.0) if penalised else 0.0
            totals = before + np.cumsum(found.rates * l1)
            l1_totals |= dict.fromkeys(penalised, totals)
            found.numbers.update({L1_STRENGTH: l1, L1_TOTAL: totals})
        if found.missed is not None:
            missed |= dict.fromkeys(group.weights, found.missed)
        numbers |= {numbered(name, number): values for name, values in found.numbers.items()}
    if recipe.average_from:
        first = state.first_averaged(recipe.average_from)
        numbers[AVERAGE_RATE] = average_rate(t, first, recipe.average_decay)
    numbers |= recipe.limits
    numbers[DESCENT], numbers[IS_LAST] = -used, 1.0
    numbers |= dict.fromkeys(KEYS, 0.0)
    table = np.empty((count, len(spec.scalars)))
    for column, name in enumerate(spec.scalars):
        table[:, column] = numbers[name]
    updates = batches.updates_of_batches(n_epochs)
    if updates is not None:
        # averages move with the last batch of an update
        table, is_earlier = table[updates], np.diff(updates, append=count) == 0
        for name in {IS_LAST, AVERAGE_RATE}.intersection(spec.scalars):
            table[is_earlier, spec.scalars.index(name)] = 0.0
    if spec.draws:
        # anew for each batch of an update too
        for name, drawn in draw_keys(state.random_state, len(table)).items():
            table[:, spec.scalars.index(name)] = drawn
    own = tuple(number for number, name in enumerate(spec.scalars) if name in (IS_LAST, *KEYS))
    return _Numbers(table, rates, used, l1_totals, missed, updates, own)


def _restore_last_finite(runners: Runners, epoch: EpochPlan, numbers: _Numbers, state: FitState) -> None:
    """Repeat the epoch from its start up to the last finite weights, then raise.

    Repeating costs time only when training has failed anyway; keeping a copy of the weights at each
    update would cost time always.
    """
    numbers.n_skipped = 0
    loss, single = np.full(1, math.nan), runners.single()
    n_finite = n_done = 0
    runners.buffers.load(state.tensors)
    for number in range(len(epoch.totals)):
        part = slice(number, number + 1)
        single.run(epoch.part(part), numbers.of_part(part), loss)
        n_done = number + 1
        numbers.n_skipped += runners.n_skipped
        tensors = _snapshot(runners)
        if not math.isfinite(loss[0]) or not _all_finite(tensors):
            break
        state.tensors, n_finite = tensors, n_done
    failed = numbers.n_begun(n_done) - 1
    failed_at, rate = state.t + failed + 1, numbers.used[failed]
    numbers.move(state, n_finite)
    raise ConvergenceError(
        f"The loss or the weights are no longer finite at update {failed_at}, with learning rate {rate:.6g}. "
        f"The estimator keeps the last finite weights, those of update {state.t}. Scale the data, or lower "
        "the learning rate."
    )


def _snapshot(runners: Runners) -> Tensors:
    """Return the present weights and states, without the sums and counts of one call."""
    tensors = runners.buffers.snapshot()
    return {key: array for key, array in tensors.items() if key[1] not in (GRADIENT_SUM, SKIPPED)}


def penalty_value(plan: FitPlan, state: FitState, weights: Mapping[str, np.ndarray]) -> float:
    """Return the penalty of weights; `state` has the first ones."""
    return sum(
        penalty.value(
            [weights[name] for name in names],
            [state.tensors[name, START] for name in names] if penalty.from_start else None,
            [plan.input_axes[name] for name in names] if penalty.groups else None,
        )
        for penalty, names in plan.strengths
    )


def _all_finite(tensors: Tensors) -> bool:
    """Tell whether all numbers are finite, and the gradients are at some scale of the loss."""
    scale = tensors.get((SCALER, LOSS_SCALE), LEAST_SCALE)
    return bool(scale >= LEAST_SCALE) and all(np.isfinite(array).all() for array in tensors.values())
