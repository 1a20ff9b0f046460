"""
A custom loss with a business meaning
=====================================

A loss of a few lines, in euros, replaces least squares and lowers the costs of a bakery.

The bakery decides each evening the number of loaves for the next day. An unsold loaf costs 0.60 euros. A
missing one costs its margin, 1.80 euros, and customers: the more of them find empty shelves, the more
stay away. Least squares treats all errors alike.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LinearRegression

from onnxsgd import OnnxSGDRegressor, losses, testing


# %%
# The loss as a formula of ONNX operators. The package derives its gradient, and ``check_gradients``
# compares that with finite differences.
@dataclass(frozen=True)
class DailyCost(losses.Loss):
    """Euros that a day costs, if `raw_prediction` loaves are baked and `y_true` are asked for."""

    unsold: float = 0.6
    missing: float = 1.8
    angry: float = 0.05

    def value(self, op, y_true, raw_prediction):
        unsold = op.Relu(op.Sub(raw_prediction, y_true))
        missing = op.Relu(op.Sub(y_true, raw_prediction))
        margins = op.Add(op.Mul(unsold, self.unsold), op.Mul(missing, self.missing))
        return op.Add(margins, op.Mul(op.Mul(missing, missing), self.angry))


loss = DailyCost()
testing.check_gradients(loss)


def euros(demand, baked):
    """Return the costs of unsold loaves, of lost margins, and of lost customers, for each day."""
    unsold, missing = np.maximum(baked - demand, 0), np.maximum(demand - baked, 0)
    return np.array([loss.unsold * unsold, loss.missing * missing, loss.angry * missing**2])


# %%
# Four years of generated sales: the demand depends on the day of the week, the temperature and rain, and
# varies more at weekends.
rng = np.random.default_rng(0)
weekday = np.arange(1460) % 7
temperature, rain = rng.normal(15, 8, size=1460), rng.random(1460) < 0.3
busy = np.array([0, -5, 0, 5, 20, 45, 30])[weekday]
expected = 80 + busy - (temperature - 15) - 12 * rain
spread = np.where(weekday > 3, 25, 8)
demand = np.round(np.maximum(0, expected + spread * rng.gumbel(size=1460)))
X = np.column_stack([np.eye(7)[weekday], temperature, rain])
X_train, X_test, y_train, y_test = X[:1095], X[1095:], demand[:1095], demand[1095:]

# %%
# The present model is least squares. Training continues from its coefficients, with the new loss and
# default settings. The last year is for the test. The third plan is the usual remedy: the same number of
# spare loaves every day, here the best one for the years before.
present = LinearRegression().fit(X_train, y_train)
tuned = OnnxSGDRegressor(present, loss=loss, random_state=0).fit(X_train, y_train)
spare = min(range(60), key=lambda loaves: euros(y_train, present.predict(X_train) + loaves).sum())
plans = {
    "least squares": present.predict(X_test),
    f"least squares\n+ {spare} loaves": present.predict(X_test) + spare,
    "custom loss": tuned.predict(X_test),
}
for name, baked in plans.items():
    cost, sold_out = euros(y_test, baked).sum(axis=0).mean(), np.mean(baked < y_test)
    print(f"{' '.join(name.split())}: {cost:.2f} euros a day, sold out on {sold_out:.0%} of the days")

# %%
# Most of the gain comes from baking more. The rest comes from baking more on those days on which the demand
# varies more, which a constant number of spare loaves cannot do.
plt.style.use("tableau-colorblind10")
figure, axes = plt.subplot_mosaic([["loss", "bars"], ["days", "days"]], figsize=(10, 7), layout="constrained")
ax, error = axes["loss"], np.linspace(-40, 40, 200)
ax.plot(error, euros(0, error).sum(axis=0), color="C5", lw=2)
ax.set(xlabel="loaves baked - loaves asked for", ylabel="cost (euros)", title="A missing loaf costs more")
ax.grid(alpha=0.3)

ax = axes["bars"]
left = np.zeros(len(plans))
for index, (part, color) in enumerate([("unsold", "C2"), ("margin lost", "C0"), ("customers lost", "C1")]):
    cost = np.array([euros(y_test, baked)[index].mean() for baked in plans.values()])
    ax.barh(list(plans), cost, left=left, color=color, label=part)
    left += cost
ax.bar_label(ax.containers[-1], [f" {total:.2f}" for total in left])
ax.invert_yaxis()
ax.set(
    xlabel="euros a day, mean of the test year",
    xlim=(0, 1.45 * left.max()),
    title="The custom loss is the cheapest",
)
ax.legend(loc="lower right")

ax, days = axes["days"], np.arange(42)
ax.bar(days, y_test[:42], color="C9", label="asked for")
for name, color, line in (("least squares", "C0", "--"), ("custom loss", "C5", "-")):
    ax.step(days, plans[name][:42], where="mid", color=color, ls=line, lw=2, label=f"baked: {name}")
ax.set(xlabel="day of the test year", ylabel="loaves", xlim=(-0.5, 41.5), title="Six weeks of the test year")
ax.set_ylim(0, 1.3 * y_test[:42].max())
ax.legend(ncols=3, loc="upper left")
plt.show()
