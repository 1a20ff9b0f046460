"""Stages of a fit: where its time goes, and how often the cache had what it needed.

A fit is one :class:`Recording` of the thread that it runs in. ``with stage("compile"):`` counts the time of a
block for that stage, wherever it is called from, less the time of stages inside it; outside a fit it does
nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import cache, wraps
from time import perf_counter
from typing import Any, ParamSpec, Self, TypeVar, cast

try:
    import resource
except ImportError:
    # as on Windows
    resource = None  # type: ignore[assignment]

__all__ = ["OTHER", "STAGES", "Numbers", "Recording", "current", "peak_memory", "stage"]

#: The stages of a fit, with their descriptions, in the order of a report.
STAGES = {
    "read": "checks, copies and scales of the data; batches of an iterable",
    "inner fit": "the first fit of an unfitted scikit-learn model inside",
    "convert": "reading and conversion of the model, choice of weights and precision",
    "differentiate": "the gradient of the graph",
    "compile": "the rest of the training step, sessions of the runtime, imports on first use",
    "frozen part": "results of frozen layers, computed once for all samples",
    "train": "updates, and objectives that decide the rate",
    "score": "scores on validation data",
    "checkpoint": "writing of checkpoints",
}
#: The time of a fit in no stage.
OTHER = "other"

#: Bytes of a unit of the largest resident size.
_UNIT = 1 if sys.platform == "darwin" else 1024


#: The values of a record: times of stages; largest sizes, before and after; hits and misses of the cache.
Numbers = tuple[dict[str, float], tuple[int | None, int | None], tuple[int, int]]


class _Thread(threading.local):
    """The record of the call that each thread is in: of all stages, or of a later part of a stream."""

    recording: Recording | None = None
    part: Recording | None = None


_thread = _Thread()

_P = ParamSpec("_P")
_Result = TypeVar("_Result")


def current() -> Recording | None:
    """Return the record of the call that this thread is in; None outside calls that train."""
    return _thread.recording or _thread.part


class Recording:
    """The record of one call; calls inside it have their own, and their time counts for its present stage.

    Parameters
    ----------
    is_part : bool
        Whether the call is a later part of a stream, which takes some 0.25 ms: blocks of stages are not
        timed, as they would take a tenth of that, and all counts as "train" but decorated functions.

    Attributes
    ----------
    seconds : dict of float
        The time of each stage so far, and of the rest.
    n_hits, n_misses : int
        The entries that the cache had, and those that were made.
    decisions : set or None
        The events so far: each is reported once.
    is_detail : bool
        Whether its decisions are those of an earlier call.
    """

    __slots__ = (
        "_is_part", "_name", "_open", "_outer", "_peak", "_since", "decisions", "is_detail", "n_hits",
        "n_misses", "seconds",
    )  # fmt: skip

    def __init__(self, is_part: bool = False) -> None:
        self._is_part = self.is_detail = is_part
        self.decisions: set[Any] | None = None
        self.seconds: dict[str, float] = {}
        self.n_hits = self.n_misses = 0
        self._open: list[str] = []

    def __enter__(self) -> Self:
        self._outer = _thread.recording, _thread.part
        if self._is_part:
            self._name, self._peak = "train", None
        else:
            self._name, self._peak = OTHER, peak_memory()
        self._since = perf_counter()
        # last: an interrupt leaves no part of a recording to later fits
        if self._is_part:
            _thread.recording, _thread.part = None, self
        else:
            _thread.recording = self
        return self

    def __exit__(self, *error: object) -> None:
        name, seconds = self._name, self.seconds
        seconds[name] = seconds.get(name, 0.0) + perf_counter() - self._since
        _thread.recording, _thread.part = self._outer

    def run(self, function: Callable[_P, _Result], /, *args: _P.args, **options: _P.kwargs) -> _Result:
        """Call a function within this record, which an interrupt at any moment leaves to no later call."""
        outer = _thread.recording, _thread.part
        try:
            with self:
                return function(*args, **options)
        finally:
            # an interrupt may have come as __exit__ began
            _thread.recording, _thread.part = outer

    def begin(self, name: str) -> None:
        """Begin a stage inside the present one."""
        now, before, seconds = perf_counter(), self._name, self.seconds
        seconds[before] = seconds.get(before, 0.0) + now - self._since
        self._since = now
        self._open.append(before)
        self._name = name

    def end(self) -> None:
        """End the present stage."""
        now, before, seconds = perf_counter(), self._name, self.seconds
        seconds[before] = seconds.get(before, 0.0) + now - self._since
        self._since = now
        # an interrupt may have come before the stage was noted
        self._name = self._open.pop() if self._open else OTHER

    def numbers(self) -> Numbers:
        """Return the record as plain values: times, the peaks before and now, hits and misses.

        The peaks of a later part of a stream are not known: a call of the system takes 1 % of its time.
        """
        peaks = (None, None) if self._is_part else (self._peak, peak_memory())
        return self.seconds, peaks, (self.n_hits, self.n_misses)


_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Stage:
    """A block, or a function, of a stage; it holds nothing, so that one object serves all threads."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        recording = _thread.recording
        if recording is not None:
            recording.begin(self._name)

    def __exit__(self, *error: object) -> None:
        recording = _thread.recording
        if recording is not None:
            recording.end()

    def of(self, function: _Function) -> _Function:
        """Decorate a function that is worth its time, also in later parts of a stream."""

        @wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            recording = current()
            if recording is None:
                return function(*args, **options)
            recording.begin(self._name)
            try:
                return function(*args, **options)
            finally:
                recording.end()

        return cast("_Function", timed)


@cache
def stage(name: str) -> _Stage:
    """Return the context in which time counts for a stage of :data:`STAGES`; `of` decorates a function."""
    if name not in STAGES:
        raise KeyError(name)
    return _Stage(name)


def peak_memory() -> int | None:
    """Return the largest resident size that the process has had, in bytes; None where it is not known.

    It is one call of the system. A peak of a part of that time would take either a reset of the number,
    which belongs to the whole process, or another thread that looks again and again.
    """
    if resource is None:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT or None
