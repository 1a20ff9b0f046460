"""Exponential averages of weights, against torch and the formula in numpy."""

import pickle

import numpy as np
import onnx.parser
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.exceptions import ParameterError
from onnxsgd.penalties import Penalty

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 4))
Y = np.tanh(X @ RNG.normal(size=(4, 2))) + 0.1 * RNG.normal(size=(80, 2))
STARTS = {
    "W": RNG.normal(size=(4, 6)),
    "b": RNG.normal(size=6),
    "V": RNG.normal(size=(6, 2)),
    "c": np.zeros(2),
}


def network(dtype):
    """A network of two layers, as a graph."""
    name = {"float32": "float", "float64": "double"}[dtype]
    proto = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        net ({name}[N, 4] x) => ({name}[N, 2] y)
        <{name}[4, 6] W, {name}[6] b, {name}[6, 2] V, {name}[2] c>
        {{ p = MatMul(x, W)
          z = Add(p, b)
          h = Tanh(z)
          q = MatMul(h, V)
          y = Add(q, c) }}""")
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(dtype), name) for name, array in STARTS.items()
    )
    return proto


def exponential(seen, decay):
    """Return the average of weights after each update, from those of the first one on."""
    average = seen[0].astype(float)
    for weight in seen[1:]:
        average = decay * average + (1 - decay) * weight
    return average


def one_update_each(n, dtype="float64", **settings):
    """Return an estimator after `n` calls of one update of all rows, and the weights after each call."""
    estimator = OnnxSGDRegressor(
        network(dtype), **{"learning_rate": "constant", "batch_size": 128, "shuffle": False} | settings
    )
    seen = []
    for _ in range(n):
        seen.append(estimator.partial_fit(X, Y)._state.weights())
    return estimator, {name: [weights[name] for weights in seen] for name in STARTS}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_averages_are_those_of_torch_after_200_updates(optimizer, dtype, tolerance):
    torch = pytest.importorskip("torch", reason="the comparison with torch needs torch")
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    kind = getattr(torch, dtype)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, array in STARTS.items():
                setattr(self, name, torch.nn.Parameter(torch.tensor(array, dtype=kind)))

        def forward(self, x):
            return torch.tanh(x @ self.W + self.b) @ self.V + self.c

    net = Net()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    rule, eta = {"sgd": (torch.optim.SGD, 0.05), "adam": (torch.optim.Adam, 0.01)}[optimizer]
    steps = rule(net.parameters(), eta)
    x, y = torch.tensor(X, dtype=kind), torch.tensor(Y, dtype=kind)
    for _ in range(20):
        for start in range(0, 80, 8):
            steps.zero_grad()
            (((net(x[start : start + 8]) - y[start : start + 8]) ** 2).sum(1) / 2).mean().backward()
            steps.step()
            average.update_parameters(net)
    estimator = OnnxSGDRegressor(
        network(dtype), average=0.95, penalty=None, optimizer=optimizer, learning_rate="constant",
        eta0=eta, batch_size=8, max_iter=20, tol=None, shuffle=False,
    ).fit(X.astype(dtype), Y)  # fmt: skip
    assert estimator.t_ == 200
    for name, present in estimator._state.weights().items():
        expected = getattr(average.module, name).detach().numpy()
        raw = getattr(net, name).detach().numpy()
        np.testing.assert_allclose(estimator.get_weights()[name], expected, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(present, raw, rtol=tolerance, atol=tolerance)
        assert np.abs(expected - raw).max() > 100 * tolerance
    predicted = average(x).detach().numpy()
    np.testing.assert_allclose(estimator.predict(X.astype(dtype)), predicted, rtol=tolerance, atol=tolerance)


def test_the_average_is_what_predicts_and_is_exported():
    estimator, seen = one_update_each(7, average=0.8)
    for name, expected in seen.items():
        np.testing.assert_allclose(estimator.get_weights()[name], exponential(expected, 0.8), rtol=1e-12)
        exported = {entry.name: entry for entry in estimator.to_onnx().graph.initializer}
        held = onnx.numpy_helper.to_array(exported[name])
        np.testing.assert_array_equal(held, estimator.get_weights()[name])
    weights = estimator.get_weights()
    raw = np.tanh(X @ weights["W"] + weights["b"]) @ weights["V"] + weights["c"]
    np.testing.assert_allclose(estimator.predict(X), raw, rtol=1e-9)


def test_a_pickled_average_continues_and_the_raw_weights_train():
    whole, _ = one_update_each(6, average=0.8)
    parts, _ = one_update_each(3, average=0.8)
    parts = pickle.loads(pickle.dumps(parts))
    plain, _ = one_update_each(6)
    for _ in range(3):
        parts.partial_fit(X, Y)
    for name, array in whole.get_weights().items():
        np.testing.assert_array_equal(parts.get_weights()[name], array)
        np.testing.assert_array_equal(parts._state.weights()[name], plain.get_weights()[name])


def test_averages_that_begin_later_begin_with_the_weights_of_their_first_update():
    estimator, _ = one_update_each(3)
    estimator.set_params(average=0.8)
    seen = [estimator.partial_fit(X, Y)._state.weights()["W"] for _ in range(4)]
    np.testing.assert_allclose(estimator.get_weights()["W"], exponential(seen, 0.8), rtol=1e-12)
    # an average of equal shares goes on as an exponential one
    estimator, seen = one_update_each(3, average=True)
    mean = np.mean(seen["W"], axis=0)
    estimator.set_params(average=0.8).partial_fit(X, Y)
    present = estimator._state.weights()["W"]
    np.testing.assert_allclose(estimator.get_weights()["W"], 0.8 * mean + 0.2 * present, rtol=1e-12)


@pytest.mark.parametrize("decay", [0.3, 0.999])
@pytest.mark.parametrize("penalty", [None, "l2"])
def test_averages_on_sparse_data_are_those_of_dense_data(penalty, decay):
    """Over 1,500 updates, in which the factors of the sparse form underflow unless they are multiplied in."""
    table = np.where(RNG.random((50, 12)) < 0.3, RNG.normal(size=(50, 12)), 0)
    y = table @ RNG.normal(size=12)
    # with batches of one row, intercepts would have another rate on sparse data
    settings = {"average": decay, "penalty": penalty, "alpha": 0.01, "learning_rate": "constant"}
    settings |= {"eta0": 0.02, "batch_size": 2, "max_iter": 60, "tol": None, "random_state": 0}
    sparse, dense = (
        OnnxSGDRegressor(**settings, dtype="float64").fit(data, y) for data in (csr_array(table), table)
    )
    np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-8, atol=1e-12)
    assert np.abs(sparse.coef_.ravel() - sparse._state.weights()["coef"].ravel()).max() > 1e-6


def test_training_that_finds_its_rate_and_searches():
    data, y = make_classification(400, 8, random_state=0)
    learner = OnnxSGDClassifier(average=0.9, random_state=0)
    plain = OnnxSGDClassifier(random_state=0).fit(data, y)
    assert learner.fit(data, y).score(data, y) > plain.score(data, y) - 0.02
    assert any(kind == "average" for _, kind in learner._state.tensors)
    stopped = OnnxSGDClassifier(average=0.9, early_stopping=True, random_state=0).fit(data, y)
    assert stopped.validation_scores_
    search = GridSearchCV(learner, {"average": [False, 0.5, 0.99]}, cv=2).fit(data, y)
    assert search.best_estimator_.average in (False, 0.5, 0.99)
    near = OnnxSGDClassifier(average=0.9, penalty=Penalty(l2=0.1, from_start=True), random_state=0)
    assert near.fit(data, y).score(data, y) > 0.8


@pytest.mark.parametrize("average", [0.0, 1.0, 1.5, -0.1, np.nan, "0.9"])
def test_refused_averages(average):
    with pytest.raises(ParameterError, match="'average' parameter"):
        OnnxSGDRegressor(average=average).fit(X, Y)


@pytest.mark.parametrize("average", [True, np.True_, 1, np.int64(1)])
def test_whole_numbers_are_the_first_update_of_equal_shares(average):
    estimator, seen = one_update_each(4, average=average)
    np.testing.assert_allclose(estimator.get_weights()["W"], np.mean(seen["W"], axis=0), rtol=1e-12)
