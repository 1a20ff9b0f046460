"""The scikit-learn model inside an estimator: its first fit, with sample weights if it supports them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from scipy import sparse
from sklearn import get_config
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["fitted", "has_own_fit", "holds_weights", "inner_routing", "is_fitted"]


def fitted(
    model: BaseEstimator,
    X: object,
    y: ArrayLike,
    sample_weight: np.ndarray | None,
    owner: BaseEstimator,
    rows: np.ndarray | None = None,
) -> Any:
    """Return `model` if it is fitted, else a clone of it fitted on the data.

    Samples of weight zero are dropped; the other weights are passed to a model that supports them.

    Parameters
    ----------
    model : estimator
        The model; it is not changed.
    X, y : objects
        The training data, as the user gave them.
    sample_weight : ndarray or None
        Weights, if the user gave any.
    owner : estimator
        The estimator that holds `model`; it routes metadata.
    rows : ndarray of int or None
        The rows to fit it on, where others are held out; None: all.
    """
    if is_fitted(model):
        return model
    if rows is not None:
        X, y = _rows_of(X, rows), _safe_indexing(y, rows)
        sample_weight = None if sample_weight is None else sample_weight[rows]
    return _fit(clone(model), X, y, sample_weight, owner)


def has_own_fit(model: object) -> bool:
    """Tell whether a model is an estimator that has a fit of its own before training."""
    return hasattr(model, "fit") and not isinstance(model, type) and not is_fitted(model)


def holds_weights(owner: BaseEstimator) -> bool:
    """Tell whether the model inside has weights before a fit: a graph, or a fitted estimator."""
    model = owner.__dict__.get("model")
    if model is None or owner.head is not None or isinstance(model, type):
        return False
    return is_fitted(model) if hasattr(model, "fit") else isinstance(model, _GRAPHS)


#: The types of graphs and files.
_GRAPHS = (onnx.ModelProto, bytes, str, os.PathLike)


def is_fitted(model: BaseEstimator) -> bool:
    """Tell whether an estimator is fitted."""
    if type(model) is FrozenEstimator:
        # it answers for the estimator inside, after a deep copy of the tags of that
        return is_fitted(model.estimator)
    try:
        check_is_fitted(model)
    except NotFittedError:
        return False
    return True


def _rows_of(X: Any, rows: np.ndarray) -> Any:
    """Return some rows of data; some forms of sparse matrices have no rows."""
    return _safe_indexing(X.tocsr() if sparse.issparse(X) else X, rows)


def _fit(
    model: BaseEstimator, X: object, y: ArrayLike, weight: np.ndarray | None, owner: BaseEstimator
) -> Any:
    if weight is None:
        return model.fit(X, y)
    kept = np.flatnonzero(weight)
    if len(kept) < len(weight):
        X, y, weight = _rows_of(X, kept), _safe_indexing(y, kept), weight[kept]
    if get_config()["enable_metadata_routing"]:
        return model.fit(X, y, **process_routing(owner, "fit", sample_weight=weight).model.fit)
    prefix, last = "", model
    while isinstance(last, Pipeline):
        step, last = last.steps[-1]
        prefix = f"{prefix}{step}__"
    takes_weights = has_fit_parameter(last, "sample_weight")
    return model.fit(X, y, **({f"{prefix}sample_weight": weight} if takes_weights else {}))


def inner_routing(owner: BaseEstimator) -> MetadataRouter:
    """Return the routing of metadata to an estimator and to the model inside, which its ``fit`` fits."""
    mapping = MethodMapping().add(caller="fit", callee="fit").add(caller="partial_fit", callee="fit")
    return MetadataRouter(owner=owner).add_self_request(owner).add(model=owner.model, method_mapping=mapping)
