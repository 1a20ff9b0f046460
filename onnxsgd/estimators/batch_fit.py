"""Training on the batches of an iterable."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypedDict, cast

import numpy as np

from onnxsgd._declared_types import Count
from onnxsgd.data.batch_source import Batch, BatchSource, is_batch_source
from onnxsgd.data.generators import copied
from onnxsgd.data.samples import Samples
from onnxsgd.estimators.before_fit import ModelBeforeFit
from onnxsgd.estimators.labels import UnknownClassesError
from onnxsgd.estimators.parameters import refuse_blocks
from onnxsgd.exceptions import ParameterError
from onnxsgd.runtime.stages import stage
from onnxsgd.training.checkpoints import Checkpoints, Position, Progress
from onnxsgd.training.fit_plan import DENSE_ROWS, FitPlan, Recipe
from onnxsgd.training.gain import Gain
from onnxsgd.training.loop import Observer, run_epochs
from onnxsgd.training.progress_forms import BatchesBegun, check_form, check_losses, require
from onnxsgd.training.rules import REMEDY, PlateauRule
from onnxsgd.training.state import FitState
from onnxsgd.training.stopping import Stopping

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from onnxsgd.losses import Loss
    from onnxsgd.training.kept_state import KeptState
    from onnxsgd.training.program import Program

__all__ = ["BatchTraining"]

#: Updates without gain after which training at a steered rate ends: those of a few batches tell no trend.
_LEAST_UPDATES = 64


class BatchTraining(ModelBeforeFit):
    """The half of the base class that trains on batches of an iterable."""

    batch_size: int | None
    max_iter: int
    steps_per_epoch: int | None
    shuffle: bool | str
    early_stopping: bool
    gradient_accumulation_steps: int
    n_iter_: int

    @abstractmethod
    def _make_loss(self) -> Loss:
        """Return the loss as an object."""

    @abstractmethod
    def _train(
        self,
        plan: FitPlan,
        stopping: Stopping,
        samples: Samples,
        validation: Sequence[Samples] = (),
        observers: Sequence[Observer] = (),
        *,
        is_fit: bool = False,
        kept: KeptState,
    ) -> None:
        """Train on checked samples; `kept` receives each whole state."""

    @abstractmethod
    def _scorer(self, program: Program, validation: Sequence[Samples]) -> Any:
        """Return the score as a function of weights; None without validation data."""

    def _check_parts(self) -> None:
        """Refuse parameters that need all of the data at once."""

    def _labels_of(self, batches: Iterable[Batch]) -> ArrayLike | None:
        """Return the labels in all batches; None in a regression."""
        return None

    def _batch_source(self, X: object, y: object, sample_weight: object, X_val: object) -> BatchSource | None:
        """Return the batches of an iterable, or None for data that are given as a whole.

        Raises
        ------
        ParameterError
            If other arguments or parameters do not go with batches, or with data as a whole.
        """
        if y is not None or not is_batch_source(X):
            if y is not None and not isinstance(X, Iterator | Sequence) and is_batch_source(X):
                raise ParameterError(
                    f"X is of type {type(X).__name__}, an iterable of batches, which have targets of their "
                    "own: leave y out, fit(X)."
                )
            if self.steps_per_epoch is not None:
                raise ParameterError(
                    f"steps_per_epoch={self.steps_per_epoch!r} counts the batches of an iterable, as in "
                    f"fit(batches), and X is of type {type(X).__name__}: leave it None."
                )
            return None
        self._check_parts()
        refuse_blocks(self.shuffle, "is an iterable of batches")
        source = self._new_source(X, sample_weight)
        if self.early_stopping and X_val is None:
            raise ParameterError(
                "early_stopping=True needs X_val and y_val here: no part of the batches is held out."
            )
        return source

    def _new_source(self, X: object, sample_weight: object) -> BatchSource:
        """Return the batches of an iterable, which have weights of their own."""
        if sample_weight is not None:
            raise ParameterError(
                "sample_weight goes with data as a whole: batches have their own, (X, y, sample_weight)."
            )
        return BatchSource(
            cast("Iterable[object]", X), self.steps_per_epoch,
            None if self.batch_size is None else int(self.batch_size),
            int(self.gradient_accumulation_steps),
        )  # fmt: skip

    def _read_first_batch(self, source: BatchSource, resuming: bool) -> Samples:
        """Check the first batch, which determines the graph."""
        first = source.first()
        try:
            return self._read_first(first, resuming, source.aside if source.is_repeatable else None)
        except ValueError as error:
            source.advise(error)
            raise

    def _read_first(
        self,
        first: Batch,
        resuming: bool,
        everything: Callable[[], Iterable[Batch]] | None,
        classes: ArrayLike | None = None,
    ) -> Samples:
        """Check the first batch; labels that it may lack are those of `everything`, if that can be read."""
        if first.sample_weight is not None and not np.any(first.sample_weight):
            first = replace(first, sample_weight=None)
        try:
            return self._read_batch(first, resuming=resuming, classes=classes)
        except UnknownClassesError:
            if everything is None:
                raise
            return self._read_batch(first, resuming=resuming, classes=self._labels_of(everything()))

    def _read_batch(
        self, batch: Batch, *, resuming: bool = True, classes: ArrayLike | None = None
    ) -> Samples:
        return self._read_samples(
            batch.X, batch.y, batch.sample_weight, resuming=resuming, classes=classes, in_parts=True
        )

    def _read_counting(self, batch: Batch) -> tuple[Samples, float] | None:
        """Check a batch; return it with the weight that its loss has in the epoch, None if nothing counts."""
        if batch.is_weightless:
            return None
        samples = self._read_batch(batch)
        weight, counted = samples.weight, self._counted(samples.target)
        for factor in (self._extra_weight(samples.target), counted):
            weight = weight if factor is None else weight * factor
        return (samples, float(weight.sum())) if weight.any() else None

    def _count_updates(self, source: BatchSource, n_first: int, recipe: Recipe) -> None:
        """Set the numbers of updates of an epoch and of all, as far as they are known.

        Raises
        ------
        ParameterError
            If the schedule needs a number that is not known.
        """
        state = self._state
        if source.n_batches is not None:
            n_parts = -(-source.n_batches // source.n_joined)
            is_one = source.is_cut or self.batch_size is None
            state.epoch_updates = n_parts * (1 if is_one else -(-n_first // int(self.batch_size or 1)))
            state.n_updates = int(self.max_iter) * state.epoch_updates
        recipe.for_updates(state.n_updates, state.epoch_updates)

    def _train_on_batches(
        self,
        source: BatchSource,
        plan: FitPlan,
        stopping: Stopping,
        n_first: int,
        validation: Sequence[Samples],
        observers: Sequence[Observer],
        kept: KeptState,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """Train for epochs of batches, each of them a part of a stream; the first one has `n_first` rows."""
        from onnxsgd.training.program import make_program

        state = self._state
        size = int(self.batch_size or 0) or (DENSE_ROWS if source.is_cut else None)
        # a mean also over the only sample of a batch
        plan = replace(
            plan, batch_size=size or max(2, n_first), is_exact=True,
            # losses of elements have fixed sizes
            has_lengths=source.is_cut and not self._follows_lengths,
        )  # fmt: skip

        def train_part(parts: list[Samples], largest: int) -> None:
            nonlocal plan
            if size is None and largest > plan.batch_size:
                plan = replace(plan, batch_size=largest)
            if self._n_outputs != plan.n_outputs:
                plan = replace(plan, n_outputs=self._n_outputs, loss=self._make_loss())
            part = Stopping(1, None, in_parts=True, in_epoch=True)
            self._train(plan, part, Samples.joined(parts), kept=kept)

        def count(n_updates: int) -> None:
            # before an epoch, batches are taken for as large as the first one
            if state.n_updates is not None and not stopping.in_parts:
                state.epoch_updates, state.n_updates = n_updates, n_updates * stopping.max_iter
                rule.schedule = plan.recipe.for_updates(state.n_updates, state.epoch_updates).schedule

        score = self._scorer(make_program(plan, validation[0].features), validation) if validation else None
        least = _LEAST_UPDATES if plan.recipe.is_auto else 0
        schedule = plan.recipe.for_updates(state.n_updates, state.epoch_updates).schedule
        gain = None
        if not stopping.in_parts:
            of_scores, remedy = score if stopping.on_score else None, REMEDY if plan.recipe.is_auto else None
            first = state.weights() if kept.first is None else kept.first
            gain = Gain(state, first, stopping.tol, plan.recipe.average_from, score=of_scores, remedy=remedy)
        rule = PlateauRule(stopping, schedule, state, least, gain=gain)
        epochs = _BatchEpochs(
            source, source.n_joined, self._read_counting, train_part, count, state, checkpoints
        )
        with stage("train"):
            run_epochs(
                epochs, rule, stopping, state, plan.recipe.average_from, observers, score, checkpoints, kept
            )
        self._publish()


class _BatchProgress(TypedDict):
    """The progress of :class:`_BatchEpochs`: whether the next epoch is the first; the rows of a batch."""

    is_first: bool
    largest: Count


class _BatchEpochs:
    """Epochs over the batches of an iterable: each batch is trained as a part of a stream.

    Parameters
    ----------
    source : BatchSource
        The batches.
    n_joined : int
        The number of batches that are trained together.
    read : callable
        Checks a batch; returns it with its weight, or None if nothing of it counts.
    train : callable
        Trains on checked batches, given also the rows of the largest so far; it records an objective in the
        state.
    count : callable
        Receives the number of updates of the first epoch.
    state : FitState
        The state, whose records of batches become one of the epoch.
    checkpoints : Checkpoints or None
        Those inside epochs, if any.
    """

    form = _BatchProgress

    def __init__(
        self,
        source: BatchSource,
        n_joined: int,
        read: Callable[[Batch], tuple[Samples, float] | None],
        train: Callable[[list[Samples], int], None],
        count: Callable[[int], None],
        state: FitState,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self._source, self._n_joined, self._read = source, n_joined, read
        self._train, self._count, self._state = train, count, state
        self._checkpoints = checkpoints
        self._is_first, self._largest, self._n_read = True, 0, 0

    def progress(self) -> Progress:
        """Return what the epochs know of the batches."""
        return {"is_first": self._is_first, "largest": self._largest}

    def resume(self, progress: Progress) -> None:
        """Continue with batches of these sizes."""
        self._is_first, self._largest = progress["is_first"], progress["largest"]
        if not self._is_first and self._state.epoch_updates is not None:
            self._count(self._state.epoch_updates)

    def check_position(self, position: Position) -> None:
        """Refuse a place of other epochs."""
        begun, n_read, most = position.begun, position.n_batches, self._source.n_batches
        check_form(begun, BatchesBegun, "position.begun")
        n_losses = check_losses(position.losses, "position.losses")
        require(most is None or n_read <= most, "position.n_batches", f"one of the {most} batches")
        require(0 < n_losses <= n_read, "position.losses", f"a vector of 1 to {n_read} losses")
        weights = begun["weights"]
        is_right = len(weights) == n_losses and min(weights) > 0
        require(is_right, "position.begun.weights", f"a list of {n_losses} weights above 0")
        require(begun["t"] < self._state.t, "position.begun.t", f"below {self._state.t}, the updates so far")

    @property
    def has_next(self) -> bool:
        """True if there is a further batch."""
        return self._source.has_next

    def run(self, count: int = 1, *, limit: float | None = None, rates: np.ndarray | None = None) -> None:
        """Train on all batches of an epoch; record the mean of their objectives, by the weight of samples.

        An epoch that ends with an error leaves no record. The schedule has the rates, and divergence is an
        error: `count` is 1, and the others are None.
        """
        state = self._state
        losses, weights, rate, t_before = list[float](), list[float](), 0.0, state.t
        batches, generator, position = self._counting(), None, None
        if self._checkpoints is not None:
            generator, position = copied(state.random_state), self._checkpoints.take_position()
        if position is not None:
            # the order of the epoch comes from its first numbers
            now = state.random_state.get_state()
            generator, t_before = position.begun["generator"], position.begun["t"]
            state.random_state.set_state(generator.get_state())
            batches = self._counting(position.n_batches)
            losses, weights = position.losses.tolist(), list(position.begun["weights"])
            rate = position.begun["rate"]
        parts = self._next(batches)
        if position is not None:
            state.random_state.set_state(now)
        while parts:
            before = state.t
            self._largest = max(self._largest, *(len(samples.target) for samples, _ in parts))
            # the records of the epoch are those of all batches
            state.of_batches = []
            self._train([samples for samples, _ in parts], self._largest)
            weights.append(sum(weight for _, weight in parts))
            ((loss, rate),) = state.of_batches
            state.of_batches = None
            losses.append(loss)
            if self._checkpoints is not None and self._checkpoints.is_position(before, state.t):
                begun = {"generator": generator, "t": t_before, "weights": list(weights), "rate": rate}
                self._checkpoints.within_epoch(state, Position(self._n_read, np.array(losses), begun))
            parts = self._next(batches)
        if not losses:
            raise ParameterError("Nothing counts in the batches of an epoch: all weights of samples are 0.")
        state.record(np.array([np.average(losses, weights=weights)]), np.array([rate]))
        if self._is_first:
            self._is_first = False
            self._count(state.t - t_before)

    def _next(self, batches: Iterator[tuple[Samples, float]]) -> list[tuple[Samples, float]]:
        """Return the batches of the next update."""
        with stage("read"):
            return list(islice(batches, self._n_joined))

    def _counting(self, n_read: int = 0) -> Iterator[tuple[Samples, float]]:
        """Yield the checked batches of the next epoch in which something counts, with their weights.

        The first ones, `n_read`, are left out.
        """
        for number, batch in islice(enumerate(self._source.epoch()), n_read, None):
            self._n_read = number + 1
            try:
                found = self._read(batch)
            except ValueError as error:
                error.add_note(f"This was batch {number} of the epoch, counted from 0.")
                raise
            if found is not None:
                samples, weight = found
                yield samples.copied() if self._n_joined > 1 else samples, weight
