"""Fits on shards against fits of the same rows in one array, over an engine in this process."""

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_diabetes, load_digits, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.pipeline import make_pipeline

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, load, losses, schedules
from onnxsgd.estimators.sharded_fit import ShardedData, ShardedTraining
from onnxsgd.exceptions import ConvergenceError, ParameterError, UnsupportedError

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))
from serial_executor import SerialExecutor

X, Y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)[:600]
Y = Y[:600]
X_REAL, Y_REAL = load_diabetes(return_X_y=True)
Y_REAL = (Y_REAL - Y_REAL.mean()) / Y_REAL.std()
WEIGHT = np.random.RandomState(0).randint(0, 4, len(Y)).astype(float)
NAMED = {"learning_rate": "constant", "eta0": 0.05, "max_iter": 3, "tol": None, "random_state": 0}


class ShardedClassifier(ShardedTraining, OnnxSGDClassifier):
    _local_class = OnnxSGDClassifier
    n_shards = sync_every = None


class ShardedRegressor(ShardedTraining, OnnxSGDRegressor):
    _local_class = OnnxSGDRegressor
    n_shards = sync_every = None


def pieces_of(X, y, weight=None, cuts=(100, 130, 330)):
    """Return four pieces of different sizes; the rest is empty."""
    rows = np.split(np.arange(len(y)), cuts)
    return tuple((X[part], y[part], None if weight is None else weight[part]) for part in rows)


def fit(kind, data, sync_every=1, n_shards=None, executor=None, X_val=None, y_val=None, resume=False, **params):
    estimator = kind(**params)
    estimator.sync_every, estimator.n_shards = sync_every, n_shards
    return fit_again(estimator, data, executor, X_val, y_val, resume)


def fit_again(estimator, data, executor=None, X_val=None, y_val=None, resume=False):
    given = ShardedData(executor or SerialExecutor(), tuple(data), ("test",))
    return estimator._fit_sharded(given, X_val, y_val, resume)


def distance(first, second):
    """Return the largest difference of weights, in units of the largest weight of each tensor."""
    a, b = first.get_weights(), second.get_weights()
    assert a.keys() == b.keys()
    return max(np.abs(a[name] - b[name]).max() / np.abs(a[name]).max() for name in a)


MLP = MLPClassifier((12,), max_iter=1, random_state=0)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    MLP.fit(X, Y)


#: Settings whose updates are those of one machine.
SETTINGS = {
    "sgd": NAMED,
    "momentum": {**NAMED, "momentum": 0.9, "nesterov": True},
    "adam": {**NAMED, "optimizer": "adam", "eta0": 1e-3},
    "adamw": {**NAMED, "optimizer": "adamw", "eta0": 1e-3},
    "rmsprop": {**NAMED, "optimizer": "rmsprop", "eta0": 1e-3},
    "lion": {**NAMED, "optimizer": "lion", "eta0": 1e-4},
    "invscaling": {**NAMED, "learning_rate": "invscaling", "eta0": 0.1},
    "cosine": {**NAMED, "learning_rate": schedules.Cosine()},
    "l1 through zero": {**NAMED, "penalty": "l1", "alpha": 0.01},
    "elastic net": {**NAMED, "penalty": "elasticnet", "alpha": 0.01, "l1_ratio": 0.5},
    "average": {**NAMED, "average": 5},
    "clipped": {**NAMED, "max_grad_norm": 0.1},
    "clipped values": {**NAMED, "max_grad_value": 0.01, "optimizer": "adam", "eta0": 1e-3},
    "accumulated": {**NAMED, "gradient_accumulation_steps": 4, "batch_size": 16},
    "single rows": {**NAMED, "batch_size": 1, "max_iter": 1},
    "all rows": {**NAMED, "batch_size": 600},
    "not shuffled": {**NAMED, "shuffle": False},
    "frozen layers": {**NAMED, "learning_rate_multipliers": {"coef*": 0.5}},
    "balanced": {**NAMED, "class_weight": "balanced"},
    "auto": {"random_state": 0, "max_iter": 12},
    "auto, l1": {"random_state": 0, "max_iter": 12, "penalty": "l1", "alpha": 1e-3},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["even", "weights"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_averaged_gradients_make_the_updates_of_one_machine(name, weight):
    params = {"loss": "log_loss", **SETTINGS[name]}
    if name == "frozen layers":
        params["model"] = MLP
    one = OnnxSGDClassifier(**params).fit(X, Y, weight)
    many = fit(ShardedClassifier, pieces_of(X, Y, weight), **params)
    assert distance(one, many) < 2e-5
    assert many.t_ == one.t_
    np.testing.assert_allclose(many.loss_curve_, one.loss_curve_, rtol=1e-5)


@pytest.mark.parametrize(
    "params",
    [
        {**NAMED},
        {**NAMED, "model": None, "loss": "huber", "epsilon": 0.5},
        {**NAMED, "loss": "gaussian_nll", "eta0": 0.01},
        {"max_iter": 12, "random_state": 0},
        {"max_iter": 12, "random_state": 0, "loss": "poisson"},
        {**NAMED, "dtype": "float64"},
    ],
    ids=["named", "huber", "gaussian_nll", "auto", "poisson", "float64"],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_averaged_gradients_of_regressions(params):
    y = np.exp(Y_REAL) if params.get("loss") == "poisson" else Y_REAL
    one = OnnxSGDRegressor(**params).fit(X_REAL, y)
    many = fit(ShardedRegressor, pieces_of(X_REAL, y), **params)
    assert distance(one, many) < (1e-10 if "dtype" in params else 2e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_networks_and_pipelines():
    for model in (MLP, make_pipeline(StandardScaler(), LogisticRegression(max_iter=20)).fit(X, Y)):
        params = {"model": model, **NAMED, "optimizer": "adam", "eta0": 1e-3}
        one = OnnxSGDClassifier(**params).fit(X, Y)
        assert distance(one, fit(ShardedClassifier, pieces_of(X, Y), **params)) < 2e-5


@pytest.mark.parametrize("sync_every", [1, 4])
def test_results_depend_on_the_shards_alone(sync_every):
    """Not on the number of tasks before: the same bits in a second fit, with everything in the cache."""
    runs = [fit(ShardedClassifier, pieces_of(X, Y), sync_every, **NAMED, model=MLP) for _ in range(2)]
    first, second = (run.get_weights() for run in runs)
    assert all((first[name] == second[name]).all() for name in first)
