"""JAX on a device: one call for each epoch, which scans over the order of its batches."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from workloads import Layers, Task

from trainers import TimedTrain

__all__ = ["train"]


def train(task: Task, device: str) -> TimedTrain:
    """Train with a jitted scan; products of float32 are computed in float32.

    Raises
    ------
    ImportError
        If JAX has no such device.
    """
    jax.config.update("jax_default_matmul_precision", "highest")
    kind, _, index = device.partition(":")
    try:
        place = jax.devices(kind)[int(index or 0)]
    except RuntimeError as error:
        raise ImportError(f"JAX has no {device}: {error}") from error
    X = jax.device_put(task.X, place)
    y = jax.device_put(task.y.astype(np.float32).reshape(-1, 1), place)

    @jax.jit
    def epoch(layers: Any, order: Any) -> tuple[Any, Any]:
        return jax.lax.scan(lambda layers, rows: _update(task.rate, layers, X[rows], y[rows]), layers, order)

    def run(n_epochs: int, shuffle: bool) -> tuple[Layers, list[float]]:
        layers = [(jax.device_put(w, place), jax.device_put(b, place)) for w, b in task.initial]
        rng, n_rows, seconds = np.random.default_rng(0), len(task.X), []
        for _ in range(n_epochs):
            start = time.perf_counter()
            order = rng.permutation(n_rows) if shuffle else np.arange(n_rows)
            batches = order.astype(np.int32).reshape(-1, task.batch_size)
            layers, losses = epoch(layers, jax.device_put(batches, place))
            float(losses.mean())
            seconds.append(time.perf_counter() - start)
        return [(np.asarray(weight), np.asarray(bias)) for weight, bias in layers], seconds

    return run


def _update(rate: float, layers: Any, x: Any, y: Any) -> tuple[Any, Any]:
    def loss_of(layers: Any) -> Any:
        score = x
        for number, (weight, bias) in enumerate(layers):
            score = score @ weight + bias
            if number < len(layers) - 1:
                score = jax.nn.relu(score)
        return 0.5 * jnp.mean((score - y) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(layers)
    return jax.tree.map(lambda value, slope: value - rate * slope, layers, gradients), loss
