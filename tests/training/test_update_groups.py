"""Weights with a factor of the rate, and frozen ones, against torch and against numpy in float64."""

import pickle
import warnings

import numpy as np
import onnx
import pytest
from numpy_training import OPTIMIZERS, PENALTIES, truncated
from onnx import parser
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from onnxsgd import OnnxSGDRegressor
from onnxsgd.exceptions import ParameterError, UnsupportedError
from onnxsgd.penalties import Penalty
from onnxsgd.runtime.device import Device
from onnxsgd.schedules import Auto
from onnxsgd.training.rate_multipliers import RateMultiplier
from onnxsgd.training.update_groups import UpdateGroup, make_groups

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(145, 5)), 5 * RNG.normal(size=(145, 2))
SHAPES = {"W1": (5, 7), "b1": (7,), "W2": (7, 2), "b2": (2,)}
WEIGHTS = {name: RNG.normal(0, 0.6, shape) for name, shape in SHAPES.items()}
MLP = """<ir_version: 9, opset_import: ["" : 18]> mlp (double[N,5] X) => (double[N,2] Y)
{ a = MatMul(X, W1) b = Add(a, b1) h = Tanh(b) Y = Gemm(h, W2, b2) }"""
EPOCHS, BATCH, RATE = 10, 10, 0.02
SETTINGS = {
    "learning_rate": "constant", "eta0": RATE, "shuffle": False, "batch_size": BATCH, "max_iter": EPOCHS,
    "tol": None,
}  # fmt: skip
#: As many updates as a linear model would otherwise make in its short loop.
MANY_EPOCHS = 40
FROM = 3
MULTIPLIERS = {"W1": {"multiplier": 0.3, "from_epoch": FROM}, "b*": 2.0, "W2": 0.5}
FACTORS = {"W1": 0.3, "b1": 2.0, "b2": 2.0, "W2": 0.5}


def network(weights=WEIGHTS):
    graph = parser.parse_model(MLP)
    graph.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in weights.items())
    return graph


def by_torch(make_optimizer, max_norm):
    """Return the weights under parameter groups; the first layer has no gradient in the first epochs."""
    torch = pytest.importorskip("torch", reason="the comparison with torch needs torch")
    w = {name: torch.tensor(array, requires_grad=True) for name, array in WEIGHTS.items()}
    groups = [{"params": [tensor], "lr": RATE * FACTORS[name]} for name, tensor in w.items()]
    optimizer = make_optimizer(torch.optim, groups)
    for epoch in range(1, EPOCHS + 1):
        for rows in np.split(np.arange(len(X)), range(BATCH, len(X), BATCH)):
            x, y = torch.tensor(X[rows]), torch.tensor(Y[rows])
            raw = torch.tanh(x @ w["W1"] + w["b1"]) @ w["W2"] + w["b2"]
            optimizer.zero_grad()
            (0.5 * ((raw - y) ** 2).sum(1).mean()).backward()
            if epoch < FROM:
                w["W1"].grad = None
            if max_norm is not None:
                torch.nn.utils.clip_grad_norm_(w.values(), max_norm)
            optimizer.step()
    return {name: tensor.detach().numpy() for name, tensor in w.items()}


OPTIMIZERS_OF_TORCH = {
    "momentum": ({"momentum": 0.9}, lambda optim, groups: optim.SGD(groups, momentum=0.9)),
    "adam": ({"optimizer": "adam"}, lambda optim, groups: optim.Adam(groups)),
    "adamw": (
        {"optimizer": "adamw", "penalty": "l2", "alpha": 0.1},
        lambda optim, groups: optim.AdamW(
            [group | {"weight_decay": 0.1 if group["params"][0].ndim == 2 else 0.0} for group in groups]
        ),
    ),
    "rmsprop": ({"optimizer": "rmsprop"}, lambda optim, groups: optim.RMSprop(groups)),
}


@pytest.mark.parametrize("max_norm", [None, 3.5])
@pytest.mark.parametrize("name", OPTIMIZERS_OF_TORCH)
def test_150_updates_equal_those_of_groups_of_torch(name, max_norm):
    settings, make_optimizer = OPTIMIZERS_OF_TORCH[name]
    expected = by_torch(make_optimizer, max_norm)
    more = SETTINGS | {"penalty": None, "max_grad_norm": max_norm} | settings
    ours = OnnxSGDRegressor(network(), learning_rate_multipliers=MULTIPLIERS, **more).fit(X, Y)
    for weight, array in expected.items():
        np.testing.assert_allclose(ours.get_weights()[weight], array, rtol=0, atol=1e-10)
        assert np.abs(array - WEIGHTS[weight]).max() > 0.01


def by_numpy(optimizer, penalty, factors, from_epoch, weight):
    """Fit a line as :func:`numpy_training.fit_line`; the coefficients are frozen up to an epoch."""
    w, b, debt, total, t = np.zeros(5), 0.0, np.zeros(5), 0.0, 0
    move_w, move_b = OPTIMIZERS[optimizer](), OPTIMIZERS[optimizer]()
    l1, l2 = PENALTIES[penalty](0.05, 0.15)
    eta_w, eta_b = RATE * factors[0], RATE * factors[1]
    for epoch in range(1, MANY_EPOCHS + 1):
        for start in range(0, len(X), BATCH):
            rows, t = slice(start, start + BATCH), t + 1
            share = weight[rows] / weight[rows].sum()
            residual = share * (X[rows] @ w + b - Y[rows, 0])
            slope = residual @ X[rows]
            b = move_b(b, residual.sum(), t, eta_b, 0.0)
            if epoch < from_epoch:
                continue
            own_t = t - (from_epoch - 1) * -(-len(X) // BATCH)
            own_l1 = {"l1": l1} if optimizer == "block_adam" else {}
            w = move_w(w, slope, own_t, eta_w, l2, **own_l1)
            total += eta_w * l1
            if not own_l1:
                truncated(w, debt, total)
    return np.append(w, b)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lion", "block_adam"])
@pytest.mark.parametrize("penalty", ["l2", "elasticnet"])
@pytest.mark.parametrize("from_epoch", [1, 4])
def test_linear_models_equal_numpy(optimizer, penalty, from_epoch):
    """Both penalties follow the rate of the weight; samples have weights."""
    weight = np.linspace(0.1, 3.0, len(X))
    multipliers = {"coef": {"multiplier": 1.5, "from_epoch": from_epoch}, "intercept": 0.25}
    ours = OnnxSGDRegressor(
        dtype="float64", optimizer=optimizer, penalty=penalty, alpha=0.05,
        learning_rate_multipliers=multipliers, **SETTINGS | {"max_iter": MANY_EPOCHS},
    ).fit(X, Y[:, 0], sample_weight=weight)  # fmt: skip
    expected = by_numpy(optimizer, penalty, (1.5, 0.25), from_epoch, weight)
    np.testing.assert_allclose(np.append(ours.coef_, ours.intercept_), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_frozen_tensor_and_its_states_stay_bit_by_bit(dtype):
    """Momentum and the l1 penalty too, that act on it before and after."""
    settings = SETTINGS | {"momentum": 0.9, "penalty": "l1", "alpha": 0.5, "max_iter": 2, "dtype": dtype}
    model = OnnxSGDRegressor(network(), **settings).fit(X, Y)
    assert (model.get_weights()["W1"] == 0).any()
    # the penalty that weights could not receive at zero
    model.set_weights({"W1": np.ones(SHAPES["W1"])})
    before = dict(model._state.tensors)
    model.set_params(learning_rate_multipliers={"W1": 0}).partial_fit(X, Y)
    for key, array in model._state.tensors.items():
        assert np.array_equal(array, before[key]) is (key[0] == "W1"), key
    assert model._state.missed == {"W1": 15}
    totals = model._state.l1_totals
    assert totals["W2"] - totals["W1"] == pytest.approx(15 * RATE * 0.5)
    model.set_params(learning_rate_multipliers=None).partial_fit(X, Y)
    assert not np.array_equal(model.get_weights()["W1"], before["W1", "weight"])


def test_a_frozen_tensor_equals_one_that_is_not_trained():
    frozen = OnnxSGDRegressor(network(), learning_rate_multipliers={"*1": 0}, **SETTINGS).fit(X, Y)
    absent = OnnxSGDRegressor(network(), trainable=["W2", "b2"], **SETTINGS).fit(X, Y)
    for name, array in absent.get_weights().items():
        np.testing.assert_allclose(frozen.get_weights()[name], array, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_counts_of_a_weight_follow_it_from_call_to_call(optimizer):
    """Adam's bias corrections, and the l1 penalty so far, of a weight that is frozen in the third call."""
    settings = SETTINGS | {"optimizer": optimizer, "penalty": "l1", "alpha": 0.05, "dtype": "float64"}
    model, expected = OnnxSGDRegressor(**settings), np.zeros(5)
    move, move_b = OPTIMIZERS[optimizer](), OPTIMIZERS[optimizer]()
    b, debt, total, t_w, t = 0.0, np.zeros(5), 0.0, 0, 0
    for factor in (1.0, 0.5, 0.0, 2.0, 1.0):
        model.set_params(learning_rate_multipliers={"coef": factor}).partial_fit(X, Y[:, 0])
        model = pickle.loads(pickle.dumps(model))
        for start in range(0, len(X), BATCH):
            rows, t, t_w = slice(start, start + BATCH), t + 1, t_w + (factor > 0)
            residual = X[rows] @ expected + b - Y[rows, 0]
            slope, eta = residual @ X[rows] / len(residual), RATE * factor
            b = move_b(b, residual.mean(), t, RATE, 0.0)
            if factor:
                expected, total = move(expected, slope, t_w, eta, 0.0), total + eta * 0.05
                truncated(expected, debt, total)
    np.testing.assert_allclose(model.coef_, expected, rtol=1e-9, atol=1e-12)


def _on_sparse_data(data, more, multipliers, **others):
    settings = SETTINGS | {"dtype": "float64", "alpha": 0.0} | more | others
    return OnnxSGDRegressor(learning_rate_multipliers=multipliers, **settings).fit(data, Y[:100])


def _assert_equal(first, second):
    np.testing.assert_allclose(first.coef_, second.coef_, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(first.intercept_, second.intercept_, rtol=1e-10)


_TABLE = sparse.random(100, 12, 0.3, random_state=0, format="csr")
_LAZY = [{"momentum": 0.9}, {"optimizer": "adam"}, {"optimizer": "lion", "penalty": "l1", "alpha": 0.01}]
_EXACT = [
    {},
    {"alpha": 0.1},
    {"average": True},
    {"optimizer": "block_adam"},
    {"penalty": "l1", "alpha": 0.01},
]


@pytest.mark.parametrize("more", _EXACT, ids=str)
def test_sparse_data_give_the_same(more):
    multipliers = {"coef": 0.3, "intercept": 0.5}
    first, second = (_on_sparse_data(data, more, multipliers) for data in (_TABLE, _TABLE.toarray()))
    _assert_equal(first, second)
    assert np.abs(_on_sparse_data(_TABLE, more, None).coef_ - first.coef_).max() > 1e-3


@pytest.mark.parametrize("more", _LAZY, ids=str)
def test_a_factor_on_sparse_data_is_that_of_the_rate(more):
    """Columns that a batch lacks wait, so that dense data are no reference."""
    first = _on_sparse_data(_TABLE, more, {"coef": 0.3, "intercept": 0.5})
    second = _on_sparse_data(_TABLE, more, {"intercept": 0.5 / 0.3}, eta0=0.3 * RATE)
    _assert_equal(first, second)
    assert np.abs(_on_sparse_data(_TABLE, more, None).coef_ - first.coef_).max() > 1e-3


@pytest.mark.filterwarnings("ignore:The fit ended after 2 epochs:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("more", [*_EXACT, *_LAZY], ids=str)
def test_frozen_columns_of_sparse_data(more):
    multipliers = {"coef": {"multiplier": 0.3, "from_epoch": 3}, "intercept": 0.5}
    first, second = (_on_sparse_data(data, more, multipliers) for data in (_TABLE, _TABLE.toarray()))
    _assert_equal(first, second)
    assert not _on_sparse_data(_TABLE, more, multipliers, max_iter=2).coef_.any()


@pytest.mark.filterwarnings("ignore:Maximum number:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("stops_early", [False, True])
def test_a_fit_does_not_end_before_all_weights_learn(stops_early):
    """Weights that unfreeze later never learned where the fit ended before, without a warning."""
    settings = {"learning_rate": "constant", "eta0": 1e-6, "early_stopping": stops_early, "random_state": 0}
    multipliers = {"W1": {"multiplier": 0.3, "from_epoch": 20}, "b1": 0}
    plain = OnnxSGDRegressor(network(), max_iter=100, **settings)
    with pytest.warns(ConvergenceWarning):
        assert plain.fit(X, Y).n_iter_ < 20
    model = clone(plain).set_params(learning_rate_multipliers=multipliers)
    with pytest.warns(ConvergenceWarning) as warned:
        assert 20 <= model.fit(X, Y).n_iter_ < 100
    assert "some weights were to learn" not in str(warned[0].message)
    model.set_params(max_iter=10)
    with pytest.warns(ConvergenceWarning, match="ended after 10 epochs, before epoch 20, .* Raise max_iter"):
        model.fit(X, Y)
    # in a stream, epochs are calls
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(model).set_params(early_stopping=False).partial_fit(X, Y)


def test_resident_data_give_the_same(monkeypatch):
    """The steps of a GPU, run on the CPU."""
    settings = SETTINGS | {"learning_rate_multipliers": MULTIPLIERS, "optimizer": "adam", "average": 20}
    expected = OnnxSGDRegressor(network(), **settings).fit(X, Y).get_weights()
    monkeypatch.setattr(Device, "keeps_data", True)
    found = OnnxSGDRegressor(network(), **settings).fit(X, Y).get_weights()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12, atol=1e-14)


def test_a_rate_that_is_found_takes_factors():
    """Small factors keep the first layer near its start; factors of 1 change nothing."""
    settings = {"random_state": 0, "max_iter": 20, "tol": None}
    # on standardised data a random network keeps its weights
    data = (X - X.mean(axis=0)) / X.std(axis=0)
    plain = OnnxSGDRegressor(network(), **settings).fit(data, Y).get_weights()
    same = OnnxSGDRegressor(network(), learning_rate_multipliers={"W1": 1.0}, **settings).fit(data, Y)
    slow = OnnxSGDRegressor(network(), learning_rate_multipliers={"*1": 1e-3}, **settings).fit(data, Y)
    for name, array in plain.items():
        np.testing.assert_array_equal(same.get_weights()[name], array)
    moved = [np.linalg.norm(w["W1"] - WEIGHTS["W1"]) for w in (plain, slow.get_weights())]
    assert 0 < moved[1] < 0.02 * moved[0]
    last = [np.linalg.norm(w["W2"] - WEIGHTS["W2"]) for w in (plain, slow.get_weights())]
    assert last[1] > 0.3 * last[0]
    with pytest.raises(ParameterError, match="'auto' refuses"):
        OnnxSGDRegressor(network(), learning_rate_multipliers={"W1": 0}).fit(X, Y)


def test_all_factors_at_once_are_that_of_the_rate_that_is_found():
    """The last layer, whose rate has a unit of its own, too."""
    settings = {"random_state": 0, "max_iter": 20, "tol": None, "dtype": "float64"}
    first = OnnxSGDRegressor(learning_rate_multipliers={"*": 0.3}, **settings).fit(X, Y[:, 0])
    second = OnnxSGDRegressor(learning_rate=Auto(0.3 * 0.05), **settings).fit(X, Y[:, 0])
    np.testing.assert_allclose(first.coef_, second.coef_, rtol=1e-7)
    assert not np.allclose(first.coef_, OnnxSGDRegressor(**settings).fit(X, Y[:, 0]).coef_, rtol=1e-3)


def test_a_search_and_a_clone():
    values = [None, {"coef": 0.0}, {"coef": 0.5}]
    model = OnnxSGDRegressor(learning_rate_multipliers=values[2], **SETTINGS)
    assert clone(model).learning_rate_multipliers == values[2]
    search = GridSearchCV(model, {"learning_rate_multipliers": values}, cv=2).fit(X, X[:, 0])
    assert search.best_params_ == {"learning_rate_multipliers": None}
    scores = search.cv_results_["mean_test_score"]
    assert scores[1] < scores[2] < scores[0]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_penalties_and_rates_of_tensors_at_once(optimizer):
    """Torch has both in its groups; the distance from the first weights, and a frozen tensor, among them."""
    torch = pytest.importorskip("torch", reason="the comparison with torch needs torch")
    penalty = {"W1": 0.3, "W2": Penalty(l2=0.7, from_start=True)}
    ours = OnnxSGDRegressor(
        network(), optimizer=optimizer, penalty=penalty, learning_rate_multipliers=MULTIPLIERS, **SETTINGS
    ).fit(X, Y)
    w = {name: torch.tensor(array, requires_grad=True) for name, array in WEIGHTS.items()}
    groups = [{"params": [tensor], "lr": RATE * FACTORS[name]} for name, tensor in w.items()]
    updates = torch.optim.Adam(groups) if optimizer == "adam" else torch.optim.SGD(groups)
    for epoch in range(1, EPOCHS + 1):
        for rows in np.split(np.arange(len(X)), range(BATCH, len(X), BATCH)):
            x, y = torch.tensor(X[rows]), torch.tensor(Y[rows])
            raw = torch.tanh(x @ w["W1"] + w["b1"]) @ w["W2"] + w["b2"]
            distance = w["W2"] - torch.tensor(WEIGHTS["W2"])
            norms = 0.15 * (w["W1"] ** 2).sum() + 0.35 * (distance**2).sum()
            updates.zero_grad()
            (0.5 * ((raw - y) ** 2).sum(1).mean() + norms).backward()
            if epoch < FROM:
                w["W1"].grad = None
            updates.step()
    for name, tensor in w.items():
        np.testing.assert_allclose(ours.get_weights()[name], tensor.detach().numpy(), rtol=0, atol=1e-10)


def test_an_export_before_a_tensor_learns_is_refused(tmp_path):
    model = OnnxSGDRegressor(network(), learning_rate_multipliers=MULTIPLIERS, **SETTINGS).partial_fit(X, Y)
    with pytest.raises(UnsupportedError, match=r"in epoch 2: \['W1'\] learn from epoch 3 on"):
        model.export_training_step(tmp_path / "step.onnx")
    assert not list(tmp_path.iterdir())
    assert model.partial_fit(X, Y).export_training_step(tmp_path / "step.onnx").exists()


def test_weights_of_equal_settings_and_histories_share_their_numbers():
    half, one = RateMultiplier(0.5), RateMultiplier()
    weak, strong = Penalty(l2=0.1), Penalty(l2=0.2)
    penalties = {"a": weak, "b": weak, "c": strong, "e": strong}
    multipliers = dict.fromkeys("abcdef", one) | {"a": half, "d": half}
    groups = make_groups("abcdef", penalties, weak, multipliers, {"f": 3})
    assert groups == (
        UpdateGroup(("b",), weak),
        UpdateGroup(("a", "d"), weak, half),
        UpdateGroup(("c", "e"), strong),
        UpdateGroup(("f",), weak, one, 3),
    )
    assert [group.spec.has_rate for group in groups] == [False, True, False, True]
    assert make_groups("ab", {}, weak, {}, {}) == (UpdateGroup(("a", "b"), weak),)
