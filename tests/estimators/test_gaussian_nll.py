"""Means and variances: against an optimum of scipy in float64, in every kind of model and call."""

import copy
import pickle
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from scipy import sparse
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDRegressor, losses
from onnxsgd.adapters import LoRA
from onnxsgd.estimators.likelihood_score import score_normal
from onnxsgd.exceptions import GraphError, ParameterError

RNG = np.random.default_rng(0)
SCALE, CENTRE = np.array([1.0, 10, 0.1, 1, 100]), np.array([0.0, 5, 0, 1, 1000])
Z = RNG.normal(size=(1500, 5))
X = Z * SCALE + CENTRE
#: The scatter depends on the first and the third column.
Y = 50 + Z @ [5, -3, 0, 1, 2] + RNG.normal(size=1500) * np.exp((1 + Z @ [1, 0, 0.5, 0, 0]) / 2)


def likelihood(y, mean, std, weight=None):
    return np.average(np.log(std) + ((y - mean) / std) ** 2 / 2, weights=weight)


def optimum(X, y, weight=None):
    """Return the least loss of linear means and log-variances, without a penalty."""
    weight = np.ones(len(y)) if weight is None else weight
    A, scale = np.c_[(X - X.mean(axis=0)) / X.std(axis=0), np.ones(len(X))], y.std()
    t, share, d = (y - y.mean()) / scale, weight / weight.sum(), A.shape[1]

    def objective(p):
        r, s = A @ p[:d] - t, A @ p[d:]
        precision = np.exp(-s)
        slope = np.r_[A.T @ (share * r * precision), A.T @ (share * (1 - r**2 * precision)) / 2]
        return share @ (s + r**2 * precision) / 2, slope

    found = minimize(objective, np.zeros(2 * d), jac=True, method="L-BFGS-B", options={"maxiter": 5000})
    return found.fun + np.log(scale)


def run(graph, x):
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})


def learner(model=None, **options):
    return OnnxSGDRegressor(model, **{"loss": "gaussian_nll", "random_state": 0} | options)


def network(X, y, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mlp = MLPRegressor(hidden_layer_sizes=(20,), max_iter=30, random_state=0, **options)
        return make_pipeline(StandardScaler(), mlp).fit(X, y)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("model", [None, "Ridge"])
@pytest.mark.parametrize("weighted", [False, True])
def test_auto_finds_the_optimum_in_any_unit_of_the_target(unit, model, weighted):
    weight = RNG.uniform(0, 3, size=len(Y)) if weighted else None
    source = None if model is None else Ridge().fit(X, unit * Y)
    found = learner(source, penalty=None, dtype="float64").fit(X, unit * Y, sample_weight=weight)
    mean, std = found.predict(X, return_std=True)
    # a constant loses 1.4 nats, equal variances 0.25
    assert likelihood(unit * Y, mean, std, weight) < optimum(X, unit * Y, weight) + 0.01
    if model is None:
        log_variance = (X - CENTRE) @ found.coef_[1]
        np.testing.assert_allclose(found.coef_[1] * SCALE, [1, 0, 0.5, 0, 0], atol=0.15)
        assert np.corrcoef(log_variance, np.log(std))[0, 1] > 0.9999


@pytest.mark.parametrize(("signal", "excess"), [(10, 0.01), (100, 0.03), (1000, 0.15)])
def test_little_noise_beside_the_signal(signal, excess):
    """The variance falls by many orders from that of the target to that of the noise: here to 1e-6 of it.

    The median of three fits: they stop where one epoch is not better than another, some of them early.
    """
    y = signal * Z[:, 1] + np.random.default_rng(3).normal(size=1500) * np.exp(Z[:, 0] / 2)
    fits = [learner(penalty=None, random_state=seed).fit(X, y) for seed in range(3)]
    found = [likelihood(y, *fit.predict(X, return_std=True)) for fit in fits]
    assert np.median(found) < optimum(X, y) + excess


def test_diabetes():
    X, y = load_diabetes(return_X_y=True)
    found = learner(penalty=None).fit(X, y)
    assert likelihood(y, *found.predict(X, return_std=True)) < optimum(X, y) + 0.01
    assert found.score(X, y) > 0.5


def test_predictions_and_shapes():
    found = learner().fit(X, Y)
    mean, std = found.predict(X, return_std=True)
    assert mean.shape == std.shape == Y.shape
    np.testing.assert_array_equal(found.predict(X), mean)
    np.testing.assert_allclose(mean, X @ found.coef_[0] + found.intercept_[0], rtol=1e-4)
    np.testing.assert_allclose(np.log(std), (X @ found.coef_[1] + found.intercept_[1]) / 2, atol=1e-4)
    assert found.score(X, Y) == r2_score(Y, mean)
    assert (found.coef_.shape, found.intercept_.shape) == ((2, 5), (2,))
    column = learner().fit(X, Y[:, None])
    assert column.predict(X, return_std=True)[1].shape == (1500, 1)


def test_several_targets():
    y = np.c_[Y, 1000 * (Z[:, 0] + RNG.normal(size=1500))]
    found = learner(penalty=None).fit(X, y)
    mean, std = found.predict(X, return_std=True)
    assert mean.shape == std.shape == y.shape
    assert found.coef_.shape == (4, 5)
    for k in range(2):
        assert likelihood(y[:, k], mean[:, k], std[:, k]) < optimum(X, y[:, k]) + 0.03


@pytest.mark.parametrize("n_targets", [1, 2])
@pytest.mark.parametrize("make", [lambda X, y: Ridge().fit(X, y), network], ids=["Ridge", "mlp"])
def test_a_fitted_model_starts_from_its_predictions(make, n_targets):
    y = np.c_[Y, 3 * Y + Z[:, 2]][:, :n_targets] if n_targets > 1 else Y
    weight = RNG.uniform(0.5, 2, size=1500)
    model = make(X, y)
    still = learner(model, learning_rate="constant", eta0=1e-30, max_iter=1, tol=None)
    still.fit(X, y, sample_weight=weight)
    mean, std = still.predict(X, return_std=True)
    np.testing.assert_allclose(mean, model.predict(X), rtol=1e-4)
    variance = np.average((y - model.predict(X)) ** 2, axis=0, weights=weight)
    np.testing.assert_allclose(std, np.broadcast_to(np.sqrt(variance), std.shape), rtol=1e-4)
    tuned = learner(model).fit(X, y)
    assert tuned.loss_curve_[-1] < still.loss_curve_[0] - 0.1


@pytest.mark.parametrize("n_rows", [8, 33, 250])
def test_a_stream_learns_means_and_variances(n_rows):
    found = learner(penalty=None)
    for _ in range(4):
        for start in range(0, 1500, n_rows):
            found.partial_fit(X[start : start + n_rows], Y[start : start + n_rows])
    assert likelihood(Y, *found.predict(X, return_std=True)) < optimum(X, Y) + 0.05


@pytest.mark.parametrize("n_rows", [1, 2, 3])
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_a_stream_begins_with_few_samples(n_rows, unit):
    """The variance of a single sample is 0, and that of two may be far too small."""
    found, y = learner(penalty=None), unit * Y
    for start in range(0, 1500, n_rows):
        part = slice(start, start + n_rows)
        found.partial_fit(X[part], y[part])
        if not start:
            mean, std = found.predict(X[:5], return_std=True)
            assert (std > 0.1 * np.abs(y[0] - mean).max()).all()
            assert (std > 0.01 * unit).all()
    assert likelihood(y / unit, *(a / unit for a in found.predict(X, return_std=True))) < optimum(X, Y) + 0.3


def test_sparse_data():
    table = np.where(RNG.random((800, 40)) < 0.1, RNG.normal(size=(800, 40)), 0)
    y = table @ np.arange(40.0) + 30 * RNG.normal(size=800) * np.exp(table[:, 0])
    dense = learner(penalty=None).fit(table, y)
    found = learner(penalty=None).fit(sparse.csr_matrix(table), y)
    least = optimum(table, y)
    # a constant loses 0.8
    assert likelihood(y, *dense.predict(table, return_std=True)) < least + 0.05
    assert likelihood(y, *found.predict(sparse.csr_matrix(table), return_std=True)) < least + 0.05


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": "constant", "eta0": 0.01, "max_iter": 50},
        {"learning_rate": "constant", "eta0": 0.01, "max_iter": 50, "optimizer": "adam"},
        {"early_stopping": True},
        {"average": 10, "learning_rate": "invscaling"},
        {"dtype": "float64"},
        {"batch_size": 1, "learning_rate": "invscaling", "max_iter": 5, "tol": None},
        pytest.param({"engine": "onnxruntime-training"}, marks=pytest.mark.native),
    ],
    ids=str,
)
def test_other_ways_of_training(options):
    found = learner(**options).fit(Z, (Y - 50) / Y.std())
    assert likelihood((Y - 50) / Y.std(), *found.predict(Z, return_std=True)) < np.log(1) + 0.1


@pytest.mark.filterwarnings("ignore:Training did not lower")
def test_exports_have_two_outputs_and_train_again():
    found = learner(Ridge().fit(X[:300], Y[:300])).fit(X, Y)
    graph = found.to_onnx()
    onnx.checker.check_model(graph, full_check=True)
    assert [value.name for value in graph.graph.output] == ["variable", "std"]
    x = X.astype(np.float32)
    mean, std = run(graph, x)
    expected = found.predict(x, return_std=True)
    np.testing.assert_allclose(mean.ravel(), expected[0], rtol=1e-5)
    np.testing.assert_allclose(std.ravel(), expected[1], rtol=1e-5)
    again = learner(graph, max_iter=3, tol=None)
    np.testing.assert_allclose(again.predict(x, return_std=True), expected, rtol=1e-5)
    assert again.fit(X, Y).predict(x, return_std=True)[1].shape == (1500,)
    for same in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        np.testing.assert_array_equal(same.predict(x, return_std=True), expected)


def test_a_pipeline_for_skl2onnx_ends_in_the_means():
    to_onnx = pytest.importorskip("skl2onnx").to_onnx
    pipeline = make_pipeline(StandardScaler(), learner()).fit(X, Y)
    graph = to_onnx(pipeline, X[:1].astype(np.float32))
    (mean,) = run(graph, X.astype(np.float32))
    np.testing.assert_allclose(mean.ravel(), pipeline.predict(X), rtol=1e-4)


@pytest.mark.filterwarnings("ignore:Training did not lower")
def test_searches_clones_and_continued_fits():
    search = GridSearchCV(
        learner(max_iter=20, tol=None), {"loss": ["gaussian_nll", losses.GaussianNLL()]}, cv=3
    )
    assert search.fit(X, Y).best_score_ > 0.8
    found = learner(Ridge().fit(X, Y), warm_start=True, max_iter=20, tol=None).fit(X, Y)
    before = found.loss_curve_[-1]
    assert found.fit(X, Y).loss_curve_[-1] < before + 0.01
    assert clone(found).fit(X, Y).score(X, Y) > 0.8


def test_weights_set_before_a_continued_fit_are_those_it_starts_from():
    source = Ridge().fit(X, Y)
    found = learner(source, warm_start=True, learning_rate="constant", eta0=1e-30, max_iter=1, tol=None)
    (coef,) = (name for name, array in found.get_weights().items() if array.size == 5)
    found.set_weights({coef: np.zeros_like(found.get_weights()[coef])})
    found.fit(X, Y)
    np.testing.assert_allclose(found.predict(X), source.intercept_, rtol=1e-5)
    assert found.get_weights()[coef].size == 10


def test_a_model_before_the_first_fit_predicts_means():
    source = Ridge().fit(X, np.c_[Y, -Y])
    np.testing.assert_allclose(learner(source).predict(X), source.predict(X), rtol=1e-4)
    assert [value.name for value in learner(source).to_onnx().graph.output] == ["variable"]
    with pytest.raises(ParameterError, match=r"return_std=True needs a fit: .* 2 output\(s\)"):
        learner(source).predict(X, return_std=True)


def test_a_new_layer_has_a_column_for_each_number():
    backbone = learner(network(X, Y)).to_onnx()
    hidden = next(node.output[0] for node in backbone.graph.node if node.op_type == "Relu")
    found = learner(backbone, output=hidden, head="linear").fit(X, Y)
    assert found.get_weights()["coef"].shape == (20, 2)
    # a constant loses 1.4
    assert likelihood(Y, *found.predict(X, return_std=True)) < optimum(X, Y) + 0.5


def test_a_graph_of_half_precision():
    half = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float16[N, 5] x) => (float16[N, 1] z)'
        "{ z = Gemm(x, w, b) }"
    )
    for name, array in [("w", np.float16([[5], [-3], [0], [1], [2]])), ("b", np.float16([50]))]:
        half.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    found = learner(half).fit(Z, Y)
    assert likelihood(Y, *found.predict(Z, return_std=True)) < optimum(X, Y) + 0.02
    graph = found.to_onnx()
    assert {entry.data_type for entry in graph.graph.initializer} >= {onnx.TensorProto.FLOAT16}
    mean, std = run(graph, Z.astype(np.float16))
    assert likelihood(Y, mean.ravel().astype(float), std.ravel().astype(float)) < optimum(X, Y) + 0.05


def layers(model):
    """Name the weights of the hidden layer, and coefficients and intercepts of the last one."""
    shapes = {name: array.shape for name, array in learner(model).get_weights().items()}
    hidden = next(name for name, shape in shapes.items() if shape == (5, 20))
    return hidden, *(name for size in ((20, 1), (1, 1)) for name in shapes if shapes[name] == size)


@pytest.mark.parametrize("loss", ["gaussian_nll", losses.Quantile([0.1, 0.9])])
def test_a_last_layer_that_is_frozen_or_adapted_gets_no_columns(loss):
    model = network(X, Y)
    hidden, coef, intercept = layers(model)
    for options in ({"trainable": [hidden]}, {"adapter": LoRA(2)}):
        with pytest.raises(
            ParameterError, match=rf"not trained: name \['{coef}', '{intercept}'\] in trainable"
        ):
            learner(model, loss=loss, **options).fit(X, Y)
    line, bell = Ridge().fit(X, Y), {"loss": loss, "adapter": LoRA(2, targets="*")}
    for source in (model, line):
        with pytest.raises(ParameterError, match=r"has an adapter beside '.*': leave it out of targets"):
            learner(source, **bell).fit(X, Y)
    headed = learner(line, head="linear", max_iter=5, tol=None, **bell).fit(X, Y)
    assert np.ptp(headed.predict(X)) > 0


def test_an_intercept_of_the_last_layer_learns_one_variance():
    model = network(X, Y)
    hidden, _, intercept = layers(model)
    found = learner(model, trainable=[hidden, intercept]).fit(X, Y)
    mean, std = found.predict(X, return_std=True)
    assert np.ptp(std) == 0
    np.testing.assert_allclose(std[0], np.std(Y - mean), rtol=0.05)


def test_adapters_before_the_last_layer_are_trained():
    model = network(X, Y)
    hidden, *last = layers(model)
    found = learner(model, adapter=LoRA(rank=2, targets=[hidden]), trainable=last).fit(X, Y)
    mean, std = found.predict(X, return_std=True)
    residual = Y - model.predict(X)
    # the variance depends on the data
    assert likelihood(Y, mean, std) < likelihood(Y, model.predict(X), np.std(residual)) - 0.1
    assert np.corrcoef(np.log(std), Z @ [1, 0, 0.5, 0, 0])[0, 1] > 0.8


@pytest.mark.filterwarnings("ignore:Training did not lower")
def test_extreme_targets():
    constant = learner(max_iter=20, tol=None).fit(Z, np.full(1500, 7.0))
    mean, std = constant.predict(Z, return_std=True)
    np.testing.assert_allclose(mean, 7.0, rtol=1e-3)
    assert np.isfinite(std).all()
    assert std.max() < 0.1
    exact = learner().fit(Z, Z @ [1.0, 2, 3, 4, 5])
    assert exact.score(Z, Z @ [1.0, 2, 3, 4, 5]) > 0.99
    assert np.isfinite(exact.predict(1e4 * Z, return_std=True)).all()


def wide_graph(columns):
    return learner(loss="squared_error").fit(Z, np.tile(Y[:, None], (1, columns))).to_onnx()


REFUSED = {
    "odd width": (
        lambda: learner(wide_graph(3)).fit(Z, Y),
        GraphError,
        r"predicts 3 output\(s\) and y has 1, each as 2 outputs of the graph: choose a tensor of that width",
    ),
    "no last layer": (
        lambda: (
            learner(wide_graph(1), output="variable", trainable=None)
            .set_params(
                model=onnx.compose.merge_models(
                    onnx.compose.add_prefix(wide_graph(1), "a/"),
                    onnx.parser.parse_model(
                        '<ir_version: 9, opset_import: ["": 18]> g (float[N, 1] x) => (float[N, 1] z)'
                        "{ z = Tanh(x) }"
                    ),
                    [("a/variable", "x")],
                ),
                output=None,
            )
            .fit(Z, Y)
        ),
        GraphError,
        r"predicts 1 output\(s\) and y has 1, each as 2 outputs of the graph",
    ),
    "another loss": (
        lambda: learner(loss="huber").fit(Z, Y).predict(Z, return_std=True),
        ParameterError,
        r"return_std=True needs loss='gaussian_nll'.*'huber'",
    ),
    "another number of targets": (
        lambda: learner().fit(Z, Y).partial_fit(Z, np.c_[Y, Y]),
        ParameterError,
        r"y has shape \(1500, 2\); in the first call it had shape \('n_samples',\)",
    ),
    "another loss after the fit": (
        lambda: learner(loss="squared_error").fit(Z, Y).set_params(loss="gaussian_nll").predict(Z),
        ParameterError,
        r"loss='gaussian_nll' was set after the fit, .* 1 raw prediction\(s\) with the link 'identity'",
    ),
    "an export with another loss": (
        lambda: learner().fit(Z, Y).set_params(loss="poisson").to_onnx(),
        ParameterError,
        r"loss='poisson' was set after the fit, .* 2 raw prediction\(s\) with the link 'normal'",
    ),
    "a score with other levels": (
        lambda: (
            learner(loss=losses.Quantile([0.1, 0.5, 0.7, 0.9]))
            .fit(Z, Y)
            .set_params(loss=losses.Quantile([0.1, 0.9]))
            .score(Z, Y)
        ),
        ParameterError,
        r"was set after the fit, .* 4 raw prediction\(s\) with the link 'sorted'",
    ),
    "another link": (
        lambda: learner().fit(Z, Y).set_params(loss="squared_error").partial_fit(Z, Y),
        ParameterError,
        r"the link of the loss .* from 'normal' to 'identity'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    act, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        act()


@pytest.mark.parametrize("learning_rate", ["auto", "constant"])
@pytest.mark.parametrize("n_targets", [1, 2])
def test_early_stopping_maximises_the_likelihood(learning_rate, n_targets):
    y = np.stack([Y, -Y], axis=1)[:, :n_targets]
    model = OnnxSGDRegressor(
        loss="gaussian_nll", learning_rate=learning_rate, early_stopping=True, max_iter=20,
        n_iter_no_change=20, random_state=0,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(Z[:1000], y[:1000], X_val=Z[1000:], y_val=y[1000:])
    mean, std = (array.reshape(500, -1) for array in model.predict(Z[1000:], return_std=True))
    found = norm.logpdf(y[1000:], mean, std).mean()
    assert found == pytest.approx(max(model.validation_scores_), rel=1e-5)
    assert model.score(Z[1000:], y[1000:]) == pytest.approx(r2_score(y[1000:], mean))


def test_the_likelihood_is_weighted():
    raw, weight = np.array([[1.0, 0.0], [2.0, 100.0]]), np.array([3.0, 1.0])
    # logarithms of variances end at 60
    exact = (3 * norm.logpdf(1.5, 1, 1) + norm.logpdf(0.5, 2, np.exp(30))) / 4
    assert score_normal(np.array([[1.5], [0.5]]), raw, weight) == pytest.approx(exact, rel=1e-12)


def test_networks_behind_an_imputer():
    """The number of columns behind it is known, so that those of the variances can be added."""
    gaps = np.where(np.arange(len(X))[:, None] % 7 == np.arange(5), np.nan, X)
    network = MLPRegressor(
        hidden_layer_sizes=(16,), learning_rate_init=0.02, early_stopping=True, random_state=0
    )
    model = make_pipeline(SimpleImputer(), StandardScaler(), network).fit(gaps, Y)
    fitted = OnnxSGDRegressor(model, loss="gaussian_nll", random_state=0).fit(gaps, Y)
    mean, std = fitted.predict(gaps, return_std=True)
    constant = likelihood(Y, Y.mean(), Y.std())
    assert likelihood(Y, mean, std) < constant - 0.3
    assert fitted.score(gaps, Y) > model.score(gaps, Y)


@pytest.mark.parametrize(("n_rows", "n_columns", "most"), [(20, 3, 2.1), (30, 10, 3.5), (60, 10, 2.1)])
def test_few_rows_have_no_tiny_variances(n_rows, n_columns, most):
    """The true density has 1.42; where all is learned 4.2, 106 and 3.0."""
    losses_of_sets = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        table = rng.normal(size=(n_rows + 1000, n_columns))
        target = table @ rng.choice([-1.0, 1.0], n_columns) + rng.normal(size=len(table))
        model = OnnxSGDRegressor(loss="gaussian_nll", random_state=0).fit(table[:n_rows], target[:n_rows])
        means, deviations = model.predict(table[n_rows:], return_std=True)
        losses_of_sets.append(-np.mean(norm.logpdf(target[n_rows:], means, deviations)))
    assert np.median(losses_of_sets) < most
