"""The last whole state of a call that trains: what Ctrl-C, or an error, leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

import numpy as np

from onnxsgd._records import record
from onnxsgd.engine.step.buffers import Tensors
from onnxsgd.training.state import FitState

__all__ = ["HISTORIES", "KeptState", "Lengths", "cut_histories", "lengths_of_histories"]

#: The histories of a state.
HISTORIES = ("loss_curve", "learning_rates", "validation_scores", "update_norms")
#: Their lengths.
Lengths = tuple[int, int, int, int]
_Widen = Callable[[Tensors], Tensors]
#: The fields of a state, the lengths of its histories, and the attributes of the estimator.
_Kept = tuple[dict[str, Any], Lengths, _Widen | None, dict[str, Any]]


@record
class KeptState:
    """The last whole state of a call that trains, and the attributes of the estimator beside it.

    Training changes its state in many steps, and something may interrupt it between any two of them. A whole
    state is kept by one assignment, and takes the place of one that is not.

    Parameters
    ----------
    attributes : dict
        The attributes of the estimator, which may change during the call.
    widen : callable or None
        Returns the tensors of all columns, where training has those of some; None: it has all.
    first : dict of ndarray or None
        The weights that a fit begins with, which are in memory until it ends; None: in other calls.
    """

    attributes: dict[str, Any] = field(default_factory=dict)
    widen: _Widen | None = None
    first: dict[str, np.ndarray] | None = None
    _last: list[_Kept] = field(default_factory=list)

    def within(self, widen: _Widen) -> KeptState:
        """Return the same, for a part of the call in which training has the tensors of some columns."""
        return replace(self, widen=widen)

    def of_fit(self, first: dict[str, np.ndarray]) -> KeptState:
        """Return the same, for a fit that begins with these weights."""
        return replace(self, first=first)

    @property
    def is_empty(self) -> bool:
        """True while the call has made no update."""
        return not self._last

    def keep(self, state: FitState) -> None:
        """Keep a state whose weights, counts and histories agree."""
        # training replaces tensors, and changes moments in place
        fields = vars(state) | {"moments": state.moments.copy(), "of_batches": None}
        self._last[:] = ((fields, lengths_of_histories(state), self.widen, self.attributes.copy()),)

    def forget(self) -> None:
        """Drop the kept state, after a call that has ended."""
        self._last.clear()

    def restore(self, state: FitState) -> None:
        """Put the kept state into `state`, with which the call goes on."""
        fields, lengths, widen, _ = self._last[0]
        tensors = fields["tensors"] if widen is None or widen is self.widen else widen(fields["tensors"])
        vars(state).update(fields, tensors=dict(tensors))
        cut_histories(state, lengths)

    def copied(self) -> FitState:
        """Return a copy of the kept state, with histories of its own and the tensors of all columns."""
        fields, lengths, widen, _ = self._last[0]
        tensors = fields["tensors"] if widen is None else widen(fields["tensors"])
        state = FitState.__new__(FitState)
        vars(state).update(fields, tensors=dict(tensors))
        for name, length in zip(HISTORIES, lengths, strict=True):
            setattr(state, name, fields[name][:length])
        return state

    def taken(self) -> tuple[FitState, dict[str, Any]]:
        """Return a copy of the kept state, and the attributes."""
        return self.copied(), dict(self._last[0][-1])


def lengths_of_histories(state: FitState) -> Lengths:
    """Return the number of entries of each history."""
    return (
        len(state.loss_curve), len(state.learning_rates), len(state.validation_scores),
        len(state.update_norms),
    )  # fmt: skip


def cut_histories(state: FitState, lengths: Lengths) -> None:
    """Remove all entries of histories but the first ones: they only grow."""
    for name, length in zip(HISTORIES, lengths, strict=True):
        del getattr(state, name)[length:]
