"""
A robust loss for a model that was fitted with another one
===========================================================

Ridge regression minimises the squared error, so a few wrong targets spoil it. Its converted graph continues
training on the same data with the Huber loss, which the original estimator does not have.
"""

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_absolute_error
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDRegressor

# %%
# One target in ten of the training data is wrong by far.
X, y = load_diabetes(return_X_y=True)
X = X.astype(np.float32)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
rng = np.random.RandomState(0)
wrong = rng.choice(len(y_train), len(y_train) // 10, replace=False)
y_train = y_train.copy()
y_train[wrong] += 600

# %%
# The fitted model, and the same model after more training with a robust loss.
ridge = make_pipeline(StandardScaler(), Ridge(alpha=1.0)).fit(X_train, y_train)
robust = OnnxSGDRegressor(
    ridge, loss="huber", epsilon=30.0, penalty=None, learning_rate="adaptive", eta0=0.05, batch_size=16,
    max_iter=300, random_state=0,
).fit(X_train, y_train)  # fmt: skip

for name, model in [("ridge regression", ridge), ("the same graph, Huber loss", robust)]:
    error = mean_absolute_error(y_test, model.predict(X_test))
    print(f"{name}: mean absolute error {error:.1f} on clean test data")
