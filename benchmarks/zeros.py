"""Coefficients under an l1 penalty: ``python benchmarks/zeros.py``.

Generated columns, of which the first ones count, standard normal or of widths from 0.1 to 10; default fits of
regressors (beside `Lasso` and `SGDRegressor`) and classifiers (`LogisticRegression`, `SGDClassifier`). Prints
the coefficients that are not zero: those of scikit-learn's exact solver, of its SGD, and of ours, with and
without the zeros at the end of ``fit``; and the objective of ours less that of the exact solver, both ways.
Means over three seeds.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import numpy as np
from sklearn.linear_model import Lasso, LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.metrics import log_loss

_TRUE = np.array([3.0, -2.0, 1.0, 0.5, -0.2])
_SETS = ((2000, 50, False), (2000, 50, True), (300, 200, False))


def _objective(model: Any, X: np.ndarray, y: np.ndarray, alpha: float) -> float:
    if hasattr(model, "classes_"):
        loss = log_loss(y, 1 / (1 + np.exp(-model.decision_function(X))))
    else:
        loss = np.mean((y - model.predict(X)) ** 2) / 2
    return float(loss + alpha * np.abs(model.coef_).sum())


def _models(n_rows: int, seed: int, alpha: float, *, has_classes: bool) -> Mapping[str, Any]:
    from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

    options = {"penalty": "l1", "alpha": alpha, "random_state": seed}
    if has_classes:
        exact = LogisticRegression(l1_ratio=1, solver="saga", C=1 / (alpha * n_rows), max_iter=5000)
        return {
            "exact": exact,
            "SGD": SGDClassifier("log_loss", **options),
            "ours": OnnxSGDClassifier(**options),
        }
    return {"exact": Lasso(alpha), "SGD": SGDRegressor(**options), "ours": OnnxSGDRegressor(**options)}


def main() -> None:
    """Print a table."""
    from onnxsgd.training.zeros import ZeroFinder

    warnings.simplefilter("ignore")
    print(
        "| task | rows | columns | widths | exact | SGD | ours, without | with | objective, without | with |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for has_classes, alpha in ((False, 0.05), (True, 0.01)):
        for n_rows, n_columns, is_uneven in _SETS:
            found = []
            for seed in range(3):
                rng = np.random.default_rng(seed)
                X = rng.normal(size=(n_rows, n_columns))
                y = X[:, : len(_TRUE)] @ _TRUE + rng.normal(size=n_rows)
                X *= np.logspace(-1, 1, n_columns) if is_uneven else 1.0
                y = y > 0 if has_classes else y
                models = _models(n_rows, seed, alpha, has_classes=has_classes)
                counts = {name: np.count_nonzero(model.fit(X, y).coef_) for name, model in models.items()}
                least = _objective(models["exact"], X, y, alpha)
                excess = _objective(models["ours"], X, y, alpha) - least
                with patch.object(ZeroFinder, "of", lambda *args, **options: None):
                    without = models["ours"].fit(X, y)
                row = counts["exact"], counts["SGD"], np.count_nonzero(without.coef_), counts["ours"]
                found.append((*row, _objective(without, X, y, alpha) - least, excess))
            *numbers, before, after = np.mean(found, axis=0)
            kind = "classes" if has_classes else "numbers"
            shown = " | ".join(f"{number:.0f}" for number in numbers)
            widths = "0.1 to 10" if is_uneven else "1"
            print(f"| {kind} | {n_rows} | {n_columns} | {widths} | {shown} | {before:.1e} | {after:.1e} |")


if __name__ == "__main__":
    main()
