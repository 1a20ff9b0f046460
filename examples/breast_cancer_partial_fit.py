"""
A pipeline in production learns new rows as they come
======================================================

A pipeline of a scaler and a logistic regression was fitted on the first patients of a hospital. New
patients arrive in small groups; ``partial_fit`` trains on each group once, from the present weights.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier

# %%
# The pipeline was fitted on 40 patients.
X, y = load_breast_cancer(return_X_y=True)
X = X.astype(np.float32)
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(X_train[:40], y_train[:40])
print(f"40 patients: log loss {log_loss(y_test, pipeline.predict_proba(X_test)):.3f}")

# %%
# The others arrive in groups of 48. The scaler does not change; the coefficients are trained.
learner = OnnxSGDClassifier(pipeline, learning_rate="constant", eta0=0.3, alpha=1e-3, random_state=0)
for start in range(40, len(X_train), 48):
    rows = slice(start, start + 48)
    learner.partial_fit(X_train[rows], y_train[rows])
    loss = log_loss(y_test, learner.predict_proba(X_test))
    print(f"{min(start + 48, len(X_train)):3d} patients: log loss {loss:.3f}")
