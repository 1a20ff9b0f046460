"""Rows of the comparison of default settings: data, our estimator, and scikit-learn's estimators."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import default_data as data
import numpy as np
from sklearn import datasets
from sklearn.ensemble import StackingClassifier, StackingRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

__all__ = ["ROWS", "Folds", "Row", "Stream"]

#: A function from the training data of a fold to an estimator that is not fitted yet.
Contestant = Callable[[Any, Any], Any]
#: Scores and seconds of each fold.
Results = tuple[list[float], list[float]]

#: Sets of at most this many rows have five folds, others three.
_SMALL = 200
#: Names of sparse data.
_SPARSE = ("one-hot", "text, tf-idf", "text, counts", "words and noise")


@dataclass(frozen=True)
class Folds:
    """Data that are cross-validated."""

    load: Callable[[], data.Data]
    is_scaled: bool
    is_class: bool

    def run(self, make: Contestant) -> Results:
        """Return the score on each test fold, and the seconds of each fit."""
        X, y = self.load()
        splitter = (StratifiedKFold if self.is_class else KFold)(
            5 if len(y) <= _SMALL else 3, shuffle=True, random_state=0
        )
        results: Results = [], []
        for train, test in splitter.split(X, y):
            X_train, X_test = self._scaled(X[train], X[test])
            estimator = make(X_train, y[train])
            start = time.perf_counter()
            estimator.fit(X_train, y[train])
            results[1].append(time.perf_counter() - start)
            results[0].append(float(estimator.score(X_test, y[test])))
        return results

    def _scaled(self, X_train: Any, X_test: Any) -> tuple[Any, Any]:
        if not self.is_scaled:
            return X_train, X_test
        scaler = StandardScaler().fit(X_train)
        return scaler.transform(X_train), scaler.transform(X_test)


@dataclass(frozen=True)
class Stream:
    """Data in parts: each part is scored, then learned with ``partial_fit``."""

    load: Callable[[int], Iterable[data.Data]]
    is_class: bool

    def run(self, make: Contestant) -> Results:
        """Return the mean score of the parts, and the seconds of training, of three streams."""
        results: Results = [], []
        for seed in range(3):
            scores, seconds, estimator = [], 0.0, None
            for X, y in self.load(seed):
                if estimator is None:
                    estimator = make(X, y)
                    learn = partial(estimator.partial_fit, **({"classes": [0, 1]} if self.is_class else {}))
                else:
                    scores.append(max(-10.0, float(estimator.score(X, y))))
                start = time.perf_counter()
                learn(X, y)
                seconds += time.perf_counter() - start
            results[0].append(float(np.mean(scores)))
            results[1].append(seconds)
        return results


@dataclass(frozen=True)
class Row:
    """A comparison.

    Attributes
    ----------
    name, group : str, str
        The data, and the kind of comparison.
    task : Folds or Stream
        The data, and the way to score them.
    ours, reference : callable
        Our estimator, and scikit-learn's default estimator of the same kind.
    second : callable or None
        A further reference: scikit-learn's solver for the same model.
    """

    name: str
    group: str
    task: Folds | Stream
    ours: Contestant
    reference: Contestant
    second: Contestant | None = None


def _ours(is_class: bool, model: object = None) -> Any:
    return (OnnxSGDClassifier if is_class else OnnxSGDRegressor)(model, random_state=0)


def _sgd(is_class: bool) -> Any:
    return SGDClassifier(random_state=0) if is_class else SGDRegressor(random_state=0)


def _solver(is_class: bool) -> Any:
    return LogisticRegression() if is_class else Ridge()


def _mlp(is_class: bool) -> Any:
    return (MLPClassifier if is_class else MLPRegressor)(random_state=0)


def _linear(name: str, load: Callable[[], data.Data], is_class: bool) -> list[Row]:
    """Return the rows of a linear model, on raw and on scaled data; sparse data have no scaled row."""

    def reference(X: Any, y: Any) -> Any:
        return _sgd(is_class) if y.ndim == 1 else MultiOutputRegressor(_sgd(is_class))

    kind = "classifier" if is_class else "regressor"
    scalings = ("raw",) if name in _SPARSE else ("raw", "scaled")
    return [
        Row(
            f"{name}, {kind}, {scaling}", "linear", Folds(load, scaling == "scaled", is_class),
            lambda X, y: _ours(is_class), reference, lambda X, y: _solver(is_class),
        )
        for scaling in scalings
    ]  # fmt: skip


def _stream(name: str, kind: str, is_class: bool, is_raw: bool) -> Row:
    task = Stream(partial(data.stream, kind, is_class, is_raw), is_class)
    return Row(name, "stream", task, lambda X, y: _ours(is_class), lambda X, y: _sgd(is_class))


def _stacking(name: str, load: Callable[[], data.Data], is_class: bool) -> Row:
    def stack(final: Any) -> Any:
        tree = DecisionTreeClassifier if is_class else DecisionTreeRegressor
        base = [("shallow", tree(max_depth=2, random_state=0)), ("deep", tree(max_depth=5, random_state=0))]
        return (StackingClassifier if is_class else StackingRegressor)(base, final)

    return Row(
        f"stacking, {name}", "stacking", Folds(load, False, is_class), lambda X, y: stack(_ours(is_class)),
        lambda X, y: stack(_sgd(is_class)), lambda X, y: stack(_solver(is_class)),
    )  # fmt: skip


def _tuned(name: str, load: Callable[[], data.Data], is_class: bool, model: Callable[[], Any]) -> list[Row]:
    """Return two rows of a fitted model that is trained further, compared with the model itself.

    The model was fitted on the same data, or on every third sample of them.
    """

    def started(step: int, X: Any, y: Any) -> Any:
        return FrozenEstimator(model().fit(X[::step], y[::step]))

    def ours(step: int, X: Any, y: Any) -> Any:
        return _ours(is_class, started(step, X, y))

    task = Folds(load, False, is_class)
    return [
        Row(f"{name}, {which} data", "fine-tuning", task, partial(ours, step), partial(started, step))
        for which, step in (("the same", 1), ("new", 3))
    ]


def _network(name: str, load: Callable[[], data.Data], is_class: bool) -> list[Row]:
    """Return the rows of a network that starts from scikit-learn's random weights, raw and scaled."""

    def ours(X: Any, y: Any) -> Any:
        start = _mlp(is_class).set_params(max_iter=1, learning_rate_init=1e-12).fit(X, y)
        return _ours(is_class, FrozenEstimator(start))

    return [
        Row(
            f"MLP, {name}, {scaling}", "network", Folds(load, scaling == "scaled", is_class), ours,
            lambda X, y: _mlp(is_class),
        )
        for scaling in ("raw", "scaled")
    ]  # fmt: skip


_iris = partial(datasets.load_iris, return_X_y=True)
_wine = partial(datasets.load_wine, return_X_y=True)
_cancer = partial(datasets.load_breast_cancer, return_X_y=True)
_digits = partial(datasets.load_digits, return_X_y=True)
_diabetes = partial(datasets.load_diabetes, return_X_y=True)

_CLASSES: dict[str, Callable[[], data.Data]] = {
    "iris": _iris, "wine": _wine, "breast cancer": _cancer, "digits": _digits,
    "scales 1e-4 to 1e4": partial(data.scales, True), "lognormal": partial(data.lognormal, True),
    "one-hot": partial(data.one_hot, True), "collinear": partial(data.collinear, True),
    "correlated": partial(data.correlated, True), "rare class": data.rare_class,
    "outliers": partial(data.outliers, True), "rows of 1e4": partial(data.extreme_rows, True),
    "counts": partial(data.counts, True), "wide": partial(data.wide, True),
    "20 rows": partial(data.table, True, 20),
    "40 rows": partial(data.table, True, 40), "100,000 rows": partial(data.table, True, 100_000),
    "text, tf-idf": partial(data.text, "tfidf"), "text, counts": partial(data.text, "counts"),
}  # fmt: skip
_TARGETS: dict[str, Callable[[], data.Data]] = {
    "diabetes": _diabetes, "scales 1e-4 to 1e4": partial(data.scales, False),
    "one-hot": partial(data.one_hot, False), "collinear": partial(data.collinear, False),
    "correlated": partial(data.correlated, False), "outliers": partial(data.outliers, False),
    "targets of 1e5": partial(data.table, False, 400, 1e5),
    "targets of 1e-5": partial(data.table, False, 400, 1e-5), "20 rows": partial(data.table, False, 20),
    "100,000 rows": partial(data.table, False, 100_000), "words and noise": data.noisy_words,
    "600 columns and noise": data.noisy_columns, "scales 1e-4 to 1e4 and noise": data.noisy_scales,
}  # fmt: skip


#: All comparisons.
ROWS: tuple[Row, ...] = (
    *(row for name, load in _CLASSES.items() for row in _linear(name, load, True)),
    *(row for name, load in _TARGETS.items() for row in _linear(name, load, False)),
    *_linear("linnerud, 3 targets", data.linnerud, False),
    *(_stream(f"stream, {kind}", kind, True, False)
      for kind in ("stationary", "drift", "change", "reversals", "extremes")),
    *(_stream(f"stream, raw, {kind}", kind, True, True) for kind in ("stationary", "drift")),
    *(_stream(f"stream, targets, {kind}", kind, False, False) for kind in ("drift", "bursts")),
    _stacking("iris", _iris, True),
    _stacking("breast cancer", _cancer, True),
    _stacking("diabetes", _diabetes, False),
    *_tuned("LogisticRegression, wine", _wine, True, LogisticRegression),
    *_tuned("Ridge, linnerud", data.linnerud, False, Ridge),
    *_tuned("Ridge, diabetes", _diabetes, False, Ridge),
    *_tuned("scaler and LogisticRegression, breast cancer", _cancer, True,
            lambda: make_pipeline(StandardScaler(), LogisticRegression())),
    *_tuned("MLPClassifier, digits", _digits, True, partial(MLPClassifier, max_iter=50, random_state=0)),
    *_tuned("scaler and MLPRegressor, diabetes", _diabetes, False,
            lambda: make_pipeline(StandardScaler(), MLPRegressor(random_state=0))),
    *_network("breast cancer", _cancer, True),
    *_network("digits", _digits, True),
    *_network("diabetes", _diabetes, False),
)  # fmt: skip
