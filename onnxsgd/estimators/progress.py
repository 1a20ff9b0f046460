"""The output of ``verbose``: a line for each epoch, or one line updated in place."""

from __future__ import annotations

import sys
import time

from onnxsgd.training.loop import Observer
from onnxsgd.training.state import FitState

__all__ = ["Progress"]

#: The least time between two writes to a terminal, in seconds: faster ones would not be read.
_INTERVAL = 0.1
#: Characters of the bar.
_WIDTH = 20


class Progress(Observer):
    """The display of training progress.

    On a terminal, ``verbose=1`` shows one line with a bar, updated in place. In a file or a notebook, and
    with ``verbose=2`` everywhere, each epoch has its own line.

    Parameters
    ----------
    verbose : int
        0: nothing is shown.
    max_iter : int
        The largest number of epochs.
    """

    def __init__(self, verbose: int, max_iter: int) -> None:
        self._verbose = verbose
        self._max_iter = max_iter
        self._in_place = verbose == 1 and sys.stdout.isatty()
        self._epoch = 0
        self._start = time.perf_counter()
        self._shown_at = -_INTERVAL
        self._line = ""

    @property
    def is_active(self) -> bool:
        """True if lines are shown."""
        return self._verbose > 0

    def epoch_begins(self, state: FitState) -> None:
        """Count one more epoch."""
        self._epoch += 1

    def epoch_ends(self, state: FitState) -> bool:
        """Show the line of this epoch; never ask to stop."""
        if self._verbose:
            seconds = time.perf_counter() - self._start
            self._line = self._describe(state, seconds)
            if not self._in_place:
                print(self._line, flush=True)
            elif seconds - self._shown_at >= _INTERVAL:
                self._shown_at = seconds
                print(f"\r{self._bar()} {self._line}\x1b[K", end="", flush=True)
        return False

    def training_ends(self) -> None:
        """Show the last line, if lines are updated in place, and end it."""
        if self._in_place and self._line:
            print(f"\r{self._bar()} {self._line}\x1b[K", flush=True)

    def _describe(self, state: FitState, seconds: float) -> str:
        parts = [
            f"Epoch {self._epoch}/{self._max_iter}",
            f"loss {state.loss_curve[-1]:.6g}",
            f"learning rate {state.eta:.4g}",
        ]
        if state.validation_scores:
            parts.append(f"validation score {state.validation_scores[-1]:.6g}")
        return ", ".join([*parts, f"{seconds:.1f} s"])

    def _bar(self) -> str:
        full = _WIDTH * self._epoch // self._max_iter
        return f"[{'#' * full}{'.' * (_WIDTH - full)}]"
