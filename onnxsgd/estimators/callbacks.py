"""scikit-learn's callbacks, for the versions of it that have them (1.9 and later)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from onnxsgd.training.loop import Observer
from onnxsgd.training.state import FitState

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:
    _Method = TypeVar("_Method", bound=Callable[..., Any])

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """An empty class: this scikit-learn has no callbacks."""

    def with_callbacks(method: _Method) -> _Method:
        """Return `method`."""
        return method


if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from sklearn.base import BaseEstimator

__all__ = ["OF_CALLBACKS", "CallbackSupportMixin", "FitCallbacks", "with_callbacks"]

#: The attributes of an estimator that hold its callbacks; the second one during fits.
OF_CALLBACKS = frozenset({"_skl_callbacks", "_skl_callbacks_to_teardown"})


class FitCallbacks(Observer):
    """Calls to the callbacks of an estimator: its fit is a task, each epoch a subtask.

    Parameters
    ----------
    estimator : estimator
        The estimator; without callbacks, nothing happens.
    max_iter : int
        The largest number of epochs.
    X, y, sample_weight : objects
        The training data, as the user gave them.
    """

    def __init__(
        self,
        estimator: BaseEstimator,
        max_iter: int,
        X: object,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None,
    ) -> None:
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        self._data = {"estimator": estimator, "X": X, "y": y, "metadata": metadata}
        self._context = None
        if getattr(estimator, "_skl_callbacks", None):
            self._context = estimator._init_callback_context(max_subtasks=max_iter)

    @property
    def is_active(self) -> bool:
        """True if the estimator has callbacks."""
        return self._context is not None

    def fit_begins(self) -> None:
        """Call the callbacks at the beginning of training."""
        if self._context is not None:
            self._context.call_on_fit_task_begin(**self._data)

    def epoch_begins(self, state: FitState) -> None:
        """Call the callbacks at the beginning of an epoch."""
        if self._context is not None:
            self._epoch = self._context.subcontext(task_name="epoch")
            self._epoch.call_on_fit_task_begin(**self._data)

    def epoch_ends(self, state: FitState) -> bool:
        """Call the callbacks at the end of an epoch; return whether one asks to stop."""
        if self._context is None:
            return False
        estimator = self._data["estimator"]
        return self._epoch.call_on_fit_task_end(
            **self._data, reconstruction_attributes=lambda: estimator._attributes_at(state)
        )

    def fit_ends(self) -> None:
        """Call the callbacks at the end of training."""
        if self._context is not None:
            self._context.call_on_fit_task_end(**self._data, reconstruction_attributes={})
