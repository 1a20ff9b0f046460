"""Networks on raw columns: ``python benchmarks/raw_networks.py [--seeds 4]``.

Networks with rectified values that scikit-learn has fitted to raw columns, or that have random weights, are
fitted further with default settings. Prints the mean R2, or accuracy, on later rows: of scikit-learn's
networks before, ours after that, ours from random weights, and scikit-learn's on scaled columns and targets.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_digits, make_classification, make_friedman2, make_friedman3
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

_TRAINED = 0.7


def _houses(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return places, areas and years, and prices that depend on the distance from a centre."""
    rng = np.random.default_rng(seed)
    place = np.array([40.0, -74.0]) + 0.2 * rng.normal(size=(1500, 2))
    area, year = rng.lognormal(4.5, 0.4, 1500), rng.integers(1900, 2024, 1500)
    near = np.exp(-((place - [40.1, -74.05]) ** 2).sum(axis=1) / 0.05)
    price = area * (8000 * near + 1500 * (1 + 0.002 * (year - 1900))) + 3e4 * rng.normal(size=1500)
    return np.column_stack([place, area, year]), price


def _classes(seed: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(2000, 10, n_informative=6, n_classes=3, random_state=seed)
    scale = 10.0 ** np.random.default_rng(seed).uniform(0, 3, 10)
    return scale * (X + 1.0), y


def _digits(seed: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(X))
    return X[order], y[order]


_DATA: dict[str, Callable[[int], tuple[np.ndarray, np.ndarray]]] = {
    "friedman2": lambda seed: make_friedman2(2000, noise=50, random_state=seed),
    "friedman3": lambda seed: make_friedman3(2000, noise=0.1, random_state=seed),
    "houses": _houses,
    "three classes": _classes,
    "digits": _digits,
}
_LAYERS = ((100,), (10, 10, 10), (20, 20, 20, 20, 20))


def _scores(data: str, layers: tuple[int, ...], seed: int) -> list[float]:
    X, y = _DATA[data](seed)
    n_trained = int(_TRAINED * len(X))
    known, new = (X[:n_trained], y[:n_trained]), (X[n_trained:], y[n_trained:])
    is_class = np.issubdtype(y.dtype, np.integer)
    theirs, ours = (MLPClassifier, OnnxSGDClassifier) if is_class else (MLPRegressor, OnnxSGDRegressor)
    fitted = theirs(hidden_layer_sizes=layers, random_state=seed).fit(*known)
    # an update of no size leaves the first weights
    first = theirs(hidden_layer_sizes=layers, random_state=seed, max_iter=1, learning_rate_init=1e-12)
    first.fit(*known)
    scaled = make_pipeline(StandardScaler(), theirs(hidden_layer_sizes=layers, random_state=seed))
    if not is_class:
        scaled = TransformedTargetRegressor(scaled, transformer=StandardScaler())
    further = [ours(network, random_state=seed).fit(*known).score(*new) for network in (fitted, first)]
    return [fitted.score(*new), *further, scaled.fit(*known).score(*new)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| data | layers | scikit-learn | fitted further | from random weights | scikit-learn, scaled |")
    print("|---|---|---|---|---|---|")
    for data in _DATA:
        for layers in _LAYERS:
            scores = np.mean([_scores(data, layers, seed) for seed in range(args.seeds)], axis=0)
            print(
                f"| {data} | {layers} | " + " | ".join(f"{score:.3f}" for score in scores) + " |", flush=True
            )


if __name__ == "__main__":
    main()
