"""Data of files in calls of estimators: a path, a dataset or an array of a file in the place of an array."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from onnxsgd.data.file_tables import is_file_table, read_file_table
from onnxsgd.exceptions import ParameterError, ParameterTypeError

if TYPE_CHECKING:
    from onnxsgd.estimators.fitted import TrainedModel

__all__ = ["from_files", "known_columns", "reads_files"]

_Method = TypeVar("_Method", bound=Callable[..., Any])


def from_files(
    estimator: TrainedModel,
    X: object,
    y: object,
    sample_weight: object = None,
    *,
    columns: Sequence[str] | None,
) -> tuple[Any, Any, Any]:
    """Return samples, targets and weights; those of files as tables.

    Parameters
    ----------
    estimator : OnnxSGDRegressor or OnnxSGDClassifier
        The estimator.
    X, y, sample_weight : objects
        The arguments of a call.
    columns : sequence of str or None
        The columns of features; None: all others than those of targets and weights.
    """
    refuse_collections(estimator, X=X, y=y, sample_weight=sample_weight)
    if is_file_table(X):
        is_regression = estimator._task == "regression"
        return read_file_table(X, y, sample_weight, columns, is_regression=is_regression)
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if isinstance(value, str):
            raise ParameterError(
                f"{name}={value!r} names a column, and X is of type {type(X).__name__}: columns are those of "
                f"files, whose path is X; give {name} as an array."
            )
    return X, y, sample_weight


def refuse_collections(estimator: TrainedModel, **given: object) -> None:
    """Refuse collections of Dask, which would be computed in one place.

    Raises
    ------
    ParameterTypeError
        If one is such; it names the estimator that takes them.
    """
    for name, value in given.items():
        if hasattr(value, "__dask_graph__"):
            own = type(estimator).__name__
            raise ParameterTypeError(
                f"{name} is a collection of Dask, {type(value).__name__}, which {own} would pull into this "
                f"process: onnxsgd.dask.Dask{own} trains and predicts where its partitions lie; "
                f"{name}.compute() pulls it."
            )


def known_columns(*fitted: object) -> Sequence[str] | None:
    """Return the names of the features of the first of some estimators that was fitted with names."""
    found = (getattr(estimator, "feature_names_in_", None) for estimator in fitted)
    return next((list(names) for names in found if names is not None), None)


def reads_files(method: _Method) -> _Method:
    """Let a method of predictions take files: of the columns, those of the training data are features."""
    signature = inspect.signature(method)

    @wraps(method)
    def reading(self: TrainedModel, /, *args: Any, **kwargs: Any) -> Any:
        if not is_file_table(args[0] if args else kwargs.get("X")):
            refuse_collections(self, **dict(zip(("X", "y", "sample_weight"), args, strict=False)), **kwargs)
            return method(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs)
        data = {name: given.arguments.get(name) for name in ("X", "y", "sample_weight")}
        found = from_files(self, *data.values(), columns=known_columns(self, self.model))
        read = dict(zip(data, found, strict=True))
        given.arguments.update({name: read[name] for name in data if name in given.arguments})
        return method(*given.args, **given.kwargs)

    return cast(_Method, reading)
