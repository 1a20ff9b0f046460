"""Fits on sparse data beside SGDClassifier: ``python benchmarks/sparse.py [--rows 400] [--columns 1000]``.

10,000 rows of tf-idf, or as many as named, of 80 words each, on 2 and on 10 topics, and as many to predict.
The frequencies of words follow Zipf's law; a fifth of a text's words are permuted by its topic, and a tenth
of the labels is wrong. The first fits make the same number of epochs, the others have default settings. Times
are processor seconds of one thread, each contestant in turn.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from measure import interleave
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import SGDClassifier

_WORDS, _EPOCHS = 80, 10


def _texts(n_rows: int, n_columns: int, n_classes: int) -> tuple[Any, np.ndarray]:
    """Return the rows of both halves, and their labels."""
    rng = np.random.default_rng(0)
    shares = 1.0 / np.arange(1, n_columns + 1)
    shape = (2 * n_rows, _WORDS)
    words = rng.choice(n_columns, shape, p=shares / shares.sum()).astype(np.int32)
    topics = rng.integers(0, n_classes, 2 * n_rows)
    orders = np.array([rng.permutation(n_columns) for _ in range(n_classes)])
    words = np.where(rng.random(shape) < 0.2, orders[topics[:, None], words], words)
    starts = np.arange(0, words.size + 1, _WORDS)
    counts = sparse.csr_matrix((np.ones(words.size), words.ravel(), starts), shape=(2 * n_rows, n_columns))
    counts.sum_duplicates()
    is_wrong = rng.random(2 * n_rows) < 0.1
    labels = np.where(is_wrong, rng.integers(0, n_classes, 2 * n_rows), topics)
    return TfidfTransformer().fit_transform(counts).astype(np.float32), labels


def _fits(X: Any, y: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Return functions that fit an estimator, of each setting and of its reference."""
    from onnxsgd import OnnxSGDClassifier

    equal = {"loss": "log_loss", "alpha": 1e-5, "max_iter": _EPOCHS, "tol": None, "random_state": 0}
    ours = partial(OnnxSGDClassifier, n_threads=1)
    return {
        "SGDClassifier, 10 epochs": lambda: SGDClassifier(**equal).fit(X, y),
        "named rate, 10 epochs": lambda: ours(**equal, learning_rate="constant", eta0=0.5).fit(X, y),
        "auto, 10 epochs": lambda: ours(**equal).fit(X, y),
        "SGDClassifier, default": lambda: SGDClassifier(random_state=0).fit(X, y),
        "auto, default": lambda: ours(random_state=0).fit(X, y),
        "auto, hinge, default": lambda: ours(random_state=0, loss="hinge").fit(X, y),
    }


def _repeated(fit: Callable[[], Any]) -> Callable[[int], None]:
    def block(n: int) -> None:
        for _ in range(n):
            fit()

    return block


def _lines(n_rows: int, n_columns: int, n_classes: int, n_rounds: int) -> list[str]:
    texts, labels = _texts(n_rows, n_columns, n_classes)
    X, unseen = texts[:n_rows], texts[n_rows:]
    fits = _fits(X, labels[:n_rows])
    models = {name: fit() for name, fit in fits.items()}
    samples = interleave({name: _repeated(fit) for name, fit in fits.items()}, n_rounds, 0.0, "cpu")
    predictions = interleave(
        {name: _repeated(partial(model.predict, unseen)) for name, model in models.items()},
        n_rounds,
        0.0,
        "cpu",
    )
    lines = []
    for name, model in models.items():
        reference = f"SGDClassifier, {name.rpartition(', ')[2]}"
        cells = [
            f"{n_columns:.0e}", n_classes, name, f"{1e3 * samples[name].median:.1f} ms",
            f"{samples[name].ratio_to(samples[reference]):.1f}", model.n_iter_,
            f"{1e3 * predictions[name].median:.1f} ms", f"{model.score(unseen, labels[n_rows:]):.3f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def main() -> None:
    """Measure all sizes, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", nargs="+", type=int, default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--classes", nargs="+", type=int, default=[2, 10])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| columns | classes | fit | time | of the reference's | epochs | predict | score |")
    print("|---|---|---|---|---|---|---|---|")
    for n_columns in arguments.columns:
        for n_classes in arguments.classes:
            print(f"{n_columns} columns, {n_classes} classes", file=sys.stderr)
            print("\n".join(_lines(arguments.rows, n_columns, n_classes, arguments.rounds)), flush=True)


if __name__ == "__main__":
    main()
