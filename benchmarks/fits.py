"""Whole fits and grid searches: wall time in a fresh process and in a warm one."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FITS", "FitTime", "fit_table", "run_fit", "versions"]


@dataclass(frozen=True)
class FitTime:
    """The wall times of one whole fit, in seconds.

    Attributes
    ----------
    fit, contestant : str, str
        Names of the fit and of the contestant.
    process : float
        A fresh process from start to end: interpreter, imports, data, the fit.
    cold : float
        The first fit of that process, imports of the library included.
    warm, warm_best : float
        Later fits, all contestants in turn: median and best.
    score : float
        The score on the training data, or the best score of the search.
    """

    fit: str
    contestant: str
    process: float
    cold: float
    warm: float
    warm_best: float
    score: float


#: A function that fits and returns the score.
Fit = Callable[[], float]


def _linear_data() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 20)).astype(np.float32)
    return X, (X @ rng.normal(size=20) + 0.1 * rng.normal(size=1000)).astype(np.float32)


def _digits_data() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images / 16.0).astype(np.float32), labels


def _linear_ours(n_threads: int) -> Fit:
    from onnxsgd import OnnxSGDRegressor

    X, y = _linear_data()
    return lambda: float(OnnxSGDRegressor(random_state=0, n_threads=n_threads).fit(X, y).score(X, y))


def _linear_sklearn(n_threads: int) -> Fit:
    from sklearn.linear_model import SGDRegressor

    X, y = _linear_data()
    return lambda: float(SGDRegressor(random_state=0).fit(X, y).score(X, y))


def _digits_ours(n_threads: int) -> Fit:
    X, y = _digits_data()
    estimator = _our_mlp(n_threads, max_iter=50)
    return lambda: float(estimator.fit(X, y).score(X, y))


def _digits_sklearn(n_threads: int) -> Fit:
    X, y = _digits_data()
    estimator = _sklearn_mlp(max_iter=50)
    return lambda: float(estimator.fit(X, y).score(X, y))


def _grid_ours(n_threads: int) -> Fit:
    return _search(_our_mlp(n_threads, max_iter=20), {"eta0": _RATES, "momentum": _MOMENTA, "alpha": _ALPHAS})


def _grid_sklearn(n_threads: int) -> Fit:
    return _search(
        _sklearn_mlp(max_iter=20), {"learning_rate_init": _RATES, "momentum": _MOMENTA, "alpha": _ALPHAS}
    )


_RATES, _MOMENTA, _ALPHAS = [0.01, 0.03, 0.1, 0.3], [0.5, 0.9], [1e-5, 1e-4, 1e-3]


def _search(estimator: Any, grid: dict[str, list[float]]) -> Fit:
    from sklearn.model_selection import GridSearchCV

    X, y = _digits_data()
    search = GridSearchCV(estimator, grid, cv=5, refit=False)
    return lambda: float(search.fit(X, y).best_score_)


def _our_mlp(n_threads: int, max_iter: int) -> Any:
    """Return a classifier on an MLP 64-128-10 with random weights."""
    from trainers.ours import make_graph
    from workloads import WORKLOADS, make_task

    from onnxsgd import OnnxSGDClassifier

    task = make_task(WORKLOADS["mlp-64-128-10"], 32, n_threads)
    return OnnxSGDClassifier(
        make_graph(task.workload, task.initial), learning_rate="constant", eta0=0.1, momentum=0.9,
        batch_size=32, max_iter=max_iter, tol=None, random_state=0, n_threads=n_threads,
    )  # fmt: skip


def _sklearn_mlp(max_iter: int) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    # Every epoch is made, as with tol=None; the warning about it has no other switch.
    warnings.simplefilter("ignore", ConvergenceWarning)
    return MLPClassifier(
        (128,), solver="sgd", learning_rate_init=0.1, momentum=0.9, nesterovs_momentum=False, batch_size=32,
        max_iter=max_iter, n_iter_no_change=max_iter + 1, random_state=0,
    )  # fmt: skip


#: The fits: our function first, that of the peer second.
FITS: dict[str, dict[str, Callable[[int], Fit]]] = {
    "fit-linear-1000x20": {"onnxsgd": _linear_ours, "scikit-learn": _linear_sklearn},
    "fit-digits-mlp": {"onnxsgd": _digits_ours, "scikit-learn": _digits_sklearn},
    "grid-search-digits-mlp": {"onnxsgd": _grid_ours, "scikit-learn": _grid_sklearn},
}


def run_fit(name: str, n_threads: int, n_rounds: int) -> list[FitTime]:
    """Measure one of the :data:`FITS`, each contestant in a fresh process, then all in turn here."""
    print(name, file=sys.stderr)
    cold = {contestant: _run_cold(name, contestant, n_threads) for contestant in FITS[name]}
    fits = {contestant: make(n_threads) for contestant, make in FITS[name].items()}
    scores = {contestant: fit() for contestant, fit in fits.items()}
    warm: dict[str, list[float]] = {contestant: [] for contestant in fits}
    for _ in range(n_rounds):
        for contestant, fit in fits.items():
            start = time.perf_counter()
            fit()
            warm[contestant].append(time.perf_counter() - start)
    return [FitTime(name, c, *cold[c], float(np.median(warm[c])), min(warm[c]), scores[c]) for c in fits]


def fit_table(times: Sequence[FitTime]) -> str:
    """Return a table in Markdown, with the peer's times over ours."""
    lines = ["| fit | | fresh process | cold | warm | score |", "|---|---|---|---|---|---|"]
    ours: dict[str, FitTime] = {}
    for t in times:
        seconds = " | ".join(f"{value:.3f} s" for value in (t.process, t.cold, t.warm))
        lines.append(f"| {t.fit} | {t.contestant} | {seconds} | {t.score:.4f} |")
        if t.fit in ours:
            o = ours[t.fit]
            lines.append(
                f"| | ratio | {t.process / o.process:.2f} | {t.cold / o.cold:.2f} | {t.warm / o.warm:.2f} | |"
            )
        ours.setdefault(t.fit, t)
    return "\n".join(lines)


def versions() -> str:
    """Return the versions of the libraries that take part."""
    names = ("onnxruntime-training-cpu", "onnxruntime", "scikit-learn", "torch", "jax", "numpy")
    installed = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
    return ", ".join(f"{name} {installed[name]}" for name in names if name in installed)


def _run_cold(name: str, contestant: str, n_threads: int) -> tuple[float, float]:
    """Return the seconds of a fresh process, and of the first fit in it."""
    command = [sys.executable, str(Path(__file__).resolve()), name, contestant, str(n_threads)]
    start = time.perf_counter()
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ)).stdout
    return time.perf_counter() - start, float(json.loads(output.splitlines()[-1]))


def _main() -> None:
    name, contestant, n_threads = sys.argv[1:]
    start = time.perf_counter()
    FITS[name][contestant](int(n_threads))()
    print(json.dumps(time.perf_counter() - start))


if __name__ == "__main__":
    _main()
