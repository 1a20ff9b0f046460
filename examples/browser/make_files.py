"""
Training in the browser: the files
==================================

A small network learns the first half of the digits. Its training step, the network with its weights as
inputs, and 200 digits that training repeats are written to the folder ``files``. The page trains the step
further on digits that a visitor draws; nothing leaves the browser::

    python make_files.py
    npm install
    python -m http.server --directory ..

and open http://localhost:8000/browser/.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier

folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "files")
folder.mkdir(exist_ok=True)

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)
    network = MLPClassifier((64,), max_iter=20, random_state=0).fit(X[:900], y[:900])

# %%
# Updates of eight digits: the drawn one, and seven that the network has seen.
estimator = OnnxSGDClassifier(network, batch_size=8, random_state=0)
estimator.partial_fit(X[900:], y[900:])
estimator.export_training_step(folder / "step.onnx")

# %%
# The network whose weights are inputs: the page feeds the weights of the step.
model = estimator.to_onnx()
trained = {"coefs_0", "intercepts_0", "coefs_1", "intercepts_1"}
for tensor in [each for each in model.graph.initializer if each.name in trained]:
    shape = list(tensor.dims)
    model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, shape))
    model.graph.initializer.remove(tensor)
onnx.save(model, folder / "predict.onnx")

rows = np.random.default_rng(0).permutation(len(X))[:200]
X[rows].tofile(folder / "X.bin")
(folder / "data.json").write_text(json.dumps({"n_features": X.shape[1], "y": y[rows].tolist()}))
print(f"wrote the step, the network and {len(rows)} digits to {folder}")
