"""Calls that train: the estimator has all of their result, that of a whole number of updates, or none."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from onnxsgd.estimators.shared import ATTEMPT, refuse_inside
from onnxsgd.training.kept_state import HISTORIES, KeptState, cut_histories, lengths_of_histories

if TYPE_CHECKING:
    from types import TracebackType

    from onnxsgd.estimators.fitted import TrainedModel

__all__ = ["Attempt"]


class Attempt:
    """A call that trains an estimator.

    The call changes the attributes of the estimator one by one. If it ends with an error, or is interrupted,
    at any moment, the estimator gets, in one assignment, those of the last whole state that was kept; the
    attributes that it had before the call if none was.

    Parameters
    ----------
    estimator : TrainedModel
        The estimator. The state of its fit is replaced by a copy, which the call changes.
    """

    def __init__(self, estimator: TrainedModel) -> None:
        self._estimator = estimator

    def __enter__(self) -> KeptState:
        refuse_inside(self._estimator)
        attributes = self._estimator.__dict__
        self._before: dict[str, Any] = attributes.copy()
        state = self._before.get("_state")
        self._lengths = None if state is None else lengths_of_histories(state)
        self._kept = KeptState(attributes)
        try:
            return self._begun(attributes, state)
        except BaseException as error:
            # Ctrl-C before the block is entered, which would leave the estimator in a call for ever
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def _begun(self, attributes: dict[str, Any], state: Any) -> KeptState:
        """Mark the estimator as being in the call."""
        self._given = None if state is None else state.copy()
        # in one operation: other threads now see the attributes before
        attributes.update({ATTEMPT: self} if state is None else {ATTEMPT: self, "_state": self._given})
        return self._kept

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            try:
                self.undo()
            finally:
                # a second Ctrl-C
                self.undo()
        else:
            self._estimator.__dict__.pop(ATTEMPT, None)
            # the attributes in it hold this object: weights would stay in memory until the next collection
            self._kept.forget()

    def before(self) -> dict[str, Any]:
        """Return the attributes before the call."""
        found = dict(self._before)
        if self._lengths is not None:
            state = found["_state"] = found["_state"].copy()
            for name, length in zip(HISTORIES, self._lengths, strict=True):
                setattr(state, name, getattr(state, name)[:length])
        return found

    def inside(self) -> dict[str, Any]:
        """Return the attributes for the thread of the call: of the last whole state."""
        found = dict(self._estimator.__dict__)
        del found[ATTEMPT]
        if not self._kept.is_empty:
            found["_state"] = self._kept.copied()
        elif found.get("_state") is self._given:
            # the call has no state of its own yet
            return self.before()
        stopped = self._estimator._with(found)
        stopped._publish()
        return stopped.__dict__

    def undo(self) -> None:
        """Give the estimator the attributes of the last whole state, or those before the call."""
        if self._kept.is_empty:
            if self._lengths is not None:
                cut_histories(self._before["_state"], self._lengths)
            self._estimator.__dict__ = dict(self._before)
            return
        state, attributes = self._kept.taken()
        attributes.pop(ATTEMPT, None)
        stopped = copy(self._estimator)
        stopped.__dict__ = attributes | {"_state": state}
        stopped._publish()
        self._estimator.__dict__ = stopped.__dict__
