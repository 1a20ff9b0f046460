"""Checkpoints of a fit: when they are written, and how training continues from one.

A checkpoint holds the state of the fit, and its progress: what the rule, the epochs and the loop over them
know beside it. Training with checkpoints begins each part between two of them from the weights that the
first one holds, so that a fit that was interrupted makes the same updates as one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypedDict

import numpy as np

from onnxsgd._declared_types import Count
from onnxsgd.exceptions import ParameterError
from onnxsgd.training.progress_forms import ProgressError, check_form
from onnxsgd.training.state import FitState

__all__ = ["Checkpoints", "Every", "Loop", "Position", "Progress", "Resumable", "ResumableEpochs"]

#: What a part of a fit knows, in values of numpy and Python.
Progress = dict[str, Any]
#: The updates after which the clock is read.
_UPDATES_OF_CLOCK = 256
#: What the beginning of a fit makes anew, from all of the data.
_MADE_ANEW = frozenset({"moments", "n_rows", "mean_weight", "n_updates", "epoch_updates"})


class Resumable(Protocol):
    """A part of a fit with progress of its own."""

    @property
    def form(self) -> type:
        """The form of the progress: a TypedDict."""

    def progress(self) -> Progress:
        """Return the progress."""

    def resume(self, progress: Progress) -> None:
        """Continue from a progress of this form.

        Raises
        ------
        ProgressError
            If no fit on these data wrote it.
        """


class ResumableEpochs(Resumable, Protocol):
    """Epochs, which continue from a place inside one."""

    def check_position(self, position: Position) -> None:
        """Refuse a place of other epochs, by a ProgressError."""


class Loop(TypedDict):
    """The progress of the loop over epochs."""

    n_epochs: Count
    stops: bool
    was_asked: bool


@dataclass(frozen=True)
class Every:
    """The distance between two checkpoints.

    Attributes
    ----------
    epochs, updates : int or None
        A number of epochs or of updates.
    seconds : float or None
        A time.
    """

    epochs: int | None = None
    updates: int | None = None
    seconds: float | None = None

    @property
    def is_within_epochs(self) -> bool:
        """True if epochs have checkpoints inside."""
        return self.epochs is None

    def positions(self, t: int, n_updates: int) -> np.ndarray:
        """Return after which of the next updates, counted from 1, there may be a checkpoint."""
        if self.epochs is not None:
            return np.empty(0, int)
        distance = self.updates or _UPDATES_OF_CLOCK
        return np.arange(distance - t % distance, n_updates, distance)


@dataclass(frozen=True)
class Position:
    """A place inside an epoch.

    Attributes
    ----------
    n_batches : int
        The batches of the epoch that are done.
    losses : ndarray of shape [n_batches]
        Their losses.
    begun : dict
        What the epochs need of their state before this one.
    """

    n_batches: Count
    losses: np.ndarray
    begun: dict[str, Any]


class Checkpoints:
    """The checkpoints of a fit.

    Parameters
    ----------
    every : Every
        Their distance.
    write : callable
        Writes a state and a progress.
    start : (FitState, dict) or None
        The state and the progress to continue from; None: the fit begins.
    file : str
        The file that holds them.
    has_all_data : bool
        Whether the fit has all of the data at its beginning, not batch by batch.
    """

    def __init__(
        self,
        every: Every,
        write: Callable[[FitState, Progress], None],
        start: tuple[FitState, Progress] | None = None,
        *,
        file: str = "",
        has_all_data: bool = True,
    ) -> None:
        self.every, self._write, self._start, self._file = every, write, start, file
        self._has_all_data = has_all_data
        self._parts: dict[str, Resumable] = {}
        self._loop: Loop = {"n_epochs": 0, "stops": False, "was_asked": False}
        self._written_at = time.monotonic()

    @property
    def continues(self) -> bool:
        """True if the fit continues from a checkpoint."""
        return self._start is not None

    def begin(self, rule: Resumable, epochs: ResumableEpochs, state: FitState) -> tuple[int, bool, bool]:
        """Continue from the first checkpoint, or write it.

        Returns the number of epochs done, whether training stops, and whether an observer asked for that.

        Raises
        ------
        ParameterError
            If no such fit wrote the progress.
        """
        self._parts = {"rule": rule, "epochs": epochs}
        if self._start is None:
            self._save(state, None)
        else:
            saved, progress = self._start
            kept = {"random_state"} | (_MADE_ANEW if self._has_all_data else set())
            for name in {field.name for field in fields(FitState)} - kept:
                setattr(state, name, getattr(saved, name))
            # other parts of the fit draw from the same generator
            state.random_state.set_state(saved.random_state.get_state())
            try:
                self._resume_parts(progress)
                if progress["position"] is not None:
                    epochs.check_position(Position(**progress["position"]))
            except ProgressError as error:
                raise ParameterError(f"The checkpoint {self._file!r} is damaged: {error}.") from None
            self._loop = progress["loop"]
        return self._loop["n_epochs"], self._loop["stops"], self._loop["was_asked"]

    def _resume_parts(self, progress: Progress) -> None:
        for name, part in self._parts.items():
            check_form(progress.get(name), part.form, name)
            part.resume(progress[name])

    def take_position(self) -> Position | None:
        """Return the place inside the first epoch from which it continues, once."""
        found = None if self._start is None else self._start[1]["position"]
        self._start = None
        return None if found is None else Position(**found)

    def after_epoch(self, state: FitState, n_epochs: int, *, stops: bool, was_asked: bool) -> None:
        """Write a checkpoint if it is time, or training stops."""
        self._loop = {"n_epochs": n_epochs, "stops": stops, "was_asked": was_asked}
        if stops or self._is_due(n_epochs):
            self._save(state, None)

    def within_epoch(self, state: FitState, position: Position) -> None:
        """Write a checkpoint if it is time; `state` is moved to it."""
        if self.every.seconds is None or self._has_waited():
            self._save(state, vars(position))

    def is_position(self, before: int, after: int) -> bool:
        """Tell whether there may be a checkpoint inside an epoch, between two numbers of updates."""
        distance = self.every.updates or 1
        return self.every.is_within_epochs and before // distance < after // distance

    def end(self, state: FitState) -> None:
        """Write the result of training, from which nothing continues."""
        self._write(state, {"has_ended": True})

    def _is_due(self, n_epochs: int) -> bool:
        if self.every.epochs is not None:
            return n_epochs % self.every.epochs == 0
        return self.every.updates is None and self._has_waited()

    def _has_waited(self) -> bool:
        return self.every.seconds is not None and time.monotonic() - self._written_at >= self.every.seconds

    def _save(self, state: FitState, position: Progress | None) -> None:
        progress: dict[str, Any] = {name: part.progress() for name, part in self._parts.items()}
        progress |= {"loop": self._loop, "position": position, "has_ended": False}
        self._write(replace(state), progress)
        self._written_at = time.monotonic()
