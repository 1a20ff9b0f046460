"""
A search over penalty and rate
==============================

``GridSearchCV`` searches the penalty; the default learning rate needs no search.

The parameters of these estimators are searched as those of scikit-learn's. A heat map shows the log loss
for each penalty and each rate, next to the rate that training finds by itself.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier

# %%
# A linear classifier of wines. ``learning_rate="auto"``, the default, takes no rate: a search over ``eta0``
# names another schedule, and a list of grids compares both. All candidates share one compiled training
# step, since they differ by numbers only.
X, y = load_wine(return_X_y=True)
alphas = [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]
rates = [3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1, 3]
name = "onnxsgdclassifier"
search = GridSearchCV(
    make_pipeline(StandardScaler(), OnnxSGDClassifier(random_state=0)),
    [
        {f"{name}__alpha": alphas},
        {f"{name}__alpha": alphas, f"{name}__learning_rate": ["constant"], f"{name}__eta0": rates},
    ],
    scoring="neg_log_loss",
).fit(X, y)
losses = -search.cv_results_["mean_test_score"]
auto, constant = losses[: len(alphas)], losses[len(alphas) :].reshape(len(alphas), len(rates))
print(f"{len(losses)} candidates in {search.n_splits_} folds; the best: {search.best_params_}")
print(f"log loss: {auto.min():.3f} with the rate found, {constant.min():.3f} with the best constant rate")

# %%
# Each constant rate has to be tried; small ones end before they arrive. The rate that training finds leaves
# one parameter to search, the penalty.
figure, (left, right) = plt.subplots(
    1, 2, figsize=(9, 4.4), width_ratios=[1, len(rates)], sharey=True, layout="constrained"
)
for ax, values in ((left, auto[:, None]), (right, constant)):
    picture = ax.imshow(values, cmap="cividis_r", norm=LogNorm(0.06, 0.6), aspect="auto", origin="lower")
    for (row, column), value in np.ndenumerate(values):
        best = np.round(value, 3) == np.round(values.min(), 3)
        color, weight = "white" if value > 0.18 else "black", "bold" if best else "normal"
        ax.text(column, row, f"{value:.3f}", ha="center", va="center", color=color, weight=weight)
left.set(xticks=[0], xticklabels=["found"], xlabel='learning_rate="auto"', ylabel="penalty alpha")
left.set_yticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
right.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
right.set(xlabel='rate eta0, learning_rate="constant"')
bar = figure.colorbar(
    picture,
    ax=right,
    ticks=[0.07, 0.1, 0.2, 0.5],
    format="%g",
    label="log loss, mean of 5 folds (lower is better)",
)
bar.minorticks_off()
figure.suptitle(
    f"The rate found by training: log loss {auto.min():.3f}; the best of {len(rates)} constant rates: "
    f"{constant.min():.3f}"
)
plt.show()
