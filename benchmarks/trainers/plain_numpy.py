"""numpy: the training step in formulas, as the reference; its products alone, as a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit, log_softmax, softmax
from workloads import Layers, Task

from trainers import Train

__all__ = ["loss_gradient", "mean_loss", "products_alone", "train_reference"]


def train_reference(task: Task) -> Train:
    """Train in float64, for the check that all contestants do the same work."""

    def train(n_epochs: int, shuffle: bool) -> Layers:
        if shuffle:
            raise ValueError("the reference takes the rows in order")
        layers = [(weight.astype(np.float64), bias.astype(np.float64)) for weight, bias in task.initial]
        for _ in range(n_epochs):
            for start in range(0, len(task.X), task.batch_size):
                rows = slice(start, start + task.batch_size)
                layers = _update(task, layers, task.X[rows], task.y[rows])
        return layers

    return train


def mean_loss(task: Task, layers: Layers) -> float:
    """Return the mean loss over all rows, in float64."""
    score = _forward([(w.astype(np.float64), b.astype(np.float64)) for w, b in layers], task.X)[-1]
    if task.workload.kind == "regression":
        return float(0.5 * np.mean((score[:, 0] - task.y) ** 2))
    if task.workload.kind == "binary":
        return float(np.mean(np.logaddexp(0.0, score[:, 0]) - task.y * score[:, 0]))
    return float(-np.mean(log_softmax(score, axis=1)[np.arange(len(score)), task.y]))


def loss_gradient(task: Task, score: Any, y: Any) -> Any:
    """Return the gradient of the mean loss of a batch for its scores."""
    if task.workload.kind == "regression":
        slope = score - y[:, None]
    elif task.workload.kind == "binary":
        slope = expit(score) - y[:, None]
    else:
        slope = softmax(score, axis=1)
        slope[np.arange(len(y)), y] -= 1.0
    return slope / len(y)


def products_alone(task: Task) -> Callable[[int], None]:
    """Return a function that computes nothing but the matrix products of the given number of updates.

    Every product has its buffer; this is about the least time of the products with the BLAS of numpy.
    """
    rng = np.random.default_rng(0)
    products = []
    for number, (weight, _) in enumerate(task.initial):
        x, d = (rng.normal(size=(task.batch_size, size)).astype(np.float32) for size in weight.shape)
        products += [(x, weight, np.empty_like(d)), (x.T, d, np.empty_like(weight))]
        if number:
            products.append((d, weight.T, np.empty_like(x)))

    def run(n_updates: int) -> None:
        for _ in range(n_updates):
            for a, b, out in products:
                np.matmul(a, b, out=out)

    return run


def _forward(layers: Layers, x: Any) -> list[Any]:
    """Return the input of each layer, then the score."""
    read = [x]
    for number, (weight, bias) in enumerate(layers):
        score = read[-1] @ weight + bias
        read.append(score if number == len(layers) - 1 else np.maximum(score, 0.0))
    return read


def _update(task: Task, layers: Layers, x: Any, y: Any) -> Layers:
    read = _forward(layers, x)
    slope = loss_gradient(task, read[-1], y)
    updated = []
    for (weight, bias), values in zip(layers[::-1], read[-2::-1], strict=True):
        new = (weight - task.rate * (values.T @ slope), bias - task.rate * slope.sum(axis=0))
        slope = (slope @ weight.T) * (values > 0)
        updated.append(new)
    return updated[::-1]
