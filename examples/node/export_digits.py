"""
Training from Node: the files
=============================

A small network is trained on half of the digits. Its training step, the other half, and the losses of
ten more epochs are written to the folder ``files``, from which ``train.mjs`` continues::

    python export_digits.py
    npm install
    node train.mjs files
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier

N_EPOCHS = 10

folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "files")
folder.mkdir(exist_ok=True)

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)
    network = MLPClassifier((64,), max_iter=20, random_state=0).fit(X[:900], y[:900])

# %%
# One epoch makes the estimator; the exported step continues from there.
estimator = OnnxSGDClassifier(
    network, optimizer="adam", learning_rate="constant", eta0=0.001, shuffle=False, random_state=0
)
estimator.partial_fit(X[900:], y[900:])
estimator.export_training_step(folder / "step.onnx")

for _ in range(N_EPOCHS):
    estimator.partial_fit(X[900:], y[900:])
X[900:].tofile(folder / "X.bin")
data = {"n_features": X.shape[1], "y": y[900:].tolist(), "losses": estimator.loss_curve_[-N_EPOCHS:]}
(folder / "data.json").write_text(json.dumps(data))
print(f"wrote the step, the data and {N_EPOCHS} losses to {folder}")
