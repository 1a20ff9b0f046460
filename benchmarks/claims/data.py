"""Data and criteria that the claims share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

NETWORKS = Path(__file__).resolve().parents[2] / "tests" / "networks" / "data"

#: Rows of the digits that a model was fitted on; the later ones are turned.
N_FIRST = 900


def turned_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the digits, those after the first rows turned by 30 degrees."""
    from scipy.ndimage import rotate
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X[N_FIRST:] = rotate(
        X[N_FIRST:].reshape(-1, 8, 8), 30, axes=(2, 1), reshape=False, order=1
    ).reshape(-1, 64)  # fmt: skip
    return X.astype(np.float32), y


def fitted_pipeline(last: str) -> Any:
    """Return a pipeline that was fitted on the first digits."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = turned_digits()
    step = LogisticRegression() if last == "linear" else MLPClassifier((64,), random_state=0)
    return make_pipeline(StandardScaler(), step).fit(X[:N_FIRST], y[:N_FIRST])


def check_improved(
    pipeline: Any, learn: Callable[[np.ndarray, np.ndarray], Callable[[np.ndarray], Any]]
) -> str:
    """Compare accuracies on turned digits before and after `learn`, which returns the new prediction."""
    X, y = turned_digits()
    predict = learn(X[N_FIRST:1400], y[N_FIRST:1400])
    before, after = (np.mean(np.ravel(f(X[1400:])) == y[1400:]) for f in (pipeline.predict, predict))
    assert after > before + 0.1, f"accuracy {before:.2f} before, {after:.2f} after"
    return f"{before:.2f} to {after:.2f}"


def scaled_rows() -> tuple[np.ndarray, np.ndarray]:
    """Return rows of two classes, scaled."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import StandardScaler

    X, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(X).astype(np.float32), y


def raw_score(estimator: Any) -> str:
    """Return the accuracy of an estimator over five folds of data with columns of different sizes."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import cross_val_score

    X, y = load_breast_cancer(return_X_y=True)
    return f"{cross_val_score(estimator, X.astype(np.float32), y, error_score='raise').mean():.2f}"


def check_weights(fit: Callable[[np.ndarray, np.ndarray, np.ndarray], Callable[[np.ndarray], Any]]) -> str:
    """Check that rows of weight zero do not count: their labels are wrong."""
    X, y = scaled_rows()
    weights = (np.arange(len(y)) % 3 == 0).astype(np.float32)
    labels = np.where(weights > 0, y, 1 - y)
    score = np.mean(np.ravel(fit(X, labels, weights)(X)) == y)
    assert score > 0.9, f"accuracy {score:.2f}"
    return ""


def check_grid(estimator: Any, name: str, values: list[Any]) -> str:
    """Search one parameter of an estimator inside a pipeline."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = scaled_rows()
    pipeline = Pipeline([("scale", StandardScaler()), ("learn", estimator)])
    search = GridSearchCV(pipeline, {f"learn__{name}": values}, cv=3, error_score="raise").fit(X, y)
    assert search.best_score_ > 0.9, f"accuracy {search.best_score_:.2f}"
    return ""


def check_stream(
    learn: Callable[[np.ndarray, np.ndarray], object], predict: Callable[[np.ndarray], Any]
) -> str:
    """Learn from batches of 20 rows, in one pass."""
    X, y = scaled_rows()
    for start in range(0, 400, 20):
        learn(X[start : start + 20], y[start : start + 20])
    score = np.mean(np.ravel(predict(X[400:])) == y[400:])
    assert score > 0.9, f"accuracy {score:.2f}"
    return ""


def check_onnx(model: onnx.ModelProto, X: np.ndarray, labels: np.ndarray) -> None:
    """Check that a model predicts the labels in onnxruntime: it returns them, or scores."""
    found = run(model, X)[0]
    found = found.argmax(1) if found.ndim == 2 and found.shape[1] > 1 else found.ravel()
    assert np.mean(found == labels) > 0.999


def run(model: onnx.ModelProto, X: np.ndarray | dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of a model."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = X if isinstance(X, dict) else {session.get_inputs()[0].name: X}
    return session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})


def sparse_rows() -> tuple[Any, np.ndarray]:
    """Return rows with few of 20,000 columns, and labels."""
    import scipy.sparse

    rng = np.random.default_rng(0)
    X = scipy.sparse.random(2000, 20_000, 1e-3, "csr", np.float32, rng)
    y = np.asarray(X @ rng.normal(size=20_000) > 0).astype(int)
    return X, y


def networks() -> list[str]:
    """Return the names of the recorded networks."""
    return sorted(path.stem for path in NETWORKS.glob("*.npz"))


class Network:
    """A network that torch exported, with data; the class or the numbers to predict are `y`."""

    def __init__(self, name: str) -> None:
        import onnx

        with np.load(NETWORKS / f"{name}.npz") as file:
            arrays = dict(file)
        self.model = onnx.load_from_string(arrays["model"].tobytes())
        self.X = {k.removeprefix("input "): v for k, v in arrays.items() if k.startswith("input ")}
        self.n_classes, self.rate = int(arrays["classes"]), float(arrays["eta"])
        self.y = arrays["y"].astype(np.int64 if self.n_classes else np.float32)
        self.shape = arrays["y"].shape
        self.output = max(int(arrays["output"]), 0)
        self.trained: list[str] = arrays["trained names"].tolist()
        self.start = self.loss(run(self.model, self.X)[self.output])

    def loss(self, scores: np.ndarray) -> float:
        """Return the mean loss of raw scores: cross-entropy, or the squared error."""
        scores = np.asarray(scores, np.float64)
        if not self.n_classes:
            return float(np.mean((scores.reshape(self.y.shape) - self.y) ** 2))
        top = scores.max(axis=1, keepdims=True)
        logs = scores - top - np.log(np.exp(scores - top).sum(axis=1, keepdims=True))
        return float(-np.mean(np.take_along_axis(logs, self.y.reshape(-1, 1), 1)))
