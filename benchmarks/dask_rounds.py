"""Fits on two workers of Dask beside one process: ``python benchmarks/dask_rounds.py [--model NAME ...]``.

Each fit is a whole call of ``fit`` on rows that a seeded function makes where they are needed. Fits of two
numbers of epochs tell the time of an epoch from what a fit costs once. One process has one thread, and two;
a worker has one.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

# the folder of this file has a module named like a library that dask imports
sys.path = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).parent]

import dask
import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier
from onnxsgd.dask import DaskOnnxSGDClassifier

#: The columns, the hidden layers and the rows of a worker.
MODELS = {
    "linear": (784, (), 20_000),
    "small": (64, (128,), 40_000),
    "large": (784, (512, 512), 40_000),
}
_CLASSES, _BATCH = 10, 128


def rows(seed: int, n_rows: int, n_columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return some rows of a classification."""
    random = np.random.default_rng(seed)
    X = random.standard_normal((n_rows, n_columns), np.float32)
    scores = X @ np.random.default_rng(0).standard_normal((n_columns, _CLASSES), np.float32)
    return X, scores.argmax(axis=1)


def on_workers(n_rows: int, n_columns: int) -> tuple[da.Array, da.Array]:
    """Return the rows of two partitions as arrays of Dask."""
    parts = [dask.delayed(rows, nout=2)(seed, n_rows, n_columns) for seed in range(2)]
    X = [da.from_delayed(part[0], (n_rows, n_columns), np.float32) for part in parts]
    y = [da.from_delayed(part[1], (n_rows,), np.int64) for part in parts]
    return da.concatenate(X), da.concatenate(y)


def network(n_columns: int, layers: tuple[int, ...]) -> MLPClassifier | None:
    """Return a network with its first weights."""
    if not layers:
        return None
    X, y = rows(0, 300, n_columns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MLPClassifier(layers, max_iter=1, learning_rate_init=1e-9, random_state=0).fit(X, y)


def epoch_time(fit: object, epochs: int, rounds: int) -> float:
    """Return the seconds of an epoch, the least of several."""
    fit(1)
    found = []
    for _ in range(rounds):
        times = []
        for n_epochs in (1, 1 + epochs):
            start = time.perf_counter()
            fit(n_epochs)
            times.append(time.perf_counter() - start)
        found.append((times[1] - times[0]) / epochs)
    return min(found)


def measure(name: str, client: Client, every: list[int], epochs: int, rounds: int) -> None:
    """Print the speed of a model on two workers, in units of that of one process."""
    n_columns, layers, n_rows = MODELS[name]
    model = network(n_columns, layers)
    params = {"learning_rate": "constant", "eta0": 0.01, "batch_size": _BATCH, "tol": None, "random_state": 0}
    collections = on_workers(n_rows, n_columns)
    X, y = (
        np.concatenate(parts) for parts in zip(*(rows(s, n_rows, n_columns) for s in range(2)), strict=True)
    )

    def alone(n_threads: int) -> object:
        return lambda n: OnnxSGDClassifier(model, **params, max_iter=n, n_threads=n_threads).fit(X, y)

    def spread(sync_every: int) -> object:
        def fit(n_epochs: int) -> object:
            learner = DaskOnnxSGDClassifier(
                model, **params, max_iter=n_epochs, n_threads=1, client=client, sync_every=sync_every
            )
            return learner.fit(*collections)

        return fit

    one, two = (epoch_time(alone(n), epochs, rounds) for n in (1, 2))
    n_updates = -(-n_rows // _BATCH)
    print(f"{name}: {1e3 * one / (2 * n_updates):.3f} ms an update in one process with one thread, "
          f"{1e3 * two / (2 * n_updates):.3f} with two", flush=True)  # fmt: skip
    for sync_every in every:
        found = epoch_time(spread(sync_every), epochs, rounds)
        n_rounds = -(-n_updates // sync_every)
        print(
            f"  sync_every={sync_every:4}: {one / found:.2f} of one thread, {two / found:.2f} of two; "
            f"an epoch {1e3 * found:.0f} ms, a round {1e3 * found / n_rounds:.1f} ms",
            flush=True,
        )


def main() -> None:
    """Measure all models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--every", nargs="+", type=int, default=[16, 64, 256])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    warnings.filterwarnings("ignore", "sync_every=")
    warnings.filterwarnings("ignore", "Maximum number of iterations")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for name in given.model:
            measure(name, client, given.every, given.epochs, given.rounds)


if __name__ == "__main__":
    main()
