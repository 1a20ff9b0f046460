"""The unit of the rate of logarithms of variances: ``python benchmarks/variance_unit.py``.

``loss="gaussian_nll"`` with ``learning_rate="auto"``, a linear model from zero, on generated targets of
increasing signal, one of several columns for each. Prints, for each unit and signal, the loss above the least
one in nats, of an optimum by L-BFGS in float64, and the epochs: means over three seeds.
"""

from __future__ import annotations

import warnings
from unittest.mock import patch

import numpy as np
from scipy.optimize import minimize

_ROWS, _COLUMNS, _SEEDS = 1500, 5, 3
_SIGNALS, _UNITS = (1.0, 3.0, 10.0, 100.0, 1000.0), (1.0, 2.0, 4.0, 8.0)


def _data(signal: float) -> tuple[np.ndarray, np.ndarray]:
    """Return standard normal columns, and a target whose scatter depends on one of them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(_ROWS, _COLUMNS))
    return X, signal * X @ rng.normal(size=_COLUMNS) + rng.normal(size=_ROWS) * np.exp(X[:, 0] / 2)


def _least(X: np.ndarray, y: np.ndarray) -> float:
    """Return the least loss of linear means and log-variances."""
    A, scale = np.c_[X, np.ones(len(X))], y.std()
    t, d = (y - y.mean()) / scale, _COLUMNS + 1

    def objective(p: np.ndarray) -> tuple[float, np.ndarray]:
        r, s = A @ p[:d] - t, A @ p[d:]
        precision = np.exp(-s)
        slope = np.r_[A.T @ (r * precision), A.T @ (1 - r**2 * precision) / 2] / len(t)
        return float(np.mean(s + r**2 * precision) / 2), slope

    start = np.r_[np.linalg.lstsq(A, t, rcond=None)[0], np.zeros(d)]
    start[-1] = np.log(np.mean((A @ start[:d] - t) ** 2))
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 10_000})
    return float(found.fun + np.log(scale))


def main() -> None:
    """Print a table."""
    from onnxsgd import OnnxSGDRegressor
    from onnxsgd.training import state

    warnings.simplefilter("ignore")
    for signal in _SIGNALS:
        X, y = _data(signal)
        least, cells = _least(X, y), []
        for unit in _UNITS:
            excesses, epochs = [], []
            with patch.object(state, "_UNIT_OF_OTHERS", unit):
                for seed in range(_SEEDS):
                    model = OnnxSGDRegressor(loss="gaussian_nll", penalty=None, random_state=seed).fit(X, y)
                    mean, std = model.predict(X, return_std=True)
                    loss = np.mean(np.log(std) + ((y - mean) / std) ** 2 / 2)
                    excesses.append(loss - least)
                    epochs.append(model.n_iter_)
            cells.append(f"{unit:g}: {np.mean(excesses):.3f} nats, {np.mean(epochs):.0f} epochs")
        print(f"signal {signal:g}: {'; '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
