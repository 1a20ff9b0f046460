"""A trial run of a graph: each sample must give one row of raw predictions."""

from __future__ import annotations

import numpy as np

from onnxsgd.data.features import Features, n_rows, take_rows
from onnxsgd.exceptions import EngineError, GraphError, UnsupportedError
from onnxsgd.learner.learner import Learner

__all__ = ["check_inputs", "shape_of_scores"]


def check_inputs(learner: Learner) -> None:
    """Refuse a graph with an input that does not have one row for each sample.

    Raises
    ------
    GraphError
        If the first size of an input is fixed, or an input has no axes.
    """
    if (learner.template or learner).shapes_of_scores:
        # a graph that has been tried on data has been checked
        return
    for value in learner.inputs:
        if value.shape is not None and (not len(value.shape) or isinstance(value.shape[0], int)):
            sizes = tuple(size if isinstance(size, int) else "any" for size in value.shape)
            raise GraphError(
                f"Input {value.name!r} of the graph has shape {sizes}: each input must have one row for each "
                "sample. Make it a constant of the graph, or export the graph without it."
            )


def shape_of_scores(learner: Learner, features: Features, n_threads: int | None) -> tuple[int, ...]:
    """Return the shape of the raw predictions of a sample.

    A graph of floating-point inputs is tried once for rows of one shape: their numbers do not matter.

    Raises
    ------
    GraphError
        If the runtime cannot run it on such samples, if predictions have no axis of samples, or if
        predictions depend on the other samples in a graph exported for a fixed batch size.
    """
    count = min(n_rows(features), 3)
    rows = (count, *((name, array.dtype, array.shape[1:]) for name, array in features.items()))
    known = (learner.template or learner).shapes_of_scores
    if rows in known:
        return known[rows]
    raw = _run(learner, take_rows(features, slice(0, count)), n_threads)
    if raw.ndim == 0 or len(raw) != count:
        raise GraphError(
            f"the graph turns {count} samples into raw predictions {learner.score!r} of shape {raw.shape}; "
            "their first axis must be that of the samples. Name another tensor with output=, or put a new "
            "layer on top with head='linear'."
        )
    if learner.exported_for is not None:
        _check_independence(learner, features, n_threads)
    elif all(array.dtype.kind == "f" for array in features.values()):
        known[rows] = raw.shape[1:]
    return raw.shape[1:]


def _check_independence(learner: Learner, features: Features, n_threads: int | None) -> None:
    """Compare predictions for a batch with those for each of its samples alone."""
    count = min(n_rows(features), 1 + (learner.exported_for or 1))
    parts = [slice(row, row + 1) for row in range(count)]
    alone = [_run(learner, take_rows(features, part), n_threads) for part in parts]
    together = _run(learner, take_rows(features, slice(0, count)), n_threads)
    expected = np.concatenate(alone)
    tolerance = 1e-3 * np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    close = {"rtol": 0.0, "atol": tolerance, "equal_nan": True}
    if together.shape != expected.shape or not np.allclose(together, expected, **close):
        raise GraphError(_fixed(learner, "mixes samples otherwise"))


def _run(learner: Learner, features: Features, n_threads: int | None) -> np.ndarray:
    try:
        return learner.scores(features, learner.initial_weights(), n_threads)
    except (EngineError, UnsupportedError) as error:
        if learner.exported_for is not None:
            cause = str(error).rstrip(".")
            raise GraphError(_fixed(learner, f"cannot run otherwise: {cause}")) from error
        shapes = {name: tuple(array.shape) for name, array in features.items()}
        raise GraphError(f"The graph fails on inputs of shapes {shapes}: {error}") from error


def _fixed(learner: Learner, reason: str) -> str:
    return (
        f"The graph was exported for batches of {learner.exported_for} and {reason}. Export it again with an "
        "open first size of its inputs (dynamic axes)."
    )
