"""Linear transformers without a converter, as those with one that give the same features."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, FastICA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection

from onnxsgd.graph.sklearn.converters import is_registered

__all__ = ["as_dense_projection", "as_unmixing", "project_discriminants", "projected"]


def as_unmixing(analysis: FastICA, by_position: bool) -> FastICA | PCA:
    """Return the projection on the independent components: ``(X - mean_) @ components_.T``."""
    if is_registered(FastICA):
        return analysis
    return _projection(analysis.mean_ if analysis.whiten else None, analysis.components_)


def as_dense_projection(
    projection: SparseRandomProjection, by_position: bool
) -> SparseRandomProjection | GaussianRandomProjection:
    """Return the projection on the same random components, in a dense array."""
    if is_registered(SparseRandomProjection):
        return projection
    components = projection.components_
    dense = GaussianRandomProjection(projection.n_components_)
    dense.components_ = components if isinstance(components, np.ndarray) else components.toarray()
    dense.n_components_, dense.n_features_in_ = dense.components_.shape
    return dense


def project_discriminants(container: object) -> None:
    """Replace discriminant analyses that transform, in a pipeline or beside others, by their projections.

    Their converter writes predictions.

    Parameters
    ----------
    container : object
        It is changed if it is a Pipeline, a FeatureUnion or a ColumnTransformer.
    """
    if isinstance(container, Pipeline):
        *steps, last = container.steps
        container.steps = [*((name, projected(step)) for name, step in steps), last]
    elif isinstance(container, FeatureUnion):
        container.transformer_list = [(name, projected(step)) for name, step in container.transformer_list]
    elif isinstance(container, ColumnTransformer) and hasattr(container, "transformers_"):
        container.transformers_ = [(name, projected(step), on) for name, step, on in container.transformers_]


def projected(step: Any) -> Any:
    """Return a step that transforms with its discriminant analyses replaced."""
    if isinstance(step, FrozenEstimator):
        return projected(step.estimator)
    if isinstance(step, GridSearchCV | RandomizedSearchCV) and hasattr(step, "best_estimator_"):
        return projected(step.best_estimator_)
    if isinstance(step, Pipeline):
        step.steps = [(name, projected(inner)) for name, inner in step.steps]
    if not isinstance(step, LinearDiscriminantAnalysis) or not hasattr(step, "scalings_"):
        return step
    mean = step.xbar_ if step.solver == "svd" else None
    return _projection(mean, step.scalings_[:, : step._max_components].T)


def _projection(mean: np.ndarray | None, components: np.ndarray) -> PCA:
    """Return a fitted projection, ``(X - mean) @ components.T``."""
    projection = PCA(len(components))
    projection.mean_, projection.components_ = mean, components
    projection.n_components_, projection.n_features_in_ = components.shape
    return projection
