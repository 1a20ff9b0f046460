"""Limits of the gradient, against torch and against numpy in float64."""

import pickle

import numpy as np
import onnx
import pytest
from numpy_training import OPTIMIZERS, PENALTIES, truncated
from onnx import parser
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.exceptions import ParameterError
from onnxsgd.runtime.device import Device
from onnxsgd.schedules import Auto

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(145, 5)), 5 * RNG.normal(size=(145, 2))
SHAPES = {"W1": (5, 7), "b1": (7,), "W2": (7, 2), "b2": (2,)}
WEIGHTS = {name: RNG.normal(0, 0.6, shape) for name, shape in SHAPES.items()}
MLP = """<ir_version: 9, opset_import: ["" : 18]> mlp (double[N,5] X) => (double[N,2] Y)
{ a = MatMul(X, W1) b = Add(a, b1) h = Tanh(b) Y = Gemm(h, W2, b2) }"""
EPOCHS, BATCH, RATE = 10, 10, 0.05
#: As many updates as a linear model would otherwise make in its short loop.
MANY_EPOCHS = 40
SETTINGS = {
    "learning_rate": "constant", "eta0": RATE, "shuffle": False, "batch_size": BATCH, "max_iter": EPOCHS,
    "tol": None,
}  # fmt: skip
#: Limits that some of the updates of the network reach, and others do not.
LIMITS = [(5.0, None), (None, 1.5), (3.5, 1.5)]


def network():
    graph = parser.parse_model(MLP)
    graph.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in WEIGHTS.items())
    return graph


def by_torch(make_optimizer, norm, value):
    """Return the weights after all epochs, and the share of the updates whose gradient was limited."""
    torch = pytest.importorskip("torch", reason="the comparison with torch needs torch")
    w = {name: torch.tensor(array, requires_grad=True) for name, array in WEIGHTS.items()}
    optimizer, hits = make_optimizer(torch.optim, list(w.values())), []
    for _ in range(EPOCHS):
        for rows in np.split(np.arange(len(X)), range(BATCH, len(X), BATCH)):
            x, y = torch.tensor(X[rows]), torch.tensor(Y[rows])
            raw = torch.tanh(x @ w["W1"] + w["b1"]) @ w["W2"] + w["b2"]
            optimizer.zero_grad()
            (0.5 * ((raw - y) ** 2).sum(1).mean()).backward()
            before = torch.cat([t.grad.flatten() for t in w.values()])
            if value is not None:
                torch.nn.utils.clip_grad_value_(w.values(), value)
            if norm is not None:
                torch.nn.utils.clip_grad_norm_(w.values(), norm)
            after = torch.cat([t.grad.flatten() for t in w.values()])
            hits.append(not torch.equal(before, after))
            optimizer.step()
    return {name: t.detach().numpy() for name, t in w.items()}, np.mean(hits)


OPTIMIZERS_OF_TORCH = {
    "sgd": ({}, lambda optim, w: optim.SGD(w, lr=RATE)),
    "momentum": ({"momentum": 0.9}, lambda optim, w: optim.SGD(w, lr=RATE, momentum=0.9)),
    "adam": ({"optimizer": "adam"}, lambda optim, w: optim.Adam(w, lr=RATE)),
}


@pytest.mark.parametrize(("norm", "value"), LIMITS)
@pytest.mark.parametrize("name", OPTIMIZERS_OF_TORCH)
def test_150_updates_equal_those_of_torch(name, norm, value):
    settings, make_optimizer = OPTIMIZERS_OF_TORCH[name]
    expected, share = by_torch(make_optimizer, norm, value)
    assert 0.1 < share < 0.95
    ours = OnnxSGDRegressor(
        network(), penalty=None, max_grad_norm=norm, max_grad_value=value, **SETTINGS, **settings
    ).fit(X, Y)
    assert ours.t_ == 150
    for weight, array in expected.items():
        np.testing.assert_allclose(ours.get_weights()[weight], array, rtol=0, atol=1e-10)


def by_numpy(optimizer, penalty, alpha, norm, value, weight, dtype=np.float64):
    """Fit a line as :func:`numpy_training.fit_line`, within limits."""
    w, b, debt, total, t = np.zeros(5), 0.0, np.zeros(5), 0.0, 0
    move_w, move_b = OPTIMIZERS[optimizer](), OPTIMIZERS[optimizer]()
    l1, l2 = PENALTIES[penalty](alpha, 0.15)
    hits = []
    for _ in range(MANY_EPOCHS):
        for start in range(0, len(X), BATCH):
            rows, t = slice(start, start + BATCH), t + 1
            share = weight[rows] / weight[rows].sum()
            residual = share * (X[rows] @ w + b - Y[rows, 0])
            gradient = np.append(residual @ X[rows], residual.sum())
            limited = gradient if value is None else np.clip(gradient, -value, value)
            if norm is not None:
                limited = limited * min(1.0, norm / (np.linalg.norm(limited) + 1e-6))
            hits.append(not np.array_equal(limited, gradient))
            w, b = move_w(w, limited[:-1], t, RATE, l2), move_b(b, limited[-1], t, RATE, 0.0)
            total += RATE * l1
            truncated(w, debt, total)
    assert 0.1 < np.mean(hits) < 0.95
    return np.append(w, b)


@pytest.mark.parametrize(("norm", "value"), [(1.0, None), (None, 0.6), (1.0, 0.6)])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lion"])
@pytest.mark.parametrize("penalty", ["l2", "elasticnet"])
def test_linear_models_equal_numpy(optimizer, penalty, norm, value):
    """The penalty is no part of the gradient that is limited; samples have weights."""
    weight = np.linspace(0.1, 3.0, len(X))
    ours = OnnxSGDRegressor(
        dtype="float64", optimizer=optimizer, penalty=penalty, alpha=0.05, max_grad_norm=norm,
        max_grad_value=value, **SETTINGS | {"max_iter": MANY_EPOCHS},
    ).fit(X, Y[:, 0], sample_weight=weight)  # fmt: skip
    expected = by_numpy(optimizer, penalty, 0.05, norm, value, weight)
    np.testing.assert_allclose(np.append(ours.coef_, ours.intercept_), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("more", [{"max_grad_norm": 0.3}, {"max_grad_value": 0.1}], ids=str)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "block_adam"])
def test_sparse_data_give_the_same(more, optimizer):
    table = sparse.random(100, 12, 0.3, random_state=0, format="csr")
    settings = SETTINGS | {"optimizer": optimizer, "dtype": "float64"}
    first = OnnxSGDRegressor(**settings, **more).fit(table, Y[:100])
    second = OnnxSGDRegressor(**settings, **more).fit(table.toarray(), Y[:100])
    np.testing.assert_allclose(first.coef_, second.coef_, rtol=1e-10, atol=1e-12)
    without = OnnxSGDRegressor(**settings).fit(table, Y[:100])
    assert np.abs(without.coef_ - first.coef_).max() > 1e-4


def test_resident_data_give_the_same(monkeypatch):
    """The steps of a GPU, run on the CPU."""
    settings = SETTINGS | {"max_grad_norm": 3.5, "max_grad_value": 1.5, "momentum": 0.9}
    expected = OnnxSGDRegressor(network(), **settings).fit(X, Y).get_weights()
    monkeypatch.setattr(Device, "keeps_data", True)
    found = OnnxSGDRegressor(network(), **settings).fit(X, Y).get_weights()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("more", [{"max_grad_norm": 1.0}, {"max_grad_value": 1.0}], ids=str)
def test_gradients_whose_squares_overflow_are_limited(more):
    """In float32 squares of numbers above 1.8e19 are infinite: the step has the limit as its length."""
    table = np.float32([[1e15, 1.0]])
    ours = OnnxSGDRegressor(penalty=None, dtype="float32", batch_size=1, **more)
    ours.set_params(learning_rate="constant", eta0=0.5).partial_fit(table, [-1e10])
    np.testing.assert_allclose(ours.coef_, [-0.5, 0.0 if "max_grad_norm" in more else -0.5], atol=1e-6)


def test_a_gradient_below_the_limits_is_kept():
    plain = OnnxSGDRegressor(network(), **SETTINGS).fit(X, Y).get_weights()
    limited = OnnxSGDRegressor(network(), max_grad_norm=1e6, max_grad_value=1e6, **SETTINGS).fit(X, Y)
    for name, array in plain.items():
        np.testing.assert_allclose(limited.get_weights()[name], array, rtol=1e-12)


def test_a_search_over_limits_and_a_pickle():
    y = (Y[:, 0] > 0).astype(int)
    settings = {"learning_rate": "constant", "eta0": 0.5, "random_state": 0, "max_iter": 3, "tol": None}
    search = GridSearchCV(OnnxSGDClassifier(**settings), {"max_grad_norm": [None, 1e-3]}, cv=2).fit(X, y)
    assert {row["max_grad_norm"] for row in search.cv_results_["params"]} == {None, 1e-3}
    model = OnnxSGDClassifier(max_grad_norm=1e-3, max_grad_value=0.1, **settings)
    assert clone(model).get_params() == model.get_params()
    model.fit(X, y)
    # 3 epochs of 5 updates, each of a length of at most eta0 / 1000
    assert 0 < np.linalg.norm(np.append(model.coef_, model.intercept_)) <= 15 * 0.5 * 1e-3
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.partial_fit(X, y).coef_, model.partial_fit(X, y).coef_)


@pytest.mark.parametrize("name", ["max_grad_norm", "max_grad_value"])
@pytest.mark.parametrize("rate", ["auto", Auto()], ids=["name", "object"])
def test_a_rate_that_is_found_refuses_limits(name, rate):
    model = OnnxSGDRegressor(learning_rate=rate, **{name: 1.0})
    with pytest.raises(ParameterError, match=f"^{name}=1.0 is not accepted with .*'auto'.*'constant'.*'sgd'"):
        model.fit(X, Y)
    assert not hasattr(model, "coef_")


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, "1"])
def test_values_that_are_no_limits(value):
    with pytest.raises(
        ParameterError, match=r"'max_grad_norm' parameter .* must be a float in the range \(0"
    ):
        OnnxSGDRegressor(learning_rate="constant", max_grad_norm=value).fit(X, Y)
