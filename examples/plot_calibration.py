"""
Calibration before and after
============================

Training the last layer on new rows corrects probabilities that are too sure.

A network has learned its training rows by heart: of the other rows to which it gives a probability of
nearly one, a quarter are negative.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.calibration import calibration_curve
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier

# %%
# A noisy problem, in which one label in ten is wrong, and a network fitted on 1,000 rows.
X, y = make_classification(
    9000, 20, n_informative=8, n_clusters_per_class=4, flip_y=0.2, class_sep=0.8, random_state=0
)
X_first, X_new, X_test = np.split(X, [1000, 3000])
y_first, y_new, y_test = np.split(y, [1000, 3000])
network = MLPClassifier(learning_rate_init=0.01, max_iter=500, random_state=0).fit(X_first, y_first)

# %%
# Two ways to train on 2,000 other rows: all weights, or the 101 numbers of the last layer.
last = ["coefs_1", "intercepts_1"]
models = {
    "before": network,
    "all weights trained": OnnxSGDClassifier(network, random_state=0).fit(X_new, y_new),
    "last layer trained": OnnxSGDClassifier(network, trainable=last, random_state=0).fit(X_new, y_new),
}
probabilities = {name: model.predict_proba(X_test)[:, 1] for name, model in models.items()}


def calibration_error(probability):
    """Return the mean distance between probability and share of positives, over ten bins."""
    bins = np.minimum((10 * probability).astype(int), 9)
    gaps = [abs(np.sum(y_test[bins == b] - probability[bins == b])) for b in range(10)]
    return sum(gaps) / len(y_test)


errors = {name: calibration_error(probability) for name, probability in probabilities.items()}
for name, probability in probabilities.items():
    accuracy = np.mean((probability > 0.5) == y_test)
    print(f"{name}: calibration error {errors[name]:.3f}, ", end="")
    print(f"log loss {log_loss(y_test, probability):.3f}, accuracy {accuracy:.3f}")

# %%
# A calibrated model is on the diagonal. All weights can fit the new rows by heart again, and the
# probabilities stay too extreme; the last layer cannot.
plt.style.use("tableau-colorblind10")
figure = plt.figure(figsize=(9.5, 5), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1.25, 1])
ax = left.subplots()
ax.plot([0, 1], [0, 1], color="C6", ls=":", label="perfect")
panels = right.subplots(3, 1, sharex=True, sharey=True)
styles = zip(probabilities.items(), ("C1", "C3", "C0"), ("s--", "^-.", "o-"), panels, strict=True)
for (name, probability), color, marker, panel in styles:
    share, mean = calibration_curve(y_test, probability, n_bins=10)
    ax.plot(mean, share, marker, color=color, lw=2, label=f"{name}: error {errors[name]:.3f}")
    panel.hist(probability, bins=20, range=(0, 1), color=color)
    panel.set(ylabel="test rows")
    panel.set_title(name, loc="left")
panels[-1].set(xlabel="predicted probability")
ax.set(
    xlabel="predicted probability",
    ylabel="share of positive rows",
    title=f"Calibration error {errors['before']:.2f} before, {errors['last layer trained']:.2f} after",
)
ax.legend(loc="upper left")
ax.grid(alpha=0.3)
plt.show()
