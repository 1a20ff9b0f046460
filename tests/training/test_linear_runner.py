"""The short loop of linear models: taken where it makes the same updates, and those of plain numpy."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from test_losses import CASES

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, losses
from onnxsgd.engine.step import linear_layer, linear_scan
from onnxsgd.engine.step.linear_layer import LinearLayer
from onnxsgd.engine.step.linear_scan import LinearScanRunner
from onnxsgd.exceptions import ConvergenceError

RNG = np.random.default_rng(0)
N, D = 150, 4
X = RNG.normal(size=(N, D))
Y = X @ [1.0, -2.0, 0.5, 0.0] + 0.4 + 0.3 * RNG.normal(size=N)
#: Five epochs of 150 single rows are more updates than the loop needs to be compiled.
SETTINGS = {
    "learning_rate": "invscaling", "eta0": 0.05, "power_t": 0.3, "alpha": 0.02, "batch_size": 1,
    "max_iter": 5, "tol": None, "shuffle": False, "dtype": "float64", "random_state": 0,
}  # fmt: skip


@pytest.fixture
def runs(monkeypatch):
    """The calls of the short loop."""
    made, run = [], LinearScanRunner.run

    def counting(self, plan, scalars, found):
        run(self, plan, scalars, found)
        made.append(self.n_done)

    monkeypatch.setattr(LinearScanRunner, "run", counting)
    return made


def trained(
    table, derivative, *, batch_size=1, alpha=0.02, l1=0.0, weight=None, n_epochs=5, intercept=True,
    average=None,
):  # fmt: skip
    """Train in plain numpy, one batch after another; return coefficients, intercepts, or their averages."""
    weight = np.ones(N) if weight is None else weight
    w, b, t = np.zeros((D, table.shape[1])), np.zeros(table.shape[1]), 0
    seen, received, possible = [], np.zeros_like(w), 0.0
    for _ in range(n_epochs):
        for start in range(0, N, batch_size):
            rows, t = slice(start, start + batch_size), t + 1
            share = weight[rows, None] / (1 if batch_size == 1 else weight[rows].sum())
            slope = derivative(table[rows], X[rows] @ w + b) * share
            eta = 0.05 / t**0.3
            w = w - eta * alpha * w - eta * X[rows].T @ slope
            b = b - eta * slope.sum(axis=0) * intercept
            # the cumulative penalty of Tsuruoka et al., as in scikit-learn
            free, possible = w, possible + eta * l1
            w = np.where(free > 0, np.maximum(0, free - (possible + received)), free)
            w = np.where(free < 0, np.minimum(0, free + (possible - received)), w)
            received = received + (w - free)
            seen.append((w, b))
    return (w, b) if average is None else tuple(averaged(each, average) for each in zip(*seen, strict=True))


def averaged(seen, average):
    """Return the mean from update `average` on, or the exponential average with this decay."""
    if isinstance(average, int):
        return np.mean(seen[average - 1 :], axis=0)
    found = seen[0]
    for value in seen[1:]:
        found = average * found + (1 - average) * value
    return found


def agree(model, expected):
    w, b = expected
    # products in another order, and a scale in place of 750 decays
    np.testing.assert_allclose(np.atleast_2d(model.coef_).T, w, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(model.intercept_, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", losses.REGRESSION_LOSSES)
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_regression(runs, name, n_outputs):
    loss, _, derivative = CASES[name]
    y = np.c_[Y, -Y, Y**2][:, :n_outputs]
    if loss.link == "log":
        y = 0.1 + np.abs(y)
    model = OnnxSGDRegressor(loss=loss, **SETTINGS).fit(X, y)
    assert sum(runs) == 5 * N
    agree(model, trained(np.tile(y, (1, len(loss.score_factors))), derivative))


@pytest.mark.parametrize(
    "name", [name for name in losses.CLASSIFICATION_LOSSES if name != "multiclass_hinge"]
)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_classification(runs, name, batch_size):
    """With sample weights; 38 batches of four end with a short one."""
    loss, _, derivative = CASES[name]
    weight = np.linspace(0.2, 2.0, N)
    model = OnnxSGDClassifier(loss=loss, **SETTINGS | {"batch_size": batch_size, "max_iter": 20})
    model.fit(X, Y > 0, sample_weight=weight)
    assert sum(runs) == 20 * -(-N // batch_size)
    low = 0.0 if loss.targets == "indicator" else -1.0
    target = np.where(Y > 0, 1.0, low)[:, None]
    agree(model, trained(target, derivative, batch_size=batch_size, weight=weight, n_epochs=20))


def test_losses_are_those_of_each_update(runs):
    """The curve holds the mean loss before each update, and the penalty at the end of the epoch."""
    model = OnnxSGDRegressor(**SETTINGS).fit(X, Y)
    w, b, t, curve = np.zeros(D), 0.0, 0, []
    for _ in range(5):
        total = 0.0
        for x, y in zip(X, Y, strict=True):
            t += 1
            error, eta = x @ w + b - y, 0.05 / t**0.3
            total += error**2 / 2
            w, b = w - eta * 0.02 * w - eta * error * x, b - eta * error
        curve.append(total / N + 0.01 * w @ w)
    np.testing.assert_allclose(model.loss_curve_, curve, rtol=1e-10)
    assert sum(runs) == 5 * N


@pytest.mark.parametrize("penalty", ["l2", None])
def test_blocks(runs, penalty, monkeypatch):
    """Small blocks, and blocks that a penalty ends early, make the same updates."""
    monkeypatch.setattr(linear_scan, "_LEAST_SCALE", 0.99)
    monkeypatch.setattr(linear_scan, "_MOST_BATCHES", 37)
    model = OnnxSGDRegressor(penalty=penalty, **SETTINGS).fit(X, Y)
    assert sum(runs) == 5 * N
    agree(model, trained(Y[:, None], CASES["squared_error"][2], alpha=0.02 if penalty else 0.0))


@pytest.mark.parametrize("average", [1, 400, 0.97])
@pytest.mark.parametrize(("loss", "n_outputs"), [("squared_error", 1), ("squared_error", 3), ("huber", 2)])
def test_averages(runs, average, loss, n_outputs, monkeypatch):
    """In blocks that a penalty ends early; they may begin in a later block, and go on from part to part."""
    monkeypatch.setattr(linear_scan, "_LEAST_SCALE", 0.98)
    monkeypatch.setattr(linear_scan, "_MOST_BATCHES", 67)
    y = np.c_[Y, -Y, Y**2][:, :n_outputs]
    expected = trained(y, CASES[loss][2], average=average)
    settings = SETTINGS | {"loss": CASES[loss][0], "average": average if average != 1 else True}
    agree(OnnxSGDRegressor(**settings).fit(X, y), expected)
    assert sum(runs) == 5 * N
    parts = OnnxSGDRegressor(**settings | {"max_iter": 4}).fit(X, y)
    agree(parts.partial_fit(X, y), expected)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_averages_of_classes(runs, batch_size):
    """With sample weights; 38 batches of four end with a short one."""
    _, _, derivative = CASES["log_loss"]
    weight = np.linspace(0.2, 2.0, N)
    settings = SETTINGS | {"batch_size": batch_size, "max_iter": 20, "average": 30}
    model = OnnxSGDClassifier(loss="log_loss", **settings).fit(X, Y > 0, sample_weight=weight)
    assert sum(runs) == 20 * -(-N // batch_size)
    target = (Y > 0).astype(float)[:, None]
    agree(model, trained(target, derivative, batch_size=batch_size, weight=weight, n_epochs=20, average=30))


PENALTIES = {"l1": (0.0, 0.1), "elasticnet": (0.03, 0.07)}


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize(("loss", "n_outputs"), [("squared_error", 1), ("squared_error", 3), ("huber", 2)])
def test_l1_penalties(runs, penalty, loss, n_outputs, monkeypatch):
    """In blocks that end early; some coefficients are zero, and go on from part to part."""
    monkeypatch.setattr(linear_scan, "_LEAST_SCALE", 0.98)
    monkeypatch.setattr(linear_scan, "_MOST_BATCHES", 67)
    alpha, l1 = PENALTIES[penalty]
    y = np.c_[Y, -Y, Y**2][:, :n_outputs]
    expected = trained(y, CASES[loss][2], alpha=alpha, l1=l1)
    settings = SETTINGS | {"loss": CASES[loss][0], "penalty": penalty, "alpha": 0.1, "l1_ratio": 0.7}
    whole = OnnxSGDRegressor(**settings).fit(X, y)
    agree(whole, expected)
    assert sum(runs) == 5 * N
    assert 0 < np.count_nonzero(expected[0] == 0) < expected[0].size
    np.testing.assert_array_equal(np.atleast_2d(whole.coef_).T == 0, expected[0] == 0)
    parts = OnnxSGDRegressor(**settings | {"max_iter": 4}).fit(X, y)
    agree(parts.partial_fit(X, y), expected)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_l1_penalties_of_classes(runs, penalty, batch_size):
    """With sample weights; 38 batches of four end with a short one."""
    alpha, l1 = PENALTIES[penalty]
    weight = np.linspace(0.2, 2.0, N)
    settings = SETTINGS | {"batch_size": batch_size, "max_iter": 20, "penalty": penalty, "alpha": 0.1}
    model = OnnxSGDClassifier(loss="log_loss", l1_ratio=0.7, **settings)
    model.fit(X, Y > 0, sample_weight=weight)
    assert sum(runs) == 20 * -(-N // batch_size)
    options = {"batch_size": batch_size, "alpha": alpha, "l1": l1, "weight": weight, "n_epochs": 20}
    agree(model, trained((Y > 0).astype(float)[:, None], CASES["log_loss"][2], **options))


@pytest.mark.parametrize("penalty", PENALTIES)
def test_l1_penalties_in_float32(runs, penalty):
    """Large intercepts and targets keep their digits beside the bounds of the coefficients."""
    settings = SETTINGS | {"penalty": penalty, "alpha": 0.1, "max_iter": 40}
    narrow, wide = (
        OnnxSGDRegressor(**settings | {"dtype": d}).fit(X, Y + 300) for d in ("float32", "float64")
    )
    assert sum(runs) == 2 * 40 * N
    np.testing.assert_allclose(narrow.coef_, wide.coef_, atol=3e-4)
    np.testing.assert_array_equal(narrow.coef_ == 0, wide.coef_ == 0)
    np.testing.assert_allclose(narrow.intercept_, wide.intercept_, rtol=1e-6)


def test_coefficients_set_by_hand_take_the_general_loop(runs):
    """They are not those that the penalty of earlier updates leaves; after one call they are again."""
    settings = SETTINGS | {"penalty": "l1", "alpha": 0.1}
    data = np.tile(X, (4, 1)), np.tile(Y, 4)
    found = []
    for more in ({}, {"max_grad_norm": 1e9}):
        model = OnnxSGDRegressor(**settings | more).fit(X, Y)
        model.set_weights({"coef": model.get_weights()["coef"] + 0.5})
        found.append(model.partial_fit(*data).partial_fit(*data).coef_)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-10)


def test_averages_in_float32_lose_no_digits(runs):
    """A mean that each update moves by a rounded step is off by 1e-4 after 40,000 updates."""
    settings = SETTINGS | {"learning_rate": "constant", "eta0": 1e-3, "average": True, "max_iter": 267}
    narrow, wide = (OnnxSGDRegressor(**settings | {"dtype": d}).fit(X, Y) for d in ("float32", "float64"))
    assert sum(runs) == 2 * 267 * N
    np.testing.assert_allclose(narrow.coef_, wide.coef_, atol=3e-6)


@pytest.mark.parametrize("average", [False, 10])
def test_large_decays_are_left_to_the_general_loop(average):
    model = OnnxSGDRegressor(**SETTINGS | {"alpha": 5.0, "average": average}).fit(X, Y)
    agree(model, trained(Y[:, None], CASES["squared_error"][2], alpha=5.0, average=average or None))


def _graph(nodes, **initializers):
    """Return a graph from X to score in float64."""
    real = onnx.TensorProto.DOUBLE
    values = [helper.make_tensor_value_info(n, real, [None, k]) for n, k in (("X", D), ("score", 1))]
    tensors = [numpy_helper.from_array(np.asarray(a, np.float64), name) for name, a in initializers.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("form", ["transposed", "sum", "no intercept", "row of intercepts"])
def test_forms_of_the_layer(runs, form):
    node = helper.make_node
    w, b = np.zeros((D, 1)), np.zeros(1)
    graph = {
        "transposed": lambda: _graph([node("Gemm", ["X", "w", "b"], ["score"], transB=1)], w=w.T, b=b),
        "sum": lambda: _graph(
            [node("MatMul", ["X", "w"], ["p"]), node("Add", ["p", "b"], ["score"])], w=w, b=b
        ),
        "no intercept": lambda: _graph([node("MatMul", ["X", "w"], ["score"])], w=w),
        "row of intercepts": lambda: _graph([node("Gemm", ["X", "w", "b"], ["score"])], w=w, b=b[None]),
    }[form]()
    model = OnnxSGDRegressor(graph, **SETTINGS | {"dtype": None}).fit(X, Y)
    assert sum(runs) == 5 * N
    expected = trained(Y[:, None], CASES["squared_error"][2], intercept=form != "no intercept")
    weights = model.get_weights()
    np.testing.assert_allclose(weights["w"].ravel(), expected[0].ravel(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(weights.get("b", np.zeros(1)).ravel(), expected[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.5}, {"penalty": "l1", "average": True},
        {"optimizer": "adam"}, {"batch_size": 100},
        {"trainable": ["coef"]},
        {"loss": type("Own", (losses.SquaredError,), {})()},
    ],
    ids=str,
)  # fmt: skip
def test_other_models_take_the_general_loop(runs, settings):
    settings = SETTINGS | {"max_iter": 400 if "batch_size" in settings else 5} | settings
    if "optimizer" in settings:
        settings |= {"eta0": 0.01}
    OnnxSGDRegressor(**settings).fit(X, Y)
    assert not runs


def test_a_layer_among_others_takes_the_general_loop(runs):
    network = MLPRegressor(hidden_layer_sizes=(3,), tol=10.0, n_iter_no_change=1, random_state=0).fit(X, Y)
    OnnxSGDRegressor(network, **SETTINGS | {"dtype": None}).fit(X, Y)
    assert not runs


def test_a_converted_model_behind_a_frozen_scaler_takes_it(runs):
    """The results of the frozen part are its data; the multinomial loss of three classes."""
    label = np.digitize(Y, [-1.0, 1.0])
    inner = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, label)
    model = OnnxSGDClassifier(inner, **SETTINGS | {"dtype": None}).fit(X, label)
    assert sum(runs) == 5 * N
    general = OnnxSGDClassifier(inner, **SETTINGS | {"dtype": None, "max_grad_norm": 1e9}).fit(X, label)
    np.testing.assert_allclose(model.decision_function(X), general.decision_function(X), rtol=1e-4, atol=1e-5)


def test_divergence_keeps_the_last_finite_weights(runs):
    """The error and the weights are those of the general loop, which other losses take."""
    settings = SETTINGS | {"learning_rate": "constant", "eta0": 5.0, "alpha": 1e-4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        messages, weights = [], []
        for more in ({}, {"loss": type("Own", (losses.SquaredError,), {})()}):
            model = OnnxSGDRegressor(Ridge().fit(X, Y), **settings | more)
            with pytest.raises(ConvergenceError) as caught:
                model.fit(X, Y)
            messages.append(str(caught.value))
            weights.append(model.coef_)
    assert runs
    assert messages[0] == messages[1]
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"learning_rate": "auto", "eta0": None, "power_t": 0.25}])
def test_a_layer_on_steps_of_series_takes_the_general_loop(runs, options):
    """Each step of a series is a row for the layer, and the target has as many numbers."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Add", ["t", "b"], ["z"])],
        "steps",
        [helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, ["N", 3, D])],
        [helper.make_tensor_value_info("z", onnx.TensorProto.DOUBLE, ["N", 3, 1])],
        [numpy_helper.from_array(np.zeros((D, 1)), "w"), numpy_helper.from_array(np.zeros(1), "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    series = X.reshape(50, 3, D)
    found = OnnxSGDRegressor(model, **SETTINGS | options | {"max_iter": 60, "batch_size": 2})
    found.fit(series, Y.reshape(50, 3, 1))
    assert sum(runs) == 0
    assert np.mean((found.predict(series).ravel() - Y) ** 2) < 0.2


def test_every_loss_of_a_margin_is_that_of_rows_with_signs():
    """The value of a target, and the derivative times the sign, are those of the common target of margins."""
    cases = {type(loss): (loss, value, slope) for loss, value, slope in CASES.values()}
    assert set(linear_layer._TARGET_OF_MARGINS) <= set(cases)
    z = RNG.normal(size=(200, 1), scale=3)
    for kind, common in linear_layer._TARGET_OF_MARGINS.items():
        loss, value, slope = cases[kind]
        y = RNG.integers(0, 2, (200, 1)) if loss.targets == "indicator" else RNG.choice([-1, 1], (200, 1))
        layer = LinearLayer("X", "coef", "intercept", False, D, 1, 10, False, False, False, loss)
        assert layer.has_signs
        assert not layer.reads_target
        signs = layer.signs(y)
        assert set(signs.ravel()) == {-1, 1}
        of_margins = np.full_like(y, common)
        np.testing.assert_allclose(value(of_margins, signs * z), value(y, z), atol=1e-12)
        np.testing.assert_allclose(signs * slope(of_margins, signs * z), slope(y, z), atol=1e-12)
