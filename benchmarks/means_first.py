"""Means of networks before their variances: ``python benchmarks/means_first.py``.

Networks are trained for a normal distribution, ``loss="gaussian_nll"``, on generated targets: at once, and
with variances that wait until the means have been learned, as ``fit`` does. Networks of 16, 100, and twice
32 units have random weights, with one output, or with random variances too, or are fitted
(`MLPRegressor`). Prints R2 of the means and the negative logarithm of the density, in units of the target's
deviation and without its constant, of 1,000 further rows, and the epochs: means over the three networks and
two seeds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from unittest.mock import patch

import numpy as np
from sklearn.metrics import r2_score
from sklearn.neural_network import MLPRegressor

_FURTHER, _SEEDS = 1000, 2
_NETWORKS = ((16,), (100,), (32, 32))


def _targets(X: np.ndarray, noise: np.ndarray) -> dict[str, np.ndarray]:
    a, b, c = X[:, :3].T
    return {
        "sin(3 a), noise of 0.05": np.sin(3 * a) + 0.05 * noise,
        "sin(2 a), noise of exp(b - 1) / 2": np.sin(2 * a) + np.exp(b - 1) / 2 * noise,
        "a + 2 b, noise of 0.1 or 0.6": a + 2 * b + np.where(a > 0, 0.6, 0.1) * noise,
        "sin(pi a b) + 2 (c - 1/2)^2, noise of 0.05": np.sin(np.pi * a * b)
        + 2 * (c - 0.5) ** 2
        + 0.05 * noise,
    }


def _models(X: np.ndarray, y: np.ndarray, seed: int) -> Iterator[tuple[str, object]]:
    from onnxsgd import OnnxSGDRegressor

    rng = np.random.default_rng(seed)
    for units in _NETWORKS:
        network = MLPRegressor(hidden_layer_sizes=units, max_iter=1, random_state=seed)
        yield "random", network.fit(X, y)
        pair = MLPRegressor(hidden_layer_sizes=units, max_iter=1, random_state=seed).fit(
            X, rng.normal(size=(len(X), 2))
        )
        yield "random, two outputs", OnnxSGDRegressor(pair).to_onnx()
        yield "fitted", MLPRegressor(hidden_layer_sizes=units, max_iter=200, random_state=seed).fit(X, y)


def _row(model: object, X: np.ndarray, y: np.ndarray, seed: int) -> tuple[float, float, int]:
    from onnxsgd import OnnxSGDRegressor

    train, test = slice(-_FURTHER), slice(-_FURTHER, None)
    bell = OnnxSGDRegressor(model, loss="gaussian_nll", random_state=seed).fit(X[train], y[train])
    mean, std = bell.predict(X[test], return_std=True)
    loss = np.mean(np.log(std / y[train].std()) + ((y[test] - mean) / std) ** 2 / 2)
    return r2_score(y[test], mean), float(loss), bell.n_iter_


def _table(measure: Callable[..., tuple[float, float, int]]) -> dict[tuple[int, str, str], list[float]]:
    found: dict[tuple[int, str, str], list[tuple[float, float, int]]] = {}
    for n_rows in (500, 3000):
        for seed in range(_SEEDS):
            rng = np.random.default_rng(seed)
            X = rng.normal(size=(n_rows + _FURTHER, 5))
            for name, y in _targets(X, rng.normal(size=len(X))).items():
                for kind, model in _models(X[:n_rows], y[:n_rows], seed):
                    found.setdefault((n_rows, name, kind), []).append(measure(model, X, y, seed))
    return {key: np.mean(rows, axis=0).tolist() for key, rows in found.items()}


def main() -> None:
    """Print a table."""
    from onnxsgd.training.waiting_variances import WaitingVariances

    warnings.simplefilter("ignore")
    with patch.object(WaitingVariances, "are_unknown", lambda self, state: False):
        at_once = _table(_row)
    print("| rows | target | network | R2, at once | means first | loss, at once | means first | epochs | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for (n_rows, name, kind), second in _table(_row).items():
        first = at_once[n_rows, name, kind]
        numbers = [f"{a:.2f} | {b:.2f}" for a, b in zip(first[:2], second[:2], strict=True)]
        print(f"| {n_rows} | {name} | {kind} | {' | '.join(numbers)} | {first[2]:.0f} | {second[2]:.0f} |")


if __name__ == "__main__":
    main()
