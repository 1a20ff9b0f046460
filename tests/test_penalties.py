"""Penalties: the strengths of the norms by name, and their values, against numpy."""

import pickle

import numpy as np
import onnx.parser
import pytest
from numpy_training import OPTIMIZERS, truncated
from numpy_training import PENALTIES as PLAIN

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, penalties
from onnxsgd.exceptions import ParameterError, ParameterTypeError
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
    weights = [np.array([[1.5, -2.0], [0.0, 0.25]]), np.array([-3.0])]
    l1, l2 = PLAIN[name](0.3, 0.2)
    flat = np.array([1.5, -2.0, 0.0, 0.25, -3.0])
    expected = l1 * np.linalg.norm(flat, 1) + l2 / 2 * np.linalg.norm(flat) ** 2
    penalty = penalties.make_penalty(name, 0.3, 0.2)
    assert penalty.value(weights) == pytest.approx(expected, rel=1e-14)
    assert (penalty.l1 or 0, penalty.l2 or 0) == pytest.approx((l1, l2), rel=1e-14)


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
    with pytest.raises(ParameterError, match="'l3'.*'l2', 'l1', 'elasticnet', None"):
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
    ],
)
def test_refused_strengths(strengths, error, message):
    with pytest.raises(error, match=message):
        Penalty(**strengths)


def test_the_display_names_the_penalty():
    assert repr(Penalty(l1=0.5)) == "Penalty(l1=0.5)"
    shown = OnnxSGDRegressor(penalty={"coef": Penalty(l2=0.1)}).fit(A, Y)._repr_html_()
    assert "Penalty(l2=0.1)" in shown
