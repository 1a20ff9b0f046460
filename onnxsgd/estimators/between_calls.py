"""Parameters between calls: the graph of the first call stays, all other parameters may change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from functools import lru_cache
from itertools import zip_longest
from operator import is_, itemgetter
from typing import Any, NamedTuple

import joblib
import numpy as np
from sklearn.base import BaseEstimator

from onnxsgd._settable import Settable
from onnxsgd.estimators.parameters import reader
from onnxsgd.estimators.summary import summarize
from onnxsgd.exceptions import ParameterError
from onnxsgd.learner.model_source import refuse_circle

__all__ = ["LINK", "SEEN", "Given", "has_new_graph", "is_same", "read_graph_parameters", "refuse_new_graph"]

#: The parameters that determine the graph and its trained weights.
_OF_GRAPH = ("model", "output", "head", "trainable", "adapter", "classes", "dtype", "batch_norm", "dropout")

#: The name of the link among the parameters of a graph.
LINK = "the link of the loss"

#: Types of values that hold no estimators.
_PLAIN = frozenset({bool, int, float, str, type(None)})

#: Types of values that may be changed in place: a list, an adapter.
_CHANGING = (list, Settable)

#: The attribute that keeps the parameters that the last call has compared with those of the first one.
SEEN = "_seen_graph"

#: Values of parameters, each with the name of the parameter and of its class.
Given = list[tuple[str, str, Any]]


def read_graph_parameters(estimator: BaseEstimator) -> Given:
    """Return the parameters of an estimator that determine its graph, those of the model inside included."""
    refuse_circle(estimator.model)
    own = getattr(estimator, "_local_class", type(estimator)).__name__
    given = [(name, own, getattr(estimator, name)) for name in _OF_GRAPH if hasattr(estimator, name)]
    given.append((LINK, own, getattr(estimator, "_link", "identity")))
    copied = [
        (name, own, copy(value) if isinstance(value, _CHANGING) else value) for name, own, value in given
    ]
    return [*copied, *_parameters_inside(estimator.model)]


def refuse_new_graph(estimator: BaseEstimator, first: Given) -> None:
    """Refuse parameters that determine the graph and differ from those of the first call.

    Raises
    ------
    ParameterError
        If one does; the error names it.
    """
    if _is_seen(estimator, first):
        return
    for before, now in _changes(estimator, first):
        name, owner, value = now or before
        change = f" from {_shown(before[2])} to {_shown(value)}" if before and now else ""
        raise ParameterError(
            f"{name} of {owner} changed{change} since the first call: training continues with the graph "
            "of that call. Call fit with warm_start=False, or take a new estimator."
        )
    estimator.__dict__[SEEN] = _Seen.of(estimator, first)


def has_new_graph(estimator: BaseEstimator, first: Given) -> bool:
    """Tell whether parameters that determine the graph differ from those of the first call."""
    return not _is_seen(estimator, first) and next(_changes(estimator, first), None) is not None


def _changes(estimator: BaseEstimator, first: Given) -> Iterator[tuple[Any, Any]]:
    """Yield each parameter of the graph that changed, as it was and as it is; None where there is none."""
    for before, now in zip_longest(first, read_graph_parameters(estimator)):
        if before is None or now is None or before[:2] != now[:2] or not is_same(before[2], now[2]):
            yield before, now


def _is_seen(estimator: BaseEstimator, first: Given) -> bool:
    """Tell whether an earlier call has compared the present parameters: the common case.

    The comparison takes a tenth of a small call of ``partial_fit``.
    """
    seen: _Seen | None = estimator.__dict__.get(SEEN)
    return seen is not None and seen.is_present(estimator, first)


def _nothing(attributes: dict[str, Any]) -> tuple[Any, ...]:
    """Return the parameters of an estimator that has none."""
    return ()


class _Inside(NamedTuple):
    """An estimator inside a model, with its attributes.

    Attributes
    ----------
    estimator : BaseEstimator
        The estimator.
    attributes : tuple of str
        The names of all attributes.
    read : callable
        Reads the parameters from them.
    values : tuple of object
        The values of these.
    held : tuple of (object, tuple of BaseEstimator)
        The lists and tuples among them that hold estimators, with these.
    """

    estimator: BaseEstimator
    attributes: tuple[str, ...]
    read: Callable[[dict[str, Any]], tuple[Any, ...]]
    values: tuple[Any, ...]
    held: tuple[tuple[Any, tuple[BaseEstimator, ...]], ...]

    @classmethod
    def of(cls, model: object) -> Iterator[_Inside]:
        """Yield a model, if that is an estimator, and those inside it, at any depth."""
        if not isinstance(model, BaseEstimator):
            return
        names = _parameter_names(model)
        # of one name alone the result would be no tuple
        read = itemgetter(*names, *names[:1]) if names else _nothing
        values = read(vars(model))
        first = values[: len(names)]
        held = tuple((value, tuple(_estimators_in(value))) for value in first if type(value) not in _PLAIN)
        held = tuple((value, estimators) for value, estimators in held if estimators)
        yield cls(model, tuple(vars(model)), read, values, held)
        for _, estimators in held:
            for estimator in estimators:
                yield from cls.of(estimator)

    def is_present(self) -> bool:
        """Tell whether all parameters are the same objects, and lists among them hold the same estimators."""
        present = vars(self.estimator)
        if tuple(present) != self.attributes:
            return False
        if not all(map(is_, self.read(present), self.values)):
            return False
        for value, estimators in self.held:
            if value is not estimators[0] and not _are_identical(tuple(_estimators_in(value)), estimators):
                return False
        return True


class _Seen(NamedTuple):
    """Parameters that agreed with those of a first call, which later calls know again by their objects.

    Attributes
    ----------
    first : list of (str, str, object)
        The parameters of the first call.
    values : tuple of object
        The present ones of the estimator.
    inside : tuple of _Inside
        The estimators in its model.
    """

    first: Given
    values: tuple[Any, ...]
    inside: tuple[_Inside, ...]

    @classmethod
    def of(cls, estimator: BaseEstimator, first: Given) -> _Seen | None:
        """Return the present parameters; None if one of them may be changed in place."""
        values = _own_values(estimator)
        if any(isinstance(value, _CHANGING) for value in values):
            return None
        return cls(first, values, tuple(_Inside.of(estimator.model)))

    def is_present(self, estimator: BaseEstimator, first: Given) -> bool:
        """Tell whether all parameters are these objects, which agreed with those of `first`."""
        if self.first is not first or not _are_identical(self.values, _own_values(estimator)):
            return False
        return all(map(_Inside.is_present, self.inside))


def _are_identical(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """Tell whether two tuples hold the same objects."""
    return len(first) == len(second) and all(map(is_, first, second))


def _own_values(estimator: BaseEstimator) -> tuple[Any, ...]:
    """Return the values of the parameters that determine the graph, but for those inside the model."""
    return (*_of_graph(type(estimator))(estimator), getattr(estimator, "_link", "identity"))


#: A function of a class that reads the parameters of an estimator that determine its graph.
_of_graph: Callable[[Any], Callable[[Any], tuple[Any, ...]]] = lru_cache(maxsize=64)(
    lambda kind: reader([name for name in _OF_GRAPH if name in kind._get_param_names()])
)


def _shown(value: object) -> str:
    return repr(summarize(value))


def is_same(first: Any, second: Any) -> bool:
    """Tell whether two values of a parameter are the same object, equal, or both NaN."""
    if first is second or (type(first) in _PLAIN and type(first) is type(second) and first == second):
        return True
    if isinstance(first, list | tuple | np.ndarray):
        return np.shape(first) == np.shape(second) and bool(np.all(np.asarray(first) == np.asarray(second)))
    if type(first) is not type(second) or isinstance(first, BaseEstimator):
        return False
    if isinstance(first, np.random.RandomState):
        # a saved estimator has a copy of the object
        return joblib.hash(first.get_state(legacy=False)) == joblib.hash(second.get_state(legacy=False))
    # a frame or series compares element by element
    return bool(np.all((first == second) | ((first != first) & (second != second))))


def _parameters_inside(model: object) -> Iterator[tuple[str, str, Any]]:
    """Yield the parameters of an estimator, and of those inside it, at any depth."""
    if not isinstance(model, BaseEstimator):
        return
    owner = type(model).__name__
    for name in _parameter_names(model):
        value = vars(model)[name]
        estimators = () if type(value) in _PLAIN else tuple(_estimators_in(value))
        for estimator in estimators:
            yield name, owner, estimator
            yield from _parameters_inside(estimator)
        if not estimators:
            yield name, owner, value


def _parameter_names(model: BaseEstimator) -> list[str]:
    """Return the names of the parameters of an estimator; get_params would take ten times as long."""
    return [name for name in vars(model) if name[0] != "_" and name[-1] != "_"]


def _estimators_in(value: object) -> Iterator[BaseEstimator]:
    """Yield an estimator, or those in lists and tuples."""
    if isinstance(value, BaseEstimator):
        yield value
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _estimators_in(entry)
