"""The output of ``verbose``: a line for each epoch, or one place that shows the last one."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from onnxsgd.training.loop import Observer
from onnxsgd.training.state import FitState

__all__ = ["Progress"]

#: The least time between two updates of a place, in seconds: faster ones would not be read.
_INTERVAL = 0.1
#: Characters of the bar.
_WIDTH = 10


class Progress(Observer):
    """The display of training progress.

    ``verbose=1`` shows a bar with loss, score and time left, updated in place, on a terminal and in a
    notebook; the line of the last epoch takes its place in the end. In a file, and with ``verbose=2``
    everywhere, each epoch has its own line.

    Parameters
    ----------
    verbose : int
        0: nothing is shown.
    max_iter : int
        The largest number of epochs.
    may_stop : bool
        Whether training may stop earlier; the time left is then a bound.
    """

    def __init__(self, verbose: int, max_iter: int, may_stop: bool) -> None:
        self._verbose = verbose
        self._max_iter = max_iter
        self._may_stop = may_stop
        self._epoch = 0
        self._start = self._first_end = time.perf_counter()
        self._shown_at = -_INTERVAL
        self._line = ""
        self._place = _choose_place() if verbose == 1 else None

    @property
    def is_active(self) -> bool:
        """True if something is shown."""
        return self._verbose > 0

    def epoch_begins(self, state: FitState) -> None:
        """Count one more epoch."""
        self._epoch += 1

    def epoch_ends(self, state: FitState) -> bool:
        """Show the line of this epoch; never ask to stop."""
        now = time.perf_counter()
        if self._epoch == 1:
            self._first_end = now
        seconds = now - self._start
        loss, scores, eta = state.loss_curve[-1], state.validation_scores[-1:], state.eta
        count = f"Epoch {self._epoch}/{self._max_iter}"
        parts = [
            f"loss {loss:.6g}",
            f"learning rate {eta:.4g}",
            *[f"validation score {s:.6g}" for s in scores],
        ]
        self._line = ", ".join([count, *parts, f"{seconds:.1f} s"])
        if self._place is None:
            print(self._line, flush=True)
        elif seconds - self._shown_at >= _INTERVAL:
            self._shown_at = seconds
            # short, for a terminal of eighty columns
            parts = [f"loss {loss:.4g}", *[f"score {s:.4g}" for s in scores], *self._time_left(now)]
            self._place.show(self._epoch, self._max_iter, [count, *parts, f"learning rate {eta:.2g}"])
        return False

    def training_ends(self) -> None:
        """Put the line of the last epoch into the place, if there is one."""
        if self._place is not None and self._line:
            self._place.end(self._line)

    def _time_left(self, now: float) -> list[str]:
        """Return the time that all further epochs would take; the first one compiles, and does not count."""
        n_left = self._max_iter - self._epoch
        if self._epoch == 1 or n_left == 0:
            return []
        seconds = n_left * (now - self._first_end) / (self._epoch - 1)
        return [f"{'at most ' if self._may_stop else ''}{_duration(seconds)} left"]


class _Place(Protocol):
    """A place whose content is replaced."""

    def show(self, epoch: int, max_iter: int, parts: Sequence[str]) -> None:
        """Show a bar and parts of a line, the most important ones first."""

    def end(self, line: str) -> None:
        """Show a line that stays."""


class _TerminalLine:
    """A line of a terminal; spaces clear it, as not every terminal knows a sequence for that."""

    def __init__(self) -> None:
        self._n_shown = 0

    def show(self, epoch: int, max_iter: int, parts: Sequence[str]) -> None:
        full = _WIDTH * epoch // max_iter
        bar = f"[{'#' * full}{'.' * (_WIDTH - full)}] "
        # a line that wraps cannot be replaced
        room = shutil.get_terminal_size().columns - 1
        fitting = list(parts)
        while len(fitting) > 1 and len(bar + ", ".join(fitting)) > room:
            fitting.pop()
        self._print((bar + ", ".join(fitting))[:room])

    def end(self, line: str) -> None:
        self._print(line)
        print(flush=True)

    def _print(self, line: str) -> None:
        print(f"\r{line:<{self._n_shown}}", end="", flush=True)
        self._n_shown = len(line)


class _NotebookOutput:
    """An output of a notebook's cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, epoch: int, max_iter: int, parts: Sequence[str]) -> None:
        line = ", ".join(parts)
        bar = f'<progress value="{epoch}" max="{max_iter}"></progress>'
        self._display({"text/plain": line, "text/html": f"<div>{bar} {line}</div>"})

    def end(self, line: str) -> None:
        self._display({"text/plain": line, "text/html": f"<div>{line}</div>"})

    def _display(self, data: dict[str, str]) -> None:
        if self._handle is None:
            # imported on use: it is there in notebooks only
            display = import_module("IPython.display").display
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def _choose_place() -> _Place | None:
    """Return the place of this process, None where lines must do."""
    ipython = sys.modules.get("IPython")
    # the shell of a notebook has a kernel, that of a terminal has none
    if ipython is not None and hasattr(ipython.get_ipython(), "kernel"):
        return _NotebookOutput()
    return _TerminalLine() if sys.stdout is not None and sys.stdout.isatty() else None


def _duration(seconds: float) -> str:
    """Return a time in one or two units: ``8 s``, ``3 min 20 s``, ``2 h 5 min``."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, rest_of_hour = divmod(minutes, 60)
    return f"{hours} h {rest_of_hour} min" if hours else f"{minutes} min {rest} s"
