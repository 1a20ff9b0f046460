"""Stages of a fit: where its time goes, and how often the cache had what it needed.

A fit is one :class:`Recording` of the thread that it runs in. ``with stage("compile"):`` counts the time of a
block for that stage, wherever it is called from, less the time of stages inside it; outside a fit it does
nothing.
"""

from __future__ import annotations

import sys
import threading
from contextlib import ContextDecorator
from functools import cache
from time import perf_counter
from typing import Any, Self

try:
    import resource
except ImportError:
    # as on Windows
    resource = None  # type: ignore[assignment]

__all__ = ["OTHER", "STAGES", "Recording", "current", "stage"]

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
_NONE = dict.fromkeys((*STAGES, OTHER), 0.0)

#: Bytes of a unit of the largest resident size.
_UNIT = 1 if sys.platform == "darwin" else 1024


class _Thread(threading.local):
    """The recording of each thread."""

    recording: Recording | None = None


_thread = _Thread()


def current() -> Recording | None:
    """Return the recording of the fit that this thread is in; None outside a fit."""
    return _thread.recording


class Recording:
    """The record of one fit; fits inside it have their own, and their time counts for the stage they are in.

    Parameters
    ----------
    is_detail : bool
        Whether the call makes the decisions of an earlier one.

    Attributes
    ----------
    seconds : dict of float
        The time of each stage so far, and of the rest.
    n_hits, n_misses : int
        The entries that the cache had, and those that were made.
    decisions : set or None
        The events so far: each is reported once.
    """

    # a call of partial_fit takes 0.3 ms: each attribute and call counts here
    __slots__ = (
        "_name", "_open", "_outer", "_peak", "_since", "decisions", "is_detail", "n_hits", "n_misses",
        "seconds",
    )  # fmt: skip

    def __init__(self, is_detail: bool = False) -> None:
        self.is_detail = is_detail
        self.decisions: set[Any] | None = None
        self.seconds = _NONE.copy()
        self.n_hits = self.n_misses = 0

    def __enter__(self) -> Self:
        self._outer, self._peak = _thread.recording, peak_memory()
        self._name, self._open = OTHER, list[str]()
        self._since = perf_counter()
        # last: an interrupt leaves no part of a recording to later fits
        _thread.recording = self
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds[self._name] += perf_counter() - self._since
        _thread.recording = self._outer

    def numbers(self) -> dict[str, Any]:
        """Return the record as plain numbers: `seconds`, the peak before and now, hits and misses."""
        return {
            "seconds": self.seconds, "peaks": (self._peak, peak_memory()),
            "cache": (self.n_hits, self.n_misses),
        }  # fmt: skip


class _Stage(ContextDecorator):
    """A block, or a function, of a stage; it holds nothing, so that one object serves all threads."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        recording = _thread.recording
        if recording is not None:
            now = perf_counter()
            recording.seconds[recording._name] += now - recording._since
            recording._since = now
            recording._open.append(recording._name)
            recording._name = self._name

    def __exit__(self, *error: object) -> None:
        recording = _thread.recording
        if recording is not None:
            now = perf_counter()
            recording.seconds[recording._name] += now - recording._since
            recording._since = now
            # an interrupt may have come before the block was counted
            recording._name = recording._open.pop() if recording._open else OTHER


@cache
def stage(name: str) -> _Stage:
    """Return the context, or the decorator, in which time counts for a stage of :data:`STAGES`."""
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
