"""Linear fits on correlated columns, and on noise: ``python benchmarks/support.py [--only WORD]``.

Default fits on generated data, beside those without the preconditioner of correlated columns, and without an
end where the data support no more, and beside scikit-learn's estimators: on standardised columns, on those of
sparse data as they are, with Ridge of the best of several penalties. Prints the means over the sets of each
family of the scores on new rows in three folds: accuracy and log loss, or R2.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy import sparse
from sklearn.preprocessing import MaxAbsScaler

Data = tuple[Any, np.ndarray]


def correlated_classes() -> Iterator[Data]:
    """Yield 16 sets of 300 to 4,000 rows of 20 or 60 random sums of as many factors, in 2 or 3 classes."""
    for number in range(16):
        rng = np.random.default_rng(900 + number)
        n_rows, n_columns = [300, 700, 1500, 4000][number % 4], [20, 60][number // 4 % 2]
        factors = rng.normal(size=(n_rows, n_columns))
        table = factors @ rng.normal(size=(n_columns, n_columns)) + 0.01 * rng.normal(size=factors.shape)
        score = factors @ rng.normal(size=n_columns)
        score = score / score.std() + [0.02, 0.2][number % 2] * rng.normal(size=n_rows)
        n_classes = [2, 3][number // 8]
        yield table, np.digitize(score, np.quantile(score, np.arange(1, n_classes) / n_classes))


def correlated_targets() -> Iterator[Data]:
    """Yield 12 sets of 400 to 3,000 rows of 60 or 150 random sums of as many factors."""
    for number in range(12):
        rng = np.random.default_rng(100 + number)
        n_rows, n_columns = [400, 1200, 3000][number % 3], [60, 150][number // 3 % 2]
        factors = rng.normal(size=(n_rows, n_columns))
        weights = rng.normal(size=n_columns)
        table = 0.1 * factors @ rng.normal(size=(n_columns, n_columns)) + 1e-3 * rng.normal(
            size=factors.shape
        )
        yield table, factors @ weights + [0.0, 0.3][number // 6] * rng.normal(size=n_rows)


def noisy_targets() -> Iterator[Data]:
    """Yield 72 sets of 90 to 600 rows with 0.2 to 1.3 columns each, of a target that is mostly noise."""
    for n_rows in (90, 240, 600):
        for share in (0.3, 0.6, 1.0, 2.0):
            for noise in (0.3, 1.0, 3.0):
                for is_sparse in (0, 1):
                    rng = np.random.default_rng(int(n_rows * share * 100 + noise * 10 + is_sparse))
                    n_columns = int(n_rows * 2 / 3 * share)
                    table = rng.normal(size=(n_rows, n_columns))
                    weights = rng.normal(size=n_columns)
                    signal = table @ (weights * (np.arange(n_columns) < 5) if is_sparse else weights)
                    yield table, signal / signal.std() + noise * rng.normal(size=n_rows)


def noisy_classes() -> Iterator[Data]:
    """Yield 90 sets of 90 to 600 rows with 0.07 to 1.3 columns each, half of them with a class of 0.1."""
    for n_rows in (90, 240, 600):
        for share in (0.1, 0.3, 0.6, 1.0, 2.0):
            for noise in (0.1, 0.5, 2.0):
                for of_class in (0.5, 0.1):
                    rng = np.random.default_rng(int(n_rows * share * 100 + noise * 10 + of_class * 7))
                    n_columns = int(n_rows * 2 / 3 * share)
                    table = rng.normal(size=(n_rows, n_columns))
                    signal = table @ (rng.normal(size=n_columns) * (np.arange(n_columns) % 5 == 0))
                    score = signal / signal.std() + noise * rng.normal(size=n_rows)
                    yield table, score > np.quantile(score, 1 - of_class)


def large_targets() -> Iterator[Data]:
    """Yield 8 sets of 1,500 and 3,000 rows with 600 and 1,000 columns, of a target that is mostly noise."""
    for n_rows in (1500, 3000):
        for n_columns in (600, 1000):
            for noise in (1.0, 3.0):
                rng = np.random.default_rng(n_rows + n_columns + int(noise))
                table = rng.normal(size=(n_rows, n_columns))
                signal = table @ rng.normal(size=n_columns)
                yield table, signal / signal.std() + noise * rng.normal(size=n_rows)


def sparse_targets() -> Iterator[Data]:
    """Yield 48 sets of 600 to 4,500 rows of words, and of codes of categories, raw and by their largest."""
    sizes = ((600, 2000, 30), (1200, 5000, 40), (2400, 10_000, 60), (4500, 20_000, 40))
    codes = ((4500, 6, 30), (2400, 5, 20))
    for noise in (0.1, 0.5, 1.0, 2.0):
        for is_scaled in (False, True):
            for number, (n_rows, n_columns, n_words) in enumerate(sizes):
                rng = np.random.default_rng(number)
                shares = 1.0 / np.arange(1, n_columns + 1) ** 1.05
                places = rng.choice(n_columns, (n_rows, n_words), p=shares / shares.sum())
                yield _sparse_target(rng, places, n_columns, 0.3, noise, is_scaled)
            for number, (n_rows, n_features, n_levels) in enumerate(codes):
                rng = np.random.default_rng(10 + number)
                places = rng.integers(0, n_levels, (n_rows, n_features)) + n_levels * np.arange(n_features)
                yield _sparse_target(rng, places, n_features * n_levels, 1.0, noise, is_scaled)


def _sparse_target(
    rng: np.random.Generator, places: np.ndarray, n_columns: int, share: float, noise: float, is_scaled: bool
) -> Data:
    """Return counts of the places of each row, and a target of a share of the columns."""
    starts = np.arange(0, places.size + 1, places.shape[1], dtype=np.int32)
    shape = (len(places), n_columns)
    entries = (np.ones(places.size), places.ravel().astype(np.int32), starts)
    table = sparse.csr_array(entries, shape=shape)
    table.sum_duplicates()
    signal = table @ (rng.normal(size=n_columns) * (rng.random(n_columns) < share))
    target = signal / signal.std() + noise * rng.normal(size=len(places))
    return MaxAbsScaler().fit_transform(table) if is_scaled else table, target


#: The sets of each family, and whether their targets are labels.
FAMILIES: dict[str, tuple[Callable[[], Iterator[Data]], bool]] = {
    "correlated classes": (correlated_classes, True), "correlated targets": (correlated_targets, False),
    "noisy targets": (noisy_targets, False), "noisy classes": (noisy_classes, True),
    "large noisy targets": (large_targets, False), "sparse noisy targets": (sparse_targets, False),
}  # fmt: skip


def _of_labels(model: Any, sets: Iterator[Data]) -> np.ndarray:
    """Return the mean accuracy and the mean log loss, NaN without probabilities."""
    from sklearn.metrics import log_loss
    from sklearn.model_selection import StratifiedKFold

    rows = []
    for table, labels in sets:
        for train, test in StratifiedKFold(3, shuffle=True, random_state=0).split(table, labels):
            model.fit(table[train], labels[train])
            of_loss = np.nan
            if hasattr(model, "predict_proba"):
                of_loss = log_loss(labels[test], model.predict_proba(table[test]), labels=model.classes_)
            rows.append((model.score(table[test], labels[test]), of_loss))
    found: np.ndarray = np.mean(rows, axis=0)
    return found


def _of_targets(model: Any, sets: Iterator[Data]) -> np.ndarray:
    """Return the mean R2, of each set -3 at least."""
    from sklearn.model_selection import KFold

    scores = []
    for table, target in sets:
        found = []
        for train, test in KFold(3, shuffle=True, random_state=0).split(table):
            model.fit(table[train], target[train])
            found.append(model.score(table[test], target[test]))
        scores.append(max(-3.0, float(np.mean(found))))
    return np.array([np.mean(scores)])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="families whose name holds this word")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV, SGDClassifier, SGDRegressor
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
    from onnxsgd.training import coordinates, program

    warnings.simplefilter("ignore")
    for name, (sets, are_labels) in FAMILIES.items():
        if arguments.only not in name:
            continue
        ours = OnnxSGDClassifier(random_state=0) if are_labels else OnnxSGDRegressor(random_state=0)
        others: dict[str, Any] = {
            "SGD": SGDClassifier(random_state=0) if are_labels else SGDRegressor(random_state=0),
            "solver": LogisticRegression() if are_labels else RidgeCV(np.logspace(-3, 4, 15)),
        }
        score = _of_labels if are_labels else _of_targets
        cells = {"default": score(ours, sets())}
        with patch.object(coordinates, "preconditioner", lambda *given: None):
            cells["no preconditioner"] = score(ours, sets())
        with patch.object(program, "noisy_ridge", lambda *given, **named: None):
            cells["all is learned"] = score(ours, sets())
        is_sparse = name.startswith("sparse")
        if is_sparse:
            others["solver"] = GridSearchCV(Ridge(solver="lsqr"), {"alpha": np.logspace(-1, 3, 9)}, cv=3)
        for kind, model in others.items():
            cells[kind] = score(model if is_sparse else make_pipeline(StandardScaler(), model), sets())
        print(name, *(f"{kind} {np.round(found, 3)}" for kind, found in cells.items()), sep="; ", flush=True)


if __name__ == "__main__":
    main()
