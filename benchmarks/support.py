"""Linear fits on correlated columns, and on noise: ``python benchmarks/support.py [--only WORD]``.

Default fits on generated data, beside those without the preconditioner of correlated columns, without an end
where the data support no more, and without the later end for classes of few rows, and beside scikit-learn's
estimators: on standardised columns, on those of sparse data as they are, with Ridge of the best of several
penalties. Prints the means over the sets of each family of the scores on new rows in three folds: accuracy
and log loss, or R2, of the signal where targets have outliers; where variances are predicted, mean and median
of the negative logarithm of the density, with BayesianRidge as the solver.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from scipy import sparse
from sklearn.datasets import make_friedman1
from sklearn.preprocessing import MaxAbsScaler, PolynomialFeatures

#: The table, the target, and the values that predictions are compared with, if these are others.
Data = tuple[Any, np.ndarray] | tuple[Any, np.ndarray, np.ndarray]


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


def few_targets() -> Iterator[Data]:
    """Yield 120 sets of 12 to 24 rows, two thirds of which are learned, of signal, of both and of noise."""
    for number in range(10):
        for n_rows, n_columns in ((12, 8), (15, 8), (18, 12), (24, 16)):
            for noise in (0.1, 0.5, 1.5):
                rng = np.random.default_rng(number)
                table = rng.normal(size=(n_rows, n_columns))
                signal = table @ rng.normal(size=n_columns) / n_columns**0.5
                yield table, signal + noise * rng.normal(size=n_rows), signal


def interactions() -> Iterator[Data]:
    """Yield 24 sets of 150 to 1,200 rows of the columns of 5 to 10 features and their products."""
    for number in range(24):
        rng, n_rows = np.random.default_rng(200 + number), [150, 300, 600, 1200][number % 4]
        if number < 8:
            table, target = make_friedman1(n_rows, noise=[1.0, 3.0][number // 4], random_state=number)
        else:
            table = rng.normal(size=(n_rows, [5, 10][number // 4 % 2]))
            products = table[:, 0] * table[:, 1] + table[:, 2] ** 2 + table[:, 3] * table[:, 4]
            target = [0.0, 1.0][number // 8 % 2] * table @ rng.normal(size=table.shape[1]) + products
            target += [0.3, 1.0, 3.0][number % 3] * rng.normal(size=n_rows)
        yield PolynomialFeatures(2, include_bias=False).fit_transform(table), target


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


def robust_targets() -> Iterator[Data]:
    """Yield 36 sets of 60 to 2,000 rows: targets with outliers, with heavy tails, and with normal noise."""
    outliers = [(60, 200), (300, 1000), (400, 100), (200, 20)]
    heavy = [(300, 150), (300, 30), (150, 60)]
    for number in range(4):
        for kind, sizes in (("outliers", outliers), ("heavy", heavy), ("normal", [(2000, 300), (300, 150)])):
            for n_rows, n_columns in sizes:
                rng = np.random.default_rng(100 + number)
                table = rng.normal(size=(n_rows, n_columns))
                signal = table @ rng.normal(size=n_columns) / n_columns**0.5
                noise = rng.standard_t(2, n_rows) if kind == "heavy" else rng.normal(size=n_rows)
                if kind == "outliers":
                    noise *= np.where(rng.random(n_rows) < 0.03, 30.0, 0.1)
                yield table, signal + noise, signal


def gross_errors() -> Iterator[Data]:
    """Yield 48 sets of 75 to 300 rows: a part of the targets is too large, by some deviations."""
    for number in range(4):
        for n_rows, n_columns in ((75, 10), (150, 15), (150, 60), (300, 60)):
            for share in (0.05, 0.1, 0.2):
                rng = np.random.default_rng(100 + number)
                table = rng.normal(size=(n_rows, n_columns))
                signal = table @ rng.normal(size=n_columns) / n_columns**0.5
                is_wrong = rng.random(n_rows) < share
                errors = is_wrong * rng.normal(10.0, 2.0, n_rows)
                yield table, signal + 0.3 * rng.normal(size=n_rows) + errors, signal


def large_errors() -> Iterator[Data]:
    """Yield 48 sets of 300 to 4,500 rows: a tenth or more of the targets is too large, by many deviations."""
    for number in range(4):
        for n_rows, n_columns in ((300, 15), (600, 30), (1500, 10), (4500, 20)):
            for share, size in ((0.1, 30.0), (0.1, 300.0), (0.3, 30.0)):
                rng = np.random.default_rng(100 + number)
                table = rng.normal(size=(n_rows, n_columns))
                signal = table @ rng.normal(size=n_columns) / n_columns**0.5
                errors = (rng.random(n_rows) < share) * rng.normal(size, size / 10.0, n_rows)
                yield table, signal + 0.3 * rng.normal(size=n_rows) + errors, signal


def variances() -> Iterator[Data]:
    """Yield 72 sets of 45 to 1,500 rows with noise whose variance depends on three columns, or on none."""
    for number in range(4):
        for n_rows, n_columns in ((45, 10), (60, 5), (90, 10), (225, 10), (450, 30), (1500, 30)):
            for slope in (0.0, 1.0, 2.0):
                rng = np.random.default_rng(100 + number)
                table = rng.normal(size=(n_rows, n_columns))
                slopes = rng.normal(size=3)
                logarithm = slope * table[:, :3] @ slopes / np.linalg.norm(slopes)
                noise = np.exp(logarithm / 2) * rng.normal(size=n_rows)
                yield table, 2.0 * table @ rng.normal(size=n_columns) / n_columns**0.5 + noise


def sums_of_columns() -> Iterator[Data]:
    """Yield 24 sets of 350 to 5,000 sparse rows, whose targets are sums of entries, and lengths of texts."""
    sums = [(5000, 200, 0.05), (5000, 400, 0.2), (350, 400, 0.05)]
    lengths = [(300, 2000), (2500, 300), (2500, 8000)]
    for number in range(4):
        for n_rows, n_columns, share in sums:
            table = sparse.random_array((n_rows, n_columns), density=share, format="csr", random_state=number)
            yield _with_short_indices(table), table.sum(axis=1)
        for n_rows, n_columns in lengths:
            rng = np.random.default_rng(100 + number)
            shares = 1.0 / np.arange(1, n_columns + 1)
            n_words = rng.poisson(30, n_rows) + 1
            words = rng.choice(n_columns, n_words.sum(), p=shares / shares.sum())
            starts = np.concatenate([[0], np.cumsum(n_words)])
            table = sparse.csr_array((np.ones(len(words)), words, starts), shape=(n_rows, n_columns))
            table.sum_duplicates()
            yield _with_short_indices(table), n_words / n_words.std()


def _with_short_indices(table: Any) -> Any:
    """Return a CSR array with indices of 32 bits, as scikit-learn takes them."""
    indices, starts = (array.astype(np.int32) for array in (table.indices, table.indptr))
    return sparse.csr_array((table.data, indices, starts), shape=table.shape)


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


def rare_classes() -> Iterator[Data]:
    """Yield 24 sets of 10 to 200 classes of 4 to 9 rows, whose means are far or near for their number."""
    for number in range(24):
        rng = np.random.default_rng(2900 + number)
        n_classes, n_columns = [(200, 50), (100, 30), (40, 200), (10, 30)][number % 4]
        n_of_class = [4, 6, 9][number // 4 % 3]
        distance = [0.6, 1.0][number // 12] * (50 / n_columns) ** 0.5
        labels = np.repeat(np.arange(n_classes), n_of_class)
        means = distance * rng.normal(size=(n_classes, n_columns))
        yield means[labels] + rng.normal(size=(len(labels), n_columns)), labels


def _narrow(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return columns that share factors, and the coordinate in a direction of small variance."""
    rng = np.random.default_rng(3300 + number)
    n_rows, n_columns, n_factors = [(200, 60, 10), (300, 100, 5), (600, 150, 20), (900, 250, 20)][number % 4]
    loadings, along = rng.normal(size=(n_factors, n_columns)), rng.normal(size=n_columns)
    along -= along @ np.linalg.pinv(loadings) @ loadings
    wanted = rng.normal(size=n_rows)
    table = rng.normal(size=(n_rows, n_factors)) @ loadings + 0.1 * rng.normal(size=(n_rows, n_columns))
    size = [0.5, 1.0, 2.0][number // 4]
    return table + size * np.outer(wanted, along / np.linalg.norm(along)), wanted


def narrow_targets() -> Iterator[Data]:
    """Yield 12 sets of 200 to 900 rows, whose targets lie in directions of small variance, with noise."""
    for number in range(12):
        table, wanted = _narrow(number)
        noise = np.random.default_rng(number).normal(size=len(wanted))
        yield table, wanted + [0.1, 0.3, 1.0][number % 3] * noise


def narrow_classes() -> Iterator[Data]:
    """Yield 12 sets of the same as 2 or 3 classes, of which a twentieth is wrong."""
    for number in range(12):
        table, wanted = _narrow(number)
        rng, n_classes = np.random.default_rng(number), 2 + number % 2
        labels = np.digitize(wanted, np.quantile(wanted, np.arange(1, n_classes) / n_classes))
        is_wrong = rng.random(len(labels)) < 0.05
        yield table, np.where(is_wrong, rng.integers(0, n_classes, len(labels)), labels)


class Family(NamedTuple):
    """Data sets of one kind.

    Attributes
    ----------
    sets : callable
        Yields the sets.
    are_labels : bool
        Whether the targets are classes.
    is_sparse : bool
        Whether the tables are sparse.
    loss : str or None
        The loss of regressors; None: the default.
    """

    sets: Callable[[], Iterator[Data]]
    are_labels: bool = False
    is_sparse: bool = False
    loss: str | None = None


FAMILIES = {
    "correlated classes": Family(correlated_classes, are_labels=True),
    "correlated targets": Family(correlated_targets),
    "noisy targets": Family(noisy_targets),
    "few noisy targets": Family(few_targets),
    "interactions": Family(interactions),
    "noisy classes": Family(noisy_classes, are_labels=True),
    "rare classes": Family(rare_classes, are_labels=True),
    "large noisy targets": Family(large_targets),
    "narrow targets": Family(narrow_targets),
    "narrow classes": Family(narrow_classes, are_labels=True),
    "sparse noisy targets": Family(sparse_targets, is_sparse=True),
    "robust, huber": Family(robust_targets, loss="huber"),
    "robust, epsilon_insensitive": Family(robust_targets, loss="epsilon_insensitive"),
    "gross errors, huber": Family(gross_errors, loss="huber"),
    "gross errors, epsilon_insensitive": Family(gross_errors, loss="epsilon_insensitive"),
    "large errors, huber": Family(large_errors, loss="huber"),
    "large errors, epsilon_insensitive": Family(large_errors, loss="epsilon_insensitive"),
    "variances": Family(variances, loss="gaussian_nll"),
    "sums of sparse columns": Family(sums_of_columns, is_sparse=True),
}


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
    from sklearn.metrics import r2_score
    from sklearn.model_selection import KFold

    scores = []
    for table, target, *others in sets:
        truth = others[0] if others else target
        found = []
        for train, test in KFold(3, shuffle=True, random_state=0).split(table):
            model.fit(table[train], target[train])
            found.append(r2_score(truth[test], model.predict(table[test])))
        scores.append(max(-3.0, float(np.mean(found))))
    return np.array([np.mean(scores)])


def _of_densities(model: Any, sets: Iterator[Data]) -> np.ndarray:
    """Return the mean and the median of the negative logarithm of the density of new rows."""
    from scipy.stats import norm
    from sklearn.model_selection import KFold

    found = []
    for table, target, *_ in sets:
        for train, test in KFold(3, shuffle=True, random_state=0).split(table):
            means, deviations = model.fit(table[train], target[train]).predict(table[test], return_std=True)
            found.append(-float(np.mean(norm.logpdf(target[test], means, deviations))))
    return np.array([np.mean(found), np.median(found)])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="families whose name holds this word")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    from sklearn.linear_model import (
        BayesianRidge,
        LogisticRegression,
        Ridge,
        RidgeCV,
        SGDClassifier,
        SGDRegressor,
    )
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
    from onnxsgd.training import coordinates, program

    warnings.simplefilter("ignore")
    for name, (sets, are_labels, is_sparse, loss) in FAMILIES.items():
        if arguments.only not in name:
            continue
        given = {"random_state": 0} if loss is None else {"random_state": 0, "loss": loss}
        ours = OnnxSGDClassifier(**given) if are_labels else OnnxSGDRegressor(**given)
        others: dict[str, Any] = {
            "SGD": SGDClassifier(**given) if are_labels else SGDRegressor(**given),
            "solver": LogisticRegression() if are_labels else RidgeCV(np.logspace(-3, 4, 15)),
        }
        score = _of_labels if are_labels else _of_targets
        if loss == "gaussian_nll":
            score, others = _of_densities, {"solver": BayesianRidge()}
        cells = {"default": score(ours, sets())}
        with patch.object(coordinates, "preconditioner", lambda *given: None):
            cells["no preconditioner"] = score(ours, sets())
        nothing = partial(patch.object, program, new=lambda *given, **named: None)
        with nothing("noisy_ridges"), nothing("normal_ridges"):
            cells["all is learned"] = score(ours, sets())
        if are_labels:
            with nothing("tells_rare_classes"):
                cells["usual ends"] = score(ours, sets())
        if is_sparse:
            others["solver"] = GridSearchCV(Ridge(solver="lsqr"), {"alpha": np.logspace(-1, 3, 9)}, cv=3)
        for kind, model in others.items():
            cells[kind] = score(model if is_sparse else make_pipeline(StandardScaler(), model), sets())
        print(name, *(f"{kind} {np.round(found, 3)}" for kind, found in cells.items()), sep="; ", flush=True)


if __name__ == "__main__":
    main()
