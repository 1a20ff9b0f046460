"""Fits in several processes, in threads, and in one thread: ``python benchmarks/jobs.py [--model NAME ...]``.

Each contestant makes whole fits of two numbers of epochs, in turn; their difference is the time of an update
without that of the beginning of a fit, which is printed too. Processes are used at any size, and the last
column tells where the package uses them by itself. ``--torch`` compares threads with those of torch.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from sklearn.neural_network import MLPClassifier, MLPRegressor

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.sharding import process_choice, process_rounds

# beside this file, behind the libraries that have modules of these names
sys.path.append(str(Path(__file__).parent))

#: Layers of perceptrons; the others are networks of ``torch_networks.py``.
PERCEPTRONS = {
    "linear-20": (20, 1),
    "20-100-50-1": (20, 100, 50, 1),
    "784-128-10": (784, 128, 10),
    "784-512-512-10": (784, 512, 512, 10),
}
NETWORKS = ("conv1d", "vgg", "resnet18", "lstm", "vit")
BATCHES = (32, 256, 1024, 4096)
#: The most numbers of the rows of a fit: resnet18 at 4,096 rows would take minutes.
_NUMBERS, _UPDATES = 13_000_000, 24
#: The seconds of the updates of a fit, about, and bounds of its epochs.
_SECONDS, _LEAST_EPOCHS, _MOST_EPOCHS = 0.3, 3, 100
_ALWAYS = patch.object(process_rounds, "choose_processes", lambda n_jobs, *_: (n_jobs, "forced"))

#: Makes a fit of so many epochs.
Fit = Callable[[int], object]


def main() -> None:
    """Parse the command line, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", choices=[*PERCEPTRONS, *NETWORKS], metavar="NAME")
    parser.add_argument("--batch", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--jobs", type=int, default=2, help="processes, and threads beside them")
    parser.add_argument("--rounds", type=int, default=5, help="fits of each contestant")
    parser.add_argument("--torch", action="store_true", help="threads beside those of torch")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.torch:
        beside_torch(given.jobs, given.rounds)
        return
    print("ms an update and ratios within a round, medians\n")
    print(
        "| model | batch | one thread | threads | processes | threads: speed | processes: speed "
        "| a fit begins, s | used |\n|" + "---|" * 9
    )
    for name in given.model or [*PERCEPTRONS, *NETWORKS]:
        for batch_size in given.batch:
            measure(name, batch_size, given.jobs, given.rounds)


def measure(name: str, batch_size: int, n_jobs: int, n_rounds: int) -> None:
    """Print the row of a model."""
    estimator, X, y = problem(name, batch_size)
    if estimator is None:
        return
    n_updates = len(y) // batch_size

    fit = partial(_fits, estimator, X, y)
    fits = {
        "one": fit(n_threads=1),
        "threads": fit(n_threads=n_jobs),
        "processes": _under(_ALWAYS, fit(n_threads=1, n_jobs=n_jobs)),
    }
    seconds, first = seconds_of_epochs(fits, n_rounds)
    one, threads, processes = (np.median(seconds[key]) / n_updates for key in fits)
    cells = [
        name, batch_size, *(f"{1e3 * each:.2f}" for each in (one, threads, processes)),
        *(f"{np.median(np.divide(seconds['one'], seconds[key])):.2f}" for key in ("threads", "processes")),
        f"{first['processes'] - np.median(seconds['processes']):.2f}",
        chosen(fit(n_jobs=n_jobs)),
    ]  # fmt: skip
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def _fits(estimator: Any, X: np.ndarray, y: np.ndarray, **parameters: Any) -> Fit:
    """Return the fits of an estimator with some other parameters."""
    values = {**estimator.get_params(deep=False), **parameters}
    return lambda epochs: type(estimator)(**{**values, "max_iter": epochs}).fit(X, y)


def seconds_of_epochs(
    fits: Mapping[str, Fit], n_rounds: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the seconds of an epoch of each contestant in each round, and the least of fits of one epoch."""
    for fit in fits.values():
        fit(1)
    start = time.perf_counter()
    next(iter(fits.values()))(1)
    n_epochs = max(_LEAST_EPOCHS, min(_MOST_EPOCHS, round(_SECONDS / (time.perf_counter() - start))))
    seconds = {name: list[float]() for name in fits}
    first = dict.fromkeys(fits, np.inf)
    for _ in range(n_rounds):
        for name, fit in fits.items():
            times = []
            for epochs in (1, 1 + n_epochs):
                start = time.perf_counter()
                fit(epochs)
                times.append(time.perf_counter() - start)
            first[name] = min(first[name], times[0])
            seconds[name].append(max(1e-9, times[1] - times[0]) / n_epochs)
    return seconds, first


def chosen(fit: Fit) -> str:
    """Return the way that a fit takes by itself, in ten epochs."""
    found = []

    def keep(*arguments: Any) -> tuple[int, str]:
        found.append(process_choice.choose_processes(*arguments[:-1], 10))
        return 1, ""

    # the beginning of a fit has a column of its own
    with patch.object(process_rounds, "choose_processes", keep), patch.object(process_choice, "_START", 0):
        fit(1)
    ((n_processes, reason),) = found
    return "processes" if n_processes > 1 else reason


def _under(patched: Any, fit: Fit) -> Fit:
    def patched_fit(epochs: int) -> object:
        with patched:
            return fit(epochs)

    return patched_fit


def problem(name: str, batch_size: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return an estimator, and data of some updates; None in its place if a batch is too large."""
    random = np.random.default_rng(0)
    common = {
        "learning_rate": "constant", "eta0": 1e-3, "batch_size": batch_size, "tol": None, "random_state": 0
    }  # fmt: skip
    if name in PERCEPTRONS:
        n_columns, *hidden, n_outputs = PERCEPTRONS[name]
        n_rows = batch_size * _UPDATES
        X = random.standard_normal((n_rows, n_columns), np.float32)
        if n_outputs == 1:
            return OnnxSGDRegressor(_perceptron(MLPRegressor, hidden, X, X[:, 0]), **common), X, X[:, 0]
        y = X[:, :n_outputs].argmax(axis=1)
        return OnnxSGDClassifier(_perceptron(MLPClassifier, hidden, X, y), **common), X, y
    from networks import _parameters, export
    from torch_networks import N_CLASSES, NETWORKS

    shape = NETWORKS[name].shape
    n_updates = min(_UPDATES, _NUMBERS // (batch_size * int(np.prod(shape))))
    if name == "resnet18":
        n_updates = min(n_updates, 256 // batch_size)
    if n_updates < 2:
        return None, np.empty(0), np.empty(0)
    X = random.standard_normal((n_updates * batch_size, *shape), np.float32)
    y = np.arange(len(X)) % N_CLASSES
    onx = export(NETWORKS[name], X[:8])
    return OnnxSGDClassifier(onx, trainable=_parameters(onx), **common), X, y


def _perceptron(kind: type, hidden: list[int], X: np.ndarray, y: np.ndarray) -> Any:
    """Return a perceptron with its first weights; None: a linear model."""
    if not hidden:
        return None
    return kind(hidden_layer_sizes=hidden, max_iter=1, learning_rate_init=1e-9, random_state=0).fit(
        X[:300], y[:300]
    )


def beside_torch(n_threads: int, n_rounds: int) -> None:
    """Print the times of updates in threads beside those of torch, for 784-512-512-10."""
    print("| batch | threads | onnxsgd, ms | torch, ms | torch / onnxsgd |\n|---|---|---|---|---|")
    for batch_size in (256, 1024):
        estimator, X, y = problem("784-512-512-10", batch_size)
        for count in (1, n_threads):
            fits = {
                "ours": _fits(estimator, X, y, n_threads=count),
                "torch": _torch_fits(X, y, batch_size, count),
            }
            seconds, _ = seconds_of_epochs(fits, n_rounds)
            n_updates = len(y) // batch_size
            times = (f"{1e3 * np.median(seconds[key]) / n_updates:.2f}" for key in fits)
            ratio = np.median(np.divide(seconds["torch"], seconds["ours"]))
            print(f"| {batch_size} | {count} | " + " | ".join(times) + f" | {ratio:.2f} |", flush=True)


def _torch_fits(X: np.ndarray, y: np.ndarray, batch_size: int, n_threads: int) -> Fit:
    import torch
    from torch.nn import functional

    rows, labels = torch.from_numpy(X), torch.from_numpy(y)

    def fit(epochs: int) -> object:
        torch.set_num_threads(n_threads)
        module = torch.nn.Sequential(
            torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
            torch.nn.Linear(512, 10),
        )  # fmt: skip
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
        for _ in range(epochs):
            for batch in torch.randperm(len(labels)).split(batch_size):
                optimizer.zero_grad()
                functional.cross_entropy(module(rows[batch]), labels[batch]).backward()
                optimizer.step()
        return module

    return fit


if __name__ == "__main__":
    main()
