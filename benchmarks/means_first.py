"""Means of networks before their variances: ``python benchmarks/means_first.py``.

Networks of 16, 100, and twice 32 units are trained for a normal distribution, ``loss="gaussian_nll"``, on
3,000 rows of ``sin(3 x)`` with noise of 0.05 and two columns beside it: at once, from random weights, and
after a fit with ``loss="squared_error"``. Prints R2 of the means and the negative logarithm of the density,
without its constant, of 1,000 further rows, and the epochs: means over three seeds.
"""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.metrics import r2_score
from sklearn.neural_network import MLPRegressor

_ROWS, _FURTHER, _SEEDS, _NOISE = 3000, 1000, 3, 0.05
_NETWORKS = ((16,), (100,), (32, 32))


def _data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(_ROWS + _FURTHER, 3))
    return X, np.sin(3 * X[:, 0]) + _NOISE * rng.normal(size=len(X))


def main() -> None:
    """Print a table."""
    from onnxsgd import OnnxSGDRegressor

    warnings.simplefilter("ignore")
    print("| units | way | R2 | loss | epochs |\n| --- | --- | --- | --- | --- |")
    for units in _NETWORKS:
        found: dict[str, list[tuple[float, float, int]]] = {"at once": [], "means first": []}
        for seed in range(_SEEDS):
            X, y = _data(seed)
            train, test = slice(_ROWS), slice(_ROWS, None)
            network = MLPRegressor(hidden_layer_sizes=units, max_iter=1, random_state=seed)
            network.fit(X[train], y[train])
            means = OnnxSGDRegressor(network, random_state=seed).fit(X[train], y[train])
            for way, model, n_before in (
                ("at once", network, 0),
                ("means first", means.to_onnx(), means.n_iter_),
            ):
                bell = OnnxSGDRegressor(model, loss="gaussian_nll", random_state=seed)
                mean, std = bell.fit(X[train], y[train]).predict(X[test], return_std=True)
                loss = np.mean(np.log(std) + ((y[test] - mean) / std) ** 2 / 2)
                found[way].append((r2_score(y[test], mean), float(loss), bell.n_iter_ + n_before))
        for way, rows in found.items():
            r2, loss, epochs = np.mean(rows, axis=0)
            print(f"| {units} | {way} | {r2:.2f} | {loss:.2f} | {epochs:.0f} |", flush=True)


if __name__ == "__main__":
    main()
