"""An l1 penalty sets coefficients to zero: those that are zero at the minimum."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.penalties import Penalty
from onnxsgd.training.zeros import ZeroFinder

RNG = np.random.default_rng(0)
X = RNG.normal(size=(1500, 40))
TRUE = np.r_[[3, -2, 1, 0.5], np.zeros(36)]
Y = X @ TRUE + RNG.normal(size=1500)
ALPHA = 0.05


def regressor(**options):
    return OnnxSGDRegressor(**{"penalty": "l1", "alpha": ALPHA, "random_state": 0} | options)


def objective(model, X, y):
    residual = y - X @ model.coef_ - model.intercept_
    return np.mean(residual**2) / 2 + ALPHA * np.abs(model.coef_).sum()


@pytest.mark.parametrize("scale", [1.0, 10 ** np.linspace(-1, 1, 40)], ids=["equal", "raw"])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
def test_as_many_coefficients_as_lasso(scale, kind):
    table = X * scale
    lasso, model = Lasso(ALPHA).fit(table, Y), regressor().fit(kind(table), Y)
    assert np.count_nonzero(model.coef_) <= 1.3 * np.count_nonzero(lasso.coef_) + 1
    # those that one of the two has alone
    alone = (model.coef_ != 0) != (lasso.coef_ != 0)
    assert np.abs(scale * (model.coef_ - lasso.coef_))[alone].max(initial=0) < 0.03
    assert objective(model, table, Y) < objective(lasso, table, Y) * 1.02


def test_the_objective_is_not_higher_than_without_zeros(monkeypatch):
    model = regressor().fit(X, Y)
    monkeypatch.setattr(ZeroFinder, "of", lambda *args, **options: None)
    without = regressor().fit(X, Y)
    assert objective(model, X, Y) < objective(without, X, Y)
    assert np.count_nonzero(without.coef_) > 2 * np.count_nonzero(model.coef_) > 0
    # those that are left are the same
    left = model.coef_ != 0
    np.testing.assert_array_equal(model.coef_[left], without.coef_[left])


def test_coefficients_of_classes():
    cancer, y = load_breast_cancer(return_X_y=True)
    cancer = StandardScaler().fit_transform(cancer)
    for alpha in (0.05, 0.1):
        model = OnnxSGDClassifier(penalty="l1", alpha=alpha, random_state=0).fit(cancer, y)
        exact = LogisticRegression(l1_ratio=1, solver="saga", C=1 / (alpha * len(y)), max_iter=5000)
        exact.fit(cancer, y)
        assert np.count_nonzero(model.coef_) <= np.count_nonzero(exact.coef_) + 2


def test_several_targets_and_elastic_nets():
    both = np.stack([Y, X[:, 5] + RNG.normal(size=1500)], axis=1)
    model = regressor().fit(X, both)
    assert np.count_nonzero(model.coef_[0]) <= 6
    assert np.count_nonzero(model.coef_[1]) <= 3
    net = ElasticNet(0.1, l1_ratio=0.5).fit(X, Y)
    model = regressor(penalty=Penalty(l1=0.05, l2=0.05)).fit(X, Y)
    alone = (model.coef_ != 0) != (net.coef_ != 0)
    assert np.abs(model.coef_ - net.coef_)[alone].max(initial=0) < 0.02


@pytest.mark.parametrize(
    "options",
    [{"penalty": "l2"}, {"average": True}, {"early_stopping": True}, {"learning_rate": "invscaling"}],
    ids=str,
)
def test_fits_that_find_no_zeros(options, monkeypatch):
    """Of l2 penalties, of averages, where scores decide, at named rates."""
    found = []
    monkeypatch.setattr(ZeroFinder, "find", lambda self, state: found.append(state))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        regressor(**options).fit(X, Y)
    assert found == []


@pytest.mark.parametrize("n_small", [0, 1, 2, 5, 40, 63, 64])
def test_the_number_with_the_least_objective_is_found(n_small):
    """Of 64 coefficients, so many raise the objective, and the others lower it."""
    gain = np.r_[np.full(n_small, 1.0), np.full(64 - n_small, -1.0)]
    numbers = {("w", "weight"): RNG.permutation(np.arange(1.0, 65.0)).reshape(8, 8)}

    state = SimpleNamespace(tensors=numbers)

    def value():
        is_left = state.tensors["w", "weight"].ravel() != 0
        return float(gain[numbers["w", "weight"].ravel().astype(int) - 1] @ is_left)

    calls = []
    finder = ZeroFinder(["w"], lambda: (calls.append(1), value())[1], dict)
    assert finder.find(state) == value() == -(64 - n_small)
    assert np.count_nonzero(state.tensors["w", "weight"]) == 64 - n_small
    assert len(calls) <= 13
    assert numbers["w", "weight"].all()


def test_coefficients_that_are_zero_or_no_numbers():
    state = SimpleNamespace(tensors={("w", "weight"): np.zeros(3)})
    assert ZeroFinder(["w"], lambda: 1.0, dict).find(state) == 1.0
    state.tensors = {("w", "weight"): np.array([1.0, 2.0])}
    finder = ZeroFinder(["w"], lambda: 1.0 if state.tensors["w", "weight"].all() else np.nan, dict)
    assert finder.find(state) == 1.0
    assert state.tensors["w", "weight"].all()
