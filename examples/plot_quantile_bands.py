"""
Quantile bands: the range of a prediction
=========================================

A model of three quantiles gives a prediction its range.

A regression returns one number. Three quantiles return a range as well: half of the patients are below
the median, and eight of ten are between the 0.1 and the 0.9 quantile. The pinball loss, ``Quantile``,
trains a model to predict one quantile, or several at once.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split

from onnxsgd import OnnxSGDRegressor
from onnxsgd.losses import Quantile

# %%
# Ten measurements of 442 patients in their own units, such as years, mg/dl and kg/m², and the progression
# of diabetes a year later. The columns need no scaler: ``learning_rate="auto"``, the default, standardises
# them.
X, y = load_diabetes(return_X_y=True, scaled=False)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0)

# %%
# A linear model with a column of predictions for each quantile. The columns do not cross.
bands = OnnxSGDRegressor(loss=Quantile([0.1, 0.5, 0.9]), random_state=0).fit(X_train, y_train)
low, median, high = bands.predict(X_test).T
inside = (low <= y_test) & (y_test <= high)
below = [np.mean(y_test < prediction) for prediction in (low, median, high)]
print("share of test patients below the quantiles:", *(f"{share:.2f}" for share in below))

# %%
# For comparison, a band of constant width: least squares, and the 0.1 and 0.9 quantiles of its residuals.
least_squares = LinearRegression().fit(X_train, y_train)
margins = np.quantile(y_train - least_squares.predict(X_train), [0.1, 0.9])
residuals = y_test - least_squares.predict(X_test)
inside_constant = (margins[0] <= residuals) & (residuals <= margins[1])

# %%
# The share of patients that each band holds, in three groups of equal size, by their predicted median.
order = np.argsort(median)
groups = np.array_split(order, 3)
coverage = {
    "quantile band": [inside[group].mean() for group in groups],
    "constant width": [inside_constant[group].mean() for group in groups],
}
for name, shares in coverage.items():
    print(f"{name}: holds", *(f"{share:.2f}" for share in shares), "of the three groups")

# %%
# Patients with a high progression vary more. The quantile band is wider for them; the constant band is too
# wide for the first group and too narrow for the last.
plt.style.use("tableau-colorblind10")
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), width_ratios=[2, 1], layout="constrained")
rank = np.arange(len(order))
left.fill_between(rank, low[order], high[order], color="C5", alpha=0.35, lw=0, label="0.1 to 0.9 quantile")
left.plot(rank, median[order], color="C0", lw=2, label="median")
left.scatter(rank[inside[order]], y_test[order][inside[order]], s=14, color="C3", label="patient in the band")
left.scatter(
    rank[~inside[order]], y_test[order][~inside[order]], s=26, color="C1", marker="D", label="outside"
)
left.set(
    xlabel="test patients, sorted by the predicted median",
    ylabel="progression of diabetes after a year (score)",
    title=f"The band holds {inside.mean():.0%} of new patients, and widens",
)
left.legend(loc="upper left")
places = np.arange(3)
for shift, color, (name, shares) in zip((-0.2, 0.2), ("C4", "C2"), coverage.items(), strict=True):
    bars = right.bar(places + shift, shares, 0.38, color=color, label=name)
    right.bar_label(bars, [f"{share:.0%}" for share in shares], padding=2)
right.axhline(0.8, color="black", lw=1, ls=":")
right.annotate("aim", (1, 0.8), (3, -3), ("axes fraction", "data"), textcoords="offset points")
right.set(
    xticks=places,
    xticklabels=["low", "middle", "high"],
    xlabel="predicted progression",
    ylabel="share of patients in the band",
    ylim=(0, 1.15),
    title=f"Constant width misses {1 - coverage['constant width'][2]:.0%} of the high",
)
right.legend(loc="upper center", ncols=2, fontsize="small")
plt.show()
