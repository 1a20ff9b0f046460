"""Epochs of updates over explicit state: order, rates, losses, the last finite weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Protocol, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from onnxsgd._records import record
from onnxsgd.data.generators import copied
from onnxsgd.data.random_order import BlockOrder, shuffled
from onnxsgd.engine.step.batches import Batches, EpochPlan
from onnxsgd.engine.step.buffers import Tensors, all_finite, joined
from onnxsgd.engine.step.dropout_masks import KEYS, draw_keys
from onnxsgd.engine.step.gradient_limits import DESCENT
from onnxsgd.engine.step.mixed_precision import LEAST_SCALE, LOSS_SCALE, SCALER, SKIPPED
from onnxsgd.engine.step.step_spec import OUTPUT_RATE, numbered
from onnxsgd.engine.step.update import (
    AVERAGE_RATE,
    GRADIENT_SUM,
    IS_LAST,
    L1_TOTAL,
    START,
    WEIGHT,
    average_rate,
)
from onnxsgd.exceptions import ConvergenceError
from onnxsgd.optimizers import L1_STRENGTH, RATE
from onnxsgd.training.checkpoints import Checkpoints, Position, Progress
from onnxsgd.training.fit_plan import FitPlan
from onnxsgd.training.kept_state import KeptState
from onnxsgd.training.progress_forms import (
    EpochBegun,
    WindowBegun,
    check_form,
    check_losses,
    check_orders,
    require,
)
from onnxsgd.training.state import FitState, output_unit

__all__ = [
    "Epochs", "Numbers", "Runners", "are_finite", "last_finite_error", "numbers_of_epochs", "penalty_value",
]  # fmt: skip

#: The numbers of the state that an epoch moves.
_MOVED = ("t", "eta", "l1_totals", "missed")
#: The kinds of tensors that no later call reads.
_OF_ONE_CALL = (GRADIENT_SUM, SKIPPED)
#: Updates between two checks of the loss of a long epoch.
_PART = 4096
#: Samples of epochs whose order is drawn at once: a draw of few takes longer than their sort.
_DRAWN = 4096
#: The numbers of weights and states up to which they are looked at together, in a copy.
_FEW_NUMBERS = 2048
#: The number of elements of an array.
_size = attrgetter("size")


class Buffers(Protocol):
    """Weights and states, such as :class:`onnxsgd.engine.step.buffers.Buffers`."""

    def load(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> None:
        """Copy these values into the buffers."""

    def snapshot(self) -> Tensors:
        """Return a copy of the present values."""


class Runner(Protocol):
    """A runner of updates, such as :class:`onnxsgd.engine.step.single_step.StepRunner`."""

    @property
    def n_done(self) -> int:
        """Batches done by the last call, also if that was interrupted."""

    @property
    def is_whole(self) -> bool:
        """True if weights and states are those of so many batches; False: an interrupt cut one in two."""

    def run(self, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray) -> None:
        """Make one update for each batch."""


@record
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
    squares : callable or None
        Returns the sums of squares of all weights with a penalty, which is l2, after each of so many epochs
        that the last call to the fastest runner made, or None where they are not known; None: they never are.
    """

    buffers: Buffers
    fastest: Runner
    single: Callable[[], Runner]
    give_back: Callable[[], None] | None = None
    is_sparse: bool = False
    skipped: Callable[[], int] | None = None
    squares: Callable[[int], np.ndarray | None] | None = None

    def with_buffers(self, buffers: Buffers) -> Runners:
        """Return the same runners, whose weights are seen in another way."""
        return replace(self, buffers=buffers)

    @property
    def n_skipped(self) -> int:
        """The number of updates that the last call skipped."""
        return 0 if self.skipped is None else self.skipped()


class EpochsProgress(TypedDict):
    """The progress of :class:`Epochs`: the orders of the samples that are drawn, but not used yet."""

    ahead: np.ndarray


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
    checkpoints : Checkpoints or None
        Those inside epochs, if any.
    kept : KeptState or None
        Receives the state after the updates of each call, also of one that fails.
    """

    form = EpochsProgress

    def __init__(
        self,
        runners: Runners,
        batches: Batches,
        plan: FitPlan,
        state: FitState,
        n_epochs: int,
        checkpoints: Checkpoints | None = None,
        kept: KeptState | None = None,
    ) -> None:
        self._kept = KeptState() if kept is None else kept
        self._runners, self._batches, self._plan, self._state = runners, batches, plan, state
        self._checkpoints = checkpoints
        self._drawn_together = max(1, min(n_epochs, _DRAWN // len(batches.target)))
        #: Orders of the samples that are drawn, but not used yet.
        self._ahead = self._last = np.empty((0, len(batches.target)), np.intp)
        # the moments of the target are those of before the first epoch
        self._output_unit = output_unit(plan, state) if plan.step_spec.output_weights else 1.0

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
        runners, batches, state = self._runners, self._batches, self._state
        if count > 1 and (runners.skipped is not None or batches.is_long):
            self._run_one_by_one(count, limit, rates)
            return
        within = _WithinEpoch(self._checkpoints, state, self._ahead, can_cut=runners.skipped is None)
        self._ahead = within.ahead
        if self._checkpoints is not None:
            # standardised weights are rounded on their way into a checkpoint and back
            runners.buffers.load(state.tensors)
        if not batches.is_long:
            updates = self._planned(count, limit)
            numbers = numbers_of_epochs(self._plan, state, batches, count, rates, self._output_unit)
            self._run_planned(updates, limit, numbers, count, within)
            return
        self._run_windows(within, limit, rates)

    def _run_windows(self, within: _WithinEpoch, limit: float | None, rates: np.ndarray | None) -> None:
        """Make the updates of an epoch over many samples."""
        runners, batches, state = self._runners, self._batches, self._state
        with self._long_order() as order:
            within.restore_draws()
            for window in batches.windows:
                if window.stop <= within.first:
                    continue
                updates = batches.window(order, window)
                of_window = None if rates is None else rates[batches.updates_of_window(window)]
                if within.enter(window.start):
                    runners.buffers.load(state.tensors)
                    within.write_first()
                numbers = numbers_of_epochs(
                    self._plan, state, batches, 1, of_window, self._output_unit, window
                )
                if not self._run_planned(updates, limit, numbers, 0, within):
                    return
        objective = within.mean_loss + penalty_value(self._plan, state)
        state.record(np.array([objective]), state.factor * numbers.last_rates(1))
        self._kept.keep(state)

    def _run_planned(
        self,
        updates: EpochPlan,
        limit: float | None,
        numbers: Numbers,
        count: int,
        within: _WithinEpoch,
    ) -> bool:
        """Make the planned updates: those of `count` epochs, which are recorded, or of a window of one.

        Return False if training diverged.
        """
        runners, batches, plan, state = self._runners, self._batches, self._plan, self._state
        if plan.step_spec.takes_scaled_gradient:
            updates = updates.descending(numbers.of_batches(numbers.used))
        losses = np.empty(len(updates.totals))
        losses.fill(math.nan)
        n_before, first = within.begin(losses), state.tensors

        def n_whole(n_done: int) -> int:
            return n_done // batches.n_batches if count else 0

        def advance(n_done: int, n_whole: int) -> bool:
            """Move the state to some batches if they are finite; tell whether they are."""
            tensors = _snapshot(runners)
            known = losses[: n_whole * batches.n_batches if n_done < len(losses) else n_done]
            if not (all_finite(known) and are_finite(tensors)):
                return False
            state.tensors = tensors
            numbers.move(state, n_done)
            keep_objectives(n_whole)
            return True

        def keep_objectives(n_whole: int) -> None:
            """Record the objectives and the rates of whole epochs."""
            if count:
                objectives = updates.mean_losses(losses, count)[:n_whole]
                objectives = objectives + self._penalties(n_whole, first)
                state.record(objectives, state.factor * numbers.last_rates(count)[:n_whole])

        try:
            for part in _parts(len(losses), limit, within.cuts(numbers, len(losses))):
                if part.stop <= within.n_begun:
                    continue
                n_before = part.start
                # all updates stay one object, whose weights a device need not receive again
                plan_of_part = updates if len(losses[part]) == len(losses) else updates.part(part)
                try:
                    runners.fastest.run(plan_of_part, numbers.of_part(part), losses[part])
                finally:
                    numbers.n_skipped += runners.n_skipped
                if limit is not None and not _mean(losses[_compared(part)]) <= limit:
                    break
                if within.has_cuts and part.stop < len(losses):
                    tensors = _snapshot(runners)
                    if not (are_finite(tensors) and all_finite(losses[part])):
                        break
                    runners.buffers.load(tensors)
                    within.write(tensors, numbers, losses[: part.stop])
        except BaseException:
            n_done, t = n_before + runners.fastest.n_done, state.t
            if runners.fastest.is_whole and advance(n_done, n_whole(n_done)) and state.t != t:
                self._kept.keep(state)
            raise
        n_done = n_before + runners.fastest.n_done
        # all losses are looked at in any case
        is_whole = n_done == len(losses) or all_finite(losses[:n_done])
        is_finite = is_whole and advance(n_done, n_whole(n_done))
        if limit is not None and not (is_finite and n_done == len(losses)):
            n_missing = max(1, count) - (n_whole(n_done) if is_finite else 0)
            state.record(np.full(n_missing, math.inf), numbers.used[-n_missing:])
            self._kept.keep(state)
            return False
        if not is_finite:
            n_finite, error = _restore_last_finite(runners, updates, numbers, state, within.n_begun)
            keep_objectives(n_whole(n_finite))
            self._kept.keep(state)
            raise error
        self._kept.keep(state)
        if not count:
            within.add(updates, losses)
        return True

    def _penalties(self, n_epochs: int, first: Tensors) -> float | np.ndarray:
        """Return the penalty after each of the last epochs, which `first` are the weights before.

        Where the weights between two of them are not known, penalties are taken to move evenly.
        """
        plan, state, squares = self._plan, self._state, self._runners.squares
        if n_epochs > 1 and squares is not None:
            known = squares(n_epochs)
            if known is not None:
                ((penalty, _),) = plan.strengths
                return known * (0.5 * (penalty.l2 or 0.0))
        last = penalty_value(plan, state)
        if n_epochs < 2 or not plan.penalties:
            return last
        weights = {name: array for (name, kind), array in first.items() if kind == WEIGHT}
        return np.linspace(penalty_value(plan, state, weights), last, n_epochs + 1)[1:]

    def progress(self) -> Progress:
        """Return the orders of the samples that are drawn, but not used yet."""
        return {"ahead": self._ahead}

    def resume(self, progress: Progress) -> None:
        """Continue with these orders."""
        check_orders(progress["ahead"], len(self._batches.target), "epochs.ahead")
        self._ahead = progress["ahead"]

    def check_position(self, position: Position) -> None:
        """Refuse a place of other epochs."""
        batches, begun = self._batches, position.begun
        check_form(begun, WindowBegun if batches.is_long else EpochBegun, "position.begun")
        check_orders(begun["ahead"], len(batches.target), "position.begun.ahead")
        first = begun["window"][0] if batches.is_long else 0
        n_batches = [w.stop - w.start for w in batches.windows if w.start == first]
        require(bool(n_batches), "position.begun.window", "the first batch of a window, and sums before it")
        n_done, n_losses = position.n_batches, check_losses(position.losses, "position.losses")
        require(n_done < n_batches[0], "position.n_batches", f"below the {n_batches[0]} batches of the epoch")
        require(n_done == n_losses, "position.losses", f"an array of {n_done} losses")

    def _run_one_by_one(self, count: int, limit: float | None, rates: np.ndarray | None) -> None:
        """Make epochs whose numbers depend on the number of updates that earlier ones skipped."""
        length = self._batches.n_updates
        of_epochs = [None if rates is None else rates[i * length : (i + 1) * length] for i in range(count)]
        for number, of_epoch in enumerate(of_epochs, start=1):
            self.run(limit=limit, rates=of_epoch)
            if limit is not None and math.isinf(self._state.loss_curve[-1]):
                last = self._state.learning_rates[-1]
                self._state.record(np.full(count - number, math.inf), np.full(count - number, last))
                break

    def _planned(self, count: int, limit: float | None) -> EpochPlan:
        """Return the batches of the next `count` epochs.

        Where a device has the data, the host draws the order of an epoch while the one before it is trained,
        unless other numbers of the epochs are drawn after all orders, or the updates are made in several
        parts: these do not end with epochs, and some may be left out, though all orders are drawn.
        """
        is_one_part = limit is None or count * self._batches.n_batches <= _PART
        draws = self._plan.step_spec.draws
        if count > 1 and is_one_part and self._plan.device.keeps_data and not draws:
            drawn = self._batches.plan_of_drawn(lambda: self._orders(1), count)
            if drawn is not None:
                return drawn
        return self._batches.plan(self._orders(count))

    def _orders(self, count: int) -> np.ndarray:
        """Return the order of the samples in each of the next `count` epochs."""
        if not self._plan.recipe.shuffle:
            return np.tile(np.arange(len(self._batches.target)), (count, 1))
        while len(self._ahead) < count:
            drawn = self._drawn(count - len(self._ahead))
            self._ahead = np.concatenate([self._ahead, drawn]) if len(self._ahead) else drawn
        self._last, self._ahead = self._ahead[:count], self._ahead[count:]
        return self._last

    def _drawn(self, count: int) -> np.ndarray:
        """Draw the orders of `count` epochs, or of more."""
        batches, random_state = self._batches, self._state.random_state
        n_samples = len(batches.target)
        if batches.blocks is not None:
            return np.stack([batches.block_order(random_state)[:] for _ in range(count)])
        if batches.is_mixed:
            return _shifted(self._drawn_together, batches.cuts.n_rows, random_state)
        return shuffled((self._drawn_together, n_samples), random_state)

    def put_back(self) -> None:
        """Return the orders of the last call to :meth:`run` to those of the next epochs."""
        self._last, self._ahead = self._last[:0], np.concatenate([self._last, self._ahead])

    @contextmanager
    def _long_order(self) -> Iterator[np.ndarray | BlockOrder | None]:
        """Yield the order of many samples in the next epoch; None: that of the data."""
        batches, random_state = self._batches, self._state.random_state
        if not self._plan.recipe.shuffle:
            yield None
        elif batches.blocks is None:
            yield shuffled((1, len(batches.target)), random_state)[0]
        else:
            reader = batches.blocks.reader()
            with nullcontext() if reader is None else closing(reader):
                yield batches.block_order(random_state, reader)


class _WithinEpoch:
    """The checkpoints inside an epoch, and the place from which it continues.

    Parameters
    ----------
    checkpoints : Checkpoints or None
        Writes them; None: there are none.
    state : FitState
        The state before the epoch; its weights become those of each checkpoint.
    ahead : ndarray
        The orders of the samples that are drawn then.
    can_cut : bool
        Whether epochs may be cut; not where updates are skipped, which moves the numbers of later ones.
    """

    def __init__(
        self, checkpoints: Checkpoints | None, state: FitState, ahead: np.ndarray, *, can_cut: bool
    ) -> None:
        self._checkpoints, self._state, self.ahead = checkpoints, state, ahead
        self._begun: dict[str, Any] = {}
        #: The batches that an earlier fit has made, or that have a checkpoint.
        self.n_begun = 0
        #: The first batch of the window in which the epoch continues; the weight and the losses before it.
        self.first, self._total, self._loss = 0, 0.0, 0.0
        self.has_cuts = checkpoints is not None and checkpoints.every.is_within_epochs and can_cut
        # an earlier fit may have had checkpoints inside epochs where this one has none
        self._position = None if checkpoints is None else checkpoints.take_position()
        if self._position is not None:
            self._begun = dict(self._position.begun)
            self.ahead = self._begun["ahead"]
            vars(state).update(self._begun["state"])
            self.first, self._total, self._loss = self._begun.get("window", (0, 0.0, 0.0))
            state.random_state.set_state(self._begun["generator"].get_state())
        elif self.has_cuts:
            numbers = {name: getattr(state, name) for name in _MOVED}
            self._begun = {"ahead": ahead, "state": numbers, "generator": copied(state.random_state)}

    def restore_draws(self) -> None:
        """Continue with the draws of the window in which the epoch continues, after that of its order."""
        if "draws" in self._begun:
            self._state.random_state.set_state(self._begun["draws"].get_state())

    def enter(self, first: int) -> bool:
        """Begin a window of an epoch over many samples; return whether there may be a checkpoint before it.

        Parameters
        ----------
        first : int
            The first batch of the window.
        """
        self.n_begun = 0
        is_place = False
        if self.has_cuts and self._position is None and self._checkpoints is not None:
            is_place = first > 0 and self._checkpoints.is_position(self._state.t - 1, self._state.t)
            self._begun |= {
                "window": (first, self._total, self._loss),
                "state": {name: getattr(self._state, name) for name in _MOVED},
                "draws": copied(self._state.random_state),
            }
        return is_place

    def write_first(self) -> None:
        """Write a checkpoint at the beginning of a window, if it is time."""
        if self._checkpoints is not None:
            self._checkpoints.within_epoch(self._state.copy(), Position(0, np.empty(0), dict(self._begun)))

    def add(self, updates: EpochPlan, losses: np.ndarray) -> None:
        """Add the losses of a window."""
        self._total += updates.total
        self._loss += updates.total * float(np.add.reduce(losses * updates.totals))

    @property
    def mean_loss(self) -> float:
        """The mean loss of the windows."""
        return self._loss / self._total

    def begin(self, losses: np.ndarray) -> int:
        """Put in the losses of batches that an earlier fit has made; return their number."""
        if self._position is not None:
            self.n_begun = self._position.n_batches
            losses[: self.n_begun] = self._position.losses
            self._position = None
        return self.n_begun

    def cuts(self, numbers: Numbers, n_batches: int) -> list[int]:
        """Return after how many batches the epoch continues, and after how many there may be a checkpoint."""
        found = [self.n_begun] if self.n_begun else []
        if not self.has_cuts or self._checkpoints is None:
            return found
        updates = self._checkpoints.every.positions(self._state.t, numbers.n_begun(n_batches))
        batches = updates if numbers.updates is None else np.searchsorted(numbers.updates, updates)
        return sorted({*found, *batches.tolist()})

    def write(self, tensors: Tensors, numbers: Numbers, losses: np.ndarray) -> None:
        """Write a checkpoint after some batches, if it is time."""
        self._state.tensors, self.n_begun = tensors, len(losses)
        moved = self._state.copy()
        numbers.move(moved, len(losses))
        if self._checkpoints is not None:
            self._checkpoints.within_epoch(moved, Position(len(losses), losses.copy(), self._begun))


def _parts(n_batches: int, limit: float | None, cuts: list[int]) -> list[slice]:
    """Return the parts of some batches: up to a cut, or to a comparison of the loss with the limit."""
    if not cuts and (limit is None or n_batches <= _PART):
        return [slice(0, n_batches)]
    ends = {*cuts, n_batches}
    if limit is not None and not math.isinf(limit):
        ends |= set(range(_PART, n_batches, _PART))
    ordered = sorted(ends)
    return [slice(*ends) for ends in zip([0, *ordered], ordered, strict=False)]


def _mean(losses: np.ndarray) -> float:
    """Return the mean, for which numpy's method takes longer than a small update."""
    return float(np.add.reduce(losses)) / len(losses)


def _compared(part: slice) -> slice:
    """Return the updates up to the end of a part whose mean loss is compared with the limit."""
    return slice((part.stop - 1) // _PART * _PART, part.stop)


def _shifted(count: int, n_rows: np.ndarray, random_state: np.random.RandomState) -> np.ndarray:
    """Return orders of the samples of batches of `n_rows`: runs of neighbours, from a random sample on.

    The batches of an epoch are then parts of the data, which need no copy.
    """
    n, n_runs = int(n_rows.sum()), len(n_rows)
    shift = random_state.randint(n, size=(count, 1))
    runs = shuffled((count, n_runs), random_state).astype(np.intp, copy=False)
    # the runs lie in the data as drawn, and have the lengths of their batches
    lengths = np.empty_like(runs)
    np.put_along_axis(lengths, runs, n_rows[None, :], axis=1)
    starts = np.take_along_axis(lengths.cumsum(axis=1) - lengths, runs, axis=1)
    within = np.arange(n) - (n_rows.cumsum() - n_rows).repeat(n_rows)
    orders: np.ndarray = starts.repeat(n_rows, axis=1) + within + shift
    orders[orders >= n] -= n
    return orders


@dataclass
class Numbers:
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

    def of_updates(self, updates: slice) -> Numbers:
        """Return the numbers of some of the updates, of one batch each, that depend on their count alone."""
        return Numbers(self.table[updates], self.rates[updates], self.used[updates], {}, {})

    def last_rates(self, n_epochs: int) -> np.ndarray:
        """Return the rate of the last update of each epoch."""
        if self.n_skipped:
            return self.used[[max(0, len(self.used) - 1 - self.n_skipped)]]
        return self.used[-1:] if n_epochs == 1 else self.used.reshape(n_epochs, -1)[:, -1]

    def of_batches(self, numbers: np.ndarray) -> np.ndarray:
        """Return numbers of updates for their batches."""
        return numbers if self.updates is None else numbers[self.updates]

    def n_begun(self, n_batches: int) -> int:
        """Return the number of updates that so many batches belong to."""
        return n_batches if self.updates is None or not n_batches else int(self.updates[n_batches - 1]) + 1

    def n_made(self, n_batches: int) -> int:
        """Return the number of updates that so many batches complete."""
        if self.updates is None:
            return n_batches
        if not 0 < n_batches < len(self.updates):
            return self.n_begun(n_batches)
        return int(self.updates[n_batches])

    def move(self, state: FitState, n_batches: int) -> None:
        """Advance `state` by the updates that so many batches complete, less the skipped ones."""
        n_updates = self.n_made(n_batches) - self.n_skipped
        if n_updates > 0:
            state.t += n_updates
            state.eta = float(self.rates[n_updates - 1])
            last, state.l1_totals, state.missed = n_updates - 1, {}, {}
            if self.l1_totals:
                state.l1_totals = {name: float(totals[last]) for name, totals in self.l1_totals.items()}
            if self.missed:
                missed = {name: int(counts[last]) for name, counts in self.missed.items()}
                state.missed = {name: count for name, count in missed.items() if count}


def numbers_of_epochs(
    plan: FitPlan,
    state: FitState,
    batches: Batches,
    n_epochs: int,
    rates: np.ndarray | None,
    unit: float,
    window: slice | None = None,
) -> Numbers:
    """Return the numbers of the next `n_epochs` epochs, with these rates, or else those of the schedule.

    Rates of an even last layer have the given unit. With `window`, numbers of its batches of an epoch.
    """
    recipe, count = plan.recipe, n_epochs * batches.n_updates
    if window is not None:
        of_window = batches.updates_of_window(window)
        count = of_window.stop - of_window.start
    t = np.arange(state.t + 1 - state.slots_from, state.t + 1 - state.slots_from + count, dtype=np.float64)
    if rates is None:
        rates = recipe.schedule.rates(state.t + 1, state.eta, count)
    used = recipe.schedule.for_batches(rates, batches.batch_size * batches.n_accumulated)
    spec = plan.step_spec
    numbers: dict[str, ArrayLike] = {}
    l1_totals: dict[str, np.ndarray] = {}
    missed: dict[str, np.ndarray] = {}
    for number, group in enumerate(plan.groups):
        found = group.numbers(recipe, state, t, used, batches.n_updates)
        if spec.output_weights:
            found.numbers[OUTPUT_RATE] = np.multiply(found.numbers[RATE], unit)
        if spec.l1:
            l1, penalised = group.penalty.l1 or 0.0, plan.penalised(group)
            before = state.l1_totals.get(penalised[0], 0.0) if penalised else 0.0
            totals = before + np.cumsum(found.rates * l1)
            l1_totals |= dict.fromkeys(penalised, totals)
            found.numbers.update({L1_STRENGTH: l1, L1_TOTAL: totals})
        if found.missed is not None:
            missed |= dict.fromkeys(group.weights, found.missed)
        if number:
            numbers |= {numbered(name, number): values for name, values in found.numbers.items()}
        else:
            numbers = found.numbers
    if recipe.average_from:
        first = state.first_averaged(recipe.average_from)
        numbers[AVERAGE_RATE] = average_rate(t + state.slots_from, first, recipe.average_decay)
    numbers.update(recipe.limits)
    numbers[DESCENT], numbers[IS_LAST] = -used, 1.0
    if spec.draws:
        numbers |= dict.fromkeys(KEYS, 0.0)
    table = np.empty((count, len(spec.scalars)))
    for column, name in enumerate(spec.scalars):
        table[:, column] = numbers[name]
    updates = batches.updates_of_batches(n_epochs, window)
    if updates is not None:
        # averages move with the last batch of an update
        table, is_earlier = table[updates], np.diff(updates, append=count) == 0
        for name in {IS_LAST, AVERAGE_RATE}.intersection(spec.scalars):
            table[is_earlier, spec.scalars.index(name)] = 0.0
    if spec.draws:
        # anew for each batch of an update too
        for name, drawn in draw_keys(state.random_state, len(table)).items():
            table[:, spec.scalars.index(name)] = drawn
    return Numbers(table, rates, used, l1_totals, missed, updates, spec.scalars_of_batches)


def _restore_last_finite(
    runners: Runners, epoch: EpochPlan, numbers: Numbers, state: FitState, n_begun: int
) -> tuple[int, ConvergenceError]:
    """Repeat the epoch, or several, from `n_begun` batches on up to the last finite weights.

    Return the number of their batches, and the error.

    Repeating costs time only when training has failed anyway; keeping a copy of the weights at each
    update would cost time always.
    """
    numbers.n_skipped = 0
    loss, single = np.full(1, math.nan), runners.single()
    n_finite = n_done = n_begun
    runners.buffers.load(state.tensors)
    for number in range(n_begun, len(epoch.totals)):
        part = slice(number, number + 1)
        single.run(epoch.part(part), numbers.of_part(part), loss)
        n_done = number + 1
        numbers.n_skipped += runners.n_skipped
        tensors = _snapshot(runners)
        if not math.isfinite(loss[0]) or not are_finite(tensors):
            break
        state.tensors, n_finite = tensors, n_done
    failed = numbers.n_begun(n_done) - 1
    failed_at, rate = state.t + failed + 1, numbers.used[failed]
    numbers.move(state, n_finite)
    return n_finite, last_finite_error(state, failed_at, rate)


def last_finite_error(state: FitState, failed_at: int, rate: float) -> ConvergenceError:
    """Return the error of an update whose loss or weights are not finite; `state` is that before it."""
    return ConvergenceError(
        f"The loss or the weights are no longer finite at update {failed_at}, with learning rate {rate:.6g}. "
        f"The estimator keeps the last finite weights, those of update {state.t}. Scale the data, or lower "
        "the learning rate."
    )


def _snapshot(runners: Runners) -> Tensors:
    """Return the present weights and states, without the sums and counts of one call."""
    tensors = runners.buffers.snapshot()
    for key in [key for key in tensors if key[1] in _OF_ONE_CALL]:
        del tensors[key]
    return tensors


def penalty_value(plan: FitPlan, state: FitState, weights: Mapping[str, np.ndarray] | None = None) -> float:
    """Return the penalty of weights; None: of those of `state`, which also has the first ones."""
    total = 0.0
    for penalty, names in plan.strengths:
        total += penalty.value(
            [state.tensors[name, WEIGHT] if weights is None else weights[name] for name in names],
            [state.tensors[name, START] for name in names] if penalty.from_start else None,
            [plan.input_axes[name] for name in names] if penalty.groups else None,
        )
    return total


def are_finite(tensors: Tensors) -> bool:
    """Tell whether all numbers are finite, and the gradients are at some scale of the loss."""
    scale = tensors.get((SCALER, LOSS_SCALE))
    if scale is not None and not scale >= LEAST_SCALE:
        return False
    arrays = list(tensors.values())
    if arrays and sum(map(_size, arrays)) <= _FEW_NUMBERS:
        # one look takes less time than one for each
        return all_finite(joined(arrays))
    return all(map(all_finite, arrays))
