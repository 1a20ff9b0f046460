"""scikit-learn: multi-layer perceptrons, and its own stochastic gradient descent for linear models."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from workloads import Layers, Task

from trainers import Train

__all__ = ["train_linear", "train_mlp"]

#: A patience that no fit exhausts: every epoch is made.
_FOREVER = 10**9


def train_mlp(task: Task) -> Train:
    """Train by ``fit`` of an MLP with given weights; with no hidden layer, a linear model."""
    cls: Any = MLPRegressor if task.workload.kind == "regression" else MLPClassifier
    estimator = cls(
        hidden_layer_sizes=task.workload.sizes[1:-1], solver="sgd", alpha=0.0,
        batch_size=task.batch_size, momentum=0.0,
        nesterovs_momentum=False, learning_rate="constant", learning_rate_init=task.rate, warm_start=True,
        n_iter_no_change=_FOREVER, random_state=0, max_iter=1,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(task.X, task.y)

    def train(n_epochs: int, shuffle: bool) -> Layers:
        estimator.coefs_ = [weight.copy() for weight, _ in task.initial]
        estimator.intercepts_ = [bias.copy() for _, bias in task.initial]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            estimator.set_params(max_iter=n_epochs, shuffle=shuffle).fit(task.X, task.y)
        return list(zip(estimator.coefs_, estimator.intercepts_, strict=True))

    return train


def train_linear(task: Task) -> Train:
    """Train by ``fit`` of SGDRegressor or SGDClassifier, which make one update for each row."""
    options: dict[str, Any] = {
        "penalty": None, "learning_rate": "constant", "eta0": task.rate, "tol": None, "random_state": 0,
    }  # fmt: skip
    if task.workload.kind == "regression":
        estimator: Any = SGDRegressor(**options)
    else:
        estimator = SGDClassifier(loss="log_loss", **options)

    def train(n_epochs: int, shuffle: bool) -> Layers:
        estimator.set_params(max_iter=n_epochs, shuffle=shuffle).fit(task.X, task.y)
        return [(estimator.coef_.reshape(-1, 1), np.atleast_1d(estimator.intercept_))]

    return train
