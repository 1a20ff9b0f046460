"""
Fine-tune a fitted scikit-learn MLP and write it as ONNX
=========================================================

An MLP was fitted on the diabetes data of younger patients. Now older patients arrive, for whom it
predicts less well. Training continues on some of them, from its weights, and the result is written as an
ONNX file that any runtime can load.
"""

import warnings

import numpy as np
import onnxruntime
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDRegressor

# %%
# The model that already works: fitted on patients under the median age.
X, y = load_diabetes(return_X_y=True)
X, y = X.astype(np.float32), ((y - y.mean()) / y.std()).astype(np.float32)
young = X[:, 0] < np.median(X[:, 0])
network = MLPRegressor(hidden_layer_sizes=(100, 50), max_iter=40, random_state=0)
model = make_pipeline(StandardScaler(), network)
with warnings.catch_warnings():
    # it is stopped early on purpose, before it overfits
    warnings.simplefilter("ignore", ConvergenceWarning)
    model.fit(X[young], y[young])

# %%
# New data: older patients. Half of them for training, half for the score.
X_new, X_test, y_new, y_test = train_test_split(X[~young], y[~young], test_size=0.5, random_state=0)
before = r2_score(y_test, model.predict(X_test))

# %%
# Continued training of the same model: it is converted, and training starts from its weights.
tuned = OnnxSGDRegressor(
    model, learning_rate="constant", eta0=0.002, momentum=0.9, alpha=1e-3, batch_size=16, max_iter=60,
    tol=None, random_state=0,
)  # fmt: skip
tuned.fit(X_new, y_new)
after = r2_score(y_test, tuned.predict(X_test))
print(f"R2 on older patients: {before:.3f} before, {after:.3f} after fine-tuning")

# %%
# The result is an ONNX file.
path = "fine_tuned_mlp.onnx"
with open(path, "wb") as file:
    file.write(tuned.to_onnx().SerializeToString())
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
(predictions,) = session.run(None, {session.get_inputs()[0].name: X_test})
assert np.allclose(predictions.ravel(), tuned.predict(X_test), rtol=1e-5, atol=1e-5)
print(f"wrote {path}; load it with onnxruntime.InferenceSession({path!r})")
