"""Scores of streams: ``python benchmarks/streams.py [--kinds shuffled alike] [--calls 1 8 50] [--seeds 3]``.

Models with default settings learn each kind of stream by ``partial_fit`` in calls of so many rows. Linear
models stand beside scikit-learn's SGD on columns that a `StandardScaler` of the rows so far has scaled, or on
sparse ones as they are; networks beside their own ``partial_fit``, fitted linear models beside themselves as
they were. Prints the mean over the draws of R2 or accuracy on later rows of a stream (for drifts of the
predictions before each call; for a rare class the balanced accuracy). Kinds whose name contains one of the
given words are run.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from scipy import sparse
from sklearn.datasets import load_digits, make_friedman1
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from sklearn.metrics import balanced_accuracy_score, r2_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

_N_TESTED = 1000


@dataclass
class _Stream:
    """Rows and targets in order, a fitted model to continue, and the way to score."""

    X: Any
    y: np.ndarray
    fitted: Any = None
    drifts: bool = False
    is_rare: bool = False


def _linear(rng: np.random.Generator, n_rows: int, n_columns: int, memory: float = 0.0) -> _Stream:
    """Return rows of normal columns, each `memory` times the row before it and something new."""
    X = rng.normal(size=(n_rows + _N_TESTED, n_columns))
    for row in range(1, len(X) if memory else 0):
        X[row] = memory * X[row - 1] + np.sqrt(1 - memory**2) * X[row]
    coef = rng.normal(size=n_columns) / np.sqrt(n_columns)
    return _Stream(X, X @ coef + 0.3 * rng.normal(size=len(X)))


def _of_signs(stream: _Stream) -> _Stream:
    """Return the stream of classes that tells whether targets exceed their mean."""
    stream.y = (stream.y > stream.y.mean()).astype(int)
    return stream


def _factors(rng: np.random.Generator) -> _Stream:
    stream = _linear(rng, 4000, 20)
    noise = 0.1 * rng.normal(size=(len(stream.X), 400))
    return _Stream(stream.X @ rng.normal(size=(20, 400)) + noise, stream.y)


def _embedded(rng: np.random.Generator) -> _Stream:
    """Return 300 columns whose variances in some directions are a hundredth of those in others."""
    stream = _linear(rng, 3000, 300)
    rotation = np.linalg.qr(rng.normal(size=(300, 300)))[0]
    return _Stream((stream.X * np.logspace(0, -1, 300)) @ rotation, stream.y)


def _raw(rng: np.random.Generator) -> _Stream:
    stream = _linear(rng, 3000, 20)
    scales = 10.0 ** rng.uniform(-4, 4, 20)
    return _Stream(scales * (stream.X + rng.normal(size=20)), 100 * stream.y + 50)


def _drift(rng: np.random.Generator, *, is_sudden: bool) -> _Stream:
    X, time = rng.normal(size=(4000, 20)), np.linspace(0, 1, 4000)[:, None]
    before, after = rng.normal(size=(2, 20)) / np.sqrt(20)
    turned = np.where(time < 0.5, 0.0, 1.0) if is_sudden else np.sin(3 * time)
    coefs = np.sqrt(1 - turned**2) * before + turned * after
    return _Stream(X, (X * coefs).sum(axis=1) + 0.3 * rng.normal(size=4000), drifts=True)


def _categories(rng: np.random.Generator) -> _Stream:
    """Return columns of 0 and 1 for 20 categories, of which 17 come one after another, and three others."""
    known = (rng.random(4000) * np.linspace(3, 20, 4000)).astype(int)
    others, effects = rng.normal(size=(4000, 3)), 2 * rng.normal(size=20)
    y = effects[known] + others @ [1.0, -1.0, 0.5] + 0.3 * rng.normal(size=4000)
    return _Stream(np.column_stack([np.eye(20)[known], others]), y, drifts=True)


def _sensors(rng: np.random.Generator) -> _Stream:
    """Return normal columns, three of which are zero in the first half."""
    stream = _linear(rng, 4000 - _N_TESTED, 10)
    X, coef = stream.X.copy(), rng.normal(size=10)
    X[:2000, :3] = 0.0
    return _Stream(X, X @ coef + 0.3 * rng.normal(size=4000), drifts=True)


def _jump(rng: np.random.Generator) -> _Stream:
    """Return normal columns, and a target that grows by 20 deviations of its noise, six of its own."""
    stream = _linear(rng, 4000 - _N_TESTED, 10)
    stream.y[2000:] += 6.0
    return _Stream(stream.X, stream.y, drifts=True)


def _hourly(rng: np.random.Generator) -> _Stream:
    """Return a load in order of time, with a daily period, of weather and the hour."""
    hours, n_rows = np.arange(4000 + _N_TESTED), 4000 + _N_TESTED
    daily, yearly = 2 * np.pi * hours / 24, 2 * np.pi * hours / 8760
    temperature = 12 - 9 * np.cos(yearly) + 4 * np.sin(daily - 2) + _walk(rng, n_rows, 0.98, 3.0)
    humidity = 70 - 1.2 * (temperature - 12) + _walk(rng, n_rows, 0.95, 6.0)
    wind, pressure = _walk(rng, n_rows, 0.9, 2.0) + 5, _walk(rng, n_rows, 0.995, 8.0) + 1013
    is_weekend = (hours // 24) % 7 >= 5
    X = np.column_stack(
        [temperature, humidity, wind, pressure, np.sin(daily), np.cos(daily), is_weekend.astype(float)]
    )
    y = 200 - 2 * temperature + 0.3 * humidity + 30 * np.sin(daily - 1) - 20 * is_weekend
    return _Stream(X, y + _walk(rng, n_rows, 0.8, 4.0))


def _lags(rng: np.random.Generator) -> _Stream:
    """Return the last 12 values of a series with a period, and the next one."""
    n_rows, n_lags = 3000 + _N_TESTED, 12
    time = np.arange(n_rows + n_lags)
    series = 10 * np.sin(2 * np.pi * time / 24) + _walk(rng, len(time), 0.9, 3.0) + 50
    return _Stream(np.lib.stride_tricks.sliding_window_view(series[:-1], n_lags), series[n_lags:])


def _walk(rng: np.random.Generator, n_rows: int, memory: float, scale: float) -> np.ndarray:
    """Return normal numbers, each `memory` times the one before and something new."""
    return scale * _linear(rng, n_rows - _N_TESTED, 1, memory).X[:, 0]


def _classes(rng: np.random.Generator) -> _Stream:
    X = rng.normal(size=(3000 + _N_TESTED, 50))
    scores = X @ rng.normal(size=(50, 5)) / 3 + 0.5 * rng.gumbel(size=(len(X), 5))
    return _Stream(X, scores.argmax(axis=1))


def _rare(rng: np.random.Generator) -> _Stream:
    stream = _linear(rng, 5000, 20)
    return _Stream(stream.X, (stream.y > np.quantile(stream.y, 0.97)).astype(int), is_rare=True)


def _texts(rng: np.random.Generator, n_topics: int, n_words: int) -> _Stream:
    shares, shape = 1.0 / np.arange(1, n_words + 1), (2500 + _N_TESTED, 40)
    words = rng.choice(n_words, shape, p=shares / shares.sum())
    topics = rng.integers(0, n_topics, shape[0])
    orders = np.array([rng.permutation(n_words) for _ in range(n_topics)])
    words = np.where(rng.random(shape) < 0.2, orders[topics[:, None], words], words)
    starts = np.arange(0, words.size + 1, 40)
    counts = sparse.csr_matrix((np.ones(words.size), words.ravel(), starts), shape=(len(words), n_words))
    counts.sum_duplicates()
    return _Stream(TfidfTransformer().fit_transform(counts), topics)


def _digits(rng: np.random.Generator, *, is_fitted: bool = False, n_turns: int = 0) -> _Stream:
    X, y = load_digits(return_X_y=True)
    order = rng.permutation(len(X))
    X, y = X[order] / 16, y[order]
    if not is_fitted:
        return _Stream(X, y)
    network = MLPClassifier((64,), max_iter=60, random_state=0).fit(X[:400], y[:400])
    turned = np.rot90(X.reshape(-1, 8, 8), n_turns, axes=(1, 2)).reshape(-1, 64)
    return _Stream(turned[400:], y[400:], network)


def _waves(rng: np.random.Generator, memory: float, n_first: int, n_epochs: int) -> _Stream:
    """Return products and waves of columns, and a network that knows its first rows."""
    X = _linear(rng, 4000, 6, memory).X
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.2 * rng.normal(size=len(X))
    network = MLPRegressor(hidden_layer_sizes=(64,), max_iter=n_epochs, random_state=0)
    return _Stream(X, y, network.fit(X[:n_first], y[:n_first]))


def _ordered(stream: _Stream) -> _Stream:
    """Return the standardised stream of a network that knows its first rows."""
    X, y, n_first = StandardScaler().fit_transform(stream.X), stream.y - stream.y.mean(), 500
    network = MLPRegressor(hidden_layer_sizes=(64,), max_iter=500, random_state=0)
    return _Stream(X[n_first:], y[n_first:], network.fit(X[:n_first], y[:n_first]))


def _good(rng: np.random.Generator) -> _Stream:
    X, y = make_friedman1(2000 + _N_TESTED, noise=1, random_state=int(rng.integers(1000)))
    network = MLPRegressor(hidden_layer_sizes=(50,), max_iter=1500, random_state=0)
    return _Stream(X[800:], y[800:], network.fit(X[:800], y[:800]))


def _logistic(rng: np.random.Generator, n_known: int, n_rows: int, noise: float) -> _Stream:
    """Return 20 columns of 5 factors, five classes of their sums, and a regression that knows some rows."""
    factors = rng.normal(size=(n_known + n_rows + _N_TESTED, 5))
    X = factors @ rng.normal(size=(5, 20)) + 0.1 * rng.normal(size=(len(factors), 20))
    y = (factors @ rng.normal(size=(5, 5)) + noise * rng.gumbel(size=(len(factors), 5))).argmax(axis=1)
    fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X[:n_known], y[:n_known])
    return _Stream(X[n_known:], y[n_known:], fitted)


def _sparse_ridge(rng: np.random.Generator, n_known: int, n_rows: int) -> _Stream:
    """Return rows with 40 of 2,000 columns, and a ridge regression that knows some of them."""
    n_all = n_known + n_rows + _N_TESTED
    X = sparse.random_array((n_all, 2000), density=0.02, format="csr", rng=rng)
    y = X @ rng.normal(size=2000)
    y = y / y.std() + 0.5 * rng.normal(size=n_all)
    return _Stream(X[n_known:], y[n_known:], Ridge().fit(X[:n_known], y[:n_known]))


def _ridge(rng: np.random.Generator, n_known: int, n_rows: int, noise: float) -> _Stream:
    """Return columns whose sum has noise, and a ridge regression that knows some rows."""
    stream = _linear(rng, n_known + n_rows, 20)
    y = stream.y / stream.y.std() + noise * rng.normal(size=len(stream.y))
    # the rows to predict have no noise
    y[n_known + n_rows :] = stream.y[n_known + n_rows :] / stream.y.std()
    fitted = make_pipeline(StandardScaler(), Ridge()).fit(stream.X[:n_known], y[:n_known])
    return _Stream(stream.X[n_known:], y[n_known:], fitted)


_KINDS: dict[str, Callable[[np.random.Generator], _Stream]] = {
    "shuffled, 5 columns": lambda rng: _linear(rng, 3000, 5),
    "shuffled, 30 columns": lambda rng: _linear(rng, 3000, 30),
    "shuffled, 300 columns, 1,200 rows": lambda rng: _linear(rng, 1200, 300),
    "shuffled, 300 columns, 4,000 rows": lambda rng: _linear(rng, 4000, 300),
    "shuffled classes, 100 columns, 1,200 rows": lambda rng: _of_signs(_linear(rng, 1200, 100)),
    "shuffled classes, 300 columns, 4,000 rows": lambda rng: _of_signs(_linear(rng, 4000, 300)),
    "rows alike, 0.9 of the one before": lambda rng: _linear(rng, 2000, 8, 0.9),
    "rows alike, 0.98 of the one before": lambda rng: _linear(rng, 2000, 8, 0.98),
    "new categories": _categories,
    "columns that begin": _sensors,
    "hourly table": _hourly,
    "hourly table, classes": lambda rng: _of_signs(_hourly(rng)),
    "lags of a series": _lags,
    "lags of a series, classes": lambda rng: _of_signs(_lags(rng)),
    "classes of rows alike, 0.98": lambda rng: _of_signs(_linear(rng, 2000, 8, 0.98)),
    "raw columns": _raw,
    "raw columns, classes": lambda rng: _of_signs(_raw(rng)),
    "400 columns of 20 factors": _factors,
    "300 correlated columns": _embedded,
    "300 correlated columns, classes": lambda rng: _of_signs(_embedded(rng)),
    "slow drift": lambda rng: _drift(rng, is_sudden=False),
    "slow drift, classes": lambda rng: _of_signs(_drift(rng, is_sudden=False)),
    "jump of the level": _jump,
    "sudden change": lambda rng: _drift(rng, is_sudden=True),
    "five classes": _classes,
    "class of 3 %": _rare,
    "digits": _digits,
    "texts, 2 topics": lambda rng: _texts(rng, 2, 5000),
    "texts, 12 topics": lambda rng: _texts(rng, 12, 20000),
    "noise": lambda rng: _Stream(rng.normal(size=(3000, 30)), rng.normal(size=3000)),
    "logistic regression": lambda rng: _logistic(rng, 2000, 600, 2.0),
    "logistic regression, little known": lambda rng: _logistic(rng, 60, 2000, 0.5),
    "ridge regression": lambda rng: _ridge(rng, 2000, 600, 3.0),
    "ridge regression, little known": lambda rng: _ridge(rng, 60, 2000, 1.0),
    "ridge regression, sparse": lambda rng: _sparse_ridge(rng, 100, 4000),
    "network, good weights": _good,
    "network, digits": lambda rng: _digits(rng, is_fitted=True),
    "network, turned digits": lambda rng: _digits(rng, is_fitted=True, n_turns=1),
    "network, little known": lambda rng: _waves(rng, 0.0, 50, 1),
    "network, hourly table": lambda rng: _ordered(_hourly(rng)),
    "network, lags of a series": lambda rng: _ordered(_lags(rng)),
    "network, rows alike": lambda rng: _waves(rng, 0.95, 300, 300),
}


class _Scaled:
    """SGD on columns that a scaler of the rows so far has scaled."""

    def __init__(self, model: Any, *, is_sparse: bool) -> None:
        self._model, self._scaler = model, StandardScaler(with_mean=not is_sparse, with_std=not is_sparse)

    def partial_fit(self, X: Any, y: np.ndarray, **options: Any) -> None:
        self._model.partial_fit(self._scaler.partial_fit(X).transform(X), y, **options)

    def predict(self, X: Any) -> np.ndarray:
        return self._model.predict(self._scaler.transform(X))


class _AsItWas:
    """A model that learns nothing."""

    def __init__(self, model: Any) -> None:
        self.predict = model.predict

    def partial_fit(self, X: Any, y: np.ndarray) -> None:
        """Leave the model."""


def _score(model: Any, stream: _Stream, n_rows: int) -> float:
    """Let a model learn a stream in calls of `n_rows`, and return its score."""
    X, y, has_classes = stream.X, stream.y, stream.y.dtype.kind == "i"
    n_known = X.shape[0] if stream.drifts else X.shape[0] - _N_TESTED
    options = {"classes": np.unique(y)} if has_classes and stream.fitted is None else {}
    predicted = []
    for start in range(0, n_known, n_rows):
        part = slice(start, min(start + n_rows, n_known))
        if stream.drifts and start:
            predicted.append(model.predict(X[part]))
        model.partial_fit(X[part], y[part], **options)
    found = np.concatenate(predicted) if stream.drifts else model.predict(X[n_known:])
    true = y[n_rows:] if stream.drifts else y[n_known:]
    if stream.is_rare:
        return float(balanced_accuracy_score(true, found))
    return float(np.mean(true == found) if has_classes else r2_score(true, found))


def _scores(kind: str, n_rows: int, seed: int) -> tuple[float, float]:
    """Return our score and that of scikit-learn."""
    from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

    warnings.simplefilter("ignore")
    stream = _KINDS[kind](np.random.default_rng(seed))
    has_classes = stream.y.dtype.kind == "i"
    ours = OnnxSGDClassifier if has_classes else OnnxSGDRegressor
    if stream.fitted is None:
        theirs = SGDClassifier("log_loss") if has_classes else SGDRegressor()
        reference: Any = _Scaled(theirs.set_params(random_state=0), is_sparse=sparse.issparse(stream.X))
    else:
        fitted = stream.fitted
        reference = deepcopy(fitted) if hasattr(fitted, "partial_fit") else _AsItWas(fitted)
    model = ours(stream.fitted, random_state=0, n_threads=1)
    return _score(model, stream, n_rows), _score(reference, stream, n_rows)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=[""])
    parser.add_argument("--calls", type=int, nargs="+", default=[1, 8, 50])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    kinds = [kind for kind in _KINDS if any(word in kind for word in args.kinds)]
    tasks = list(product(kinds, args.calls, range(args.seeds)))
    found = Parallel(n_jobs=args.jobs)(delayed(_scores)(*task) for task in tasks)
    scores = np.reshape(found, (len(kinds), len(args.calls), args.seeds, 2)).mean(axis=2)
    print("| stream |", " | ".join(f"calls of {n_rows} | scikit-learn" for n_rows in args.calls), "|")
    print("|---|" + "---|---|" * len(args.calls))
    for kind, row in zip(kinds, scores, strict=True):
        print(f"| {kind} |", " | ".join(f"{score:.3f}" for score in row.reshape(-1)), "|")


if __name__ == "__main__":
    main()
