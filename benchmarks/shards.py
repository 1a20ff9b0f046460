"""Losses of training on shards beside one machine: even, uneven and sorted shards, in one process."""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from sklearn.datasets import make_classification
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier
from onnxsgd.distributed import fit_shards


class Direct:
    """An engine that runs each task at once, in this process."""

    def source(self, value):
        """Return the value."""
        return value

    def submit(self, function, *arguments):
        """Return the result."""
        return function(*arguments)

    def release(self, handles):
        """Do nothing: values that nothing refers to are gone."""

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
                loss(fit_shards(OnnxSGDClassifier(model, **params), pieces, Direct(), sync_every=n))
                for n in columns
            ]
            shown = " ".join(f"{value:9.3f}" for value in found)
            print(f"{name:9} {f'{n_shards} {kind}':12} {one:7.3f} {shown}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20, help="epochs of each fit")
    quality(parser.parse_args().epochs)
