"""Learners with further raw predictions of each target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from onnxsgd.exceptions import ParameterError
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

    Raises
    ------
    ParameterError
        If that layer is not trained, or has an adapter: the further scores would stay as they start.
    """
    widened = widen_last_layer(learner.with_weights(weights, score_only=True), n_outputs, factors, offsets)
    if widened is None:
        if (adapted := _adapted_last_weight(learner)) is not None:
            raise ParameterError(
                f"The loss needs {len(factors)} raw predictions of each target, and the last layer of the "
                f"model, which would get them as new columns, has an adapter beside {adapted!r}: leave it "
                "out of targets of the adapter and name it in trainable, or put a new layer on top with "
                "head='linear'."
            )
        return None
    graph, (coef, intercept) = widened
    is_new = intercept not in learner.score_model.graph.initializers
    trained, intercepts = learner.weights, learner.intercepts
    if not {coef, intercept} & set(trained):
        layer = [coef] if is_new else [coef, intercept]
        raise ParameterError(
            f"The loss needs {len(factors)} raw predictions of each target, and the last layer of the "
            f"model, which gets them as new columns, is not trained: name {layer} in trainable, beside "
            "adapters too, or put a new layer on top with head='linear'."
        )
    if is_new and coef in trained:
        trained, intercepts = (*trained, intercept), intercepts | {intercept}
    half = learner.half_precision
    if half is not None:
        half = with_further_scores(half, weights, n_outputs, factors, offsets)
    return replace(
        learner, model=graph, score_model=graph, classes=None, weights=trained, intercepts=intercepts,
        linear=linear_parameters(graph), numbers={}, template=None, half_precision=half,
    )  # fmt: skip


def _adapted_last_weight(learner: Learner) -> str | None:
    """Return the weight of the last layer, if it has an adapter."""
    adapted = {adapter.up: adapter.weight for adapter in learner.adapters}
    values = [learner.score_model.graph.outputs[0]]
    while values:
        node = values.pop().producer()
        if node is None:
            continue
        operands = [value for value in node.inputs if value is not None]
        if node.op_type in _PRODUCTS:
            found = next((adapted[str(value.name)] for value in operands if value.name in adapted), None)
            if found is not None:
                return found
        elif node.op_type in _AFTER_PRODUCTS:
            values.extend(operands)
    return None


_PRODUCTS = frozenset({"MatMul", "Gemm"})
#: Operators between the products of a layer and its output.
_AFTER_PRODUCTS = frozenset({"Add", "Mul", "Reshape", "Cast", "Identity"})
