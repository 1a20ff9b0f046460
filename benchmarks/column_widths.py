"""The scales of columns of few rows: ``python benchmarks/column_widths.py``.

Default fits of linear models on generated tables of few rows, of columns of different widths and of numbers
beside codes of categories, with the scales that are chosen and with one for each column. Prints the mean
scores, the numbers of sets that are better and worse by more than 0.01, the least and the largest difference,
and the ratio of the times.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from unittest.mock import patch

import numpy as np

#: Rows and columns; rows of the test data; draws of each set.
_SIZES, _TESTED, _SEEDS = ((300, 100), (700, 200), (700, 500), (300, 1000), (2000, 100)), 1000, 2
_CLASSES, _NOISE = (2, 4), (0.0, 0.7)


def _linear(
    rng: np.random.Generator, size: tuple[int, int], widths: np.ndarray, *, of_raw: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return columns of these widths, and four standardised linear combinations of raw or even columns."""
    even = rng.normal(size=size)
    scores = (even * widths if of_raw else even) @ rng.normal(size=(size[1], 4))
    return even * widths, scores / scores.std(axis=0)


def _counts(rng: np.random.Generator, size: tuple[int, int], n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return counts of words in texts of some 60 words, and the class of each text."""
    labels = rng.integers(n_classes, size=size[0])
    shares = np.exp(0.35 * rng.normal(size=(n_classes, size[1]))) / np.arange(1, size[1] + 1) ** 1.05
    shares /= shares.sum(axis=1, keepdims=True)
    rows = [rng.multinomial(rng.poisson(60), shares[label]) for label in labels]
    return np.array(rows, float), labels


def _sets(seed: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Return the training rows, the table and the target of each set; labels are integers."""
    for n_rows, n_columns in _SIZES:
        size = (n_rows + _TESTED, n_columns)
        for kind in range(3):
            for of_raw in (True, False):
                rng = np.random.default_rng(seed)
                widths = (
                    np.exp(rng.normal(size=n_columns)),
                    10.0 ** rng.uniform(-4, 4, n_columns),
                    10.0 ** rng.uniform(-0.5, 0.5, n_columns),
                )[kind]
                X, scores = _linear(rng, size, widths, of_raw=of_raw)
                yield n_rows, X, scores[:, 0] + 0.5 * rng.normal(size=len(X))
                for n_classes in _CLASSES:
                    for noise in _NOISE:
                        noisy = scores[:, :n_classes] + noise * rng.gumbel(size=(len(X), n_classes))
                        yield n_rows, X, noisy.argmax(axis=1)
        for n_classes in _CLASSES:
            yield n_rows, *_counts(np.random.default_rng(seed), size, n_classes)


def _with_codes(seed: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield 24 sets of 10 raw numbers beside codes of 40 or 90 levels, some of them rare.

    Numbers tell the target, of numbers or of two classes, and levels nothing, a little, or as much.
    """
    for n_rows, n_levels, of_levels in product((100, 300), (40, 90), (0.0, 0.3, 1.0)):
        rng = np.random.default_rng([seed, n_rows, n_levels, int(10 * of_levels)])
        numbers = rng.normal(size=(n_rows + _TESTED, 10))
        shares = rng.dirichlet(np.full(n_levels, 0.5))
        levels = rng.choice(n_levels, len(numbers), p=shares)
        target = numbers @ rng.normal(size=10) / 3 + of_levels * rng.normal(size=n_levels)[levels]
        target += 0.5 * rng.normal(size=len(target))
        X = np.hstack([numbers * 10 ** rng.uniform(-2, 3, 10), levels[:, None] == np.arange(n_levels)])
        for y in target, (target > np.median(target)).astype(int):
            yield n_rows, X, y


def _compare(sets: Callable[[int], Iterator[tuple[int, np.ndarray, np.ndarray]]]) -> None:
    """Print the comparison on some sets."""
    from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
    from onnxsgd.training import coordinates

    scores, times = [[], []], [0.0, 0.0]  # type: ignore[var-annotated]
    for seed in range(_SEEDS):
        for n_rows, X, y in sets(seed):
            kind = OnnxSGDClassifier if y.dtype.kind == "i" else OnnxSGDRegressor
            for number, choice in enumerate((lambda *given: given[-1], coordinates.telling_scales)):
                with patch.object(coordinates, "telling_scales", choice):
                    model, start = kind(random_state=0), time.perf_counter()
                    model.fit(X[:n_rows], y[:n_rows])
                    times[number] += time.perf_counter() - start
                scores[number].append(model.score(X[n_rows:], y[n_rows:]))
    own, chosen = np.array(scores).reshape(2, _SEEDS, -1).mean(axis=1)
    gains = chosen - own
    print(f"{len(gains)} sets: {own.mean():.3f} with scales of their own, {chosen.mean():.3f} as chosen")
    print(f"better by more than 0.01: {(gains > 0.01).sum()}, worse: {(gains < -0.01).sum()}")
    print(f"differences of {gains.min():.3f} to {gains.max():.3f}; times: {times[1] / times[0]:.2f}")


def main() -> None:
    """Print the comparisons."""
    warnings.simplefilter("ignore")
    print("columns of different widths")
    _compare(_sets)
    print("numbers beside codes of categories")
    _compare(_with_codes)


if __name__ == "__main__":
    main()
