"""A fit of an estimator over the tasks of any engine."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any, SupportsIndex, TypeVar

from sklearn.utils._param_validation import Interval, validate_parameter_constraints

from onnxsgd.estimators.base import BaseOnnxSGD
from onnxsgd.estimators.classifier import OnnxSGDClassifier
from onnxsgd.estimators.regressor import OnnxSGDRegressor
from onnxsgd.estimators.sharded_fit import ShardedData, ShardedTraining
from onnxsgd.estimators.shared import in_turn
from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.sharding.executor import Executor, Handle
from onnxsgd.sharding.pieces import complete_piece

__all__ = ["fit_shards"]

_Estimator = TypeVar("_Estimator", bound=BaseOnnxSGD)
#: The values of the numbers of a fit.
_NUMBERS = [Interval(Integral, 1, None, closed="left"), None]


class DuringFit(ShardedTraining):
    """An estimator during a fit on shards, whose copies are of the class without shards."""

    def __copy__(self) -> Any:
        return self._of_local_class(super().__copy__())

    def __sklearn_clone__(self) -> Any:
        return self._of_local_class(super().__sklearn_clone__())

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        _, _, *state = super().__reduce_ex__(protocol)
        return object.__new__, (self._local_class,), *state

    def _of_local_class(self, duplicate: Any) -> Any:
        duplicate.__class__ = self._local_class
        return duplicate


class ShardedClassifier(DuringFit, OnnxSGDClassifier):
    """A classifier during a fit on shards."""

    _local_class = OnnxSGDClassifier


class ShardedRegressor(DuringFit, OnnxSGDRegressor):
    """A regressor during a fit on shards."""

    _local_class = OnnxSGDRegressor


def fit_shards(
    estimator: _Estimator,
    pieces: Iterable[Handle],
    executor: Executor,
    *,
    n_shards: int | None = None,
    sync_every: int | None = None,
    pieces_val: Iterable[Handle] | None = None,
    resume: bool = False,
) -> _Estimator:
    """Train an estimator on pieces of data, over the tasks of an engine.

    Training is a sequence of rounds, as on Dask (:doc:`/guide/dask`): tasks are pure functions, and the
    result depends on the pieces, not on the workers.

    Parameters
    ----------
    estimator : OnnxSGDClassifier or OnnxSGDRegressor
        The estimator, which is trained in place. A model of scikit-learn in it must be fitted.
    pieces : iterable of handles
        Handles of tasks of the engine whose results are ``(X, y)`` or ``(X, y, sample_weight)``: samples of
        shape [n_rows, ...], targets and weights, as ``fit`` takes them. Pieces may be empty.
    executor : Executor
        The engine.
    n_shards : int, default=None
        The number of shards, of equal size and of neighbouring rows; None: one for each piece with rows.
    sync_every : int, default=None
        Updates of the largest shard in a round. 1: the weights are those of one process on the same batches,
        but for rounding. None: 16, or less for fits of fewer than 40 such rounds.
    pieces_val : iterable of handles, default=None
        Validation data like `pieces`, scored after each epoch by tasks. ``executor.source((X, y))`` is the
        handle of data in memory.
    resume : bool, default=False
        Whether to continue from the last file in the folder `checkpoint` of the estimator.

    Returns
    -------
    estimator : OnnxSGDClassifier or OnnxSGDRegressor
        The same estimator, fitted.

    Raises
    ------
    ParameterError
        If a parameter is not accepted, or pieces do not match.
    ConvergenceError
        If the loss or a weight is no longer finite. The estimator keeps the last finite weights.
    Exception
        Errors of the executor. The estimator keeps the last whole state.

    Examples
    --------
    An engine that runs each task at once, in this process::

        class Here:
            def source(self, value):
                return value

            def submit(self, function, *arguments):
                return function(*arguments)

            def release(self, handles):
                pass

            def results(self, handles):
                return list(handles)

        fit_shards(OnnxSGDClassifier(), [(X[:500], y[:500]), (X[500:], y[500:])], Here())
    """
    _check_class(estimator)
    constraints = {"n_shards": _NUMBERS, "sync_every": _NUMBERS, "resume": ["boolean"]}
    given = {"n_shards": n_shards, "sync_every": sync_every, "resume": resume}
    try:
        validate_parameter_constraints(constraints, given, caller_name="fit_shards")
    except (TypeError, ValueError) as error:
        raise ParameterError(str(error)) from None
    data = ShardedData(executor, _complete(executor, pieces, "pieces"), n_shards, sync_every)
    data_val = None
    if pieces_val is not None:
        data_val = ShardedData(executor, _complete(executor, pieces_val, "pieces_val"))
    _train(estimator, data, data_val, resume)
    return estimator


@in_turn
def _train(estimator: BaseOnnxSGD, data: ShardedData, data_val: ShardedData | None, resume: bool) -> None:
    """Train an estimator, which is of a class for shards meanwhile."""
    local = type(estimator)
    sharded: Any = estimator
    try:
        # not another object: callbacks, threads and interrupts see one estimator
        sharded.__class__ = ShardedClassifier if issubclass(local, OnnxSGDClassifier) else ShardedRegressor
        sharded._fit_sharded(data, data_val, data_val, resume)
    finally:
        sharded.__class__ = local


def _check_class(estimator: object) -> None:
    """Refuse estimators of other classes than the two.

    Raises
    ------
    ParameterTypeError
        If it is one.
    """
    # during a fit, in this thread or another one
    kinds = (OnnxSGDClassifier, OnnxSGDRegressor, ShardedClassifier, ShardedRegressor)
    if type(estimator) not in kinds:
        raise ParameterTypeError(
            f"estimator is of type {type(estimator).__name__}: it must be an OnnxSGDClassifier or an "
            "OnnxSGDRegressor."
        )


def _complete(executor: Executor, pieces: Iterable[Handle], name: str) -> tuple[Handle, ...]:
    """Return the handles of pieces that were checked, with places for weights.

    Raises
    ------
    ParameterError
        If there are none.
    """
    found = tuple(executor.submit(complete_piece, number, piece) for number, piece in enumerate(pieces))
    if not found:
        raise ParameterError(f"{name} is empty: give a handle at least, whose result is (X, y).")
    return found
