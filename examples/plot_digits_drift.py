"""
A digits network meets a drift, and recovers
============================================

A fitted network goes on learning, batch by batch, while its data change.

It was fitted on upright digits. Then the camera turns, a degree and a half with each batch of 50 pictures,
and stays at 60 degrees. The network as it was fitted becomes useless; the copy that trains on each batch
recovers.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier

# %%
# The network: one hidden layer, fitted on half of the digits.
X, y = load_digits(return_X_y=True)
X_first, X_later, y_first, y_later = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)
network = MLPClassifier((64,), random_state=0).fit(X_first, y_first)
X_stream, X_test, y_stream, y_test = train_test_split(X_later, y_later, test_size=300, random_state=0)


def turn(X, degrees):
    """Return the pictures as a camera sees them that is turned by some degrees."""
    images = rotate(X.reshape(-1, 8, 8), degrees, axes=(2, 1), reshape=False, order=1)
    return images.reshape(-1, 64)


# %%
# The stream: ``partial_fit`` trains for one epoch on each batch, from the present weights, with default
# settings. Both networks are scored on 300 other digits at the angle of the batch.
learner = OnnxSGDClassifier(network, random_state=0)
angles = np.concatenate([np.arange(0, 60, 1.5), np.full(60, 60.0)])
rng = np.random.default_rng(0)
fixed, learning = [], []
for angle in angles:
    batch = rng.choice(len(X_stream), 50, replace=False)
    learner.partial_fit(turn(X_stream[batch], angle), y_stream[batch])
    seen = turn(X_test, angle)
    fixed.append(network.score(seen, y_test))
    learning.append(learner.score(seen, y_test))

print(f"upright: accuracy {fixed[0]:.2f}")
print(f"turned by 60 degrees: accuracy {fixed[-1]:.2f} as fitted, {min(learning):.2f} at worst and ", end="")
print(f"{learning[-1]:.2f} at the end with training")

# %%
# While the camera turns, training follows with a delay, since each angle is new. Once it stands still, the
# accuracy rises again.
plt.style.use("tableau-colorblind10")
figure = plt.figure(figsize=(9, 5.5), layout="constrained")
top, bottom = figure.subfigures(2, 1, height_ratios=[1, 3.2])
picture = X_test[y_test == 5][:1]
for ax, angle in zip(top.subplots(1, 9), np.linspace(0, 60, 9), strict=True):
    ax.imshow(turn(picture, angle).reshape(8, 8), cmap="gray_r")
    ax.set(title=f"{angle:.0f}°", xticks=[], yticks=[])
ax = bottom.subplots()
batches = np.arange(1, len(angles) + 1)
ax.axvspan(1, np.argmax(angles), color="C9", alpha=0.35, lw=0)
ax.text(20, 0.04, "the camera turns", ha="center")
ax.text(70, 0.04, "it stays at 60°", ha="center")
ax.plot(batches, learning, color="C0", lw=2, label="trains on each batch (partial_fit)")
ax.plot(batches, fixed, "--", color="C1", lw=2, label="as it was fitted")
ax.set(
    xlabel="batches of 50 pictures",
    ylabel="accuracy on 300 digits at this angle",
    xlim=(1, len(angles)),
    ylim=(0, 1.02),
    title=f"Right at 60°: {fixed[-1]:.0%} of the digits as fitted, {learning[-1]:.0%} with training",
)
ax.legend(loc="center right")
ax.grid(alpha=0.3)
plt.show()
