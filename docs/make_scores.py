"""Write scores.rst: cross-validated scores beside scikit-learn's, with the same settings.

Run it from this folder: ``python make_scores.py``.
"""

import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

SGD = {"learning_rate": "invscaling", "eta0": 0.01, "power_t": 0.25, "max_iter": 30, "tol": None}
MLP = {
    "hidden_layer_sizes": (32,), "solver": "sgd", "learning_rate_init": 0.02, "batch_size": 32, "alpha": 0.0,
    "momentum": 0.9,
}  # fmt: skip
OURS = {
    "learning_rate": "constant", "eta0": 0.02, "momentum": 0.9, "nesterov": True, "penalty": None,
    "batch_size": 32, "max_iter": 39, "tol": None,
}  # fmt: skip
CLASSIFICATION = {
    "breast cancer": load_breast_cancer, "digits": load_digits, "iris": load_iris, "wine": load_wine,
}  # fmt: skip


def pairs():
    """Yield the name of the data, the data, and two estimators for each comparison."""
    X, y = load_diabetes(return_X_y=True)
    y = (y - y.mean()) / y.std()
    yield (
        "diabetes",
        X,
        y,
        SGDRegressor(random_state=0, **SGD),
        OnnxSGDRegressor(batch_size=1, random_state=0, **SGD),
    )
    yield (
        "diabetes",
        X,
        y,
        MLPRegressor(max_iter=40, random_state=0, **MLP),
        OnnxSGDRegressor(MLPRegressor(max_iter=1, random_state=0, **MLP), random_state=0, **OURS),
    )
    for name, load in CLASSIFICATION.items():
        X, y = load(return_X_y=True)
        for loss in ("log_loss", "hinge"):
            yield (
                name,
                X,
                y,
                SGDClassifier(loss=loss, random_state=0, **SGD),
                OnnxSGDClassifier(loss=loss, batch_size=1, random_state=0, **SGD),
            )
        yield (
            name,
            X,
            y,
            MLPClassifier(max_iter=40, random_state=0, **MLP),
            OnnxSGDClassifier(MLPClassifier(max_iter=1, random_state=0, **MLP), random_state=0, **OURS),
        )


def scores(estimator, X, y):
    """Return the scores of five folds."""
    folds = (KFold if y.dtype.kind == "f" else StratifiedKFold)(5, shuffle=True, random_state=0)
    return cross_val_score(make_pipeline(StandardScaler(), estimator), X, y, cv=folds)


def rows():
    """Yield one line of the table for each comparison."""
    for name, X, y, theirs, ours in pairs():
        label = type(theirs).__name__ + (f", {theirs.loss}" if isinstance(theirs, SGDClassifier) else "")
        a, b = scores(theirs, X, y), scores(ours, X, y)
        yield name, label, a.mean(), a.std(), b.mean(), b.std()


def main() -> None:
    """Write the table."""
    lines = [
        "Scores beside scikit-learn's",
        "============================",
        "",
        "R2 for diabetes and accuracy for the others, mean and standard deviation over five folds, with the",
        "same settings. ``docs/make_scores.py`` makes this page.",
        "",
        ".. list-table::",
        "   :header-rows: 1",
        "",
    ]
    table = [("data", "scikit-learn", "its score", "ours")]
    table += [
        (name, label, f"{a:.3f} ± {sa:.3f}", f"{b:.3f} ± {sb:.3f}") for name, label, a, sa, b, sb in rows()
    ]
    for name, label, a, b in table:
        lines += [f"   * - {name}", f"     - {label}", f"     - {a}", f"     - {b}"]
    Path(__file__).with_name("scores.rst").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    main()
