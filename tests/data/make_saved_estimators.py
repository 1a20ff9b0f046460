"""Write estimators of the present formats, with their predictions, for ``test_saved_form.py``.

Run it once for each new format: existing files are kept, as tests of old formats.
"""

import hashlib
import pickle
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.persistence.saved_file import FORMAT as FORMAT_OF_FILES
from onnxsgd.persistence.saved_form import FORMAT

HERE = Path(__file__).parent


def scaled(load):
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X).astype(np.float32), y


def make_regressor():
    X, y = scaled(load_diabetes)
    model = OnnxSGDRegressor(
        learning_rate="invscaling",
        optimizer="adam",
        penalty="elasticnet",
        average=5,
        max_iter=5,
        tol=None,
        random_state=0,
    )
    return model.fit(X, y / 100), X, y / 100


def make_classifier():
    X, y = scaled(load_breast_cancer)
    y = np.where(y == 1, "benign", "malignant")
    graph = OnnxSGDClassifier(max_iter=2, tol=None, random_state=0).fit(X, y).to_onnx().SerializeToString()
    return (
        OnnxSGDClassifier(
            graph, learning_rate="invscaling", momentum=0.9, max_iter=5, tol=None, random_state=0
        ).fit(X, y),
        X,
        y,
    )


def write(name, model, X, y):
    file = HERE / f"{name}_format_{FORMAT_OF_FILES}.onnxsgd"
    if not file.exists():
        model.save(file)
        record(file)
        method = "predict" if name == "regressor" else "predict_proba"
        prediction = getattr(model, method)(X[:50])
        np.savez(
            HERE / f"{name}_file_{FORMAT_OF_FILES}.npz",
            prediction=prediction, loss_curve=model.loss_curve_, t=model.t_,
        )  # fmt: skip
    path = HERE / f"{name}_format_{FORMAT}.pkl"
    if path.exists():
        return
    path.write_bytes(pickle.dumps(model, protocol=4))
    record(path)
    method = "predict" if name == "regressor" else "predict_proba"
    before, loss_curve, t = getattr(model, method)(X[:50]), model.loss_curve_, model.t_
    after = getattr(model.partial_fit(X, y), method)(X[:50])
    np.savez(path.with_suffix(".npz"), prediction=before, after=after, loss_curve=loss_curve, t=t)


def record(path):
    with (HERE / "SHA256SUMS").open("a") as sums:
        sums.write(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")


if __name__ == "__main__":
    write("regressor", *make_regressor())
    write("classifier", *make_classifier())
