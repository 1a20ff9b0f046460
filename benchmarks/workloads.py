"""The workloads: networks, data and batch sizes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["BATCH_SIZES", "WORKLOADS", "Layers", "Task", "Workload", "make_task"]

#: Weights and biases, layer by layer: [n_in, n_out] and [n_out].
Layers = list[tuple[NDArray[np.float32], NDArray[np.float32]]]

BATCH_SIZES = (1, 10, 32, 256, 2048)


@dataclass(frozen=True)
class Workload:
    """A network with ReLU between its layers, and the source of its data.

    Attributes
    ----------
    name : str
        Its name in the tables.
    sizes : tuple of int
        Width of the input, of the hidden layers, of the output.
    kind : {"regression", "binary", "multiclass"}
        The loss: half the squared error, the logistic loss of one score, the cross-entropy of a softmax.
    data : {"synthetic", "digits"}
        Drawn at random, or the images of ``sklearn.datasets.load_digits`` (enlarged for wider inputs), each
        of them drawn several times with noise.
    max_rows : int
        Rows of an epoch, at most.
    max_updates : int
        Updates of an epoch, at most: small batches take fewer rows.
    """

    name: str
    sizes: tuple[int, ...]
    kind: Literal["regression", "binary", "multiclass"]
    data: Literal["synthetic", "digits"] = "synthetic"
    max_rows: int = 20_480
    max_updates: int = 2_048

    @property
    def is_linear(self) -> bool:
        """True if the network has no hidden layer."""
        return len(self.sizes) == 2


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("linear-20", (20, 1), "regression"),
        Workload("linear-1000", (1000, 1), "regression", max_rows=8_192),
        Workload("logistic-20", (20, 1), "binary"),
        Workload("mlp-20-100-50-1", (20, 100, 50, 1), "regression"),
        Workload("mlp-64-128-10", (64, 128, 10), "multiclass", "digits"),
        Workload("mlp-784-512-512-10", (784, 512, 512, 10), "multiclass", "digits", 8_192, 256),
    )
}


@dataclass(frozen=True)
class Task:
    """A workload at one batch size: the input of every contestant.

    Attributes
    ----------
    X : ndarray of shape [n_rows, n_features]
        The data; n_rows is a multiple of `batch_size`.
    y : ndarray of shape [n_rows]
        float32 targets, or int64 labels.
    initial : list of (ndarray, ndarray)
        The initial weights of all contestants.
    rate : float
        The learning rate, constant.
    n_threads : int
        Threads that a contestant may use.
    """

    workload: Workload
    batch_size: int
    n_threads: int
    rate: float
    X: NDArray[np.float32] = field(repr=False)
    y: NDArray[np.generic] = field(repr=False)
    initial: Layers = field(repr=False)

    @property
    def n_updates(self) -> int:
        """Updates of an epoch."""
        return len(self.X) // self.batch_size

    @property
    def flop(self) -> int:
        """Floating-point operations in the products of one update."""
        sizes = self.workload.sizes
        products = [2 * self.batch_size * a * b for a, b in itertools.pairwise(sizes)]
        return 3 * sum(products) - products[0]


def make_task(workload: Workload, batch_size: int, n_threads: int) -> Task:
    """Return the task; equal arguments make equal data and weights."""
    n_rows = min(workload.max_rows, batch_size * workload.max_updates) // batch_size * batch_size
    X, y = (_digits if workload.data == "digits" else _synthetic)(workload, n_rows)
    # Small enough for batches of one row, whose squared norm is about the number of features.
    rate = min(0.005, 0.2 / workload.sizes[0])
    return Task(workload, batch_size, n_threads, rate, X, y, _initial(workload))


def _synthetic(workload: Workload, n_rows: int) -> tuple[NDArray[np.float32], NDArray[np.generic]]:
    rng = np.random.default_rng(0)
    n_features = workload.sizes[0]
    X = rng.normal(size=(n_rows, n_features)).astype(np.float32)
    coef = rng.normal(size=n_features) / np.sqrt(n_features)
    score = X @ coef + np.maximum(X[:, 0], 0.0) + 0.1 * rng.normal(size=n_rows)
    return X, (score > 0).astype(np.int64) if workload.kind == "binary" else score.astype(np.float32)


def _digits(workload: Workload, n_rows: int) -> tuple[NDArray[np.float32], NDArray[np.generic]]:
    from scipy.ndimage import zoom
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(0)
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8) / 16.0
    width = round(np.sqrt(workload.sizes[0]))
    rows = rng.integers(len(images), size=n_rows)
    scaled = zoom(images, (1, width / 8, width / 8), order=1).reshape(len(images), -1)[rows]
    noisy = np.maximum(scaled + 0.05 * rng.normal(size=scaled.shape), 0.0)
    return noisy.astype(np.float32), labels[rows].astype(np.int64)


def _initial(workload: Workload) -> Layers:
    """Return random weights; zero for a linear model, where scikit-learn starts too."""
    rng = np.random.default_rng(1)
    scale = 0.0 if workload.is_linear else 1.0
    return [
        (
            (scale * rng.normal(size=(a, b)) * np.sqrt(2.0 / (a + b))).astype(np.float32),
            np.zeros(b, np.float32),
        )
        for a, b in zip(workload.sizes, workload.sizes[1:], strict=False)
    ]
