"""
A stream with drifts, beside SGDClassifier
==========================================

Default settings, without a scaler, follow a stream that drifts suddenly and slowly.

A shop predicts from eight numbers whether an order is sent back. The habits of its customers change:
suddenly after a quarter of the stream, slowly during its third quarter. Three models train on each batch
of 50 orders after they were scored on it, all with default settings.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier

# %%
# Orders in their own units: prices of hundreds, ages of tens, distances of thousands. The direction that
# separates the classes turns, by a right angle in one step, and by another one during the third quarter.
N_BATCHES, SIZE = 400, 50
CENTRE = np.array([0, 5, 40, 3, 500, 20, 3000, 0])
SPREAD = np.array([1, 2, 15, 1, 200, 10, 1000, 5])


def angle(share):
    """Return the angle of the separating direction at a share of the stream, in degrees."""
    return 0 if share < 0.25 else 90 + 90 * np.clip((share - 0.5) / 0.25, 0, 1)


def stream(seed):
    rng = np.random.default_rng(seed)
    plane = rng.normal(size=(2, len(CENTRE)))
    for batch in range(N_BATCHES):
        turn = np.deg2rad(angle(batch / N_BATCHES))
        Z = rng.normal(size=(SIZE, len(CENTRE)))
        score = Z @ (np.cos(turn) * plane[0] + np.sin(turn) * plane[1]) + 0.5 * rng.normal(size=SIZE)
        yield CENTRE + SPREAD * Z, (score > 0).astype(int)


# %%
# Test, then train. ``SGDClassifier`` needs a scaler, which has to learn from the stream as well;
# ``OnnxSGDClassifier`` takes the orders as they are.
models = {
    "OnnxSGDClassifier": OnnxSGDClassifier(random_state=0),
    "scaler, SGDClassifier": SGDClassifier(random_state=0),
    "SGDClassifier": SGDClassifier(random_state=0),
}
scaler = StandardScaler()
accuracy = {name: [] for name in models}
for batch, (X, y) in enumerate(stream(seed=0)):
    scaler.partial_fit(X)
    for name, model in models.items():
        seen = scaler.transform(X) if "scaler" in name else X
        if batch > 0:
            accuracy[name].append(model.score(seen, y))
        model.partial_fit(seen, y, classes=[0, 1])
for name, values in accuracy.items():
    print(f"{name}: accuracy {np.mean(values):.3f} over the stream")

# %%
# ``SGDClassifier`` without a scaler is little better than a coin. With one, it loses less at the sudden
# drift, ``OnnxSGDClassifier`` is ahead before it and soon after it, and both follow the slow drift.
plt.style.use("tableau-colorblind10")
figure, (top, bottom) = plt.subplots(
    2, 1, figsize=(9, 5.5), sharex=True, height_ratios=[1, 4], layout="constrained"
)
orders = SIZE * np.arange(N_BATCHES)
top.plot(orders, [angle(batch / N_BATCHES) for batch in range(N_BATCHES)], color="C3", lw=2)
top.set(ylabel="turned by\n(degrees)", yticks=[0, 90, 180])
top.grid(alpha=0.3)
window = np.ones(12) / 12
styles = zip(accuracy.items(), ("C0", "C1", "C6"), ("-", "--", ":"), strict=True)
for (name, values), color, line in styles:
    means = np.convolve(values, window, mode="valid")
    bottom.plot(orders[12:], means, line, color=color, lw=2, label=f"{name}: {np.mean(values):.1%}")
bottom.set(
    xlabel="orders seen",
    ylabel="accuracy, mean of 12 batches",
    ylim=(0.4, 1),
    xlim=(0, orders[-1]),
)
bottom.legend(title="accuracy over the whole stream", loc="center", bbox_to_anchor=(0.72, 0.66))
bottom.grid(alpha=0.3)
top.set_title("Default settings follow a sudden and a slow drift, on raw data")
plt.show()
