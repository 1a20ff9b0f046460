"""Searches of Dask-ML: candidates that are trained in parts, in worker processes."""

import re

import numpy as np
import pytest
from sklearn.datasets import load_digits

from onnxsgd import OnnxSGDClassifier

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
searches = pytest.importorskip("dask_ml.model_selection")

if tuple(map(int, re.findall(r"\d+", dask.__version__)[:2])) > (2025, 2):
    pytest.skip(
        "Dask-ML 2025.1.0 fails with dask from 2025.3.0 on, for every estimator", allow_module_level=True
    )

X, Y = load_digits(return_X_y=True)


@pytest.fixture(scope="module")
def client():
    with distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        yield client


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("IncrementalSearchCV", {"n_initial_parameters": 4, "max_iter": 5}),
        ("SuccessiveHalvingSearchCV", {"n_initial_parameters": 4, "n_initial_iter": 2, "max_iter": 4}),
        ("HyperbandSearchCV", {"max_iter": 4}),
    ],
)
def test_searches_find_a_model(name, settings, client):
    learner, grid = OnnxSGDClassifier(random_state=0), {"alpha": [1e-5, 1e-4, 1e-3, 1e-2]}
    search = getattr(searches, name)(learner, grid, random_state=0, **settings)
    search.fit(X, Y, classes=np.arange(10))
    assert search.best_score_ > 0.9
    assert search.best_estimator_.score(X, Y) > 0.9
