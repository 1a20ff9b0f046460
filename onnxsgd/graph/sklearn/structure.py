"""Structures of fitted estimators: everything that determines their graph, beside the fitted numbers.

Estimators of one structure convert to one graph with other numbers in it. The structure is known for the
classes of a table, by the attributes that their converters read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LinearRegression,
    LogisticRegression,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import LabelBinarizer, MaxAbsScaler, MinMaxScaler, StandardScaler

__all__ = ["Structure", "read_structure", "with_arrays"]

_LINEAR = ("coef_", "intercept_", "n_features_in_", "positive", "fit_intercept", "solver")
_CLASSIFIER = ("coef_", "intercept_", "classes_", "n_features_in_")
_NETWORK = (
    "coefs_",
    "intercepts_",
    "activation",
    "out_activation_",
    "n_layers_",
    "n_outputs_",
    "n_features_in_",
)
#: The attributes that the converters read, by class; attributes that an object lacks are left out.
_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    ElasticNet: _LINEAR,
    LabelBinarizer: ("classes_", "y_type_", "sparse_input_", "neg_label", "pos_label", "sparse_output"),
    Lasso: _LINEAR,
    LinearRegression: _LINEAR,
    LogisticRegression: (*_CLASSIFIER, "multi_class", "solver"),
    MLPClassifier: (*_NETWORK, "classes_", "_label_binarizer"),
    MLPRegressor: _NETWORK,
    MaxAbsScaler: ("scale_", "max_abs_", "n_features_in_", "clip"),
    MinMaxScaler: ("scale_", "min_", "clip", "feature_range", "n_features_in_"),
    Ridge: _LINEAR,
    RidgeClassifier: (*_CLASSIFIER, "_label_binarizer", "positive", "solver"),
    SGDClassifier: (*_CLASSIFIER, "loss"),
    SGDRegressor: _LINEAR,
    StandardScaler: ("with_mean", "with_std", "mean_", "scale_", "n_features_in_"),
}  # fmt: skip
_PLAIN = (bool, int, float, str, type(None), np.bool_, np.integer)


@dataclass(frozen=True)
class Structure:
    """The structure of an estimator, and its numbers.

    Attributes
    ----------
    key : hashable
        Equal keys denote equal structures.
    arrays : tuple of ndarray
        The fitted arrays of real numbers, in the order of the key.
    """

    key: Hashable
    arrays: tuple[np.ndarray, ...]


class _UnknownError(Exception):
    """Part of an estimator is not in the table."""


def read_structure(estimator: BaseEstimator) -> Structure | None:
    """Return the structure of a fitted estimator; None if a class, or the type of an attribute, is unknown.

    Subclasses of the classes in the table are unknown: they may convert in another way.
    """
    arrays: list[np.ndarray] = []
    try:
        return Structure(_key(estimator, arrays), tuple(arrays))
    except _UnknownError:
        return None


def _key(value: Any, arrays: list[np.ndarray]) -> Hashable:
    kind = type(value)
    if isinstance(value, np.floating) or (kind is np.ndarray and value.dtype.kind == "f"):
        arrays.append(np.asarray(value))
        return (kind, value.dtype.str, value.shape)
    if kind in _PLAIN or isinstance(value, np.integer):
        return (kind, value)
    if kind is np.ndarray and value.dtype.kind in "biuUS":
        return (kind, value.dtype.str, value.shape, value.tobytes())
    if kind is np.ndarray and value.dtype == object and all(type(entry) is str for entry in value.flat):
        return (kind, value.shape, tuple(value.flat))
    if kind in (list, tuple):
        return (kind, tuple(_key(entry, arrays) for entry in value))
    return (kind, tuple((name, _key(entry, arrays)) for name, entry in _parts(value)))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and the values of the attributes that determine the graph of an estimator."""
    kind = type(value)
    if kind is FrozenEstimator:
        yield "estimator", value.estimator
    elif kind is Pipeline:
        yield "steps", [tuple(step) for step in value.steps]
    elif kind in _ATTRIBUTES:
        yield from ((name, getattr(value, name)) for name in _ATTRIBUTES[kind] if hasattr(value, name))
    else:
        raise _UnknownError


def with_arrays(estimator: BaseEstimator, arrays: Iterator[np.ndarray]) -> Any:
    """Return an estimator of the same structure with other arrays, and no attribute beside the structure.

    Parameters
    ----------
    estimator : estimator
        One that :func:`read_structure` knows.
    arrays : iterator of ndarray
        As many as the structure has, of the same types and shapes.
    """
    return _rebuilt(estimator, arrays)


def _rebuilt(value: Any, arrays: Iterator[np.ndarray]) -> Any:
    kind = type(value)
    if isinstance(value, np.floating):
        return kind(next(arrays))
    if kind is np.ndarray:
        return next(arrays) if value.dtype.kind == "f" else value
    if kind in (list, tuple):
        return kind(_rebuilt(entry, arrays) for entry in value)
    if kind in _PLAIN or isinstance(value, np.integer):
        return value
    parts = {name: _rebuilt(entry, arrays) for name, entry in _parts(value)}
    if kind in (FrozenEstimator, Pipeline):
        return kind(**parts)
    bare: Any = object.__new__(kind)
    vars(bare).update({name: entry for name, entry in parts.items() if name in vars(value)})
    return bare
