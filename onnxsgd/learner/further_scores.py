"""Learners with further raw predictions of each target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from onnxsgd.graph.reading.linear import linear_parameters
from onnxsgd.graph.reading.widen import widen_last_layer
from onnxsgd.learner.learner import Learner

__all__ = ["with_further_scores"]


def with_further_scores(
    learner: Learner,
    weights: Mapping[str, np.ndarray],
    n_outputs: int,
    factors: Sequence[float],
    offsets: np.ndarray,
) -> Learner | None:
    """Return a learner with the scores ``[f z for f in factors] + offsets`` in place of its scores z.

    Parameters
    ----------
    learner : Learner
        The learner of z.
    weights : mapping of str to ndarray
        Its first weights.
    n_outputs, factors, offsets : int, sequence of float, ndarray
        As in :func:`onnxsgd.graph.reading.widen.widen_last_layer`.

    Returns
    -------
    Learner or None
        None if the graph does not end in a linear layer of `n_outputs` columns.
    """
    widened = widen_last_layer(learner.with_weights(weights, score_only=True), n_outputs, factors, offsets)
    if widened is None:
        return None
    graph, (coef, intercept) = widened
    is_new = intercept not in learner.score_model.graph.initializers
    trained, intercepts = learner.weights, learner.intercepts
    if is_new and coef in trained:
        trained, intercepts = (*trained, intercept), intercepts | {intercept}
    half = learner.half_precision
    if half is not None:
        half = with_further_scores(half, weights, n_outputs, factors, offsets)
    return replace(
        learner, model=graph, score_model=graph, classes=None, weights=trained, intercepts=intercepts,
        linear=linear_parameters(graph), numbers={}, template=None, half_precision=half,
    )  # fmt: skip
