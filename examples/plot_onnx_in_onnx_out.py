"""
An ONNX file in, an ONNX file out
=================================

Training continues from an ONNX file, and gives a file with the same inputs and outputs.

Here a service predicts with a file, nobody has the code that made it, and the data have changed.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnx
import onnxruntime
from skl2onnx import to_onnx
from sklearn.datasets import make_moons
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, describe_trainable

folder = tempfile.TemporaryDirectory()
old_file, new_file = Path(folder.name, "old.onnx"), Path(folder.name, "new.onnx")

# %%
# The file in production: a scaler and a small network, converted by skl2onnx.
X_old, y_old = make_moons(500, noise=0.15, random_state=0)
pipeline = make_pipeline(
    StandardScaler(), MLPClassifier((20, 20), learning_rate_init=0.01, max_iter=1000, random_state=0)
).fit(X_old, y_old)
onnx.save(to_onnx(pipeline, X_old[:1].astype(np.float32), options={"zipmap": False}), old_file)

# %%
# ``describe_trainable`` lists the tensors of the file that training would change.
print(describe_trainable(old_file))


# %%
# The present data: the moons have turned and moved.
def make_present(n_samples, random_state):
    X, y = make_moons(n_samples, noise=0.15, random_state=random_state)
    cos, sin = np.cos(np.deg2rad(50)), np.sin(np.deg2rad(50))
    return (X @ [[cos, sin], [-sin, cos]] + [0.4, -0.3]).astype(np.float32), y


X, y = make_present(300, random_state=1)
X_test, y_test = make_present(1000, random_state=2)

# %%
# A path in, a ``ModelProto`` out.
learner = OnnxSGDClassifier(old_file, random_state=0).fit(X, y)
onnx.save(learner.to_onnx(), new_file)

# %%
# The service loads the new file as it loaded the old one.
sessions = {
    file.name: onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for file in (old_file, new_file)
}
accuracy = {}
for name, session in sessions.items():
    inputs, outputs = (
        [value.name for value in values] for values in (session.get_inputs(), session.get_outputs())
    )
    label, _ = session.run(None, {"X": X_test})
    accuracy[name] = np.mean(label == y_test)
    print(f"{name}: {inputs} -> {outputs}, accuracy {accuracy[name]:.3f} on present data")
folder.cleanup()

# %%
# The regions of both files: the border follows the data.
plt.style.use("tableau-colorblind10")
figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), sharex=True, sharey=True, layout="constrained")
xx, yy = np.meshgrid(np.linspace(-2, 3, 200), np.linspace(-2.2, 2.8, 200))
grid = np.column_stack([xx.ravel(), yy.ravel()]).astype(np.float32)
for ax, (name, session) in zip(axes, sessions.items(), strict=True):
    _, probability = session.run(None, {"X": grid})
    region = ax.contourf(xx, yy, probability[:, 1].reshape(xx.shape), 10, cmap="PuOr", alpha=0.5)
    ax.contour(xx, yy, probability[:, 1].reshape(xx.shape), [0.5], colors="black", linewidths=1.5)
    for label, color, marker in ((0, "C5", "o"), (1, "C0", "^")):
        ax.scatter(*X_test[y_test == label][:150].T, s=18, color=color, marker=marker, label=f"class {label}")
    ax.set(xlabel="first column", title=f"{name}: accuracy {accuracy[name]:.1%} on present data")
axes[0].set(ylabel="second column")
axes[0].legend(loc="upper left")
figure.colorbar(region, ax=axes, label="probability of class 1")
plt.show()
