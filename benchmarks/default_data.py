"""Data sets of the comparison of default settings: bundled with scikit-learn, and generated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import special
from sklearn import datasets
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.preprocessing import OneHotEncoder

__all__ = [
    "Data", "collinear", "correlated", "counts", "extreme_rows", "linnerud", "lognormal", "noisy_columns",
    "noisy_scales", "noisy_words", "one_hot", "outliers", "rare_class", "scales", "stream", "table", "text",
    "wide",
]  # fmt: skip

#: Samples and targets.
Data = tuple[Any, np.ndarray]

_N = 500


def _targets(score: np.ndarray, is_class: bool, rng: np.random.Generator, noise: float = 0.3) -> np.ndarray:
    """Return noisy targets of a linear score: its own values, or classes of its thirds."""
    score = (score - score.mean()) / score.std() + noise * rng.normal(size=len(score))
    return np.digitize(score, np.quantile(score, [1 / 3, 2 / 3])) if is_class else score


def linnerud() -> Data:
    """Return the bundled set of 20 rows and three targets."""
    return datasets.load_linnerud(return_X_y=True)


def table(is_class: bool, n: int, target_scale: float = 1.0, n_features: int = 10) -> Data:
    """Return `n` normal rows; real targets are multiplied by `target_scale`, with a mean of five times it."""
    rng = np.random.default_rng(n)
    X = rng.normal(2.0, 1.0, (n, n_features))
    y = _targets(X @ rng.normal(size=n_features), is_class, rng)
    return X, y if is_class else target_scale * (y + 5.0)


def scales(is_class: bool) -> Data:
    """Return nine columns of scales 1e-4 to 1e4 side by side, each shifted by three deviations."""
    rng = np.random.default_rng(1)
    Z = rng.normal(3.0, 1.0, (_N, 9))
    return Z * 10.0 ** np.arange(-4, 5), _targets(Z @ rng.normal(size=9), is_class, rng)


def lognormal(is_class: bool) -> Data:
    """Return features with a long tail."""
    rng = np.random.default_rng(2)
    Z = rng.normal(size=(_N, 10))
    return np.exp(1.5 * Z), _targets(Z @ rng.normal(size=10), is_class, rng)


def one_hot(is_class: bool) -> Data:
    """Return the one-hot codes of six categorical columns, a sparse matrix."""
    rng = np.random.default_rng(3)
    codes = (20 * rng.random((_N, 6)) ** 2).astype(int)
    X = OneHotEncoder().fit_transform(codes)
    return X, _targets(X @ rng.normal(size=X.shape[1]), is_class, rng)


def collinear(is_class: bool) -> Data:
    """Return 30 columns that are nearly combinations of four."""
    rng = np.random.default_rng(4)
    Z = rng.normal(size=(_N, 4))
    X = Z @ rng.normal(size=(4, 30)) + 0.01 * rng.normal(size=(_N, 30))
    return X, _targets(Z @ rng.normal(size=4), is_class, rng)


def correlated(is_class: bool) -> Data:
    """Return 60 columns that are random sums of 60, with little noise: a wide range of singular values."""
    rng = np.random.default_rng(12)
    Z = rng.normal(size=(2 * _N, 60))
    X = Z @ rng.normal(size=(60, 60)) + 0.01 * rng.normal(size=Z.shape)
    return X, _targets(Z @ rng.normal(size=60), is_class, rng, noise=0.1)


def rare_class() -> Data:
    """Return 200 columns, one of which tells a class of 6 % of the rows."""
    rng = np.random.default_rng(13)
    X = rng.normal(size=(_N, 200))
    score = X[:, 0] + 0.3 * rng.normal(size=_N)
    return X, (score > np.quantile(score, 0.94)).astype(int)


def outliers(is_class: bool) -> Data:
    """Return a table with 2 % of its entries a hundred times too large."""
    rng = np.random.default_rng(5)
    Z = rng.normal(size=(_N, 10))
    y = _targets(Z @ rng.normal(size=10), is_class, rng)
    return np.where(rng.random(Z.shape) < 0.02, 100.0, 1.0) * Z, y


def extreme_rows(is_class: bool) -> Data:
    """Return a table of which one row in 200 is ten thousand times as large."""
    rng = np.random.default_rng(9)
    Z = rng.normal(size=(4 * _N, 10))
    y = _targets(Z @ rng.normal(size=10), is_class, rng)
    Z[::200] *= 1e4
    return Z, y


def counts(is_class: bool) -> Data:
    """Return counts of rates between 0.1 and 1,000."""
    rng = np.random.default_rng(6)
    Z = rng.normal(size=(_N, 10))
    rates = 10.0 ** np.linspace(-1, 3, 10)
    X = rng.poisson(rates * np.exp(0.3 * Z)).astype(float)
    return X, _targets((np.sqrt(X) / np.sqrt(rates)) @ rng.normal(size=10), is_class, rng)


def wide(is_class: bool) -> Data:
    """Return more columns than rows."""
    rng = np.random.default_rng(7)
    X = rng.normal(1.0, 1.0, (120, 300))
    return X, _targets(X[:, :10] @ rng.normal(size=10), is_class, rng)


def text(kind: str) -> Data:
    """Return documents of generated words on eight topics, as "tfidf" or "counts"."""
    rng = np.random.default_rng(8)
    n_words, n_topics = 8000, 8
    common = 1.0 / np.arange(1, n_words + 1)
    topics = [common * rng.lognormal(0.0, 1.0, n_words) for _ in range(n_topics)]
    labels = rng.integers(n_topics, size=1500)
    documents = [
        " ".join(f"w{word}" for word in rng.choice(n_words, 60, p=topics[label] / topics[label].sum()))
        for label in labels
    ]
    vectorizer = TfidfVectorizer() if kind == "tfidf" else CountVectorizer()
    return vectorizer.fit_transform(documents), labels


def noisy_columns() -> Data:
    """Return 600 columns of 1,000 rows, and a target that is noise as much as signal."""
    rng = np.random.default_rng(15)
    X = rng.normal(size=(2 * _N, 600))
    return X, _targets(X @ rng.normal(size=600), False, rng, noise=1.0)


def noisy_scales() -> Data:
    """Return 200 columns of 1e-4 to 1e4, of 500 rows, and a target that is noise as much as signal."""
    rng = np.random.default_rng(16)
    X = rng.normal(size=(_N, 200))
    y = _targets(X @ rng.normal(size=200), False, rng, noise=1.0)
    return X * 10.0 ** rng.uniform(-4, 4, 200), y


def noisy_words() -> Data:
    """Return counts of 4,000 words in 1,000 documents, and a target that is noise as much as signal."""
    rng = np.random.default_rng(14)
    shares = 1.0 / np.arange(1, 4001)
    words = rng.choice(4000, (2 * _N, 40), p=shares / shares.sum())
    documents = [" ".join(f"w{word}" for word in row) for row in words]
    X = CountVectorizer().fit_transform(documents)
    return X, _targets(X @ rng.normal(size=X.shape[1]), False, rng, noise=1.0)


def stream(kind: str, is_class: bool, is_raw: bool, seed: int) -> Iterator[Data]:
    """Yield 60 calls of 200 rows, or 600 calls of 20 rows.

    Parameters
    ----------
    kind : {"stationary", "drift", "change", "extremes", "bursts", "reversals"}
        The true weights: constant, slowly rotating, replaced after half of the calls, or constant, with one
        row in 300 that is ten thousand times as large, or with a hundred times the noise in each tenth call.
        "reversals" have calls of 20 rows, and weights that change their sign with each thousand rows.
    is_class : bool
        Whether the targets are two classes.
    is_raw : bool
        Whether the columns have shifts and scales from 0.01 to 100.
    seed : int
        Determines the rows.
    """
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=(2, 10))
    n_calls, n_rows = (600, 20) if kind == "reversals" else (60, 200)
    for call in range(n_calls):
        angle = {
            "drift": np.pi * call / 60,
            "change": np.pi / 2 * (call >= 30),
            "reversals": np.pi * (call // 50),
        }.get(kind, 0.0)
        Z = rng.normal(size=(n_rows, 10))
        score = Z @ (np.cos(angle) * first + np.sin(angle) * second)
        X = (Z + 3.0) * 10.0 ** np.linspace(-2, 2, 10) if is_raw else Z
        if kind == "extremes":
            X = np.where(rng.random((n_rows, 1)) < 1 / 300, 1e4, 1.0) * X
        noise = 30.0 if kind == "bursts" and call % 10 == 9 else 0.3
        y = score + noise * rng.normal(size=n_rows)
        yield X, (rng.random(n_rows) < special.expit(4 * y)).astype(int) if is_class else y
