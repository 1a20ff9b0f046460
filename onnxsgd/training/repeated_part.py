"""Parts of a stream that have the shape of an earlier one, learned with few calls of Python.

Small parts take as long as the code around their updates. All that depends on the shapes alone is known from
the first part that has them. The numbers are those of the general way, which learns all other parts.
"""

from __future__ import annotations

import math
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxsgd._records import record
from onnxsgd.data.generators import position, put_back
from onnxsgd.data.random_order import shuffled
from onnxsgd.engine.step.batches import Batches, EpochPlan
from onnxsgd.engine.step.step_spec import OUTPUT_RATE
from onnxsgd.optimizers import LOG_FACTOR
from onnxsgd.runtime.cache import KnownEntry
from onnxsgd.runtime.events import are_detailed
from onnxsgd.schedules import Schedule
from onnxsgd.training.coordinates import BuffersInPlace
from onnxsgd.training.epochs import Numbers, numbers_of_epochs, penalty_value
from onnxsgd.training.jumps import renew
from onnxsgd.training.start import is_due
from onnxsgd.training.state import (
    FitState,
    has_comparable_losses,
    is_far_above,
    mean_factor,
    mean_weight,
    output_unit,
)

if TYPE_CHECKING:
    from onnxsgd.data.features import Features
    from onnxsgd.engine.step.idle_runners import IdleRunners
    from onnxsgd.training.fit_plan import FitPlan
    from onnxsgd.training.program import KnownStep, Path, Program

__all__ = ["RepeatedPart", "is_dense", "parts_ahead", "repeats_parts"]

#: The methods of a schedule whose rates depend on losses, or on the number of updates of a fit.
_OF_LOSSES_AND_LENGTHS = ("after_epoch", "for_epochs", "for_updates")
#: The updates whose numbers are made at once, where they depend on their count alone: a bound of memory.
_UPDATES_AHEAD = 128


def repeats_parts(plan: FitPlan) -> bool:
    """Tell whether the parts of a stream may be learned in this way, on small dense tables."""
    recipe, spec = plan.recipe, plan.step_spec
    kind = type(recipe.schedule)
    is_fixed = all(getattr(kind, name) is getattr(Schedule, name) for name in _OF_LOSSES_AND_LENGTHS)
    return recipe.in_parts and is_fixed and plan.loss.is_formula and not spec.scales_loss


def parts_ahead(plan: FitPlan, n_updates: int) -> int:
    """Return for how many parts of so many updates their numbers are made at once.

    Those of several, where they depend on the count of updates alone: rates that training finds are equal.
    """
    recipe, spec = plan.recipe, plan.step_spec
    has_history = spec.l1 or spec.draws or any(group.has_rate for group in plan.groups)
    is_counted = recipe.is_auto and not (has_history or recipe.average_from)
    return max(1, _UPDATES_AHEAD // n_updates) if is_counted else 1


def is_dense(program: Program, state: FitState) -> bool:
    """Tell whether the columns of all first layers were dense in all parts so far."""
    return all(state.moments[name].is_full for name, _, _ in program.columns_of_layers)


@record
class RepeatedPart:
    """A part of a stream that has the shape of an earlier one: small dense tables.

    Attributes
    ----------
    known, path, n_threads : KnownStep, Path, int
        The step, the way of its updates, and its threads.
    constants : tuple of (str, str)
        The weights with constant states, and these.
    rate : float
        The rate of streams that find it.
    has_rate_scales : bool
        Whether the rates of some weights have factors of their own.
    n_ahead : int
        The parts whose numbers are made at once.
    batch_size : int
        Rows of a batch.
    is_mean, in_windows : bool
        See :class:`~.batches.Batches`.
    takes_scaled_gradient : bool
        See :class:`~.step_spec.StepSpec`.
    """

    known: KnownStep
    path: Path
    n_threads: int
    constants: tuple[tuple[str, str], ...]
    rate: float
    has_rate_scales: bool
    n_ahead: int
    batch_size: int
    is_mean: bool
    in_windows: bool
    takes_scaled_gradient: bool
    #: The runners of the step that no fit uses.
    _idle: KnownEntry[IdleRunners] = field(default_factory=KnownEntry)
    #: The first update, counted from the begin of the slots, and the numbers of this and later parts.
    _ahead: list[tuple[int, Numbers]] = field(default_factory=list)
    #: The weights of the samples of the last part, and their mean.
    _means: list[tuple[np.ndarray, float]] = field(default_factory=list)
    #: Even weights of the samples of the last part, their unit, and those of its batches.
    _even: list[tuple[np.ndarray, float | None, Any]] = field(default_factory=list)

    def learn(
        self, program: Program, state: FitState, features: Features, target: np.ndarray, weight: np.ndarray
    ) -> bool:
        """Learn a part; return False if the general way is to learn it: the state is then as it was.

        Where training finds the rate, the caller has the context of :func:`~.moments.quiet_squares`: one
        context takes less time than several.

        Parameters
        ----------
        program : Program
            The model, on data of this shape.
        state : FitState
            The state of the stream, changed if all went well.
        features : dict of ndarray
            The data.
        target : ndarray
            The target, encoded for the loss.
        weight : ndarray of shape [n_samples]
            The weights of the samples.
        """
        plan = program.plan
        recipe = plan.recipe
        if are_detailed("batches", "cache", "path", "threads"):
            # which this way leaves out
            return False
        made = program.tail_features(features)
        typed = program.typed_target(target, made)
        batches = Batches(
            made, typed, weight, self.batch_size, self.is_mean, in_windows=self.in_windows,
            is_even=program.divides_evenly,
        )  # fmt: skip
        after = state.copy()
        if recipe.is_auto:
            renew(after, program, batches)
            begins = (plan.learner.weights[0], LOG_FACTOR) not in after.tensors
            if begins or not is_dense(program, after) or is_due(after, len(weight)):
                # the stream begins, has had sparse parts, or is judged
                return False
            after.count_rows(weight, self._mean(weight))
            program.add_target(after.moments, target, weight)
            batches = program.standardised(batches, after.moments, after.mean_weight)
            after.eta = self.rate
        coordinates = program.coordinates(after, batches, has_rate_scales=self.has_rate_scales)
        if coordinates.constant_keys() != self.constants:
            return False
        idle = self._idle.find(partial(program.compiled, self.known, self.n_threads))
        runners = program.bound(idle, self.path, self.known, self.n_threads, batches, after.tensors)
        buffers: Any = runners.buffers
        if self.constants:
            # weights beyond the range of their type are found below
            buffers = BuffersInPlace(buffers, coordinates, self.constants)
        buffers.load(after.tensors)
        n_samples, place = len(weight), position(state.random_state)
        order = shuffled((1, n_samples), state.random_state) if recipe.shuffle else np.arange(n_samples)
        updates = self._plan(batches, order)
        numbers = self._numbers(plan, after, batches, len(updates.totals))
        if self.takes_scaled_gradient:
            updates = updates.descending(numbers.used)
        losses = np.empty(len(updates.totals))
        runners.fastest.run(updates, numbers.table, losses)
        mean_loss = updates.mean_loss(losses) if runners.fastest.n_done == len(losses) else math.nan
        tensors = buffers.finite_snapshot() if math.isfinite(mean_loss) else None
        if runners.give_back is not None:
            runners.give_back()
        if tensors is None:
            # the general way draws the same order, and finds the last finite weights
            put_back(state.random_state, place)
            return False
        after.tensors = tensors
        penalty = penalty_value(plan, after)
        is_judged = recipe.is_auto and has_comparable_losses(plan, n_samples)
        if is_judged and is_far_above(mean_loss, state.loss_curve, penalty):
            # the general way tells whether training diverged, and whether the part is left out
            put_back(state.random_state, place)
            return False
        numbers.move(after, len(losses))
        # the property of a state looks at all tensors
        names = plan.learner.weights if recipe.is_auto else ()
        factor = mean_factor([tensors[name, LOG_FACTOR] for name in names])
        after.record_part(mean_loss + penalty, factor * float(numbers.used[-1]))
        vars(state).update(vars(after))
        return True

    def _mean(self, weight: np.ndarray) -> float:
        """Return the mean of the weights of the samples: weights that are not given are one object."""
        for known, mean in self._means:
            if known is weight:
                return mean
        mean = mean_weight(weight)
        self._means[:] = [(weight, mean)]
        return mean

    def _numbers(self, plan: FitPlan, state: FitState, batches: Batches, n_updates: int) -> Numbers:
        """Return the numbers of the updates: those that depend on their count alone are made ahead."""
        spec = plan.step_spec
        unit = output_unit(plan, state) if spec.output_weights else 1.0
        if self.n_ahead == 1:
            return numbers_of_epochs(plan, state, batches, 1, None, unit)
        first = state.t - state.slots_from
        start, ahead = self._ahead[0] if self._ahead else (first, None)
        if ahead is None or not start <= first <= start + len(ahead.table) - n_updates:
            start, ahead = first, numbers_of_epochs(plan, state, batches, self.n_ahead, None, 1.0)
            # one assignment, as other threads may learn such a part too
            self._ahead[:] = [(start, ahead)]
        numbers = ahead.of_updates(slice(first - start, first - start + n_updates))
        if spec.output_weights:
            numbers.table = numbers.table.copy()
            numbers.table[:, spec.scalars.index(OUTPUT_RATE)] *= unit
        return numbers

    def _plan(self, batches: Batches, order: np.ndarray) -> EpochPlan:
        """Return the batches of an epoch in this order: weights that are not given are one object."""
        for weight, unit, of_epoch in self._even:
            if weight is batches.sample_weight and unit == batches.weight_unit:
                rows = batches.filled(order.reshape(1, -1))
                return EpochPlan(rows.reshape(-1, self.batch_size), *of_epoch)
        updates = batches.plan(order)
        if batches.has_even_weights:
            of_epoch = updates.sample_weight, updates.factors, updates.totals
            # one assignment, as other threads may learn such a part too
            self._even[:] = [(batches.sample_weight, batches.weight_unit, of_epoch)]
        return updates
