"""Estimators that several threads share: calls that train take turns, and others see none of them by half."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from onnxsgd.exceptions import ParameterError
from onnxsgd.runtime.forks import new_lock
from onnxsgd.training.kept_state import HISTORIES

if TYPE_CHECKING:
    from onnxsgd.estimators.fitted import TrainedModel
    from onnxsgd.training.state import FitState

__all__ = ["ATTEMPT", "at_once", "in_turn", "lock_of", "own_histories", "refuse_inside", "settled_attributes"]

#: The attribute that an estimator has during a call that trains: its :class:`Attempt`.
ATTEMPT = "_attempt"
#: The lock of each estimator; an attribute would be pickled, copied and compared.
_LOCKS: WeakKeyDictionary[TrainedModel, Any] = WeakKeyDictionary()

_P = ParamSpec("_P")
_Result = TypeVar("_Result")
_Estimator = TypeVar("_Estimator", bound="TrainedModel")


def lock_of(estimator: TrainedModel) -> Any:
    """Return the lock of an estimator, which the thread that trains it holds."""
    lock = _LOCKS.get(estimator)
    return _LOCKS.setdefault(estimator, new_lock()) if lock is None else lock


def in_turn(
    method: Callable[Concatenate[_Estimator, _P], _Result],
) -> Callable[Concatenate[_Estimator, _P], _Result]:
    """Let a method that changes an estimator wait for calls of it in other threads."""

    @wraps(method)
    def alone(self: _Estimator, /, *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        lock = lock_of(self)
        is_inside = lock._is_owned()
        # no function of Python between the lock and the block: an interrupt would leave it held
        with lock:
            if not is_inside and ATTEMPT in self.__dict__:
                _undo_abandoned(self)
            return method(self, *args, **kwargs)

    return alone


def refuse_inside(estimator: TrainedModel) -> None:
    """Refuse a call that changes the weights inside one that trains them: of a schedule, a loss, a loader.

    Raises
    ------
    ParameterError
        If such a call is running. Its updates and those of this one would not agree.
    """
    if ATTEMPT in estimator.__dict__:
        raise ParameterError(
            "The estimator is being trained, and the call that trains it has called fit, partial_fit or "
            "set_weights of the same estimator: change a copy.copy of it."
        )


def settled_attributes(estimator: TrainedModel) -> dict[str, Any]:
    """Return the attributes of an estimator, as a copy that is made in one operation of the interpreter.

    During a call that trains they are those before it for other threads. For the thread of the call, which
    callbacks, loaders and handlers of signals have, they are those of the last whole state.
    """
    attributes = dict(estimator.__dict__)
    attempt = attributes.get(ATTEMPT)
    if attempt is None:
        return attributes
    if lock_of(estimator)._is_owned():
        inside: dict[str, Any] = attempt.inside()
        return inside
    found = dict[str, Any]()

    def settle() -> None:
        _undo_abandoned(estimator)
        found.update(estimator.__dict__)

    return found if at_once(estimator, settle) else attempt.before()


def at_once(estimator: TrainedModel, change: Callable[[], None]) -> bool:
    """Make a change if no thread has the lock of an estimator; tell whether it was made."""
    lock = lock_of(estimator)
    if lock._is_owned():
        change()
        return True
    try:
        is_free: bool = lock.acquire(blocking=False)
        if is_free:
            change()
        return is_free
    finally:
        # an interrupt may come before the result is known
        if lock._is_owned():
            lock.release()


def own_histories(estimator: TrainedModel) -> dict[str, Any]:
    """Return settled attributes whose state has histories of its own, which no later call makes longer."""
    while True:
        attributes = settled_attributes(estimator)
        state = attributes.get("_state")
        if state is None:
            return attributes
        attributes["_state"] = _with_lengths(state)
        attempt = estimator.__dict__.get(ATTEMPT)
        if lock_of(estimator)._is_owned():
            return attributes
        if attempt is not None:
            # of a call that trains, which may have begun meanwhile
            before: dict[str, Any] = attempt.before()
            return before
        if estimator.__dict__.get("_state") is state:
            return attributes


def _with_lengths(state: FitState) -> FitState:
    duplicate = state.copy()
    for name in HISTORIES:
        setattr(duplicate, name, list(getattr(state, name)))
    return duplicate


def _undo_abandoned(estimator: TrainedModel) -> None:
    """Undo a call without a thread: the end of one that an interrupt cut off, or one before a fork."""
    attempt = estimator.__dict__.get(ATTEMPT)
    if attempt is not None:
        attempt.undo()
