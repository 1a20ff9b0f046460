"""Training on shards over Dask: the loss beside one machine, the time and the bytes of rounds.

``--quality`` compares losses on even, uneven and sorted shards, in one process; ``--speed`` times fits on two
workers beside one process; ``--scale`` computes the efficiency on more workers from what ``--speed``
measures, and checks the formula by a simulation of the tasks. Without an option all three run.
"""

from __future__ import annotations

import argparse
import heapq
import pickle
import sys
import time
import warnings
from pathlib import Path
from statistics import median

import numpy as np
from sklearn.datasets import make_classification
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from serial_executor import SerialExecutor, ShardedClassifier, fit_sharded


class Direct(SerialExecutor):
    """Hands values on without copies."""

    def source(self, value):
        """Return the value."""
        return value

    def submit(self, function, *arguments):
        """Return the result."""
        return function(*arguments)

    def results(self, handles):
        """Return the values."""
        return list(handles)


def network(layers, X, y):
    """Return a network with its first weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MLPClassifier(layers, max_iter=1, learning_rate_init=1e-9, random_state=0).fit(
            X[:200], y[:200]
        )


def pieces_of(X, y, kind, n_shards):
    """Return the partitions of a kind."""
    if kind == "sorted":
        order = np.argsort(y, kind="stable")
        X, y = X[order], y[order]
    if kind == "uneven":
        shares = np.geomspace(8, 1, n_shards)
        cuts = (np.cumsum(shares / shares.sum())[:-1] * len(y)).astype(int)
        rows = np.split(np.arange(len(y)), cuts)
    else:
        rows = np.array_split(np.arange(len(y)), n_shards)
    return [(X[part], y[part], None) for part in rows]


#: Parameters of the fits whose losses are compared.
SETTINGS = {
    "auto": {},
    "SGD": {"learning_rate": "constant", "eta0": 0.03},
    "momentum": {"learning_rate": "constant", "eta0": 0.005, "momentum": 0.9},
    "Adam": {"learning_rate": "constant", "optimizer": "adam", "eta0": 1e-3},
}


def quality(epochs):
    """Print the loss on all training rows after as many epochs as on one machine."""
    X, y = make_classification(
        8000, 40, n_informative=20, n_classes=5, n_clusters_per_class=4, random_state=1
    )
    X = X.astype(np.float32)
    model = network((64, 64), X, y)

    def loss(estimator):
        return -float(np.log(np.maximum(1e-12, estimator.predict_proba(X)[np.arange(len(y)), y])).mean())

    columns = [1, 4, 16, 64]
    warnings.filterwarnings("ignore", "sync_every=64 leaves")
    print(f"losses after {epochs} epochs of 8,000 rows, a network 40-64-64-5, batches of 32")
    print(f"{'rate':9} {'shards':12} {'one':>7} " + " ".join(f"{f'every {n}':>9}" for n in columns))
    for name, params in SETTINGS.items():
        params = {**params, "random_state": 0, "batch_size": 32, "max_iter": epochs, "tol": None}
        one = loss(OnnxSGDClassifier(model, **params).fit(X, y))
        for kind, n_shards in (("even", 2), ("even", 4), ("even", 8), ("uneven", 4), ("sorted", 4)):
            pieces = pieces_of(X, y, kind, n_shards)
            found = [
                loss(fit_sharded(ShardedClassifier(model, **params), pieces, n, Direct())) for n in columns
            ]
            shown = " ".join(f"{value:9.3f}" for value in found)
            print(f"{name:9} {f'{n_shards} {kind}':12} {one:7.3f} {shown}", flush=True)


#: Networks, the rows of a batch, and the rows of data.
NETWORKS = {
    "linear, 784 columns": ((), 32, 20_000),
    "784-64-10": ((64,), 32, 20_000),
    "784-512-512-10": ((512, 512), 256, 20_000),
}


def speed(rounds, columns):
    """Print the time of an epoch on two workers over that of one process, the two in turn."""
    import dask.array as da
    from distributed import Client, LocalCluster

    from onnxsgd.dask import DaskOnnxSGDClassifier

    random = np.random.RandomState(0)
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    measured = {}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        print(
            f"{'model':22} {'batch':>5} " + " ".join(f"{f'every {n}':>9}" for n in columns) + "  ms a round"
        )
        for name, (layers, batch, n_rows) in NETWORKS.items():
            X = random.standard_normal((n_rows, 784)).astype(np.float32)
            y = random.randint(0, 10, n_rows)
            model = network(layers, X, y) if layers else None
            params = {"learning_rate": "constant", "eta0": 1e-3, "max_iter": 1, "tol": None,
                      "batch_size": batch, "random_state": 0, "n_threads": 1}  # fmt: skip
            one = OnnxSGDClassifier(model, **params, classes=list(range(10)))
            table = da.from_array(X, chunks=(n_rows // 2, -1)).persist()
            labels = da.from_array(y, chunks=n_rows // 2).persist()
            ratios, costs = [], []
            for n in columns:
                many = DaskOnnxSGDClassifier(
                    model, client=client, sync_every=n, classes=list(range(10)), **params
                )
                # classes and shards are read once for all epochs of a fit: the difference of two lengths
                of_one, of_many = [], []
                for _ in range(rounds + 1):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        of_one.append(_epochs(one, 4, X, y) - _epochs(one, 1, X, y))
                        few = max(1, min(3, n // 4))
                        of_many.append(
                            (_epochs(many, 1 + few, table, labels) - _epochs(many, 1, table, labels))
                            * 3
                            / few
                        )
                ratios.append(median(of_one[1:]) / median(of_many[1:]))
                n_updates = -(-n_rows // (2 * batch)) if n > 1 else -(-n_rows // batch)
                n_rounds = 3 * -(-n_updates // n)
                costs.append((n, median(of_many[1:]) / n_rounds))
            per_update = median(of_one[1:]) / (3 * -(-n_rows // batch))
            overhead = median([cost - n * per_update for n, cost in costs])
            size = len(pickle.dumps(one.get_weights()))
            measured[name] = (per_update, size)
            shown = " ".join(f"{ratio:9.2f}" for ratio in ratios)
            print(f"{name:22} {batch:5} {shown}  {overhead * 1e3:6.1f}; {per_update * 1e6:.0f} us an update, "
                  f"{size / 1e6:.2f} MB of weights", flush=True)  # fmt: skip
    return measured


def _epochs(estimator, count, X, y):
    estimator.set_params(max_iter=count)
    start = time.perf_counter()
    estimator.fit(X, y)
    return time.perf_counter() - start


#: Of the formula: seconds of the scheduler for a task, of a message, and the bits a second of a link.
PER_TASK, LATENCY = 2e-4, 2e-3


def scale(measured):
    """Print the efficiency of rounds on many workers, by a formula and by a simulation of their tasks."""
    print(f"efficiency of rounds; {PER_TASK * 1e6:.0f} us of the scheduler for a task, "
          f"{LATENCY * 1e3:.0f} ms for a message")  # fmt: skip
    for name, (per_update, size) in measured.items():
        for n_updates in (1, 16, 64, 256):
            cells = []
            for gigabits in (10, 100):
                link = gigabits * 1e9 / 8
                for workers in (1, 2, 10, 100, 1000):
                    arguments = (workers, n_updates * per_update, size / link)
                    cells.append(f"{formula(*arguments):4.2f}/{simulated(*arguments):4.2f}")
            print(f"{name:22} every {n_updates:4}: " + " ".join(cells), flush=True)


def formula(workers, compute, transfer):
    """Return the share of a round that computes.

    The scheduler handles the source, a task for each shard and the sums; the state goes to the workers in a
    tree, the changes come back in one.
    """
    levels = int(np.ceil(np.log2(workers))) if workers > 1 else 0
    tasks = 2 * workers * PER_TASK
    spread = LATENCY + levels * (transfer + LATENCY)
    collected = levels * (transfer + 2 * LATENCY) + transfer + LATENCY
    return compute / (compute + tasks + spread + collected)


def simulated(workers, compute, transfer):
    """Return the same of simulated tasks: one scheduler, links that send one state at a time."""
    scheduler, ready = 0.0, [transfer + LATENCY]
    # any worker that has the state sends it on
    free = [ready[0]]
    heapq.heapify(free)
    for _ in range(workers - 1):
        sender = heapq.heappop(free)
        arrived = sender + transfer + LATENCY
        ready.append(arrived)
        heapq.heappush(free, arrived)
        heapq.heappush(free, arrived)
    done = []
    for begin in ready:
        scheduler += PER_TASK
        done.append(max(begin, scheduler + LATENCY) + compute)
    while len(done) > 1:
        merged = []
        for i in range(0, len(done) - 1, 2):
            scheduler = max(scheduler, min(done[i : i + 2])) + PER_TASK
            merged.append(max(*done[i : i + 2], scheduler) + transfer + 2 * LATENCY)
        done = merged + done[2 * len(merged) :]
    return compute / (done[0] + transfer + LATENCY)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quality", action="store_true", help="compare losses")
    parser.add_argument("--speed", action="store_true", help="time rounds on two workers")
    parser.add_argument("--scale", action="store_true", help="compute the efficiency on more workers")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of the compared losses")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of each time")
    given = parser.parse_args()
    everything = not (given.quality or given.speed or given.scale)
    if given.quality or everything:
        quality(given.epochs)
    if given.speed or given.scale or everything:
        found = speed(given.rounds, (1, 16, 64, 256))
        if given.scale or everything:
            scale(found)
