"""Penalties: the strengths of the norms by name, and their values, against numpy."""

import pickle
import warnings

import numpy as np
import onnx.parser
import pytest
from numpy_training import OPTIMIZERS, truncated
from numpy_training import PENALTIES as PLAIN
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, MultiTaskLasso, SGDRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, optimizers, penalties
from onnxsgd.exceptions import ParameterError, ParameterTypeError, UnsupportedError
from onnxsgd.penalties import Penalty

RNG = np.random.default_rng(0)
#: Two linear parts, each with weights of its own, and an intercept.
PARTS = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17]>
    parts (double[N, 3] a, double[N, 2] b) => (double[N, 1] y)
    <double[3, 1] u_weight = {0.5, -0.5, 0.1}, double[1, 2] v_weight = {0.3, 0.2}, double[1] c = {0.1}>
    { p = MatMul(a, u_weight)
      q = Gemm<transB = 1>(b, v_weight, c)
      y = Add(p, q) }""")
A, B = RNG.normal(size=(22, 3)), RNG.normal(size=(22, 2))
Y = A @ [1.0, -2.0, 0.0] + B @ [0.0, 0.7] + 0.1 * RNG.normal(size=22)


def fit_parts(strengths, optimizer, n_epochs, eta=0.05, size=4, **settings):
    """Fit the two parts in plain numpy; `strengths`: (l1, l2) of each. Return both weights."""
    weights = [np.array([0.5, -0.5, 0.1]), np.array([0.3, 0.2])]
    tables, intercept, t = (A, B), 0.1, 0
    moves = [OPTIMIZERS[optimizer](**settings) for _ in range(3)]
    debts, totals = [np.zeros(3), np.zeros(2)], [0.0, 0.0]
    for _ in range(n_epochs):
        for start in range(0, len(Y), size):
            rows, t = slice(start, start + size), t + 1
            residual = sum(x[rows] @ w for x, w in zip(tables, weights, strict=True)) + intercept - Y[rows]
            for i, (l1, l2) in enumerate(strengths):
                own = {"l1": l1} if optimizer == "block_adam" else {}
                gradient = (residual[:, None] * tables[i][rows]).mean(axis=0)
                weights[i] = moves[i](weights[i], gradient, t, eta, l2, **own)
                if not own:
                    totals[i] += eta * l1
                    truncated(weights[i], debts[i], totals[i])
            intercept = moves[2](intercept, residual.mean(), t, eta, 0.0)
    return weights


def parts_estimator(penalty, **settings):
    return OnnxSGDRegressor(
        PARTS,
        **{"penalty": penalty, "learning_rate": "constant", "eta0": 0.05, "batch_size": 4, "max_iter": 3,
           "tol": None, "shuffle": False, "alpha": 0.3, "l1_ratio": 0.2} | settings,
    )  # fmt: skip


def test_every_penalty_has_a_case():
    assert set(penalties.PENALTIES) == set(PLAIN)


@pytest.mark.parametrize("name", PLAIN)
def test_value_agrees_with_numpy(name):
    weights = [np.array([[1.5], [-2.0], [0.0], [0.25]]), np.array([-3.0])]
    l1, l2 = PLAIN[name](0.3, 0.2)
    flat = np.array([1.5, -2.0, 0.0, 0.25, -3.0])
    expected = l1 * np.linalg.norm(flat, 1) + l2 / 2 * np.linalg.norm(flat) ** 2
    penalty = penalties.make_penalty(name, 0.3, 0.2)
    starts = [np.zeros_like(weight) for weight in weights]
    assert penalty.value(weights, starts) == pytest.approx(expected, rel=1e-14)
    assert (penalty.l1 or 0, penalty.l2 or 0) == pytest.approx((l1, l2), rel=1e-14)


@pytest.mark.parametrize("strengths", [{}, {"l1": 0.0}, {"l2": 0.0}, {"l1": 0.0, "groups": True}])
def test_weights_without_a_penalty_are_not_read(strengths, monkeypatch):
    """A network of 11 million weights has none in most fits, and is asked for it in each epoch."""
    monkeypatch.setattr(penalties, "_block", None)
    assert Penalty(**strengths).value([np.ones((3, 2)), np.full(2, np.nan)]) == 0


@pytest.mark.parametrize("name", PLAIN)
def test_the_objective_holds_the_penalty_of_the_coefficients(name):
    """Half the squared error of one row at rate 0.1 from zero: its residual is its target."""
    estimator = OnnxSGDRegressor(
        penalty=name, alpha=0.3, l1_ratio=0.2, learning_rate="constant", eta0=0.1, dtype="float64"
    ).partial_fit([[2.0, -1.0]], [3.0])
    l1, l2 = PLAIN[name](0.3, 0.2)
    coef = estimator.coef_
    expected = 3.0**2 / 2 + l1 * np.abs(coef).sum() + l2 / 2 * (coef**2).sum()
    assert estimator.loss_curve_ == pytest.approx([expected], rel=1e-12)


def test_unknown_penalties_are_refused():
    with pytest.raises(ParameterError, match="'l3'.*'l2', 'l1', 'elasticnet', .*None"):
        penalties.make_penalty("l3", 0.1, 0.5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_tensor_has_the_penalty_of_its_name(optimizer):
    """In float64 as in numpy, with the cumulative l1 penalty of each tensor."""
    given = {"u_*": Penalty(l1=0.4, l2=0.02), "v_weight": 0.5}
    estimator = parts_estimator(given, optimizer=optimizer).fit({"a": A, "b": B}, Y)
    u, v = fit_parts([(0.4, 0.02), (0.0, 0.5)], optimizer, 3)
    weights = estimator.get_weights()
    np.testing.assert_allclose(weights["u_weight"].ravel(), u, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(weights["v_weight"].ravel(), v, rtol=1e-10)
    present = 0.4 * np.abs(u).sum() + 0.01 * u @ u + 0.25 * v @ v
    residual = estimator.predict({"a": A, "b": B}) - Y
    assert estimator.loss_curve_[-1] - present < residual @ residual / len(Y)


def test_the_name_comes_before_the_first_pattern_that_matches():
    table = penalties.make_penalties({"*": 1.0, "u*": 2.0, "v": 3.0, "c": "l1"}, 0.1, 0.5)
    assert table.assign(["u", "v", "w", "c"], {"w"}) == {"u": 0, "v": 2, "c": 3}
    assert table.penalties == (Penalty(l2=1.0), Penalty(l2=2.0), Penalty(l2=3.0), Penalty(l1=0.1))


def test_tensors_without_an_entry_have_no_penalty():
    one = parts_estimator({"u_weight": "l1"}).fit({"a": A, "b": B}, Y)
    u, v = fit_parts([(0.3, 0.0), (0.0, 0.0)], "sgd", 3)
    np.testing.assert_allclose(one.get_weights()["u_weight"].ravel(), u, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(one.get_weights()["v_weight"].ravel(), v, rtol=1e-10)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_equal_penalties_by_name_are_one_for_all(optimizer):
    both = [
        parts_estimator(given, optimizer=optimizer, average=True).fit({"a": A, "b": B}, Y)
        for given in ("elasticnet", {"u_weight": "elasticnet", "v*": "elasticnet"}, {"*": "elasticnet"})
    ]
    for other in both[1:]:
        # sums in another order
        np.testing.assert_allclose(other.loss_curve_, both[0].loss_curve_, rtol=1e-14)
        for name, weight in both[0].get_weights().items():
            np.testing.assert_array_equal(other.get_weights()[name], weight)


def test_training_that_finds_its_rate_minimises_the_penalised_loss():
    """The minimum by the normal equations, in raw coordinates of columns of different scales."""
    a, b = RNG.normal(size=(64, 3)) * [1.0, 30.0, 0.2], RNG.normal(size=(64, 2))
    y = a @ [1.0, -0.1, 0.0] + b @ [0.0, 0.7] + 0.1 * RNG.normal(size=64)
    estimator = parts_estimator(
        {"u_weight": 0.5, "v_weight": Penalty(l2=3.0)},
        learning_rate="auto", eta0=None, tol=1e-7, max_iter=2000, batch_size=32, shuffle=True, random_state=0,
    ).fit({"a": a, "b": b}, y)  # fmt: skip
    table = np.column_stack([a, b, np.ones(64)])
    decay = np.diag([0.5, 0.5, 0.5, 3.0, 3.0, 0.0])
    best = np.linalg.solve(table.T @ table / 64 + decay, table.T @ y / 64)
    weights = estimator.get_weights()
    found = np.concatenate([weights["u_weight"].ravel(), weights["v_weight"].ravel()])
    np.testing.assert_allclose(found, best[:5], rtol=0.01, atol=0.002)
    found = np.append(found, weights["c"])
    reached, lowest = (((table @ w - y) ** 2).mean() / 2 + w @ decay @ w / 2 for w in (found, best))
    assert reached < 1.001 * lowest


def test_cumulative_penalties_continue_from_a_pickle_and_begin_anew_where_they_differ():
    data = {"a": A, "b": B}
    given = {"u_weight": Penalty(l1=0.4), "v_weight": Penalty(l1=0.1)}
    whole = parts_estimator(given).partial_fit(data, Y).partial_fit(data, Y)
    parts = pickle.loads(pickle.dumps(parts_estimator(given).partial_fit(data, Y))).partial_fit(data, Y)
    assert parts._state.l1_totals == whole._state.l1_totals
    assert parts._state.l1_totals["u_weight"] == pytest.approx(4 * parts._state.l1_totals["v_weight"])
    u, v = fit_parts([(0.4, 0.0), (0.1, 0.0)], "sgd", 2)
    np.testing.assert_allclose(parts.get_weights()["u_weight"].ravel(), u, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(parts.get_weights()["v_weight"].ravel(), v, rtol=1e-10, atol=1e-13)
    parts.set_params(penalty="l1").partial_fit(data, Y)
    assert list(parts._state.l1_totals.values()) == [pytest.approx(6 * 0.05 * 0.3)] * 2


def test_an_estimator_with_one_tensor_takes_sparse_data_by_name():
    from scipy.sparse import csr_array

    X = np.where(RNG.random((40, 30)) < 0.2, RNG.normal(size=(40, 30)), 0)
    y = np.where(X[:, 0] - X[:, 1] > 0, 1, 0)
    for learning_rate in ("auto", "constant"):
        settings = {"learning_rate": learning_rate, "alpha": 0.01, "random_state": 0, "batch_size": 8}
        one = OnnxSGDClassifier(penalty={"coef": "l1"}, **settings).fit(csr_array(X), y)
        other = OnnxSGDClassifier(penalty="l1", **settings).fit(csr_array(X), y)
        np.testing.assert_array_equal(one.coef_, other.coef_)
        assert (one.coef_ == 0).any()


@pytest.mark.parametrize(
    ("penalty", "error", "message"),
    [
        ({}, ParameterError, "must name a tensor"),
        ({"u_weigth": 1.0}, ParameterError, r"'u_weigth', which matches no trained weight: .*'u_weight'"),
        ({"w*": "l2"}, ParameterError, r"'w\*', which matches no trained weight: .*'u_weight', 'v_weight'"),
        ({"c": "l2"}, ParameterError, "'c', which matches intercepts alone"),
        ({"u_weight": "l3"}, ParameterError, r"penalty\['u_weight'\]='l3' .*'l2', 'l1'"),
        ({"u_weight": {"l2": 0.1}}, ParameterError, r"it must be one of .*Penalty\(l1=0.1, l2=0.01\)"),
        ({"u_weight": -1.0}, ParameterError, r"penalty\['u_weight'\]=-1.0 .*>= 0"),
        ({"u_weight": True}, ParameterError, r"penalty\['u_weight'\]=True"),
        ({3: 1.0}, ParameterTypeError, "the key 3"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_refused_dictionaries_leave_the_estimator_alone(penalty, error, message, method):
    estimator = parts_estimator(penalty)
    with pytest.raises(error, match=message):
        getattr(estimator, method)({"a": A, "b": B}, Y)
    assert not hasattr(estimator, "n_iter_")


@pytest.mark.parametrize(
    ("strengths", "error", "message"),
    [
        ({"l1": -0.1}, ParameterError, "l1=-0.1 is not accepted"),
        ({"l2": np.nan}, ParameterError, "l2=nan is not accepted"),
        ({"l2": np.inf}, ParameterError, "l2=inf is not accepted"),
        ({"l2": "0.1"}, ParameterTypeError, "l2='0.1' is not accepted"),
        ({"l1": True}, ParameterTypeError, "l1=True is not accepted"),
        ({"groups": True}, ParameterError, "groups=True has no effect without l1"),
        ({"l1": 0.1, "groups": "yes"}, ParameterTypeError, "groups='yes' is not accepted"),
        ({"from_start": True}, ParameterError, "from_start=True has no effect without l1 or l2"),
        ({"from_start": 1}, ParameterTypeError, "from_start=1 is not accepted: it must be True or False"),
    ],
)
def test_refused_strengths(strengths, error, message):
    with pytest.raises(error, match=message):
        Penalty(**strengths)


#: The first weights of the two parts.
STARTS = [np.array([0.5, -0.5, 0.1]), np.array([0.3, 0.2])]
#: Optimizers whose decay is apart from the gradient, each as a step before its update.
DECOUPLED = ("adamw", "lion")


def fit_near_start(l2, optimizer, n_epochs, eta=0.05, size=4):
    """Fit the two parts with ``l2 / 2 ||w - w_start||^2`` in plain numpy; return both weights."""
    weights, tables, intercept, t = [start.copy() for start in STARTS], (A, B), 0.1, 0
    moves = [OPTIMIZERS[optimizer]() for _ in range(3)]
    for _ in range(n_epochs):
        for start in range(0, len(Y), size):
            rows, t = slice(start, start + size), t + 1
            residual = sum(x[rows] @ w for x, w in zip(tables, weights, strict=True)) + intercept - Y[rows]
            for i, first in enumerate(STARTS):
                gradient = (residual[:, None] * tables[i][rows]).mean(axis=0)
                slope = l2 * (weights[i] - first)
                if optimizer in DECOUPLED:
                    weights[i] = moves[i](weights[i] - eta * slope, gradient, t, eta, 0.0)
                else:
                    weights[i] = moves[i](weights[i], gradient + slope, t, eta, 0.0)
            intercept = moves[2](intercept, residual.mean(), t, eta, 0.0)
    return weights


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "block_adam"])
def test_the_distance_from_the_first_weights_as_in_numpy(optimizer):
    estimator = parts_estimator("l2_sp", alpha=0.8, optimizer=optimizer, average=True).fit(
        {"a": A, "b": B}, Y
    )
    u, v = fit_near_start(0.8, optimizer, 3)
    weights = estimator._state.weights()
    np.testing.assert_allclose(weights["u_weight"].ravel(), u, rtol=1e-10)
    np.testing.assert_allclose(weights["v_weight"].ravel(), v, rtol=1e-10)
    loss = estimator.loss_curve_[-1] - 0.4 * sum(
        (w - first) @ (w - first) for w, first in zip((u, v), STARTS, strict=True)
    )
    plain = parts_estimator(None, optimizer=optimizer).fit({"a": A, "b": B}, Y)
    assert 0 < loss < 1.5 * plain.loss_curve_[0]


def test_averages_are_those_of_the_weights_near_the_start():
    """The mean over all updates, of which each epoch of one batch is one."""
    settings = {"penalty": "l2_sp", "alpha": 0.8, "batch_size": 32}
    whole = parts_estimator(**settings, average=True).fit({"a": A, "b": B}, Y)
    seen = [parts_estimator(**settings | {"max_iter": n}).fit({"a": A, "b": B}, Y) for n in (1, 2, 3)]
    for name, average in whole.get_weights().items():
        mean = np.mean([one.get_weights()[name] for one in seen], axis=0)
        np.testing.assert_allclose(average, mean, rtol=1e-12)


@pytest.mark.parametrize("l1", [0.0, 0.3])
@pytest.mark.parametrize("optimizer", ["sgd", "auto"])
def test_the_minimum_near_the_first_weights_in_raw_coordinates(optimizer, l1):
    """By the normal equations, of a column of scale 30; with the l1 distance, by coordinate descent."""
    scale = np.array([1.0, 30.0 if optimizer == "auto" else 1.0, 0.5])
    a, b = (
        np.random.default_rng(1).normal(size=(64, 3)) * scale,
        np.random.default_rng(2).normal(size=(64, 2)),
    )
    y = a @ (np.array([1.0, -0.4, 0.0]) / scale) + b @ [0.0, 0.7]
    settings = {"learning_rate": "auto", "eta0": None} if optimizer == "auto" else {"eta0": 0.02}
    estimator = parts_estimator(
        Penalty(l1=l1, l2=0.5, from_start=True),
        **settings, tol=1e-9, max_iter=2000, batch_size=64, random_state=0, n_iter_no_change=20,
    ).fit({"a": a, "b": b}, y)  # fmt: skip
    table, first = np.column_stack([a, b, np.ones(64)]), np.array([*STARTS[0], *STARTS[1], 0.1])
    best = first.copy()
    for _ in range(20000):
        for j in range(6):
            square = table[:, j] @ table[:, j] / 64
            rest = best[j] - first[j] + table[:, j] @ (y - table @ best) / 64 / square
            own = (l1, 0.5) if j < 5 else (0.0, 0.0)
            z = square * rest
            best[j] = first[j] + np.sign(z) * max(abs(z) - own[0], 0.0) / (square + own[1])
    weights = estimator.get_weights()
    found = np.concatenate([weights[name].ravel() for name in ("u_weight", "v_weight", "c")])
    np.testing.assert_allclose(found, best, rtol=5e-3, atol=2e-3)
    if l1:
        assert (best[:5] == first[:5]).any()


def test_the_first_weights_are_those_before_the_first_call():
    data = {"a": A, "b": B}
    one = parts_estimator("l2_sp", alpha=0.8).partial_fit(data, Y)
    for _ in range(2):
        one = pickle.loads(pickle.dumps(one)).partial_fit(data, Y)
    u, _ = fit_near_start(0.8, "sgd", 3)
    np.testing.assert_allclose(one.get_weights()["u_weight"].ravel(), u, rtol=1e-10)
    # a fit starts from the model again, a warm one from the present weights
    present = one.get_weights()["u_weight"]
    again = parts_estimator("l2_sp", alpha=0.8).fit(data, Y)
    np.testing.assert_array_equal(again.fit(data, Y).get_weights()["u_weight"].ravel().round(10), u.round(10))
    strong = pickle.loads(pickle.dumps(one)).set_params(alpha=20.0, warm_start=True, max_iter=30).fit(data, Y)
    weak = one.set_params(alpha=0.0, warm_start=True, max_iter=30).fit(data, Y)
    near, far = (np.abs(model.get_weights()["u_weight"] - present).max() for model in (strong, weak))
    assert near < 0.1 * far


def test_a_network_on_standardised_data_keeps_near_its_start():
    """A strong penalty keeps the weights, in training that finds its rate, of columns of different scales."""
    X = RNG.normal(size=(200, 4)) * [1.0, 100.0, 0.01, 1.0]
    y = X @ [1.0, 0.01, 50.0, 0.0]
    network = MLPRegressor(hidden_layer_sizes=(8,), solver="lbfgs", random_state=0, max_iter=2000, tol=1e-3)
    network.fit(X, y)
    distance = {}
    for alpha in (1e-6, 1e3):
        model = OnnxSGDRegressor(network, penalty="l2_sp", alpha=alpha, random_state=0)
        with warnings.catch_warnings():
            # a strong penalty leaves hardly anything to gain
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X, y + X[:, 3])
        weights = model.get_weights()
        distance[alpha] = sum(((weights[f"coefs_{i}"] - network.coefs_[i]) ** 2).sum() for i in range(2))
        starts = {name: array for (name, kind), array in model._state.tensors.items() if kind == "start"}
        for i in range(2):
            np.testing.assert_array_equal(starts[f"coefs_{i}"], network.coefs_[i].astype(np.float32))
    assert distance[1e3] < 1e-4 < 1e-2 < distance[1e-6]


def test_sparse_data_train_in_dense_batches():
    from scipy.sparse import csr_array

    rng = np.random.default_rng(0)
    X = np.where(rng.random((60, 20)) < 0.2, rng.normal(size=(60, 20)), 0)
    y = X @ rng.normal(size=20)
    start = OnnxSGDRegressor(max_iter=2, tol=None, random_state=0).fit(X, -y)
    settings = {"penalty": "l2_sp", "shuffle": False, "batch_size": 16}
    sparse, dense = (
        OnnxSGDRegressor(start.to_onnx(), **settings, learning_rate="constant", alpha=0.5).fit(data, y)
        for data in (csr_array(X), X)
    )
    np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-4, atol=1e-5)
    kept = OnnxSGDRegressor(start.to_onnx(), **settings, alpha=1e4).fit(csr_array(X), y)
    np.testing.assert_allclose(kept.coef_, start.coef_, atol=1e-3)


@pytest.mark.parametrize("units", [[1.0, 1.0, 1.0], [1.0, 50.0, 0.1]])
def test_the_minimum_of_a_group_lasso_is_that_of_multi_task_lasso(units):
    """In training that finds its rate, on columns of different scales, and on targets of different ones.

    scikit-learn's strength is ours times the root of the three outputs.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(256, 10)) * [1, 10, 0.1, 1, 1, 1, 1, 1, 1, 1]
    coef = np.zeros((10, 3))
    coef[:4] = rng.normal(size=(4, 3)) * [[1.0], [0.1], [10.0], [1.0]]
    Y3 = (X @ coef + 0.3 * rng.normal(size=(256, 3)) + 1) * units
    alpha = 0.3 * np.mean(units)
    expected = MultiTaskLasso(alpha=alpha, tol=1e-12, max_iter=100_000).fit(X, Y3)

    def objective(coef, intercept):
        squares = ((X @ coef.T + intercept - Y3) ** 2).sum() / 2 / len(X)
        return squares + alpha * np.linalg.norm(coef, axis=0).sum()

    lowest = objective(expected.coef_, expected.intercept_)
    model = OnnxSGDRegressor(
        penalty=Penalty(l1=alpha / np.sqrt(3), groups=True), random_state=0, dtype="float64", batch_size=256,
        tol=1e-9, n_iter_no_change=50, max_iter=5000,
    ).fit(X, Y3)  # fmt: skip
    assert objective(model.coef_, model.intercept_) < (1 + 1e-5) * lowest
    zeros = (expected.coef_ == 0).all(axis=0)
    assert 3 < zeros.sum() < 10
    np.testing.assert_array_equal(model.coef_ == 0, np.broadcast_to(zeros, (3, 10)))
    # the value that training reports, and that of the class
    penalty = model.penalty.value([model.coef_], input_axes=[1])
    assert penalty == pytest.approx(alpha * np.linalg.norm(model.coef_, axis=0).sum(), rel=1e-12)
    default = OnnxSGDRegressor(penalty="group_lasso", alpha=alpha / np.sqrt(3), random_state=0).fit(X, Y3)
    assert objective(default.coef_, default.intercept_) < 1.01 * lowest
    np.testing.assert_array_equal(default.coef_ == 0, np.broadcast_to(zeros, (3, 10)))


@pytest.mark.parametrize("settings", [{}, {"max_grad_norm": 1e3}])
def test_cumulative_penalties_of_groups_reach_the_same_minimum(settings):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(128, 6))
    Y3 = X[:, :2] @ rng.normal(size=(2, 3)) + 0.1 * rng.normal(size=(128, 3))
    expected = MultiTaskLasso(alpha=0.3, tol=1e-12, max_iter=100_000).fit(X, Y3)
    model = OnnxSGDRegressor(
        penalty="group_lasso", alpha=0.3 / np.sqrt(3), learning_rate="constant", eta0=0.05, batch_size=128,
        tol=None, max_iter=2000, dtype="float64", **settings,
    ).fit(X, Y3)  # fmt: skip
    zeros = (expected.coef_ == 0).all(axis=0)
    np.testing.assert_array_equal((model.coef_ == 0).all(axis=0), zeros)
    assert (model.coef_ == 0).any(axis=0).tolist() == zeros.tolist()
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-6)


def test_the_groups_of_one_output_are_the_l1_penalty_of_scikit_learn():
    """Step by step; on sparse data, where scikit-learn shrinks columns of the sample alone, those of l1."""
    from scipy.sparse import csr_array

    X = np.where(RNG.random((40, 8)) < 0.4, RNG.normal(size=(40, 8)), 0)
    y = X @ [1.0, -1.0, 0, 0, 0, 0, 0, 0] + 0.1 * RNG.normal(size=40)
    settings = {"alpha": 0.05, "shuffle": False, "max_iter": 5, "tol": None, "random_state": 0}
    settings |= {"learning_rate": "constant", "eta0": 0.05}
    expected = SGDRegressor(penalty="l1", **settings).fit(X, y)
    settings |= {"batch_size": 1, "dtype": "float64"}
    model = OnnxSGDRegressor(penalty="group_lasso", **settings).fit(X, y)
    np.testing.assert_allclose(model.coef_.ravel(), expected.coef_, rtol=1e-10, atol=1e-13)
    assert (expected.coef_ == 0).any()
    one, other = (
        OnnxSGDRegressor(penalty=name, **settings).fit(csr_array(X), y) for name in ("l1", "group_lasso")
    )
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("learning_rate", ["auto", "constant"])
def test_groups_of_sparse_columns(learning_rate):
    """Rows that a batch lacks wait, and are shrunk as often as they have waited: as on dense data."""
    from scipy.sparse import csr_array

    rng = np.random.default_rng(0)
    X = np.where(rng.random((80, 30)) < 0.2, rng.normal(size=(80, 30)), 0)
    Y3 = X[:, :4] @ rng.normal(size=(4, 3))
    settings = {"penalty": "group_lasso", "alpha": 0.02, "learning_rate": learning_rate, "dtype": "float64"}
    settings |= {"batch_size": 8, "shuffle": False, "random_state": 0}
    sparse, dense = (OnnxSGDRegressor(**settings, tol=1e-6, max_iter=2000).fit(data, Y3)
                     for data in (csr_array(X), X))  # fmt: skip
    zero, any_zero = (sparse.coef_ == 0).all(axis=0), (sparse.coef_ == 0).any(axis=0)
    np.testing.assert_array_equal(zero, any_zero)
    assert 10 < zero.sum() < 27
    if learning_rate == "constant":
        np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-9, atol=1e-12)
    else:
        np.testing.assert_allclose(sparse.coef_, dense.coef_, atol=0.05)
    assert not any(kind == "start" for _, kind in sparse._state.tensors)


def test_groups_of_a_classifier_are_those_of_proximal_gradient():
    """The multinomial loss of three classes, by full proximal steps in numpy."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(128, 8))
    y = np.argmax(X[:, :3] + 0.3 * rng.gumbel(size=(128, 3)), axis=1)
    graph = LogisticRegression(C=1e-3).fit(X, y)
    model = OnnxSGDClassifier(
        graph, penalty="group_lasso", alpha=0.05, dtype="float64", batch_size=128, tol=1e-10, max_iter=4000,
        n_iter_no_change=200, random_state=0,
    ).fit(X, y)  # fmt: skip
    w, b, onehot, rate, most = np.zeros((8, 3)), np.zeros(3), np.eye(3)[y], 1.0, 0.05 * np.sqrt(3)
    for _ in range(5000):
        slope = softmax(X @ w + b, axis=1) - onehot
        w, b = w - rate * X.T @ slope / 128, b - rate * slope.mean(axis=0)
        w *= np.maximum(0, 1 - rate * most / np.maximum(np.linalg.norm(w, axis=1, keepdims=True), 1e-300))
    zeros = (w == 0).all(axis=1)
    assert 2 < zeros.sum() < 8
    np.testing.assert_array_equal((model.coef_ == 0).all(axis=0), zeros)
    np.testing.assert_allclose(model.coef_.T, w, atol=1e-3)


def test_the_first_layer_of_a_network_selects_columns():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 8)) * [1, 100, 1, 0.01, 1, 1, 1, 1]
    y = np.tanh(X[:, 0]) * (X[:, 1] / 100)
    network = MLPRegressor(hidden_layer_sizes=(16,), solver="lbfgs", random_state=0, max_iter=300, tol=0.001)
    network.fit(X / X.std(axis=0), y)
    model = OnnxSGDRegressor(
        make_pipeline(StandardScaler(), network).set_params(standardscaler=StandardScaler().fit(X)),
        penalty={"coefs_0": Penalty(l1=0.016, groups=True)}, random_state=0,
    ).fit(X, y)  # fmt: skip
    zero = (model.get_weights()["coefs_0"] == 0).all(axis=1)
    assert zero.tolist() == [False, False, True, True, True, True, True, True]
    assert (model.get_weights()["coefs_1"] != 0).any()
    assert model.score(X, y) > 0.9


def test_groups_of_a_convolution_are_channels():
    graph = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[N, 3, 6, 6] x) => (float[N, 1] y)
        <float[4, 3, 3, 3] filters, float[4, 1] head, int64[2] flat = {-1, 4}>
        { c = Conv(x, filters)
          t = Tanh(c)
          p = GlobalAveragePool(t)
          f = Reshape(p, flat)
          y = MatMul(f, head) }""")
    rng = np.random.default_rng(0)
    for name, shape in [("filters", (4, 3, 3, 3)), ("head", (4, 1))]:
        array = (0.2 * rng.normal(size=shape)).astype(np.float32)
        graph.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    images = rng.normal(size=(200, 3, 6, 6)).astype(np.float32)
    images[:, 0] += rng.normal(size=(200, 1, 1))
    y = images[:, 0].mean(axis=(1, 2))
    model = OnnxSGDRegressor(
        graph, penalty={"filters": Penalty(l1=0.02, groups=True)}, random_state=0, max_iter=200
    ).fit(images, y)
    filters = model.get_weights()["filters"]
    assert (filters[:, 1:] == 0).all()
    assert (filters[:, 0] != 0).any()
    assert model.score(images, y) > 0.8


def test_groups_that_a_weight_does_not_have_are_refused():
    graph = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[N, 2, 5] x) => (float[N, 5] y)
        <float[2, 5] scale = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, int64[1] axes = {1}>
        { p = Mul(x, scale)
          y = ReduceSum<keepdims = 0>(p, axes) }""")
    estimator = OnnxSGDRegressor(graph, penalty="group_lasso", trainable=["scale"])
    with pytest.raises(UnsupportedError, match="'scale', which Mul reads, has no groups"):
        estimator.fit(np.ones((10, 2, 5), np.float32), np.ones((10, 5)))
    assert not hasattr(estimator, "n_iter_")


def test_an_own_proximal_optimizer_without_groups_is_refused():
    class Own(optimizers.SGD):
        is_proximal = True

    settings = {"optimizer": Own(), "learning_rate": "constant", "penalty": "group_lasso"}
    with pytest.raises(UnsupportedError, match="Own .*no update_groups"):
        OnnxSGDRegressor(**settings).fit(A, np.column_stack([Y, Y]))


def test_a_value_near_the_start_needs_the_start():
    with pytest.raises(ParameterError, match="starts is missing"):
        Penalty(l2=0.1, from_start=True).value([np.ones(2)])


def test_the_display_names_the_penalty():
    assert repr(Penalty(l1=0.5)) == "Penalty(l1=0.5)"
    shown = OnnxSGDRegressor(penalty={"coef": Penalty(l2=0.1)}).fit(A, Y)._repr_html_()
    assert "Penalty(l2=0.1)" in shown


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "block_adam"])
@pytest.mark.parametrize(
    "penalty", [Penalty(l1=0.05, l2=0.1, groups=True, from_start=True), "group_lasso", "l2_sp"], ids=str
)
def test_penalties_under_accumulated_gradients_and_frozen_weights(penalty, optimizer):
    """Four batches of 8 are one of 32, with averages too; weights with the rate 0 stay as they are."""
    X = RNG.normal(size=(64, 5))
    y = X @ RNG.normal(size=(5, 2))
    network = MLPRegressor(hidden_layer_sizes=(6,), solver="lbfgs", tol=0.1, random_state=0).fit(X, -y)
    settings = {"penalty": penalty, "alpha": 0.1, "optimizer": optimizer, "learning_rate": "constant"}
    settings |= {"shuffle": False, "max_iter": 5, "tol": None, "average": 0.7, "dtype": "float64"}
    settings |= {"eta0": 0.001}
    whole = OnnxSGDRegressor(network, batch_size=32, **settings).fit(X, y)
    parts = OnnxSGDRegressor(network, batch_size=8, gradient_accumulation_steps=4, **settings).fit(X, y)
    for name, weight in whole.get_weights().items():
        np.testing.assert_allclose(parts.get_weights()[name], weight, rtol=1e-10, atol=1e-12)
    frozen = OnnxSGDRegressor(network, learning_rate_multipliers={"coefs_0": 0.0}, **settings).fit(X, y)
    np.testing.assert_array_equal(frozen.get_weights()["coefs_0"], network.coefs_[0])


def test_a_dictionary_of_penalties_is_searched_as_a_whole():
    """It has no parameters of its own: its keys may hold any characters."""
    model = OnnxSGDRegressor(penalty={"coef": Penalty(l1=0.1)})
    with pytest.raises(
        ParameterError, match=r"penalty__coef__l1 is no parameter: .* takes whole dictionaries"
    ):
        model.set_params(penalty__coef__l1=0.2)
    with pytest.raises(ParameterError, match="penalty__l1 is no parameter: penalty='l2' has none"):
        model.set_params(penalty="l2", penalty__l1=0.2)
    assert model.set_params(penalty=Penalty(l2=1.0), penalty__l1=0.2).penalty == Penalty(l1=0.2, l2=1.0)
    grid = {"penalty": [{"coef": Penalty(l1=strength)} for strength in (1e-4, 0.3)]}
    search = GridSearchCV(OnnxSGDRegressor(random_state=0), grid, cv=2).fit(A, Y)
    assert search.best_params_["penalty"] == {"coef": Penalty(l1=1e-4)}
