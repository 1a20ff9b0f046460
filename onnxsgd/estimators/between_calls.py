"""Parameters between calls: the graph of the first call stays, all other parameters may change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from functools import lru_cache
from itertools import islice, zip_longest
from operator import attrgetter
from typing import Any

import joblib
import numpy as np
from sklearn.base import BaseEstimator

from onnxsgd._settable import Settable
from onnxsgd.estimators.summary import summarize
from onnxsgd.exceptions import ParameterError
from onnxsgd.learner.model_source import refuse_circle

__all__ = ["LINK", "Given", "has_new_graph", "is_same", "read_graph_parameters", "refuse_new_graph"]

#: The parameters that determine the graph and its trained weights.
_OF_GRAPH = ("model", "output", "head", "trainable", "adapter", "classes", "dtype", "batch_norm", "dropout")

#: The name of the link among the parameters of a graph.
LINK = "the link of the loss"

#: Types of values that hold no estimators.
_PLAIN = frozenset({bool, int, float, str, type(None)})

#: Values of parameters, each with the name of the parameter and of its class.
Given = list[tuple[str, str, Any]]


def read_graph_parameters(estimator: BaseEstimator) -> Given:
    """Return the parameters of an estimator that determine its graph, those of the model inside included."""
    refuse_circle(estimator.model)
    own = getattr(estimator, "_local_class", type(estimator)).__name__
    given = [(name, own, getattr(estimator, name)) for name in _OF_GRAPH if hasattr(estimator, name)]
    given.append((LINK, own, getattr(estimator, "_link", "identity")))
    # a list, or an adapter, may be changed in place
    changing = (list, Settable)
    copied = [
        (name, own, copy(value) if isinstance(value, changing) else value) for name, own, value in given
    ]
    return [*copied, *_parameters_inside(estimator.model)]


def refuse_new_graph(estimator: BaseEstimator, first: Given) -> None:
    """Refuse parameters that determine the graph and differ from those of the first call.

    Raises
    ------
    ParameterError
        If one does; the error names it.
    """
    for before, now in _changes(estimator, first):
        name, owner, value = now or before
        change = f" from {_shown(before[2])} to {_shown(value)}" if before and now else ""
        raise ParameterError(
            f"{name} of {owner} changed{change} since the first call: training continues with the graph "
            "of that call. Call fit with warm_start=False, or take a new estimator."
        )


def has_new_graph(estimator: BaseEstimator, first: Given) -> bool:
    """Tell whether parameters that determine the graph differ from those of the first call."""
    return next(_changes(estimator, first), None) is not None


def _changes(estimator: BaseEstimator, first: Given) -> Iterator[tuple[Any, Any]]:
    """Yield each parameter of the graph that changed, as it was and as it is; None where there is none."""
    if _are_identical(estimator, first):
        # the common case: the rest takes a tenth of a small call of ``partial_fit``
        return
    for before, now in zip_longest(first, read_graph_parameters(estimator)):
        if before is None or now is None or before[:2] != now[:2] or not is_same(before[2], now[2]):
            yield before, now


def _are_identical(estimator: BaseEstimator, first: Given) -> bool:
    """Tell whether all parameters are the same objects, which none of the copied ones is."""
    names, read = _names_of_graph(type(estimator))
    values = (*read(estimator), getattr(estimator, "_link", "identity"))
    if len(first) < len(names):
        return False
    # names differ where the first call was of another version
    for known, name, value in zip(first, names, values, strict=False):
        if known[2] is not value or known[0] != name:
            return False
    if not isinstance(estimator.model, BaseEstimator):
        return len(first) == len(names)
    # a model that contains itself has more parameters than those of the first call
    inside = islice(_parameters_inside(estimator.model), len(first) - len(names) + 1)
    return _are_same_entries(first[len(names) :], list(inside))


def _are_same_entries(first: Given, second: Given) -> bool:
    """Tell whether entries have the same names, and the same objects for values."""
    if len(first) != len(second):
        return False
    return all(a[2] is b[2] and a[0] == b[0] and a[1] == b[1] for a, b in zip(first, second, strict=True))


#: The names of the parameters of a class that determine its graph, that of the link last, and a function that
#: reads all but that one of an estimator.
_names_of_graph: Callable[[Any], tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]] = lru_cache(
    maxsize=64
)(lambda kind: _named([name for name in _OF_GRAPH if name in kind._get_param_names()]))


def _named(names: list[str]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    return (*names, LINK), attrgetter(*names)


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
    # get_params would take ten times as long
    for name, value in vars(model).items():
        if name[0] == "_" or name[-1] == "_":
            continue
        estimators = () if type(value) in _PLAIN else tuple(_estimators_in(value))
        for estimator in estimators:
            yield name, owner, estimator
            yield from _parameters_inside(estimator)
        if not estimators:
            yield name, owner, value


def _estimators_in(value: object) -> Iterator[BaseEstimator]:
    """Yield an estimator, or those in lists and tuples."""
    if isinstance(value, BaseEstimator):
        yield value
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _estimators_in(entry)
