"""Updates of several batches: the weights are those of one batch with all their samples."""

import pickle
import tracemalloc

import numpy as np
import onnx
import pytest
from numpy_training import fit_line
from onnx import parser
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.engine.step.batches import Batches
from onnxsgd.exceptions import ConvergenceError, ParameterError, UnsupportedError
from onnxsgd.runtime.device import Device

RNG = np.random.default_rng(0)
#: 30 batches of 5 rows, the last one of 3, in updates of 8 batches, the last one of an epoch of 6.
X, Y = RNG.normal(size=(148, 5)), 5 * RNG.normal(size=(148, 2))
WEIGHT = np.linspace(0.1, 3.0, len(X))
SHAPES = {"W1": (5, 7), "b1": (7,), "W2": (7, 2), "b2": (2,)}
MLP = """<ir_version: 9, opset_import: ["" : 18]> mlp (double[N,5] X) => (double[N,2] Y)
{ a = MatMul(X, W1) b = Add(a, b1) h = Tanh(b) Y = Gemm(h, W2, b2) }"""
SETTINGS = {
    "learning_rate": "constant", "eta0": 0.02, "batch_size": 5, "max_iter": 10, "tol": None,
    "random_state": 0,
}  # fmt: skip


def network():
    rng, graph = np.random.default_rng(1), parser.parse_model(MLP)
    graph.graph.initializer.extend(
        onnx.numpy_helper.from_array(rng.normal(0, 0.6, shape), name) for name, shape in SHAPES.items()
    )
    return graph


def pair(settings, fit, graph=network, cls=OnnxSGDRegressor, steps=8):
    """Return an estimator whose updates have several batches, and one with batches as large, both trained."""
    settings = SETTINGS | settings
    whole = settings | {"batch_size": steps * settings["batch_size"]}
    both = cls(graph(), gradient_accumulation_steps=steps, **settings), cls(graph(), **whole)
    return [fit(model) for model in both]


def assert_equal(first, second):
    assert first.t_ == second.t_
    assert first.n_iter_ == second.n_iter_
    np.testing.assert_allclose(first.loss_curve_, second.loss_curve_, rtol=1e-10)
    np.testing.assert_allclose(first.learning_rates_, second.learning_rates_, rtol=1e-12)
    for name, array in second.get_weights().items():
        np.testing.assert_allclose(first.get_weights()[name], array, rtol=1e-9, atol=1e-11)
    kinds = {key for key in first._state.tensors if key[1] != "gradient_sum"}
    assert kinds == set(first._state.tensors) == set(second._state.tensors)


CASES = {
    "plain": {},
    "momentum": {"momentum": 0.9, "learning_rate": "invscaling"},
    "adam": {"optimizer": "adam", "penalty": "l1", "alpha": 0.01},
    "exponential average": {"average": 0.8, "max_grad_norm": 3.0},
    "average": {"average": 7, "penalty": "elasticnet", "alpha": 0.01},
    "limits": {"max_grad_norm": 3.0, "max_grad_value": 1.0, "optimizer": "adamw"},
    "multipliers": {
        "learning_rate_multipliers": {"W1": {"multiplier": 0.5, "from_epoch": 3}, "b*": 2.0},
        "max_grad_norm": 3.0, "momentum": 0.5, "penalty": "l1", "alpha": 0.01,
    },
    "batches of one row": {"batch_size": 1},
    "given order": {"shuffle": False},
    "auto": {"learning_rate": "auto", "eta0": None, "batch_size": 4},
}  # fmt: skip


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["even", "weighted"])
@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_the_whole_batch(name, weight):
    first, second = pair(CASES[name], lambda model: model.fit(X, Y, sample_weight=weight))
    assert_equal(first, second)
    if name != "auto":
        assert first.t_ == 10 * -(-len(X) // (8 * (SETTINGS | CASES[name])["batch_size"]))


@pytest.mark.parametrize("rate", ["constant", "auto"])
def test_streams(rate):
    """Calls of other lengths, some shorter than a batch."""
    settings = {"learning_rate": rate, "eta0": None if rate == "auto" else 0.02, "batch_size": 4}

    def fit(model):
        for part in np.split(np.arange(len(X)), [60, 63, 64, 100]):
            model.partial_fit(X[part], Y[part])
        return pickle.loads(pickle.dumps(model))

    assert_equal(*pair(settings, fit))


def test_a_line_in_numpy():
    """The short last batch, and the short last update, of an epoch."""
    model = OnnxSGDRegressor(
        gradient_accumulation_steps=3, shuffle=False, dtype="float64", momentum=0.5, **SETTINGS
    ).fit(X, Y[:, 0])
    w, b = fit_line(X, Y[:, 0], 10, 15, "sgd", "constant", "l2", 0.02, 0.25, 1e-4, 0.15, momentum=0.5)
    np.testing.assert_allclose(np.append(model.coef_, model.intercept_), np.append(w, b), rtol=1e-9)
    assert model.t_ == 100


def test_a_classifier_of_many_batches_in_one_call():
    """The loop inside the runtime, and the steps one by one."""
    y = RNG.integers(0, 3, len(X))
    for max_iter in (2, 30):
        settings = {"max_iter": max_iter, "dtype": "float64", "class_weight": "balanced"}
        both = pair(settings, lambda model: model.fit(X, y), lambda: None, OnnxSGDClassifier)
        assert_equal(*both)


@pytest.mark.parametrize("more", [{}, {"optimizer": "block_adam"}, {"batch_size": 1}], ids=str)
def test_sparse_data(more):
    table = sparse.random(100, 12, 0.3, random_state=0, format="csr")
    settings = SETTINGS | {"dtype": "float64"} | more
    first, second = (
        OnnxSGDRegressor(gradient_accumulation_steps=8, **settings).fit(data, Y[:100])
        for data in (table, table.toarray())
    )
    assert_equal(first, second)


def test_resident_data(monkeypatch):
    """The steps of a GPU, run on the CPU."""
    monkeypatch.setattr(Device, "keeps_data", True)
    first, second = pair({"optimizer": "adam"}, lambda model: model.fit(X, Y, sample_weight=WEIGHT))
    assert_equal(first, second)


@pytest.mark.parametrize("n_batches", [8, 20, 29, 30, 33])
def test_an_interrupt_keeps_whole_updates(n_batches, monkeypatch):
    """Batches of an update that is not whole leave no trace."""
    calls = []

    def interrupted(source, rows, buffer):
        calls.append(rows)
        if len(calls) == 2 * n_batches + 1:  # features and targets of so many batches are through
            raise KeyboardInterrupt
        np.take(source, rows, axis=0, out=buffer)

    settings = SETTINGS | {"shuffle": False, "gradient_accumulation_steps": 8, "max_iter": 2}
    with monkeypatch.context() as patched:
        patched.setattr("onnxsgd.engine.step.batches._take", interrupted)
        # one batch after another, so that updates come between
        patched.setattr("onnxsgd.engine.step.single_step._GATHERED_BYTES", 0)
        with pytest.warns(UserWarning, match="interrupted"):
            model = OnnxSGDRegressor(network(), **settings).fit(X, Y)
    n_epochs, rest = divmod(n_batches, 30)
    assert (model.t_, model.n_iter_) == (4 * n_epochs + rest // 8, n_epochs)
    # so many whole updates, each of 40 rows, of the same order
    rows = np.arange(len(X))[: 40 * (rest // 8)]
    other = OnnxSGDRegressor(network(), **settings | {"max_iter": max(1, n_epochs)})
    other = other.fit(X, Y) if n_epochs else other
    other = other.partial_fit(X[rows], Y[rows]) if len(rows) else other
    for name, array in model.get_weights().items():
        np.testing.assert_allclose(other.get_weights()[name], array, rtol=1e-10)
    second = pickle.loads(pickle.dumps(model)).partial_fit(X, Y)
    np.testing.assert_allclose(second.get_weights()["W1"], other.partial_fit(X, Y).get_weights()["W1"])


def test_divergence_names_the_update_and_keeps_the_weights_before():
    found = []

    def fit(model):
        with pytest.raises(ConvergenceError) as error:
            model.fit(X, Y)
        found.append(str(error.value))
        return model

    settings = {"eta0": 3.0, "dtype": "float32", "max_iter": 100}
    first, second = pair(settings, fit, lambda: None)
    assert first.t_ == second.t_ > 10
    np.testing.assert_allclose(first.coef_, second.coef_, rtol=1e-3)
    assert f"at update {first.t_ + 1}, with learning rate 3." in found[0]
    assert f"those of update {first.t_}." in found[0]


def test_the_memory_is_that_of_a_batch():
    """Numpy's part of it: the buffers of the data, some 2 MB of small batches, 4 MB of one large batch."""

    def peak(**more):
        table = np.zeros((4096, 500), np.float32)
        model = OnnxSGDRegressor(learning_rate="constant", max_iter=1, tol=None, dtype="float32", **more)
        model.fit(table, table[:, 0])
        tracemalloc.start()
        model.partial_fit(table, table[:, 0])
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    small, whole = peak(batch_size=64), peak(batch_size=2048)
    accumulated = peak(batch_size=64, gradient_accumulation_steps=32)
    assert accumulated < small + 200_000
    assert accumulated < 0.8 * whole


def test_the_index_of_the_update_of_each_batch():
    batches = Batches({"X": X}, Y, WEIGHT, 40, True, n_accumulated=3)
    assert (batches.n_batches, batches.n_updates) == (4, 2)
    assert batches.updates_of_batches(2).tolist() == [0, 0, 0, 1, 2, 2, 2, 3]
    assert Batches({"X": X}, Y, WEIGHT, 40, True).updates_of_batches(2) is None


def test_statistics_are_those_of_each_batch():
    """As in torch, whose running statistics follow each forward pass."""
    torch = pytest.importorskip("torch", reason="the comparison with torch needs torch")
    text = """<ir_version: 9, opset_import: ["" : 18]> g (double[N,5] X) => (double[N,2] Y)
    { a = MatMul(X, W1) b = Add(a, b1) h = BatchNormalization<epsilon = 0.5, momentum = 0.75>(b, s, t, m, v)
      Y = Gemm(h, W2, b2) }"""
    rng, shapes = np.random.default_rng(1), SHAPES | dict.fromkeys("stmv", (7,))
    start = {name: rng.normal(0, 0.6, shape) for name, shape in shapes.items()}
    start["v"] **= 2
    graph = parser.parse_model(text)
    graph.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in start.items())
    ours = OnnxSGDRegressor(
        graph, batch_norm="train", gradient_accumulation_steps=3, momentum=0.9, penalty=None, shuffle=False,
        learning_rate="constant", eta0=0.02, batch_size=10, max_iter=5, tol=None,
    ).fit(X[:90], Y[:90])  # fmt: skip
    w = {name: torch.tensor(start[name], requires_grad=name not in "mv") for name in start}
    optimizer = torch.optim.SGD([tensor for name, tensor in w.items() if name not in "mv"], 0.02, 0.9)
    for number, rows in enumerate(5 * np.split(np.arange(90), 9), start=1):
        x, y = torch.tensor(X[rows]), torch.tensor(Y[rows])
        norm = torch.nn.functional.batch_norm
        h = norm(x @ w["W1"] + w["b1"], w["m"], w["v"], w["s"], w["t"], True, 0.25, 0.5)
        (0.5 * ((h @ w["W2"] + w["b2"] - y) ** 2).sum(1).mean() / 3).backward()
        if number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert ours.t_ == 15
    found = {t.name: onnx.numpy_helper.to_array(t) for t in ours.to_onnx().graph.initializer}
    for name, tensor in w.items():
        np.testing.assert_allclose(found[name], tensor.detach().numpy(), rtol=0, atol=1e-10)


def test_a_search_and_a_clone():
    y = (Y[:, 0] > 0).astype(int)
    model = OnnxSGDClassifier(gradient_accumulation_steps=4, **SETTINGS)
    assert clone(model).gradient_accumulation_steps == 4
    search = GridSearchCV(model, {"gradient_accumulation_steps": [1, 2]}, cv=2).fit(X, y)
    assert search.best_estimator_.gradient_accumulation_steps in (1, 2)
    inner = LogisticRegression().fit(X, y)
    assert OnnxSGDClassifier(inner, gradient_accumulation_steps=2, **SETTINGS).fit(X, y).t_ == 150


def test_an_export_is_refused(tmp_path):
    model = OnnxSGDRegressor(gradient_accumulation_steps=8, **SETTINGS).fit(X, Y)
    with pytest.raises(
        UnsupportedError, match=r"steps=8 cannot be exported.* Set it to 1, and batch_size=40"
    ):
        model.export_training_step(tmp_path / "step.onnx")
    assert not list(tmp_path.iterdir())
    model.set_params(gradient_accumulation_steps=1, batch_size=40)
    assert model.export_training_step(tmp_path / "step.onnx").exists()


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", None])
def test_values_that_are_no_counts(value):
    with pytest.raises(ParameterError, match=r"'gradient_accumulation_steps' parameter .* range \[1, inf\)"):
        OnnxSGDRegressor(gradient_accumulation_steps=value).fit(X, Y)
