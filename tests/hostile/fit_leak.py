"""Growth of memory in many fits of a hundred structures: ``python tests/hostile/fit_leak.py [--fits 10000]``.

Linear models and networks of other widths, losses and optimizers, on dense and sparse data, are fitted in turn,
so that the cache of compiled steps turns over again and again. The first two rounds fill the cache and the pools
of the allocator. Ends with status 1 if the resident memory (Linux: VmRSS) grows by more than 50 MB after them.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

N_STRUCTURES, LIMIT = 100, 50.0
_N_ROWS = 96
_LOSSES = ("squared_error", "huber", "absolute_error", "log_cosh")
_OPTIMIZERS = ("sgd", "adam", "adagrad", "rmsprop")


def make_fits(n_structures: int) -> list[tuple[Any, Any, np.ndarray]]:
    """Return estimators of different structures, with their data."""
    rng, fits = np.random.default_rng(0), []
    for number in range(n_structures):
        X: Any = rng.normal(size=(_N_ROWS, 3 + number)).astype(np.float32)
        labels = (X[:, 0] > 0).astype(int)
        target = X[:, 0]
        parameters: dict[str, Any] = {"max_iter": 3, "tol": None, "random_state": 0, "n_threads": 1}
        if number % 2:
            parameters |= {"learning_rate": "constant", "optimizer": _OPTIMIZERS[number // 2 % 4]}
        if number % 5 == 0:
            fits.append((OnnxSGDRegressor(loss=_LOSSES[number // 5 % 4], **parameters), X, target))
        elif number % 5 == 1:
            table = sparse.csr_matrix(np.where(np.abs(X) > 1, X, 0))
            fits.append((OnnxSGDClassifier(**parameters), table, labels))
        else:
            network = MLPClassifier(hidden_layer_sizes=(4 + number % 7,) * (1 + number % 3), max_iter=1)
            fits.append((OnnxSGDClassifier(network.fit(X, labels), **parameters), X, labels))
    return fits


def resident_megabytes() -> float:
    """Return the resident memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def run(n_fits: int, n_structures: int = N_STRUCTURES) -> Iterator[tuple[int, float]]:
    """Make the fits; yield the number of fits and the resident memory after each round."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fits = make_fits(n_structures)
        for number in range(1, n_fits + 1):
            estimator, X, y = fits[number % n_structures]
            estimator.fit(X, y)
            if number % n_structures == 0:
                yield number, resident_megabytes()


def main() -> int:
    """Make the fits and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fits", type=int, default=10_000)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    before, most, start = 0.0, 0.0, time.perf_counter()
    for number, resident in run(arguments.fits):
        if number == 2 * N_STRUCTURES:
            before = resident
        if number >= 2 * N_STRUCTURES:
            most = max(most, resident)
        if number % (10 * N_STRUCTURES) == 0:
            print(f"{number} fits: {resident:.1f} MB, {time.perf_counter() - start:.0f} s", flush=True)
    print(f"resident memory: {before:.1f} MB after {2 * N_STRUCTURES} fits, {most - before:+.1f} MB at most")
    return int(not before or most - before > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
