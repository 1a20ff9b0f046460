"""
Changes of fine-tuning, weight by weight
========================================

``get_weights`` before and after fine-tuning shows the layers in which a network learned.

Here a network was fitted on digits. Then the lens is scratched: eight pixels are always white.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier

# %%
# The network, fitted on half of the digits, and the other half as seen through the scratched lens.
X, y = load_digits(return_X_y=True)
X_first, X_later, y_first, y_later = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)
network = MLPClassifier((64,), random_state=0).fit(X_first, y_first)
scratch = np.zeros((8, 8), bool)
scratch[2:6, 3:5] = True
X_later = np.where(scratch.ravel(), 16, X_later)
X_train, X_test, y_train, y_test = train_test_split(X_later, y_later, test_size=0.5, random_state=0)

# %%
# Fine-tuning of all weights, and of some of them: ``trainable`` takes names of tensors, which
# ``get_weights`` lists.
learner = OnnxSGDClassifier(network, random_state=0)
before, score = learner.get_weights(), learner.score(X_test, y_test)
after = learner.fit(X_train, y_train).get_weights()
accuracy = {"none": score, "all": learner.score(X_test, y_test)}
for name in before:
    part = OnnxSGDClassifier(network, trainable=[name], random_state=0).fit(X_train, y_train)
    accuracy[name] = part.score(X_test, y_test)
for name, value in accuracy.items():
    size = before[name].size if name in before else sum(w.size for w in before.values()) * (name == "all")
    print(f"trained: {name} ({size} numbers): accuracy {value:.3f}")

# %%
# The scratched pixels are constant, so their weights have nothing to learn, and stay. Their white light
# reaches the hidden units all the same; the intercepts of the hidden units take it back, and change most.
for name in before:
    ratio = np.linalg.norm(after[name] - before[name]) / np.linalg.norm(before[name])
    print(f"{name}: changed by {ratio:.2f} of its norm")

# %%
# The map shows the change of a pixel's weights, times the deviation of the pixel: its effect. Each dot
# below is a weight.
plt.style.use("tableau-colorblind10")
figure, axes = plt.subplot_mosaic(
    [["lens", "map", "bars"], ["coefs_0", "intercepts_0", "coefs_1"]], figsize=(11, 6.6), layout="constrained"
)
axes["lens"].imshow(X_test[y_test == 0][0].reshape(8, 8), cmap="gray")
axes["lens"].set(title="A 0 through the scratched lens", xticks=[], yticks=[])
change = np.abs(after["coefs_0"] - before["coefs_0"]).mean(axis=1) * X_train.std(axis=0)
picture = axes["map"].imshow(change.reshape(8, 8), cmap="cividis")
axes["map"].set(title="Changed weights of the pixels", xticks=[], yticks=[])
figure.colorbar(picture, ax=axes["map"], label="mean change x pixel deviation", location="left", shrink=0.9)
axes["map"].text(3.5, 3.5, "no\nchange", color="white", ha="center", va="center")
bars = axes["bars"].barh(list(accuracy), list(accuracy.values()), color=["C2", "C0"] + 4 * ["C4"])
axes["bars"].bar_label(bars, fmt=" %.2f")
axes["bars"].invert_yaxis()
axes["bars"].set(xlabel="accuracy on new digits", xlim=(0, 1.15), title="Accuracy by trained tensors")
stuck = np.broadcast_to(scratch.reshape(-1, 1), (64, 64))
for name in ("coefs_0", "intercepts_0", "coefs_1"):
    ax, old, new = axes[name], before[name].ravel(), after[name].ravel()
    ax.axline((0, 0), slope=1, color="C2", lw=1)
    ax.scatter(old, new, s=6, color="C0", alpha=0.5)
    ratio = np.linalg.norm(new - old) / np.linalg.norm(old)
    ax.set(title=f"{name}: changed by {ratio:.0%}", xlabel="before", ylabel="after")
    ax.grid(alpha=0.3)
axes["coefs_0"].scatter(
    before["coefs_0"][stuck], after["coefs_0"][stuck], s=6, color="C1", label="of scratched pixels"
)
axes["coefs_0"].legend(loc="upper left")
plt.show()
