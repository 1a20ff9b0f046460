"""A loss that Python computes beside the same formula: ``python benchmarks/callable_loss.py``.

The squared error, in updates of plain SGD on 20,000 rows of 20 columns, of a linear model and of an MLP with
two layers of 100 units, in batches of 32 and of 256. Times are processor seconds of one thread, the two in
turn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import interleave
from sklearn.neural_network import MLPRegressor

_ROWS, _COLUMNS = 20_000, 20


def _squares(y_true: np.ndarray, raw_prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    residual = raw_prediction - y_true
    return residual**2 / 2, residual


def _repeated(model: Any, loss: Any, batch_size: int, X: np.ndarray, y: np.ndarray) -> Callable[[int], None]:
    from onnxsgd import OnnxSGDRegressor

    learner = OnnxSGDRegressor(
        model, loss=loss, batch_size=batch_size, learning_rate="constant", eta0=1e-3, n_threads=1,
        random_state=0,
    )  # fmt: skip

    def block(n: int) -> None:
        for _ in range(n):
            learner.partial_fit(X, y)

    return block


def main() -> None:
    """Print the ratio of the times of an epoch."""
    from onnxsgd.losses import FromCallable

    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(_ROWS, _COLUMNS)).astype(np.float32)
    y = X @ rng.normal(size=_COLUMNS)
    mlp = MLPRegressor(hidden_layer_sizes=(100, 100), max_iter=1, random_state=0).fit(X, y)
    for name, model in (("linear", None), ("MLP", mlp)):
        for batch_size in (32, 256):
            blocks = {
                kind: _repeated(model, loss, batch_size, X, y)
                for kind, loss in (("callable", FromCallable(_squares)), ("formula", "squared_error"))
            }
            times = interleave(blocks, 5, 0.2, "cpu")
            ratio = times["callable"].ratio_to(times["formula"])
            print(f"{name}, batches of {batch_size}: {ratio:.1f} times as long with a callable")


if __name__ == "__main__":
    main()
