"""Streams in calls of few rows, of few and many columns: ``python benchmarks/small_calls.py``.

1,200 generated rows through ``partial_fit``, of linear models from zero and of networks of 30 units. Prints
the mean scores on new rows with one bound of the cosine that steers the rates and with scales of columns that
are their deviations from the second row on, and with those of "auto"; and the numbers of streams that are
better and worse by more than 0.01.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.neural_network import MLPClassifier, MLPRegressor

#: Rows of a network's first fit, of the stream, and of the test data; rows of a call; draws of each set.
_FIRST, _STREAM, _TESTED, _CALLS, _SEEDS = 300, 1200, 1000, (1, 2, 4, 8, 20, 100), 2


def _linear_sets(rng: np.random.Generator, n_columns: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Return normal columns and indicators of one column in ten to fifty, with targets of both kinds."""
    size = (_FIRST + _STREAM + _TESTED, n_columns)
    tables = {"normal": rng.normal(size=size), "indicators": rng.random(size) < max(0.02, 1 / n_columns)}
    for kind, X in tables.items():
        scores = X @ rng.normal(size=(n_columns, 2))
        scores += 0.5 * scores.std() * rng.normal(size=scores.shape)
        yield kind, X.astype(float), scores[:, 0]
        yield kind, X.astype(float), scores.argmax(axis=1)


def _network_set(rng: np.random.Generator, n_columns: int) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(_FIRST + _STREAM + _TESTED, n_columns))
    hidden = np.tanh(2.0 * X @ rng.normal(size=(n_columns, 6)) / n_columns**0.5)
    return X, hidden @ rng.normal(size=6) + 0.3 * rng.normal(size=len(X))


def _streams(seed: int) -> Iterator[tuple[str, BaseEstimator | None, np.ndarray, np.ndarray]]:
    """Return the name, the network if there is one, the table and the target of each set."""
    for n_columns in (10, 50, 100, 500):
        rng = np.random.default_rng(seed)
        for kind, X, y in _linear_sets(rng, n_columns):
            yield f"{n_columns} {kind}", None, X, y
        X, y = _network_set(rng, n_columns)
        for max_iter in (1, 40):
            settings = {"hidden_layer_sizes": (30,), "max_iter": max_iter, "random_state": 0}
            yield f"{n_columns}, network", MLPRegressor(**settings).fit(X[:_FIRST], y[:_FIRST]), X, y
            labels = (y > 0).astype(int)
            classifier = MLPClassifier(**settings).fit(X[:_FIRST], labels[:_FIRST])
            yield f"{n_columns}, network", classifier, X, labels


def main() -> None:
    """Print the comparison."""
    from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
    from onnxsgd.optimizers import REST
    from onnxsgd.runtime.cache import cache
    from onnxsgd.training import coordinates, fit_plan

    warnings.simplefilter("ignore")
    scores: dict[tuple[str, int], list[list[float]]] = {}
    for seed in range(_SEEDS):
        for name, network, X, y in _streams(seed):
            is_classifier = y.dtype.kind == "i"
            kind = OnnxSGDClassifier if is_classifier else OnnxSGDRegressor
            classes = {"classes": np.unique(y)} if is_classifier else {}
            for n_rows in _CALLS:
                pair = []
                for is_chosen in (False, True):
                    # which holds the optimizer of a step
                    cache.clear()
                    model = kind(network, random_state=0)
                    with ExitStack() as stack:
                        if not is_chosen:
                            stack.enter_context(patch.object(fit_plan, "_rest", lambda *given: REST))
                            stack.enter_context(patch.object(coordinates, "_EXCESS_OF_TWO", 0.0))
                        for first in range(_FIRST, _FIRST + _STREAM, n_rows):
                            rows = slice(first, first + n_rows)
                            model.partial_fit(X[rows], y[rows], **classes)
                    # streams that diverge have any score below zero
                    pair.append(max(-1.0, model.score(X[-_TESTED:], y[-_TESTED:])))
                scores.setdefault((name, n_rows), []).append(pair)
    print("columns                  rows of a call: before -> now")
    for name in dict.fromkeys(name for name, _ in scores):
        means = [(n_rows, np.mean(scores[name, n_rows], axis=0)) for n_rows in _CALLS]
        print(f"{name:24}", "  ".join(f"{n_rows}: {own:.3f} -> {now:.3f}" for n_rows, (own, now) in means))
    for n_rows in _CALLS:
        found = np.array([pair for (_, rows), pairs in scores.items() if rows == n_rows for pair in pairs])
        gains, (before, now) = found[:, 1] - found[:, 0], found.mean(axis=0)
        print(f"calls of {n_rows}: {len(gains)} streams, {before:.3f} -> {now:.3f},", end=" ")
        print(f"{(gains > 0.01).sum()} better, {(gains < -0.01).sum()} worse,", end=" ")
        print(f"{gains.min():.3f} to {gains.max():.3f}")


if __name__ == "__main__":
    main()
