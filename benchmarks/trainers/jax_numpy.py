"""JAX, with an update written in ``jax.numpy``: a jitted function for each step, or for each epoch.

Both gather the rows of a batch in the fastest way found: the step gets arrays that numpy
gathered, the epoch gathers inside ``jax.lax.scan``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from workloads import Layers, Task

from trainers import Train

__all__ = ["train_by_epoch", "train_by_step"]


def train_by_step(task: Task) -> Train:
    """Train with one call for each update."""
    step = jax.jit(_make_update(task), donate_argnums=0)
    y = _target(task)

    def train(n_epochs: int, shuffle: bool) -> Layers:
        layers, rng = _start(task), np.random.default_rng(0)
        for _ in range(n_epochs):
            losses = []
            for rows in _order(task, shuffle, rng):
                layers, loss = step(layers, task.X[rows], y[rows])
                losses.append(loss)
            np.mean(jax.device_get(losses))
        return _as_numpy(layers)

    return train


def train_by_epoch(task: Task, with_transfer: bool = False) -> Train:
    """Train with one call for each epoch; `with_transfer`: each training begins with arrays of numpy."""
    update = _make_update(task)

    @jax.jit
    def epoch(layers: Any, X: Any, y: Any, order: Any) -> tuple[Any, Any]:
        return jax.lax.scan(lambda layers, rows: update(layers, X[rows], y[rows]), layers, order)

    data = None if with_transfer else _on_device(task)

    def train(n_epochs: int, shuffle: bool) -> Layers:
        X, y = data or _on_device(task)
        layers, rng = _start(task), np.random.default_rng(0)
        for _ in range(n_epochs):
            layers, losses = epoch(layers, X, y, _order(task, shuffle, rng))
            float(losses.mean())
        return _as_numpy(layers)

    return train


def _make_update(task: Task) -> Any:
    def loss_of(layers: Any, x: Any, y: Any) -> Any:
        *hidden, (weight, bias) = layers
        for w, b in hidden:
            x = jax.nn.relu(x @ w + b)
        score = x @ weight + bias
        if task.workload.kind == "regression":
            return 0.5 * jnp.mean((score - y) ** 2)
        if task.workload.kind == "binary":
            return jnp.mean(jax.nn.softplus(score) - y * score)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(score), y[:, None], axis=1))

    def update(layers: Any, x: Any, y: Any) -> tuple[Any, Any]:
        loss, gradients = jax.value_and_grad(loss_of)(layers, x, y)
        return jax.tree.map(lambda p, g: p - task.rate * g, layers, gradients), loss

    return update


def _on_device(task: Task) -> tuple[Any, Any]:
    return jnp.asarray(task.X), jnp.asarray(_target(task))


def _target(task: Task) -> Any:
    if task.workload.kind == "multiclass":
        return task.y.astype(np.int32)
    return task.y.astype(np.float32).reshape(-1, 1)


def _order(task: Task, shuffle: bool, rng: np.random.Generator) -> Any:
    n_rows = len(task.X)
    order = rng.permutation(n_rows) if shuffle else np.arange(n_rows)
    return order.astype(np.int32).reshape(-1, task.batch_size)


def _start(task: Task) -> Any:
    return [(jnp.asarray(weight), jnp.asarray(bias)) for weight, bias in task.initial]


def _as_numpy(layers: Any) -> Layers:
    return [(np.asarray(weight), np.asarray(bias)) for weight, bias in layers]
