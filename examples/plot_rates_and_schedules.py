"""
Rates and schedules side by side
================================

``learning_rate="auto"``, the default, is compared with rates and schedules set by hand.

The same network learns the same digits with constant rates, schedules by name, a warm-up before a schedule,
and the default, which takes no rate.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier
from onnxsgd.schedules import WarmUp

# %%
# A network after its first epoch, and the pixels as they are, from 0 to 16.
X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
network = MLPClassifier((50,), random_state=0).partial_fit(X_train, y_train, classes=range(10))
N_EPOCHS = 60


# %%
# A named rate is plain SGD, as in scikit-learn. It runs for 60 epochs here. "adaptive" divides its rate by
# 5 where five epochs gain less than ``tol``, and ends, as "auto" does, by itself. A cosine ends at the last
# epoch, with a warm-up before it or without.
recipes = {
    "auto": {},
    "constant, 0.1": {"learning_rate": "constant", "eta0": 0.1},
    "constant, 0.01": {"learning_rate": "constant", "eta0": 0.01},
    "constant, 0.001": {"learning_rate": "constant", "eta0": 0.001},
    "invscaling, from 0.1": {"learning_rate": "invscaling", "eta0": 0.1},
    "adaptive, from 0.03": {"learning_rate": "adaptive", "eta0": 0.03, "tol": 0.01},
    "cosine, from 0.03": {"learning_rate": "cosine", "eta0": 0.03},
    "warm-up, then cosine": {"learning_rate": WarmUp("cosine"), "eta0": 0.06},
}
models = {}
for name, recipe in recipes.items():
    if recipe:
        recipe = {"max_iter": N_EPOCHS, "tol": None} | recipe
    model = OnnxSGDClassifier(network, **recipe, random_state=0).fit(X_train, y_train)
    score = model.score(X_test, y_test)
    print(f"{name}: loss {model.loss_curve_[-1]:.4f} after {model.n_iter_} epochs, accuracy {score:.3f}")
    models[name] = model

# %%
# A constant rate is a compromise: 0.1 destroys the network, 0.001 is slow, 0.01 has not arrived yet. "auto"
# tries a rate that is too large in the second epoch, goes back, and ends with a decay to zero.
plt.style.use("tableau-colorblind10")
figure, (top, bottom) = plt.subplots(2, 1, figsize=(10, 6.5), sharex=True, layout="constrained")
colors, lines = ("C0", "C6", "C5", "C1", "C3", "C4", "C2", "C7"), ("-", ":", "--", "-.", "-", "--", "-", "-.")
for (name, model), color, line in zip(models.items(), colors, lines, strict=True):
    epochs = np.arange(1, model.n_iter_ + 1)
    style = {"color": color, "ls": line, "lw": 3 if name == "auto" else 1.6, "label": name}
    top.semilogy(epochs, model.loss_curve_, **style)
    bottom.semilogy(epochs, model.learning_rates_, **style)
auto = models["auto"]
named = min(model.loss_curve_[-1] for name, model in models.items() if name != "auto")
top.set(
    ylabel="mean loss of the epoch, with penalty",
    title=f'"auto" ends at a loss of {auto.loss_curve_[-1]:.4f}, the best of seven choices at {named:.4f}',
)
bottom.set(xlabel="epoch", ylabel="learning rate", ylim=(1e-5, 0.3))
figure.legend(*top.get_legend_handles_labels(), loc="outside right upper")
for ax in (top, bottom):
    ax.grid(alpha=0.3)
plt.show()
