"""``learning_rate="auto"``, the default: any scale of data, any batch size, never worse than the start."""

import pickle
import warnings
from itertools import pairwise

import numpy as np
import onnx
import onnx.parser
import pytest
from scipy import sparse
from sklearn.datasets import load_digits, load_iris, load_linnerud, load_wine, make_friedman1
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge, RidgeCV, SGDClassifier
from sklearn.metrics import balanced_accuracy_score, log_loss, r2_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.losses import CrossEntropy
from onnxsgd.optimizers import SGD, BlockAdam
from onnxsgd.schedules import Auto
from onnxsgd.training import program
from onnxsgd.training.state import FitState

RNG = np.random.default_rng(0)
Z = RNG.normal(3.0, 1.0, (300, 6))
SCALES = 10.0 ** np.array([-4, -2, 0, 1, 3, 4])
COEF = np.array([1.0, -2.0, 0.5, 1.0, -1.0, 2.0])
SCORE = Z @ COEF
Y = 1e5 * (SCORE + 0.2 * RNG.normal(size=300))


def objective(model, X, y, alpha=1e-4):
    """Half the mean squared error and the penalty, in float64."""
    coef = model.coef_.astype(np.float64)
    return 0.5 * np.mean((model.predict(X) - y) ** 2) + 0.5 * alpha * coef @ coef


def minimum(X, y, alpha=1e-4):
    """Return the least objective, in closed form."""
    centred = X - X.mean(axis=0)
    solved = np.linalg.solve(
        centred.T @ centred / len(X) + alpha * np.eye(X.shape[1]), centred.T @ (y - y.mean()) / len(X)
    )
    return 0.5 * np.mean((centred @ solved - (y - y.mean())) ** 2) + 0.5 * alpha * solved @ solved


@pytest.mark.parametrize("scales", [np.ones(6), SCALES], ids=["even", "uneven"])
def test_the_minimum_is_reached_on_raw_data(scales):
    """Also where the penalty matters for the columns of small numbers, and the targets are large."""
    X = Z * scales
    model = OnnxSGDRegressor(random_state=0).fit(X, Y)
    start = 0.5 * np.var(Y)
    assert objective(model, X, Y) - minimum(X, Y) < 0.005 * (start - minimum(X, Y))


def _rare(n=2000):
    """Return two classes, of which one has 1 % of the rows, and their balanced weights."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 5))
    score = X @ [1.0, -1.0, 0.5, 0.0, 0.0] + 0.5 * rng.normal(size=n)
    y = (score > np.quantile(score, 0.99)).astype(int)
    return X, y, np.where(y, 50.0, 0.5 / 0.99)


@pytest.mark.parametrize("batch_size", [1, 32])
def test_heavy_samples_count_by_their_weight(batch_size):
    """The least weighted objective is reached, where most batches have none of the heavy samples."""
    X, y, weight = _rare()
    model = OnnxSGDClassifier(class_weight="balanced", batch_size=batch_size, random_state=0).fit(X, y)
    exact = LogisticRegression(C=1 / (1e-4 * weight.sum())).fit(X, y, weight)

    def value(coef, intercept):
        z = X @ coef.ravel() + intercept
        return np.average(np.logaddexp(0, z) - y * z, weights=weight) + 0.5e-4 * np.sum(coef**2)

    least = value(exact.coef_, exact.intercept_)
    assert value(model.coef_, model.intercept_) < least + 0.02 * (np.log(2) - least)


def test_heavy_samples_of_a_stream_count_by_their_weight():
    """In calls of 32 rows, most of which have none of them: recall of a hundredth of the samples."""
    X, y, _ = _rare(6000)
    model = OnnxSGDClassifier(class_weight={0: 0.5, 1: 50.0}, random_state=0)
    for start in range(0, len(X), 32):
        model.partial_fit(X[start : start + 32], y[start : start + 32], classes=[0, 1])
    assert balanced_accuracy_score(y, model.predict(X)) > 0.85


def test_equal_weights_of_a_stream_change_nothing():
    """Weights of any size: steps, and the strength of the penalty, are those of weights of 1."""
    models = [OnnxSGDRegressor(alpha=0.1, random_state=0) for _ in range(2)]
    for start in range(0, 300, 50):
        rows = slice(start, start + 50)
        for model, weight in zip(models, (1.0, 1e20), strict=True):
            model.partial_fit(Z[rows], SCORE[rows], sample_weight=np.full(50, weight))
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, rtol=1e-5)


_ZEROS = "<float[6, 1] w = {0, 0, 0, 0, 0, 0}, float[6, 1] u = {0, 0, 0, 0, 0, 0}, float[1] b = {0}"
SCALED_OUTPUTS = {
    "two branches": ("p = MatMul (X, w)  q = MatMul (X, u)  r = Add (p, q)  y = Add (r, b)", ["w", "u", "b"]),
    "scaler": ("z = Gemm (X, w, b)  s = Mul (z, std)  y = Add (s, mean)", ["w", "b"]),
    "divisor": ("z = Gemm (X, w, b)  s = Sub (z, std)  y = Div (s, small)", ["w", "b"]),
    "frozen summand": ("z = MatMul (X, w)  s = Add (mean, z)  y = Add (s, b)", ["w", "b"]),
    "only the weight": ("z = MatMul (X, w)  y = Add (z, centre)", ["w"]),
}


@pytest.mark.parametrize("case", SCALED_OUTPUTS)
def test_the_scale_of_the_target_reaches_every_last_layer(case):
    nodes, trainable = SCALED_OUTPUTS[case]
    head = '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 6] X) => (float[N, 1] y)'
    numbers = {"std": 2e5, "small": 3e-5, "mean": -4e5, "centre": Y.mean()}
    constants = ", ".join(f"float[1] {name} = {{{number:f}}}" for name, number in numbers.items())
    graph = onnx.parser.parse_model(f"{head} {_ZEROS}, {constants}> {{ {nodes} }}")
    X = Z - Z.mean(axis=0) if trainable == ["w"] else Z
    model = OnnxSGDRegressor(graph, trainable=trainable, random_state=0).fit(X, Y)
    assert model.score(X, Y) > 0.98


@pytest.mark.parametrize("loss", ["squared_error", "huber", "absolute_error"])
def test_targets_of_different_scales(loss):
    """With one scale for all targets, the small ones end at R2 of -5,000 for absolute errors."""
    scales = np.array([1e-2, 1.0, 1e5])
    targets = np.stack([SCORE, Z[:, 0] - Z[:, 1], Z[:, 2] + Z[:, 3]], axis=1) * scales
    model = OnnxSGDRegressor(loss=loss, epsilon=1.0, alpha=0.0, random_state=0).fit(Z, targets)
    assert r2_score(targets, model.predict(Z), multioutput="raw_values").min() > 0.95


@pytest.mark.parametrize("penalty", ["l1", "l2", "elasticnet"])
def test_penalties_keep_their_strength(penalty):
    """An independent solver of the same objective: scikit-learn's coordinate descent."""
    from sklearn.linear_model import ElasticNet

    ratio = {"l1": 1.0, "l2": 1e-9, "elasticnet": 0.4}[penalty]
    X = Z * [1e-2, 1, 1, 1, 1, 1e2]
    model = OnnxSGDRegressor(
        penalty=penalty, alpha=0.3, l1_ratio=ratio if penalty == "elasticnet" else 0.15, random_state=0
    ).fit(X, SCORE)
    exact = ElasticNet(alpha=0.3, l1_ratio=ratio).fit(X, SCORE)
    np.testing.assert_allclose(model.coef_, exact.coef_, atol=0.03)
    if penalty == "l1":
        assert exact.coef_[0] == model.coef_[0] == 0


@pytest.mark.parametrize("batch_size", [1, 4, 256, 1024])
@pytest.mark.parametrize("load", [load_iris, load_wine])
def test_raw_data_and_batches_of_any_size(load, batch_size):
    X, y = load(return_X_y=True)
    solver = OneVsRestClassifier(LogisticRegression(C=100)).fit(StandardScaler().fit_transform(X), y)
    ours = OnnxSGDClassifier(batch_size=batch_size, random_state=0).fit(X, y)
    assert ours.score(X, y) > solver.score(StandardScaler().fit_transform(X), y) - 0.03


@pytest.mark.parametrize("exponent", [-44, -38, -37, -30, -21, 0, 19, 37])
@pytest.mark.parametrize("penalty", ["l2", "l1", None])
def test_columns_of_any_finite_size(exponent, penalty):
    """The column is dropped by a penalty, or as a constant, where its weight would be too large."""
    X = Z.copy()
    X[:, 0] *= 10.0**exponent
    X = X.astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = OnnxSGDRegressor(penalty=penalty, random_state=0).fit(X, SCORE)
        raw = model.predict(X)
    assert np.isfinite(raw).all()
    is_used = exponent > -35 if penalty is None else exponent >= 0
    assert model.score(X, SCORE) > (0.98 if is_used else 0.85)


def _network(n_pads):
    """Return a convolution with 16 filters, pooling and a layer for ten classes, with random weights."""
    pads = [n_pads] * 4
    graph = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 1, 8, 8] x) => (float[N, 10] y) '
        f"{{ z = Conv <pads = {pads}> (x, f, b)  r = Relu (z)  p = MaxPool <kernel_shape = [2, 2]> (r) "
        "s = Flatten (p)  y = Gemm (s, w, c) }"
    )
    rng, n_inputs = np.random.default_rng(0), 16 * (5 + 2 * n_pads) ** 2
    weights = {
        "f": rng.uniform(-1 / 3, 1 / 3, (16, 1, 3, 3)),
        "b": np.zeros(16),
        "w": rng.uniform(-1, 1, (n_inputs, 10)) / np.sqrt(n_inputs),
        "c": np.zeros(10),
    }
    graph.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()
    )
    return graph


@pytest.mark.parametrize("scale", [1 / 16, 1.0, 1e3])
@pytest.mark.parametrize("n_pads", [0, 1])
def test_images_of_any_scale(n_pads, scale):
    """Without standardised channels the accuracy at 1e3 is 0.1 to 0.6."""
    X, y = load_digits(return_X_y=True)
    images = (scale * X.reshape(-1, 1, 8, 8)).astype(np.float32)
    model = OnnxSGDClassifier(_network(n_pads), max_iter=20, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(images[:1200], y[:1200])
    assert model.score(images[1200:], y[1200:]) > 0.9


def test_sparse_data():
    X = sparse.csr_matrix(RNG.random((300, 40)) * (RNG.random((300, 40)) < 0.1))
    y = np.asarray(X @ RNG.normal(size=40) > 0).astype(int)
    assert OnnxSGDClassifier(random_state=0).fit(X, y).score(X, y) > 0.97


def test_sparse_data_with_a_dense_column_far_from_zero():
    """Not centred, it hides all others: R2 of 0.86."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(400, 20)) * (rng.random((400, 20)) < 0.2)
    table[:, 0] = 300.0 + rng.normal(size=400)
    y = table @ rng.normal(1.0, 0.3, 20)
    dense = OnnxSGDRegressor(random_state=0).fit(table, y)
    model = OnnxSGDRegressor(random_state=0).fit(sparse.csr_matrix(table), y)
    assert dense.score(table, y) > 0.99
    assert model.score(table, y) > 0.99
    parts = OnnxSGDRegressor(random_state=0)
    for start in range(0, 400, 100):
        parts.partial_fit(sparse.csr_matrix(table[start : start + 100]), y[start : start + 100])
    assert parts.score(table, y) > 0.9


def _with_extreme_rows(n, every):
    """Return two classes of which a few rows are 1e4 times as large, and the same without those."""
    rng = np.random.default_rng(5)
    X = rng.normal(1.0, 1.0, (n, 10))
    score = (X - 1.0) @ rng.normal(size=10)
    y = (score + 0.5 * rng.normal(size=n) > 0).astype(int)
    extreme = X.copy()
    extreme[::every] *= 1e4
    return X, extreme, y


@pytest.mark.parametrize("hidden", [None, 20])
def test_a_few_rows_of_other_units_do_not_decide(hidden):
    X, extreme, y = _with_extreme_rows(1000, 200)
    model = None
    if hidden is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = FrozenEstimator(MLPClassifier((hidden,), max_iter=1, random_state=0).fit(X[:50], y[:50]))
    expected = LogisticRegression().fit(X, y).score(X, y)
    assert OnnxSGDClassifier(model, random_state=0).fit(extreme, y).score(X, y) > expected - 0.02


def test_a_few_rows_of_other_units_do_not_decide_in_a_stream():
    X, extreme, y = _with_extreme_rows(2000, 150)
    model = OnnxSGDClassifier(random_state=0)
    for start in range(0, 2000, 10):
        part = slice(start, start + 10)
        model.partial_fit(extreme[part], y[part], classes=[0, 1])
    assert model.score(X, y) > LogisticRegression().fit(X, y).score(X, y) - 0.03


def test_extreme_rows_and_a_robust_loss():
    X, extreme, _ = _with_extreme_rows(1000, 200)
    y = X @ np.arange(10.0) + 0.1 * RNG.normal(size=1000)
    model = OnnxSGDRegressor(loss="huber", random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"5 of 1000 rows, .* \[0, 200, 400\], .* They count little"):
        model.fit(extreme, y)
    assert model.score(X, y) > 0.99
    # warnings are errors here
    OnnxSGDRegressor(loss="huber", random_state=0).fit(X, y)


@pytest.mark.parametrize("noise", [1e-12, 1e-6, 1e-3])
@pytest.mark.parametrize("share", [0.0, 0.04], ids=["one category a row", "few entries"])
def test_entries_beside_a_floor_of_noise_are_learned(noise, share):
    """The penalty forbids coefficients of the noise, whose scale is not that of a column."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 30, 2000)
    table = np.eye(30)[codes] if not share else (rng.random((2000, 30)) < share).astype(float)
    score = table @ rng.normal(size=30) + 0.1 * rng.normal(size=2000)
    y = (score > np.median(score)).astype(int)
    train, test = slice(0, 1400), slice(1400, None)
    noisy = table + noise * rng.normal(size=table.shape)
    expected = OnnxSGDClassifier(random_state=0).fit(table[train], y[train]).score(table[test], y[test])
    model = OnnxSGDClassifier(random_state=0).fit(noisy[train], y[train])
    assert model.score(noisy[test], y[test]) > expected - 0.02
    assert expected > 0.75


def test_splines_have_no_extreme_rows():
    """Each is near zero in most rows."""
    rng = np.random.default_rng(0)
    x = rng.random((400, 3))
    table = SplineTransformer(20).fit_transform(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OnnxSGDRegressor(random_state=0).fit(table, np.sin(9 * x[:, 0]))


def test_extreme_rows_and_a_squared_loss_warn():
    """Such fits end next to the constant prediction, where a solver finds much of the minimum."""
    X, extreme, _ = _with_extreme_rows(1000, 200)
    y = X @ np.arange(10.0)
    with pytest.warns(ConvergenceWarning, match=r"5 of 1000 rows, .* \[0, 200, 400\], .* 10 of 10 "):
        OnnxSGDRegressor(random_state=0).fit(extreme, y)
    # warnings are errors here
    OnnxSGDRegressor(random_state=0).fit(X, y)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_a_poor_network_on_raw_columns_learns():
    """Its large activations let first steps diverge, and smaller rates hardly learned: R2 0.2."""
    X, y = make_friedman1(1000, noise=1.0, random_state=0)
    X, y = 100 * X, 1e4 * y
    network = MLPRegressor(random_state=0).fit(X[:700], y[:700])
    assert network.score(X[700:], y[700:]) < 0
    model = OnnxSGDRegressor(network, random_state=0).fit(X[:700], y[:700])
    assert model.score(X[700:], y[700:]) > 0.8


def test_a_tuned_model_is_never_worse():
    X, y = load_linnerud(return_X_y=True)
    start = Ridge(alpha=1e-4 * len(X)).fit(X, y[:, 0])
    before = 0.5 * np.mean((start.predict(X) - y[:, 0]) ** 2) + 0.5e-4 * start.coef_ @ start.coef_
    model = OnnxSGDRegressor(FrozenEstimator(start), random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y[:, 0])
    assert objective(model, X, y[:, 0]) <= before * (1 + 1e-6)


def test_no_gain_returns_the_start_with_a_warning():
    X, y = Z, SCORE
    start = Ridge(alpha=1e-4 * len(X)).fit(X, y)
    with pytest.warns(ConvergenceWarning):
        model = OnnxSGDRegressor(FrozenEstimator(start), max_iter=1, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.coef_, start.coef_, rtol=1e-5)


@pytest.mark.parametrize("loss", ["log_loss", "hinge", "modified_huber", "focal"])
def test_a_rare_class_among_many_columns(loss):
    """No worse than the most frequent class: the intercept begins there, not far behind many coefficients."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 300))
    y = X[:, 0] + 0.5 * rng.normal(size=600) > 1.9
    model = OnnxSGDClassifier(loss=loss, random_state=0).fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) >= 1 - y[400:].mean() - 0.01


def noisy(n_columns, noise, n_rows=300, seed=0):
    """Return columns, and a target that depends on a few of them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_columns)) * rng.uniform(0.1, 10.0, n_columns) + 3.0
    score = (X[:, :5] - 3.0) @ (rng.choice([-1.0, 1.0], 5) / X[:, :5].std(axis=0)) / np.sqrt(5)
    return X, score + noise * rng.normal(size=n_rows)


@pytest.mark.parametrize("noise", [0.5, 2.0])
@pytest.mark.parametrize("n_columns", [80, 150, 400])
@pytest.mark.parametrize("loss", ["squared_error", "squared_epsilon_insensitive"])
def test_regressions_of_many_columns_are_no_worse_than_ridge_with_the_best_penalty(loss, n_columns, noise):
    """Of 150 rows; the minimum of the objective explains less than the mean."""
    X, y = noisy(n_columns, noise)
    model = OnnxSGDRegressor(loss=loss, random_state=0).fit(X[:150], y[:150])
    standard = StandardScaler().fit(X[:150])
    ridge = RidgeCV(np.logspace(-2, 5, 30)).fit(standard.transform(X[:150]), y[:150])
    of_ridge = ridge.score(standard.transform(X[150:]), y[150:])
    assert model.score(X[150:], y[150:]) > of_ridge - 0.05


@pytest.mark.filterwarnings("ignore:The data support no coefficients")
def test_codes_of_many_categories_do_not_fit_noise():
    """Sparse columns, and a target that knows nothing of them."""
    rng = np.random.default_rng(0)
    X = sparse.csr_array(np.eye(30)[rng.integers(0, 30, (400, 4))].reshape(400, -1))
    y = rng.normal(size=400)
    model = OnnxSGDRegressor(random_state=0).fit(X[:200], y[:200])
    assert model.score(X[200:], y[200:]) > -0.1


@pytest.mark.parametrize("noise", [0.5, 2.0])
@pytest.mark.parametrize(
    ("kind", "n_columns"), [("words", 1500), ("words", 700), ("codes", 700), ("dense", 700)]
)
@pytest.mark.filterwarnings("ignore:The data support no coefficients")
def test_regressions_of_any_size_are_no_worse_than_ridge(kind, n_columns, noise):
    """Of 900 rows, with the penalty that is best on the new rows; sparse data as they are."""
    rng = np.random.default_rng(0)
    if kind == "dense":
        X = rng.normal(size=(1800, n_columns))
    else:
        shares = 1.0 / np.arange(1, n_columns + 1) if kind == "words" else np.ones(n_columns)
        places = rng.choice(n_columns, (1800, 25), p=shares / shares.sum())
        X = sparse.csr_array((np.ones(places.size), places.ravel(), np.arange(0, places.size + 1, 25)))
        X.sum_duplicates()
    score = X @ rng.normal(size=n_columns)
    y = score / score.std() + noise * rng.normal(size=1800)
    model = OnnxSGDRegressor(random_state=0).fit(X[:900], y[:900])
    scores = []
    for alpha in np.logspace(-2, 5, 15):
        ridge = Ridge(alpha, solver="lsqr").fit(X[:900], y[:900])
        scores.append(ridge.score(X[900:], y[900:]))
    assert model.score(X[900:], y[900:]) > max(scores) - 0.06


@pytest.mark.parametrize("loss", ["huber", "absolute_error", "log_cosh", "epsilon_insensitive"])
@pytest.mark.parametrize(("n_columns", "is_sparse"), [(150, False), (700, True)])
def test_robust_regressions_do_not_learn_noise(loss, n_columns, is_sparse):
    """Heavy tails, and 3 percent of outliers; the mean explains more than the minimum of the objective."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1800, n_columns))
    if is_sparse:
        X = sparse.csr_array(X * (rng.random(X.shape) < 0.05))
    signal = X @ rng.normal(size=n_columns)
    signal /= signal.std()
    y = signal + rng.standard_t(3, 1800) + 30.0 * rng.normal(size=1800) * (rng.random(1800) < 0.03)
    n = 900 if is_sparse else 200
    predicted = OnnxSGDRegressor(loss=loss, random_state=0).fit(X[:n], y[:n]).predict(X[n:])
    usual = np.clip(y[:n], -4.0, 4.0)
    best = max(Ridge(a).fit(X[:n], usual).score(X[n:], signal[n:]) for a in np.logspace(-1, 4, 16))
    assert r2_score(signal[n:], predicted) > best - 0.1


@pytest.mark.parametrize("loss", ["huber", "absolute_error", "log_cosh", "epsilon_insensitive"])
def test_outliers_on_one_side_do_not_keep_the_intercept(loss):
    """The mean of the target is 6.7 beside the median of 0, where training begins."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1150, 60))
    signal = X @ rng.normal(size=60)
    signal /= signal.std()
    y = signal + rng.normal(size=1150)
    y[0] = 1000.0
    predicted = OnnxSGDRegressor(loss=loss, random_state=0).fit(X[:150], y[:150]).predict(X[150:])
    assert abs(np.median(predicted)) < 0.3
    assert r2_score(signal[150:], predicted) > 0.2


@pytest.mark.parametrize("loss", ["huber", "absolute_error", "log_cosh", "epsilon_insensitive"])
def test_many_large_errors_leave_the_unit_of_steps(loss):
    """Of a tenth of the targets: steps in units of their deviation would be far too large for all others."""
    scores = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(1400, 30))
        signal = X @ rng.normal(size=30) / 30**0.5
        y = signal + 0.3 * rng.normal(size=1400)
        y[:40] += 300.0
        model = OnnxSGDRegressor(loss=loss, random_state=0).fit(X[:400], y[:400])
        scores.append(r2_score(signal[400:], model.predict(X[400:])))
    # the deviation of all targets leads to 0.83 to 0.89
    assert np.mean(scores) > 0.93


@pytest.mark.parametrize("loss", ["huber", "absolute_error", "log_cosh", "epsilon_insensitive"])
@pytest.mark.parametrize("seed", range(3))
def test_effects_of_rare_columns_are_no_outliers(loss, seed):
    rng = np.random.default_rng(seed)
    X = (rng.random((2400, 60)) < 0.03) * 1.0
    y = X[:, :4] @ [10.0, 20.0, 15.0, -10.0] + 0.05 * rng.normal(size=2400)
    X = sparse.csr_array(X)
    model = OnnxSGDRegressor(loss=loss, random_state=seed).fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) > 0.98


@pytest.mark.parametrize("scale", [1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize(("kind", "n_columns"), [("dense", 150), ("dense", 700), ("sparse", 700)])
def test_columns_of_small_scale_keep_none_from_the_end(kind, n_columns, scale):
    """Their penalty is large, and they learn nothing; the others must not learn noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1800, n_columns))
    if kind == "sparse":
        X *= rng.random(X.shape) < 0.1
    y = X @ rng.normal(size=n_columns)
    y = y / y.std() + rng.normal(size=1800)
    X[:, -20:] *= scale * 10.0 ** rng.uniform(-1, 0, 20)
    if kind == "sparse":
        X = sparse.csr_array(X)
    n = 900 if n_columns == 700 else 200
    model = OnnxSGDRegressor(random_state=0).fit(X[:n], y[:n])
    scores = []
    for alpha in np.logspace(-2, 5, 15):
        ridge = Ridge(alpha).fit(X[:n], y[:n])
        scores.append(ridge.score(X[n:], y[n:]))
    assert model.score(X[n:], y[n:]) > max(scores) - 0.06


@pytest.mark.parametrize(("shape", "density"), [((5000, 200), 0.05), ((5000, 400), 0.2), ((700, 400), 0.05)])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_sums_of_sparse_rows_are_learned(shape, density, noise):
    """The columns have no mean of zero, and their sum has its own: the intercept takes it off."""
    X = sparse.random_array(shape, density=density, format="csr", rng=np.random.default_rng(0))
    sums = X.sum(axis=1)
    y = sums / sums.std() + noise * np.random.default_rng(1).normal(size=len(sums))
    n = len(y) // 2
    model = OnnxSGDRegressor(random_state=0).fit(X[:n], y[:n])
    best = max(Ridge(alpha).fit(X[:n], y[:n]).score(X[n:], y[n:]) for alpha in np.logspace(-2, 3, 11))
    assert model.score(X[n:], y[n:]) > best - 0.05


@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
def test_classes_of_sums_of_sparse_rows_are_learned(loss):
    """No worse than on a dense table, whose columns are centred."""
    X = sparse.random_array((1500, 300), density=0.2, format="csr", rng=np.random.default_rng(0))
    sums = X.sum(axis=1)
    y = sums > np.median(sums)
    sparse_one = OnnxSGDClassifier(loss=loss, random_state=0).fit(X[:750], y[:750])
    dense_one = OnnxSGDClassifier(loss=loss, random_state=0).fit(X[:750].toarray(), y[:750])
    of_dense = dense_one.score(X[750:].toarray(), y[750:])
    assert sparse_one.score(X[750:], y[750:]) > max(of_dense - 0.02, 0.8)


def test_columns_of_one_scale_are_all_counted_under_a_large_penalty():
    """That shrinks half of them by half."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1800, 150)) * rng.uniform(0.8, 1.25, 150)
    y = rng.normal(size=1800)
    with pytest.warns(UserWarning, match="The data support no coefficients"):
        model = OnnxSGDRegressor(alpha=1.0, random_state=0).fit(X[:200], y[:200])
    assert model.score(X[200:], y[200:]) > -0.01


@pytest.mark.parametrize("loss", ["log_loss", "hinge", "modified_huber", "focal", CrossEntropy()], ids=str)
def test_classes_of_many_columns_are_not_overfitted(loss):
    """Accuracy and scores of 150 rows with 120 columns, means of three sets."""
    accuracies, of_others, losses_of_others, losses = [], [], [], []
    for seed in range(3):
        X, y = noisy(120, 1.0, 1500, seed)
        y = y > 0.7
        model = OnnxSGDClassifier(loss=loss, random_state=0).fit(X[:150], y[:150])
        standard = StandardScaler().fit(X[:150])
        other = LogisticRegression().fit(standard.transform(X[:150]), y[:150])
        accuracies.append(model.score(X[150:], y[150:]))
        of_others.append(other.score(standard.transform(X[150:]), y[150:]))
        if hasattr(model, "predict_proba"):
            losses.append(log_loss(y[150:], model.predict_proba(X[150:])))
            losses_of_others.append(log_loss(y[150:], other.predict_proba(standard.transform(X[150:]))))
    assert np.mean(accuracies) > np.mean(of_others) - 0.005
    if loss in ("log_loss", "focal") or isinstance(loss, CrossEntropy):
        assert np.mean(losses) < 0.8 * np.mean(losses_of_others)


def test_noise_alone_is_not_learned_and_warns():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X, y = rng.normal(size=(200, 150)), 5.0 + rng.normal(size=200)
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            model = OnnxSGDRegressor(random_state=0).fit(X, y)
        np.testing.assert_allclose(model.predict(X), y.mean(), atol=1.0)
        if raised:
            break
    (warning,) = raised
    assert warning.category is ConvergenceWarning
    assert "support no coefficients" in str(warning.message)
    assert "name a learning_rate, or set tol=None" in str(warning.message)
    # which would change nothing
    assert "max_iter" not in str(warning.message)
    np.testing.assert_allclose(model.predict(X), y.mean(), atol=0.1)


@pytest.mark.parametrize("given", [{"tol": None, "max_iter": 3}, {"early_stopping": True}], ids=str)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_noise_is_not_looked_for_where_training_has_another_end(given, monkeypatch):
    called = []
    monkeypatch.setattr(program, "noisy_ridges", lambda *args, **more: called.append(args))
    X, y = noisy(150, 2.0)
    OnnxSGDRegressor(random_state=0, **given).fit(X[:150], y[:150])
    assert not called
    OnnxSGDRegressor(random_state=0).fit(X[:150], y[:150])
    assert called


@pytest.mark.parametrize(
    ("n_rows", "max_iter", "is_sought"), [(512, 3, True), (600, 19, False), (600, 20, True)]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_few_epochs_of_many_updates_do_not_end_at_a_level(n_rows, max_iter, is_sought, monkeypatch):
    called = []
    monkeypatch.setattr(program, "noisy_ridges", lambda *args, **more: called.append(args))
    X, y = noisy(60, 1.0, n_rows)
    OnnxSGDRegressor(max_iter=max_iter, random_state=0).fit(X, y)
    assert bool(called) == is_sought


@pytest.mark.parametrize(("penalty", "alpha"), [("l1", 0.03), ("l1", 0.1), ("elasticnet", 0.3)])
def test_a_large_penalty_selects_columns(penalty, alpha):
    """5 of 200, as coordinate descent does; the ridge regression of the greatest evidence explains 0.3."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1100, 200))
    y = X[:, :5] @ rng.normal(size=5)
    y += 0.5 * y.std() * rng.normal(size=1100)
    y /= y.std()
    model = OnnxSGDRegressor(penalty=penalty, alpha=alpha, random_state=0).fit(X[:100], y[:100])
    lasso = ElasticNet(alpha, l1_ratio=1.0 if penalty == "l1" else 0.15).fit(X[:100], y[:100])
    assert model.score(X[100:], y[100:]) > lasso.score(X[100:], y[100:]) - 0.05


def test_a_constant_target_beside_another_one_changes_nothing():
    X, y = noisy(80, 1.0)
    alone = OnnxSGDRegressor(random_state=0).fit(X[:150], y[:150])
    both = OnnxSGDRegressor(random_state=0).fit(X[:150], np.c_[y[:150], np.full(150, 0.1)])
    r2 = r2_score(y[150:], both.predict(X[150:])[:, 0])
    assert r2 == pytest.approx(alone.score(X[150:], y[150:]), abs=0.02)


@pytest.mark.filterwarnings("error")
def test_coefficients_without_an_intercept_learn_the_mean():
    """The ridge regression that ends training has an intercept."""
    rng = np.random.default_rng(0)
    X = 3.0 + rng.normal(size=(600, 60))
    y = 30.0 + X @ np.ones(60)
    model = OnnxSGDRegressor(trainable=["coef"], random_state=0).fit(X[:100], y[:100])
    assert np.abs(model.predict(X[100:]) - y[100:]).max() < 0.05 * y.mean()


@pytest.mark.parametrize(
    "given", [{"tol": None, "max_iter": 100}, {"learning_rate": "adaptive", "eta0": 1e-2}], ids=str
)
def test_named_ends_and_rates_learn_all_of_the_data(given):
    X, y = noisy(150, 2.0)
    usual = OnnxSGDRegressor(random_state=0).fit(X[:150], y[:150])
    scaled = StandardScaler().fit_transform(X[:150])
    assert usual.score(X[:150], y[:150]) < 0.7
    assert OnnxSGDRegressor(random_state=0, **given).fit(scaled, y[:150]).score(scaled, y[:150]) > 0.85


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("n_classes", [2, 3, None])
def test_correlated_columns_are_learned_as_by_a_solver(n_classes, scale):
    """The target depends on 40 factors, and the columns are sums of them, in units of their own."""
    known, new, scores = slice(0, 1000), slice(1000, None), []
    for seed in (3, 4, 5):
        rng = np.random.default_rng(seed)
        factors = rng.normal(size=(1500, 40))
        X = factors @ rng.normal(size=(40, 40)) * np.geomspace(1.0, scale, 40) + 3.0
        y = factors @ rng.normal(size=40) + 0.1 * rng.normal(size=1500)
        solver = Ridge(alpha=0.1)
        if n_classes is not None:
            y = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))
            solver = LogisticRegression(C=10.0, max_iter=1000)
        make = OnnxSGDRegressor if n_classes is None else OnnxSGDClassifier
        model = make(random_state=0).fit(X[known], y[known])
        standard = StandardScaler().fit(X[known])
        solver.fit(standard.transform(X[known]), y[known])
        scores.append([model.score(X[new], y[new]), solver.score(standard.transform(X[new]), y[new])])
    found, known_best = np.mean(scores, axis=0)
    assert found > known_best - 0.02
    # of the first draw without the preconditioner 0.992, 0.94 and 0.78
    assert found > {None: 0.998, 2: 0.97, 3: 0.89}[n_classes]


@pytest.mark.parametrize("n_rows", [80, 600])
def test_spectra_are_learned_as_by_a_solver(n_rows):
    """200 columns are sums of peaks and a baseline; the target is the height of the smallest peak."""
    place = np.linspace(0.0, 1.0, 200)
    peaks = [(0.3, 0.1), (0.45, 0.1), (0.6, 0.12), (0.5, 0.05)]
    scores = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        heights = rng.uniform(0.5, 1.5, (n_rows + 300, 4)) * [1.0, 1.0, 0.7, 0.1]
        X = heights @ [np.exp(-(((place - centre) / width) ** 2) / 2) for centre, width in peaks]
        X += 0.2 * rng.normal(size=(len(X), 2)) @ [np.ones(200), place] + 0.002 * rng.normal(size=X.shape)
        y = 50.0 * heights[:, 3] + 0.1 * rng.normal(size=len(X))
        model = OnnxSGDRegressor(random_state=0).fit(X[:n_rows], y[:n_rows])
        assert model.score(X[n_rows:], y[n_rows:]) > 0.98
        labels = y > 5.0
        model = OnnxSGDClassifier(random_state=0).fit(X[:n_rows], labels[:n_rows])
        scores.append(model.score(X[n_rows:], labels[n_rows:]))
    assert np.mean(scores) > 0.92


@pytest.mark.parametrize("loss", ["log_loss", "hinge", "modified_huber"])
def test_wide_columns_that_tell_more_keep_their_width(loss):
    """With a scale for each column the accuracy is 0.65 (`SGDClassifier` 0.80)."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1700, 500)) * np.exp(rng.normal(size=500))
    y = (X @ rng.normal(size=(500, 3))).argmax(axis=1)
    model = OnnxSGDClassifier(loss=loss, random_state=0).fit(X[:700], y[:700])
    assert model.score(X[700:], y[700:]) > 0.75


@pytest.mark.parametrize("n_columns", [1_000, 20_000])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_one_epoch_on_many_columns_learns(n_columns):
    X = np.random.default_rng(0).normal(size=(200, n_columns))
    y = X @ np.random.default_rng(1).normal(size=n_columns)
    assert OnnxSGDRegressor(max_iter=1, random_state=0).fit(X, y).score(X, y) > 0.3


@pytest.mark.parametrize("n_columns", [1_000, 5_000])
def test_a_stream_of_many_columns_is_no_worse_than_a_constant(n_columns):
    rng, estimator = np.random.default_rng(0), OnnxSGDRegressor(random_state=0)
    coef, scores = rng.normal(size=n_columns), []
    for call in range(15):
        X = rng.normal(size=(200, n_columns))
        y = X @ coef
        if call:
            scores.append(estimator.score(X, y))
        estimator.partial_fit(X, y)
    assert min(scores) > -0.05
    assert scores[-1] > 0.1


def test_parts_reach_what_one_epoch_reaches():
    """To half a hundredth of the variance in the mean of eight draws. First moments are those of few rows."""
    differences = []
    for draw in range(8):
        rng, rows = np.random.default_rng(draw), np.arange(3000) % 300
        table = rng.normal(3.0, 1.0, (300, 6))
        X, y = (table * SCALES)[rows], 1e5 * (table @ COEF + 0.2 * rng.normal(size=300))[rows]
        parts = OnnxSGDRegressor(random_state=0)
        for start in range(0, 3000, 250):
            parts.partial_fit(X[start : start + 250], y[start : start + 250])
        whole = OnnxSGDRegressor(max_iter=1, shuffle=False, random_state=0)
        with pytest.warns(ConvergenceWarning, match="max_iter"):
            whole.fit(X, y)
        differences.append(parts.score(X, y) - whole.score(X, y))
    assert np.mean(differences) > -0.005
    assert min(differences) > -0.02


@pytest.mark.parametrize("n_rows", [10, 100])
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_stream_reaches_the_minimum_of_a_penalty_on_narrow_columns(is_kept, n_rows):
    """Columns of 1e-4 to 1e4: gradients of the loss keep their direction at the minimum of the objective."""
    draw = np.random.default_rng(1)
    X = draw.normal(size=(2000, 20)) * 10.0 ** draw.uniform(-4, 4, 20)
    y = (X / X.std(axis=0)) @ draw.normal(size=20) * 1e5 + 1e5 * draw.normal(size=2000)
    # the objective with alpha=1e-4
    fitted = Ridge(alpha=1e-4 * len(X)).fit(X, y)
    model = OnnxSGDRegressor(fitted, random_state=0) if is_kept else OnnxSGDRegressor(random_state=0)
    for start in range(0, len(X), n_rows):
        model.partial_fit(X[start : start + n_rows], y[start : start + n_rows])
    assert model.score(X, y) > fitted.score(X, y) - (0.01 if is_kept else 0.03)


@pytest.mark.parametrize("n_rows", [10, 50, 178])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_stream_from_a_model_that_diverges_at_usual_rates(n_rows):
    """The products of a quadratic discriminant analysis overflow float32 after two updates."""
    X, y = load_wine(return_X_y=True)
    start, scores = QuadraticDiscriminantAnalysis(reg_param=1e-3).fit(X, y), []
    for seed in range(4):
        model, order = (
            OnnxSGDClassifier(start, random_state=0),
            np.random.default_rng(seed).permutation(len(X)),
        )
        for first in range(0, len(X), n_rows):
            rows = order[first : first + n_rows]
            model.partial_fit(X[rows], y[rows], classes=[0, 1, 2])
        scores.append(model.score(X, y))
        assert max(model.learning_rates_) < 2e-3
    assert np.mean(scores) > 0.75


def test_a_stream_of_nearly_constant_columns():
    """Their penalty in units of the deviation is beyond float32; the squares of its gradient would be too."""
    draw = np.random.default_rng(2)
    X = np.c_[draw.normal(size=(400, 2)), 1e-18 * draw.normal(size=400), 1e-30 * draw.normal(size=400)]
    y = X[:, 0] - X[:, 1] + 0.1 * draw.normal(size=400)
    start = Ridge(alpha=0.01).fit(X, y)
    start.coef_ = np.array([1.0, -1.0, 1e15, 1e25])
    model = OnnxSGDRegressor(start, random_state=0)
    for first in range(0, 400, 40):
        model.partial_fit(X[first : first + 40], y[first : first + 40])
    assert model.score(X, y) > 0.97


def test_a_stream_of_single_rows():
    model = OnnxSGDClassifier(random_state=0)
    # columns of smaller numbers would be penalised too much
    X, y = Z * [0.1, 0.1, 1, 1, 100, 1e4], (SCORE > 9.0).astype(int)
    for row in range(300):
        model.partial_fit(X[[row]], y[[row]], classes=[0, 1])
    assert model.score(X, y) > 0.9


_CHANGES = {
    "columns times 100": lambda X, y: (100.0 * X, y),
    "columns over 100": lambda X, y: (X / 100.0, y),
    "columns plus 50": lambda X, y: (X + 50.0, y),
    "one column times 100": lambda X, y: (X * [100.0, 1.0, 1.0, 1.0], y),
    "target plus 1,000": lambda X, y: (X, y + 1000.0),
    "target over 100": lambda X, y: (X, y / 100.0),
    "target negative": lambda X, y: (X, -y),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_a_stream_recovers_from_a_change_of_scale(change):
    """Within 320 rows after 3,200 others, in calls of 32."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(4000, 4))
    y = X @ [2.0, -1.0, 1.0, 0.5] + 0.2 * rng.normal(size=4000)
    model = OnnxSGDRegressor(alpha=0.0, random_state=0)
    for start in range(0, 3520, 32):
        rows = slice(start, start + 32)
        model.partial_fit(*(_CHANGES[change] if start >= 3200 else lambda *data: data)(X[rows], y[rows]))
    after = _CHANGES[change](X[3520:], y[3520:])
    assert model.score(*after) > 0.9


def test_a_classifier_follows_columns_of_another_scale_and_back():
    rng = np.random.default_rng(6)
    X = rng.normal(size=(4800, 4))
    y = (X @ [2.0, -1.0, 1.0, 0.5] + 0.5 * rng.normal(size=4800) > 0).astype(int)
    model = OnnxSGDClassifier(random_state=0)
    for start in range(0, 4800, 32):
        rows = slice(start, start + 32)
        model.partial_fit((100.0 if 1600 <= start < 3200 else 1.0) * X[rows], y[rows], classes=[0, 1])
    assert model.score(X, y) > 0.9


def test_a_stream_of_one_class_after_another_keeps_what_it_knows():
    """Thirty calls of each class: the loss grows a hundredfold where the next one begins."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(6000, 10))
    y = (X @ rng.normal(size=(10, 3))).argmax(axis=1)
    model = OnnxSGDClassifier(random_state=0)
    for block in range(9):
        rows = np.flatnonzero(y == block % 3)
        for start in range(0, 960, 32):
            part = rows[np.arange(start, start + 32) + 200 * (block // 3)]
            model.partial_fit(X[part], y[part], classes=[0, 1, 2])
    assert model.score(X, y) > 0.5


def test_a_stream_after_fit_keeps_a_network():
    """At the first rate of `fit` the accuracy falls to 0.3; the steering begins with a small share of it."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:600], y[:600]
    start = MLPClassifier((30,), max_iter=60, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        start.fit(X, y)
        model = OnnxSGDClassifier(FrozenEstimator(start), random_state=0).fit(X, y)
    before = model.score(X, y)
    scores = []
    for _ in range(3):
        for part in range(0, 600, 50):
            model.partial_fit(X[part : part + 50], y[part : part + 50])
            scores.append(model.score(X, y))
    assert min(scores) > before - 0.03
    assert model.learning_rates_[-1] < 0.05 / 4


def fitted_on_digits(n_rows=900):
    X, y = load_digits(return_X_y=True)
    start = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(X[:n_rows], y[:n_rows])
    return FrozenEstimator(start), X[n_rows:], y[n_rows:]


@pytest.mark.parametrize("n_rows", [1, 10, 32, 200])
def test_a_stream_keeps_good_weights(n_rows):
    """Single rows, whose gradients and moments tell least, as well."""
    start, X, y = fitted_on_digits()
    model = OnnxSGDClassifier(start, random_state=0)
    scores = []
    for row in range(0, 400, n_rows):
        model.partial_fit(X[row : row + n_rows], y[row : row + n_rows])
        scores.append(model.score(X[400:], y[400:]))
    assert min(scores) > start.score(X[400:], y[400:]) - 0.02


def test_a_stream_leaves_bad_weights():
    """Images turned by a right angle: the rate grows until the model has learned them."""
    start, X, y = fitted_on_digits()
    X = np.rot90(X.reshape(-1, 8, 8), axes=(1, 2)).reshape(-1, 64)
    model = OnnxSGDClassifier(start, random_state=0)
    assert start.score(X, y) < 0.2
    for row in 6 * [*range(0, 600, 40)]:
        model.partial_fit(X[row : row + 40], y[row : row + 40])
    assert model.score(X[600:], y[600:]) > 0.7


def test_a_stream_follows_labels_that_change_places():
    """SGDClassifier has 0.86."""
    rng = np.random.default_rng(0)
    X, sign = rng.normal(size=(400, 20, 5)), np.r_[np.ones(200), -np.ones(200)]
    y = (sign[:, None] * (X @ [1.0, -2.0, 0.5, 1.0, 3.0]) > 0).astype(int)
    model, scores = OnnxSGDClassifier(random_state=0), []
    for part, labels in zip(X, y, strict=True):
        scores.append(model.partial_fit(part, labels, classes=[0, 1]).score(part, labels))
    assert np.mean(scores[220:]) > 0.93


def changing_classes(n_parts, n_rows, kind, n_scores=1):
    """Yield parts of a stream whose classes change with each 500 rows, and the number of the part."""
    rng = np.random.default_rng(0)
    first, other = rng.normal(size=(2, 10, n_scores))
    for part in range(n_parts):
        is_odd = part * n_rows // 500 % 2
        weights = first if not is_odd else {"opposite": -first, "other": other, "same": first}[kind]
        Z = rng.normal(size=(n_rows, 10))
        scores = Z @ weights + 0.3 * rng.normal(size=(n_rows, n_scores))
        yield Z, scores.argmax(axis=1) if n_scores > 1 else (scores[:, 0] > 0).astype(int)


@pytest.mark.parametrize(
    ("kind", "n_scores", "n_rows", "least"),
    [("opposite", 1, 5, 0.85), ("opposite", 1, 50, 0.72), ("opposite", 4, 10, 0.69), ("other", 4, 10, 0.7)],
)
def test_a_stream_begins_anew_where_the_classes_change(kind, n_scores, n_rows, least):
    """Otherwise accuracies are 0.76, 0.64, 0.59 and 0.68; those of SGDClassifier 0.85, 0.79, 0.67, 0.71."""
    model, scores = OnnxSGDClassifier(random_state=0), []
    for part, labels in changing_classes(4000 // n_rows, n_rows, kind, n_scores):
        scores.append(model.score(part, labels) if scores else 0.0)
        model.partial_fit(part, labels, classes=range(max(2, n_scores)))
    assert np.mean(scores) > least
    assert len(model.loss_curve_) == len(model.learning_rates_) == len(scores)


def refuse(*_, **__):
    raise AssertionError


@pytest.mark.parametrize("n_rows", [10, 50])
def test_a_stream_of_lasting_classes_does_not_begin_anew(n_rows, monkeypatch):
    """Labels of a call are noise, or opposite, or rows extreme; later each call has one class."""
    monkeypatch.setattr(FitState, "forget", refuse)
    model = OnnxSGDClassifier(random_state=0)
    parts = list(changing_classes(3000 // n_rows, n_rows, "same"))
    for number, (part, labels) in enumerate(parts):
        labels = RNG.permutation(labels) if number == len(parts) // 2 else labels
        labels = 1 - labels if number == len(parts) // 2 + 20 else labels
        size = np.where(RNG.random((n_rows, 1)) < 0.1, 1e4, 1.0) if number > len(parts) - 5 else 1.0
        model.partial_fit(part * size, labels, classes=[0, 1])
    for label in (0, 1):
        for part, labels in parts:
            model.partial_fit(part[labels == label], labels[labels == label])
    for part, labels in parts:
        model.partial_fit(part[labels == 1], np.zeros(np.sum(labels == 1), int))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_column_that_changes_its_unit_is_learned_anew(seed):
    """The accuracy stayed at 0.5: scores of one sign misled one of the two classes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(6000, 8)) + 2
    y = X @ rng.normal(size=8) + 0.3 * rng.normal(size=6000)
    y = (y > np.median(y)).astype(int)
    X[3000:, 0] *= 1000
    model = OnnxSGDClassifier(random_state=0)
    for start in range(0, 6000, 50):
        right = model.score(X[start : start + 50], y[start : start + 50]) if start else 0.0
        model.partial_fit(X[start : start + 50], y[start : start + 50], classes=[0, 1])
        assert right > 0.6 or start < 500 or 3000 <= start < 3600
    assert model.score(X[5000:], y[5000:]) > 0.9


def test_a_burst_of_rows_in_another_place_does_not_begin_a_stream_anew(monkeypatch):
    """Scores of one sign mislead a class, in two calls of every 30; a rare class that is swapped is new."""
    model, rng = OnnxSGDClassifier(random_state=0), np.random.default_rng(0)
    coef = rng.normal(size=100)
    with monkeypatch.context() as patched:
        patched.setattr(FitState, "forget", refuse)
        for number in range(90):
            X = rng.normal(size=(50, 100))
            y = (X @ coef + rng.normal(size=50) > 0).astype(int)
            model.partial_fit(X + 4 * (number % 30 > 27), y, classes=[0, 1])
    begun = []
    monkeypatch.setattr(FitState, "forget", lambda *_, keep_data: begun.append(keep_data))
    model = OnnxSGDClassifier(random_state=0)
    for number in range(80):
        X = rng.normal(size=(100, 5))
        is_first = X[:, 0] > 1.28
        model.partial_fit(X, (is_first != (number > 40)).astype(int), classes=[0, 1])
    assert begun


@pytest.mark.parametrize("options", [{"average": True}, {"class_weight": {0: 2, 1: 3}}])
def test_averages_begin_anew_with_the_stream(options):
    """An average with the weights of the classes before has an accuracy of 0.03."""
    model = OnnxSGDClassifier(random_state=0, **options)
    for part, labels in changing_classes(40, 25, "opposite"):
        model.partial_fit(part, labels, classes=[0, 1])
    assert model.score(part, labels) > 0.9


def test_new_classes_are_no_change_of_classes(monkeypatch):
    """A model of digits whose last four come together, in calls without the others."""
    monkeypatch.setattr(FitState, "forget", refuse)
    X, y = load_digits(return_X_y=True)
    model = OnnxSGDClassifier(random_state=0)
    for rows in (np.flatnonzero(y < 6), np.flatnonzero(y >= 6)):
        for first in range(0, len(rows), 20):
            part = rows[first : first + 20]
            model.partial_fit(X[part], y[part], classes=range(10))


@pytest.mark.parametrize("loss", ["perceptron", "hinge"])
def test_a_perceptron_learns_although_it_starts_at_the_least_loss(loss):
    X, y = load_digits(return_X_y=True)
    assert OnnxSGDClassifier(loss=loss, random_state=0).fit(X, y).score(X, y) > 0.98


@pytest.mark.parametrize("shift", [0.0, 1e3, 1e6])
def test_a_random_network_starts_at_the_level_of_the_target(shift):
    X, y = Z - 3.0, SCORE + shift
    start = MLPRegressor(hidden_layer_sizes=(20,), max_iter=1, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        start.fit(X, SCORE)
    model = OnnxSGDRegressor(FrozenEstimator(start), dtype="float64", random_state=0).fit(X, y)
    assert model.score(X, y) > 0.97


@pytest.mark.parametrize("scales", [(1e-4, 1e-3), (1e-6, 1e6)])
def test_a_random_network_of_a_target_of_small_numbers(scales):
    """Without narrower predictions at the start R2 is below -1."""
    y = np.c_[SCORE, Z @ [0.0, 1.0, 1.0, -2.0, 1.0, 1.0]] * scales
    model = random_layers([Z.shape[1], 50, 2], 1.0, 0)
    learner = OnnxSGDRegressor(model, alpha=1e-9, random_state=0).fit(Z, y)
    assert r2_score(y, learner.predict(Z), multioutput="raw_values").min() > 0.9


def random_layers(sizes, scale, seed):
    """Return an MLP of random weights, of `scale` times the deviation that keeps the size of ReLUs."""
    rng, last = np.random.default_rng(seed), "X"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, {sizes[0]}] X) => (float[N, {sizes[-1]}] Y) {{ Y = Identity(X) }}""")
    del model.graph.node[:]
    for number, (width, n_outputs) in enumerate(pairwise(sizes)):
        weight = rng.normal(scale=scale * np.sqrt(2 / width), size=(n_outputs, width))
        for name, array in (("w", weight), ("b", np.zeros(n_outputs))):
            tensor = onnx.numpy_helper.from_array(array.astype(np.float32), f"{name}{number}")
            model.graph.initializer.append(tensor)
        is_last = number == len(sizes) - 2
        made = "Y" if is_last else f"z{number}"
        given = [last, f"w{number}", f"b{number}"]
        model.graph.node.append(onnx.helper.make_node("Gemm", given, [made], transB=1))
        if not is_last:
            last = f"a{number}"
            model.graph.node.append(onnx.helper.make_node("Relu", [made], [last]))
    return model


@pytest.mark.parametrize(
    ("hidden", "scale", "unit", "seed"),
    [([64] * 6, 1.0, 255, 0), ([64] * 4, 0.1, 16, 2), ([16] * 6, 1.0, 16, 2)],
    ids=["deep", "small", "narrow"],
)
def test_random_networks_learn(hidden, scale, unit, seed):
    """With ten times the rate accuracies are 0.75, 0.11 and 0.28."""
    X, y = load_digits(return_X_y=True)
    X, model = X * unit / 16, random_layers([64, *hidden, 10], scale, seed)
    learner = OnnxSGDClassifier(model, classes=range(10), max_iter=60, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        learner.fit(X[:1000], y[:1000])
    assert learner.score(X[1000:], y[1000:]) > 0.82


@pytest.mark.parametrize(("hidden", "scale", "unit"), [([64] * 6, 1.0, 255), ([128] * 4, 1.0, 16)])
def test_random_networks_learn_in_streams(hidden, scale, unit):
    """With ten times the rate accuracies are 0.1 and 0.19, and 0.73 for the first on raw data."""
    X, y = load_digits(return_X_y=True)
    X, scores = X * unit / 16, []
    for seed in range(20, 26):
        learner = OnnxSGDClassifier(random_layers([64, *hidden, 10], scale, seed), random_state=0)
        for start in 4 * [*range(0, 1000, 200)]:
            part = slice(start, start + 200)
            learner.partial_fit(X[part], y[part], classes=range(10))
        scores.append(learner.score(X[1000:], y[1000:]))
    assert np.mean(scores) > 0.85


def test_a_random_network_on_raw_data_and_a_target_of_large_numbers():
    """Weights for raw data correlate a little with the target, and end at a score of 0.56."""
    X, y = make_friedman1(2000, noise=1.0, random_state=0)
    X, y = 255 * X, 1e3 * y
    model = random_layers([10, 64, 64, 64, 1], 1.0, 0)
    learner = OnnxSGDRegressor(model, random_state=0).fit(X[:1500], y[:1500])
    assert learner.score(X[1500:], y[1500:]) > 0.85


@pytest.mark.parametrize(("x_scale", "y_scale"), [(1e6, 1.0), (1e-3, 1.0), (1.0, 1e6), (1.0, 1e-6)])
def test_a_warm_start_on_data_of_another_scale(x_scale, y_scale):
    model = OnnxSGDRegressor(warm_start=True, alpha=1e-9, random_state=0).fit(Z, SCORE)
    with warnings.catch_warnings():
        # the rescaled weights may be the best already
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(Z * x_scale, SCORE * y_scale)
    assert model.score(Z * x_scale, SCORE * y_scale) > 0.99


@pytest.mark.parametrize("target", [0.0, 3.3, 1e6])
def test_a_constant_target_converges(target):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = OnnxSGDRegressor(random_state=0).fit(Z, np.full(300, target))
    assert model.n_iter_ < 100
    np.testing.assert_allclose(model.predict(Z), target, rtol=1e-6)


def test_a_linear_model_follows_a_drift_after_fit():
    model = OnnxSGDRegressor(random_state=0).fit(Z, SCORE)
    for _ in range(15):
        model.partial_fit(Z, -SCORE)
    assert model.score(Z, -SCORE) > 0.97


def test_training_continues_from_a_pickle():
    X = Z * SCALES
    model = OnnxSGDRegressor(random_state=0).partial_fit(X[:100], Y[:100])
    copy = pickle.loads(pickle.dumps(model))
    for part in (slice(100, 200), slice(200, 300)):
        model.partial_fit(X[part], Y[part])
        copy.partial_fit(X[part], Y[part])
    np.testing.assert_array_equal(copy.coef_, model.coef_)


def test_the_seed_decides():
    first, second = (OnnxSGDRegressor(random_state=3).fit(Z, Y).coef_ for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    "given",
    [
        {"eta0": 0.1}, {"power_t": 0.5}, {"momentum": 0.9}, {"optimizer": "sgd"}, {"optimizer": SGD()},
        {"optimizer": "adam"}, {"learning_rate": Auto(), "eta0": 0.1},
    ],
)  # fmt: skip
def test_parameters_without_effect_are_refused(given):
    with pytest.raises(ValueError, match=f"{list(given)[-1]}=.*learning_rate"):
        OnnxSGDRegressor(**given).fit(Z, Y)


def test_a_named_rate_is_plain_sgd():
    names = {"learning_rate": "invscaling", "max_iter": 3, "tol": None, "random_state": 0}
    default = OnnxSGDRegressor(**names).fit(Z / 5, SCORE)
    explicit = OnnxSGDRegressor(**names, optimizer="sgd", eta0=0.01).fit(Z / 5, SCORE)
    np.testing.assert_array_equal(default.coef_, explicit.coef_)


def test_block_adam_may_be_given_with_its_own_numbers():
    model = OnnxSGDRegressor(optimizer=BlockAdam(beta_1=0.5), learning_rate=Auto(eta0=0.02), random_state=0)
    assert model.fit(Z, Y).score(Z, Y) > 0.99


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("hidden", [None, 4])
def test_a_block_adam_that_is_made_in_another_way_steers_a_stream(hidden):
    class Own(BlockAdam):
        def __init__(self, strength):
            super().__init__(steering=strength)

    X, y = load_iris(return_X_y=True)
    network = hidden and MLPClassifier(hidden, max_iter=200, random_state=0).fit(X, y)
    pair = [
        OnnxSGDClassifier(network, optimizer=optimizer, random_state=0)
        for optimizer in (Own(0.1), BlockAdam(steering=0.1))
    ]
    for model in pair:
        for rows in np.array_split(np.random.default_rng(0).permutation(150), 5):
            model.partial_fit(X[rows], y[rows], classes=np.unique(y))
    np.testing.assert_allclose(pair[0].predict_proba(X), pair[1].predict_proba(X), atol=1e-5)


def test_each_target_of_a_stream_has_a_factor_of_its_own():
    """All of them settle: with the sums of all targets some stayed at the largest factor."""
    X = np.random.default_rng(0).normal(size=(6000, 6))
    y = X @ np.random.default_rng(1).normal(size=(6, 3)) * [1e-3, 1.0, 1e4]
    y += 0.1 * y.std(axis=0) * np.random.default_rng(2).normal(size=y.shape)
    model = OnnxSGDRegressor(random_state=0)
    for row in range(0, 6000, 100):
        model.partial_fit(X[row : row + 100], y[row : row + 100])
    assert min(r2_score(y, model.predict(X), multioutput="raw_values")) > 0.985


@pytest.mark.parametrize("max_iter", [1, 2])
@pytest.mark.filterwarnings("ignore:Maximum number of iteration")
def test_one_or_two_epochs_end_near_the_minimum(max_iter):
    """Of 5,000 rows with much noise; at a constant rate R2 was -0.01, with a minimum of 0.09."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(15000, 30))
    y = X @ rng.normal(size=30) / 30**0.5 + 3 * rng.normal(size=15000)
    model = OnnxSGDRegressor(max_iter=max_iter, random_state=0).fit(X[:5000], y[:5000])
    best = Ridge().fit(X[:5000], y[:5000])
    assert model.score(X[5000:], y[5000:]) > best.score(X[5000:], y[5000:]) - 0.04


@pytest.mark.parametrize(("n_rows", "least"), [(1, 0.95), (10, 0.95), (50, 0.95), (1000, 0.93)])
def test_a_stream_of_other_data_is_learned_after_a_fit(n_rows, least):
    """With the least rate of all, it had an accuracy of 0.89, 0.90, 0.90 and 0.88."""
    rng = np.random.default_rng(0)
    X, noise = rng.normal(size=(5000, 10)), 0.1 * rng.logistic(size=5000)
    before = rng.normal(size=10)
    after = before + 0.6 * rng.normal(size=10)
    model = OnnxSGDClassifier(random_state=0).fit(X[:1000], X[:1000] @ before + noise[:1000] > 0)
    y = X @ after + noise > 0
    for first in range(1000, 2000, n_rows):
        model.partial_fit(X[first : first + n_rows], y[first : first + n_rows])
    assert model.score(X[2000:], y[2000:]) > least


@pytest.mark.parametrize("n_rows", [8, 50, 500])
def test_a_stream_learns_a_rare_class(n_rows):
    """Small gradients of calls without a sample of it took the rate to its least factor: 0.50 to 0.60."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25000, 6))
    score = X @ [1, 2, 0.5, -1, 0, 0]
    y = score > np.quantile(score, 0.98)
    model = OnnxSGDClassifier(random_state=0)
    for first in range(0, 20000, n_rows):
        model.partial_fit(X[first : first + n_rows], y[first : first + n_rows], classes=[False, True])
    assert balanced_accuracy_score(y[20000:], model.predict(X[20000:])) > 0.65


@pytest.mark.parametrize(("n_rows", "least"), [(2, 0.55), (8, 0.8), (9, 0.8), (33, 0.8)])
@pytest.mark.parametrize("seed", [0, 3])
def test_calls_of_few_rows_learn_many_columns(n_rows, least, seed):
    """Two rows are nearly equal in some columns: R2 was -1.9.

    Of nine rows the last one was a batch of its own, whose step is as long as that of the others: 0.6.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(2000, 300))
    y = X @ rng.normal(size=300) / 300**0.5
    target = y + 0.5 * rng.normal(size=2000)
    model = OnnxSGDRegressor(random_state=0)
    for first in range(0, 1200, n_rows):
        model.partial_fit(X[first : first + n_rows], target[first : first + n_rows])
    assert model.score(X[1200:], y[1200:]) > least


@pytest.mark.parametrize(("n_columns", "least"), [(40, 0.89), (200, 0.41)])
def test_rows_are_divided_evenly_into_batches(n_columns, least):
    """Steps of a single row beside batches of 32 kept fits from their end: 274 and 334 updates."""
    n_updates, scores = [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(1129, n_columns))
        y = X @ rng.normal(size=n_columns) / n_columns**0.5
        target = y + 0.5 * rng.normal(size=1129)
        model = OnnxSGDRegressor(random_state=0).fit(X[:129], target[:129])
        n_updates.append(model.t_)
        scores.append(model.score(X[129:], y[129:]))
    assert np.mean(scores) > least
    assert np.mean(n_updates) < 250


@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
def test_single_rows_of_short_texts_are_learned(loss):
    """Rates fell to their least factor before much was learned: accuracies of 0.83 and 0.62."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 2500)
    # 20 words, of which a quarter are of one of 300 words of the topic
    words = rng.integers(0, 300, (2500, 20))
    words += np.where(rng.random(words.shape) < 0.25, 300 * (1 + y[:, None]), 0)
    X = sparse.csr_matrix((np.full(words.size, 0.22), words.ravel(), np.arange(0, words.size + 1, 20)))
    model = OnnxSGDClassifier(loss=loss, random_state=0)
    for row in range(1500):
        model.partial_fit(X[row : row + 1], y[row : row + 1], classes=[0, 1])
    assert model.score(X[1500:], y[1500:]) > 0.9


@pytest.mark.parametrize(
    ("make", "is_sparse", "n_columns", "n_rows", "rest"),
    [
        (OnnxSGDClassifier, False, 400, 1, (0.02, 3.0)),
        (OnnxSGDClassifier, False, 400, 4, (0.02, 12.0)),
        (OnnxSGDClassifier, False, 400, 8, (0.02, None)),
        (OnnxSGDRegressor, True, 400, 1, (0.02, 3.0)),
        (OnnxSGDClassifier, True, 10, 1, (0.02, None)),
        (OnnxSGDClassifier, True, 100, 1, (0.0046, None)),
        (OnnxSGDClassifier, True, 5000, 1, (0.00125, None)),
        (OnnxSGDClassifier, True, 5000, 8, (0.01, None)),
        (OnnxSGDClassifier, True, 5000, 16, (0.02, None)),
    ],
)
def test_the_cosine_that_leaves_a_rate_as_it_is(make, is_sparse, n_columns, n_rows, rest, monkeypatch):
    """A given one is kept; that of classifiers of sparse data depends on rows and columns.

    That of few rows of others is also bounded by a multiple of the square of the cosine.
    """
    made = []
    monkeypatch.setattr(BlockAdam, "structure", property(lambda self: made.append(self.rests) or (self,)))
    X = sparse.random(200, n_columns, 0.1, "csr", random_state=0)
    y = np.arange(200) % 2
    data = X if is_sparse else X.toarray()
    # calls of 128 rows make updates of 16
    part = slice(128 if n_rows == 16 else n_rows)
    for given, expected in ((None, rest[0]), (0.25, 0.25)):
        model = make(optimizer=BlockAdam(steering=0.1, rest=given), random_state=0)
        model.partial_fit(data[part], y[part], **({"classes": [0, 1]} if make is OnnxSGDClassifier else {}))
        assert made[-1] == (pytest.approx(expected, rel=1e-3), rest[1])


def test_a_steered_optimizer_that_is_given_has_no_preconditioner():
    """On columns whose small variances tell: the loop of linear models took both, and failed."""
    rng = np.random.default_rng(0)
    widths = np.logspace(0, -1.5, 20)
    Z = rng.normal(size=(1000, 20))
    X = (Z * widths) @ np.linalg.qr(rng.normal(size=(20, 20)))[0]
    y = Z @ rng.normal(size=20) + 0.1 * rng.normal(size=1000)
    model = OnnxSGDRegressor(optimizer=BlockAdam(steering=0.1), random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9


@pytest.mark.parametrize("n_rows", [1, 2, 5, 20])
def test_full_columns_of_sparse_rows_have_the_scales_of_dense_ones(n_rows):
    X = np.random.default_rng(0).normal(size=(200, 30)) + 1.0
    y = X @ np.random.default_rng(1).normal(size=30)
    pair = []
    for data in (X, sparse.csr_matrix(X)):
        model = OnnxSGDRegressor(random_state=0, dtype="float64")
        for first in range(0, 200, n_rows):
            model.partial_fit(data[first : first + n_rows], y[first : first + n_rows])
        pair.append(model.coef_)
    np.testing.assert_allclose(*pair, rtol=1e-5, atol=1e-6)


def test_accumulated_batches_of_calls_of_other_sizes_are_no_matter_of_order():
    """The optimizer of an update depends on its rows; a pickled stream goes on as the one it is of."""
    X = sparse.random(300, 300, 0.1, "csr", random_state=0)
    y = np.arange(300) % 2
    settings = {"batch_size": 1, "gradient_accumulation_steps": 8, "random_state": 0}
    model = OnnxSGDClassifier(**settings)
    for row in range(3):
        model.partial_fit(X[row : row + 1], y[row : row + 1], classes=[0, 1])
    pair = [pickle.loads(pickle.dumps(model)), model]
    for one in pair:
        for first in range(3, 163, 8):
            one.partial_fit(X[first : first + 8], y[first : first + 8])
    np.testing.assert_array_equal(pair[0].coef_, pair[1].coef_)


def test_a_stream_of_the_same_data_keeps_a_fit():
    """The noise of the target is no reason for large steps: with them R2 fell by 0.05."""
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(5000, 50)), rng.normal(size=50) / 50**0.5
    y = X @ w + rng.normal(size=5000)
    model = OnnxSGDRegressor(random_state=0).fit(X[:1000], y[:1000])
    before = model.score(X[2000:], y[2000:])
    model.partial_fit(X[1000:2000], y[1000:2000])
    assert model.score(X[2000:], y[2000:]) > before - 0.02


def test_a_perceptron_learns_common_words_of_texts_with_rare_ones():
    """Rare words tell the classes of all rows soon, with any intercept."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 1200)
    words = rng.integers(100, 20000, (1200, 40))
    # two of the words of a text belong to its class, mostly
    words[:, :2] = 30 * (y ^ (rng.random((2, 1200)) < 0.15)).T + rng.integers(0, 30, (1200, 2))
    X = sparse.csr_array((np.ones(words.size), words.ravel(), np.arange(0, words.size + 1, 40)))
    scores = [
        OnnxSGDClassifier(loss="perceptron", random_state=seed).fit(X[:600], y[:600]).score(X[600:], y[600:])
        for seed in range(4)
    ]
    assert min(scores) > 0.75


def _topics(n_rows, n_topics, seed):
    """Texts of 60 of 5,000 words, of whose frequencies, by Zipf's law, each topic permutes a fifth."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, 5001)
    words = rng.choice(5000, (n_rows, 60), p=share / share.sum())
    y = rng.integers(0, n_topics, n_rows)
    orders = np.array([rng.permutation(5000) for _ in range(n_topics)])
    words = np.where(rng.random(words.shape) < 0.2, orders[y[:, None], words], words)
    counts = sparse.csr_matrix((np.ones(words.size), words.ravel(), np.arange(0, words.size + 1, 60)))
    return TfidfTransformer().fit_transform(counts), y


@pytest.mark.parametrize("distance", [0.5, 1.0])
def test_many_classes_of_few_rows(distance):
    """Near classes are not told: training ends early."""
    gains, n_epochs = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        means = distance * rng.normal(size=(100, 40))
        y = np.repeat(np.arange(100), 13)
        X = means[y] + rng.normal(size=(len(y), 40))
        known = np.arange(len(y)) % 13 < 3
        pair = [OnnxSGDClassifier(random_state=0), SGDClassifier(random_state=0)]
        scores = [model.fit(X[known], y[known]).score(X[~known], y[~known]) for model in pair]
        gains.append(scores[0] - scores[1])
        n_epochs.append(pair[0].n_iter_)
    assert np.mean(gains) > -0.01
    assert (np.mean(n_epochs) > 40) == (distance == 1.0)


@pytest.mark.parametrize("loss", ["hinge", "perceptron"])
def test_few_texts_of_many_topics(loss):
    """Words tell the topics of all rows with any intercept: large steps left it far from other topics'."""
    gains = []
    for seed in range(6):
        X, y = _topics(800, 10, seed)
        pair = [OnnxSGDClassifier(loss=loss, random_state=0), SGDClassifier(loss=loss, random_state=0)]
        scores = [model.fit(X[:150], y[:150]).score(X[150:], y[150:]) for model in pair]
        gains.append(scores[0] - scores[1])
    assert np.mean(gains) > 0.02


@pytest.mark.parametrize(("n_labels", "least"), [(1, -0.08), (4, -0.03)])
@pytest.mark.parametrize("loss", ["hinge", "modified_huber"])
def test_unequal_classes_of_sparse_rows_are_learned(loss, n_labels, least):
    """Of more columns than rows; with small steps of the intercepts the gain is 0.04 to 0.12 smaller."""
    gains = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = sparse.random(1000, 1500, 0.02, "csr", random_state=seed)
        X.data[:] = 1.0
        scores = X @ rng.normal(size=(1500, 4))
        scores = scores / scores.std() + [2, 1, 0, -1] + 0.3 * rng.gumbel(size=(1000, 4))
        y = scores.argmax(axis=1) if n_labels == 1 else (scores > 2).astype(int)
        model = OnnxSGDClassifier(loss=loss, random_state=0).fit(X[:400], y[:400])
        found, known = model.predict(X[400:]), y[400:]
        # as those of a constant
        most = y[:400].mean(axis=0) > 0.5 if n_labels > 1 else np.bincount(y[:400]).argmax()
        gains.append(np.mean(found == known) - np.mean(known == most))
    assert np.mean(gains) > least


def test_a_perceptron_knows_the_shares_of_the_classes():
    """With zeros as the first scores, whose loss is zero, the intercept would stay near zero."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 300))
    score = X[:, :5].sum(axis=1) / 5**0.5 + 0.3 * rng.normal(size=600)
    y = score > np.quantile(score, 0.9)
    model = OnnxSGDClassifier(loss="perceptron", random_state=0).fit(X[:300], y[:300])
    assert 0.03 < model.predict(X[300:]).mean() < 0.2
    assert balanced_accuracy_score(y[300:], model.predict(X[300:])) > 0.6


def test_a_perceptron_of_large_scores_is_trained_further():
    """Its loss, in proportion to its scores, is no reason to begin anew."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 10))
    y = X @ rng.normal(size=10) + rng.normal(size=500) > 0
    fitted = SGDClassifier(loss="perceptron", learning_rate="constant", eta0=50.0, random_state=0).fit(X, y)
    model = OnnxSGDClassifier(fitted, loss="perceptron", max_iter=1, tol=None, random_state=0).fit(X, y)
    assert np.corrcoef(model.coef_, fitted.coef_)[0, 1] > 0.95


@pytest.mark.filterwarnings("ignore:Training lowered the objective only")
@pytest.mark.parametrize("loss", ["huber", "absolute_error", "epsilon_insensitive", "log_cosh", "quantile"])
@pytest.mark.parametrize(("value", "count"), [(999999.0, 1), (-9999.0, 8), (1e6, 8)])
@pytest.mark.parametrize(
    "params",
    [{}, {"tol": None, "max_iter": 50}, {"early_stopping": True}, None],
    ids=["fit", "50", "early", "parts"],
)
def test_a_few_extreme_targets_and_a_robust_loss(loss, value, count, params):
    """They move neither the first prediction nor the unit of the rates."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 12))
    y = X @ rng.normal(size=12) + rng.normal(size=1200)
    given = y[:900].copy()
    given[rng.choice(900, count, replace=False)] = value
    model = OnnxSGDRegressor(loss=loss, random_state=0, **(params or {}))
    if params is None:
        for part in np.array_split(np.arange(900), 6):
            model.partial_fit(X[part], given[part])
    else:
        model.fit(X[:900], given)
    expected = Ridge().fit(X[:900], y[:900]).score(X[900:], y[900:])
    assert model.score(X[900:], y[900:]) > expected - 0.05


@pytest.mark.parametrize("n_columns", [20, 20_000], ids=["few columns", "many"])
@pytest.mark.parametrize("mean", [200.0, 10_000.0])
def test_a_sparse_column_of_large_mean_is_centred_exactly(n_columns, mean):
    """The differences of its products with the weight are left, whatever the form of the updates is."""
    rng = np.random.default_rng(0)
    rest = sparse.random(3000, n_columns, 5 / n_columns, "csr", random_state=0)
    column = rng.normal(size=(3000, 1))
    y = rest @ rng.normal(size=n_columns) + 2 * column[:, 0]
    found = []
    for table in (sparse.hstack([column, rest]), sparse.hstack([column + mean, rest])):
        table = sparse.csr_matrix(table, dtype=np.float32)
        found.append(
            OnnxSGDRegressor(random_state=0).fit(table[:2000], y[:2000]).score(table[2000:], y[2000:])
        )
    # mean and deviation of single precision
    assert found[1] == pytest.approx(found[0], abs=0.005)
    assert found[0] > 0.5


@pytest.mark.parametrize("one_against_rest", [False, True])
def test_a_given_classifier_keeps_its_accuracy_on_rows_of_its_kind(one_against_rest):
    """Its losses are those that its probabilities expect; 600 rows at large rates cost 0.02 and more."""
    changes = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        factors = rng.normal(size=(5600, 5))
        X = factors @ rng.normal(size=(5, 20)) + 0.1 * rng.normal(size=(5600, 20))
        y = (factors @ rng.normal(size=(5, 5)) + 2.0 * rng.gumbel(size=(5600, 5))).argmax(axis=1)
        linear = LogisticRegression(max_iter=1000)
        linear = OneVsRestClassifier(linear) if one_against_rest else linear
        given = make_pipeline(StandardScaler(), linear).fit(X[:2000], y[:2000])
        learner = OnnxSGDClassifier(given, random_state=0).partial_fit(X[2000:2600], y[2000:2600])
        losses = [log_loss(y[2600:], model.predict_proba(X[2600:])) for model in (given, learner)]
        changes.append(losses[1] - losses[0])
    assert np.mean(changes) < 0.004


@pytest.mark.parametrize("loss", ["squared_error", "huber"])
@pytest.mark.parametrize("n_rows", [32, 600])
def test_a_given_regression_keeps_its_signal_on_rows_of_its_kind(loss, n_rows):
    """Most of its loss is noise: large rates learned it, and R2 of the signal fell by 0.6 and more."""
    changes = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(4600, 20))
        signal = X @ rng.normal(size=20) / np.sqrt(20)
        y = signal + 3.0 * rng.normal(size=4600)
        given = make_pipeline(StandardScaler(), Ridge()).fit(X[:2000], y[:2000])
        learner = OnnxSGDRegressor(given, loss=loss, random_state=0)
        for start in range(2000, 2600, n_rows):
            part = slice(start, min(start + n_rows, 2600))
            learner.partial_fit(X[part], y[part])
        scores = [r2_score(signal[2600:], model.predict(X[2600:])) for model in (given, learner)]
        changes.append(scores[1] - scores[0])
    assert np.mean(changes) > -0.05


@pytest.mark.parametrize(("n_rows", "least"), [(8, 0.3), (50, 0.5)])
def test_a_given_regression_learns_sparse_rows(n_rows, least):
    """Their gradients agree little, so that a small rate would not grow."""
    rng = np.random.default_rng(0)
    X = sparse.random(4000, 1000, 0.02, "csr", random_state=0)
    y = X @ rng.normal(size=1000)
    y = y / y.std() + 0.5 * rng.normal(size=4000)
    given = Ridge().fit(X[:100], y[:100])
    learner = OnnxSGDRegressor(given, random_state=0)
    for start in range(100, 3000, n_rows):
        part = slice(start, min(start + n_rows, 3000))
        learner.partial_fit(X[part], y[part])
    assert given.score(X[3000:], y[3000:]) < 0.1
    assert learner.score(X[3000:], y[3000:]) > least


def test_a_given_classifier_that_is_wrong_learns_fast():
    """Labels have changed their names: its loss is many times a constant's."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 10))
    y = (X @ rng.normal(size=(10, 4))).argmax(axis=1)
    given = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[:1000], y[:1000])
    other = (y + 1) % 4
    learner = OnnxSGDClassifier(given, random_state=0).partial_fit(X[1000:1600], other[1000:1600])
    assert given.score(X[2000:], other[2000:]) < 0.05
    assert learner.score(X[2000:], other[2000:]) > 0.8


@pytest.mark.parametrize("learns", [OnnxSGDRegressor, OnnxSGDClassifier])
def test_raw_numbers_beside_codes_of_rare_categories_are_learned(learns):
    """Levels tell nothing: as wide as numbers, their codes cost 0.1 of R2 and of the accuracy."""
    gains = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        numbers, levels = rng.normal(size=(1100, 8)), rng.integers(0, 60, 1100)
        y = numbers @ rng.normal(size=8) / 3 + 0.5 * rng.normal(size=1100)
        X = np.hstack([numbers * 10.0 ** np.arange(8), levels[:, None] == np.arange(60)])
        if learns is OnnxSGDClassifier:
            y = (y > 0).astype(int)
        same = np.hstack([numbers, X[:, 8:]])
        solver = Ridge() if learns is OnnxSGDRegressor else LogisticRegression()
        best = solver.fit(same[:100], y[:100]).score(same[100:], y[100:])
        gains.append(learns(random_state=0).fit(X[:100], y[:100]).score(X[100:], y[100:]) - best)
    assert np.mean(gains) > -0.02
