"""Several quantiles at once: against linear programs of scikit-learn, in every kind of model and call."""

import copy
import pickle

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression, QuantileRegressor, Ridge
from sklearn.metrics import d2_pinball_score, mean_pinball_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDRegressor, add_loss_output, losses
from onnxsgd.exceptions import GraphError, ParameterError, ParameterTypeError
from onnxsgd.testing import check_gradients

RNG = np.random.default_rng(0)
LEVELS = (0.1, 0.5, 0.9)
Z = RNG.normal(size=(1200, 4))
X = Z * [1, 10, 0.1, 100] + [0, 5, 0, 1000]
Y = 50 + Z @ [5, -3, 0, 1] + RNG.normal(size=1200) * np.exp(Z[:, 0] / 2)
DIABETES = load_diabetes(return_X_y=True)


def learner(model=None, **options):
    return OnnxSGDRegressor(model, **{"loss": losses.Quantile(LEVELS), "random_state": 0} | options)


def pinball(y, predictions, levels=LEVELS, weight=None):
    """Return the loss of each level."""
    pairs = zip(predictions.T, levels, strict=True)
    return np.array([mean_pinball_loss(y, p, alpha=level, sample_weight=weight) for p, level in pairs])


def optimum(X, y, weight=None):
    """Return the least loss of each level, by linear programs."""
    fitted = (QuantileRegressor(quantile=q, alpha=0).fit(X, y, sample_weight=weight) for q in LEVELS)
    return pinball(y, np.transpose([model.predict(X) for model in fitted]), weight=weight)


@pytest.mark.parametrize("data", ["heteroscedastic", "diabetes", "tiny", "huge"])
@pytest.mark.parametrize("model", [None, LinearRegression])
def test_auto_finds_the_optimum(data, model):
    unit = {"tiny": 1e-6, "huge": 1e6}.get(data, 1.0)
    X_, y = DIABETES if data == "diabetes" else (X, Y)
    source = None if model is None else model().fit(X_, unit * y)
    found = learner(source, penalty=None).fit(X_, unit * y).predict(X_) / unit
    assert (pinball(y, found) < 1.05 * optimum(X_, y)).all()
    np.testing.assert_allclose((y[:, None] <= found).mean(axis=0), LEVELS, atol=0.03)


def test_weights_of_samples():
    weight = RNG.integers(0, 4, size=1200).astype(float)
    found = learner(penalty=None).fit(X, Y, sample_weight=weight).predict(X)
    assert (pinball(Y, found, weight=weight) < 1.03 * optimum(X, Y, weight)).all()


def test_columns_do_not_cross():
    loss = losses.Quantile([0.4, 0.5, 0.6])
    few = learner(penalty=None, tol=None, max_iter=60, loss=loss).fit(X[:40], Y[:40])
    far = 20 * Z * X.std(axis=0) + X.mean(axis=0)
    raw = far @ few.coef_.T + few.intercept_
    assert (np.diff(raw, axis=1) < 0).any()
    found = few.predict(far)
    assert (np.diff(found, axis=1) >= 0).all()
    np.testing.assert_allclose(found, np.sort(raw, axis=1), rtol=1e-3, atol=1e-2)


@settings(deadline=None, max_examples=50)
@given(
    y=st.floats(-5, 5),
    raw=st.lists(st.floats(-5, 5), min_size=3, max_size=3),
)
def test_sorted_predictions_never_lose_more(y, raw):
    """Why sorting is the way to predictions that do not cross (Chernozhukov et al.)."""
    raw = np.array([raw])
    assert pinball([y], np.sort(raw, axis=1)).sum() <= pinball([y], raw).sum() + 1e-12


def test_shapes_and_scores():
    weight = RNG.uniform(0, 2, size=1200)
    found = learner().fit(X, Y)
    p = found.predict(X)
    assert (p.shape, found.coef_.shape, found.intercept_.shape) == ((1200, 3), (3, 4), (3,))
    for given_ in (None, weight):
        scores = [d2_pinball_score(Y, p[:, k], alpha=LEVELS[k], sample_weight=given_) for k in range(3)]
        assert found.score(X, Y, sample_weight=given_) == pytest.approx(np.mean(scores))
    constant = learner(max_iter=1, tol=None, learning_rate="constant", eta0=1e-30).fit(0 * X, Y)
    constant.set_weights({"intercept": np.quantile(Y, LEVELS)})
    assert constant.score(0 * X, Y) == pytest.approx(0, abs=1e-5)
    assert learner().fit(X, Y[:, None]).predict(X).shape == (1200, 3)
    stopped = learner(early_stopping=True).fit(X, Y, X_val=X[:300], y_val=Y[:300])
    assert max(stopped.validation_scores_) == pytest.approx(stopped.score(X[:300], Y[:300]), abs=1e-4)
    # one level is a number, as before
    assert learner(loss=losses.Quantile(0.9)).fit(X, Y).predict(X).shape == (1200,)


def test_a_fitted_model_starts_from_quantiles_of_its_residuals():
    model = Ridge().fit(X, Y)
    weight = RNG.integers(1, 4, size=1200)
    still = learner(model, learning_rate="constant", eta0=1e-30, max_iter=1, tol=None)
    offsets = still.fit(X, Y, sample_weight=weight).predict(X) - model.predict(X)[:, None]
    residuals = np.repeat(Y - model.predict(X), weight)
    expected = np.quantile(residuals, LEVELS, method="inverted_cdf")
    np.testing.assert_allclose(offsets, np.broadcast_to(expected, offsets.shape), atol=1e-3)


def test_a_stream_and_sparse_data():
    found = learner(penalty=None)
    for _ in range(4):
        for start in range(0, 1200, 100):
            found.partial_fit(X[start : start + 100], Y[start : start + 100])
    assert (pinball(Y, found.predict(X)) < 1.15 * optimum(X, Y)).all()
    table = sparse.random(800, 60, 0.1, format="csr", random_state=0)
    y = table @ np.arange(60.0) + 10 * RNG.normal(size=800)
    p = learner(penalty=None).fit(table, y).predict(table)
    assert pinball(y, p).sum() < 1.15 * optimum(table.toarray(), y).sum()


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": "invscaling", "eta0": 0.3, "max_iter": 100, "tol": None},
        {"learning_rate": "constant", "eta0": 0.01, "max_iter": 60, "tol": None, "optimizer": "adam"},
        {"dtype": "float64"},
        pytest.param({"engine": "onnxruntime-training"}, marks=pytest.mark.native),
    ],
    ids=str,
)
def test_other_ways_of_training(options):
    y = (Y - Y.mean()) / Y.std()
    assert (pinball(y, learner(**options).fit(Z, y).predict(Z)) < 1.1 * optimum(Z, y)).all()


def run(graph, x):
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})


@pytest.mark.filterwarnings("ignore:Training did not lower")
def test_exports_are_sorted_and_train_again():
    found = learner(Ridge().fit(X, Y), penalty=None).fit(X, Y)
    far = (20 * X).astype(np.float32)
    graph = found.to_onnx()
    onnx.checker.check_model(graph, full_check=True)
    expected = found.predict(far)
    np.testing.assert_allclose(run(graph, far)[0], expected, rtol=1e-5)
    again = learner(graph, max_iter=3, tol=None)
    np.testing.assert_allclose(again.predict(far), expected, rtol=1e-5)
    assert again.fit(X, Y).score(X, Y) > found.score(X, Y) - 0.01
    for same in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        np.testing.assert_array_equal(same.predict(far), expected)
    to_onnx = pytest.importorskip("skl2onnx").to_onnx
    pipeline = make_pipeline(StandardScaler(), learner()).fit(X, Y)
    narrow = X.astype(np.float32)
    np.testing.assert_allclose(run(to_onnx(pipeline, narrow[:1]), narrow)[0], pipeline.predict(X), rtol=1e-3)


def test_searches_and_clones():
    grid = {"loss__quantile": [[0.1, 0.9], (0.25, 0.5, 0.75), np.array([0.2, 0.8])]}
    search = GridSearchCV(learner(max_iter=10, tol=None), grid, cv=3, error_score="raise").fit(X, Y)
    assert search.best_score_ > 0.5
    again = clone(search.best_estimator_)
    assert again.loss == search.best_estimator_.loss
    assert type(again.loss.quantile[0]) is float
    # a number again: one column
    assert again.set_params(loss__quantile=0.5).fit(X, Y).predict(X).shape == (1200,)


def test_a_model_before_the_first_fit_predicts_as_it_does():
    model = Ridge().fit(X, Y)
    np.testing.assert_allclose(learner(model).predict(X), model.predict(X), rtol=1e-4)
    assert learner(model).score(X, Y) == pytest.approx(model.score(X, Y), abs=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients(dtype):
    assert check_gradients(losses.Quantile(LEVELS), dtype=dtype, random_state=0).n_checked == 15


@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_value_as_a_graph(scale):
    z = scale * RNG.normal(size=(20, 3))
    y, w = scale * RNG.normal(size=(20, 1)), RNG.uniform(size=20)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (double[N, 3] x) => (double[N, 3] f) { f = Identity(x) }'
    )
    graph = add_loss_output(model, losses.Quantile(LEVELS), weight_name="w")
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    loss = session.run(["loss"], {"x": z, "label": y, "w": w})[0].item()
    np.testing.assert_allclose(loss, w.sum() * pinball(y, z, weight=w).sum(), rtol=1e-12)
    with pytest.raises(GraphError, match=r"takes a table of 2 columns\."):
        add_loss_output(model, "quantile", quantile=[0.1, 0.9])


BAD = {
    "not ascending": ([0.9, 0.1], ParameterError),
    "twice the same": ([0.5, 0.5], ParameterError),
    "one": ([0.5], ParameterError),
    "none": ([], ParameterError),
    "out of range": ([0.0, 0.5], ParameterError),
    "no number": (["0.1", "0.9"], ParameterTypeError),
    "NaN": ([0.1, np.nan], ParameterError),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_levels(name):
    levels, error = BAD[name]
    with pytest.raises(error, match=r"quantile=\[.*\] is not accepted: .* ascending order, at least two"):
        losses.Quantile(levels)


def test_an_array_without_axes_is_no_number():
    with pytest.raises(
        ParameterTypeError, match=r"quantile=array\(0\.3\) is not accepted: it must be a number"
    ):
        losses.Quantile(np.array(0.3))
    assert losses.Quantile(np.array([0.3, 0.6])).quantile == (0.3, 0.6)


def test_refusals():
    with pytest.raises(ParameterError, match=r"y has 2 columns: several quantiles are predicted of one"):
        learner().fit(X, np.c_[Y, Y])
    with pytest.raises(GraphError, match=r"predicts 2 output\(s\) and y has 1, each as 3 outputs"):
        learner(learner(loss="squared_error").fit(X, np.c_[Y, Y]).to_onnx()).fit(X, Y)
    with pytest.raises(ParameterError, match=r"return_std=True needs loss='gaussian_nll'"):
        learner().fit(X, Y).predict(X, return_std=True)
    with pytest.raises(GraphError, match=r"predicts 3 output\(s\) and y has 1, each as 2 outputs"):
        learner().fit(X, Y).set_params(loss=losses.Quantile([0.1, 0.9])).partial_fit(X, Y)
