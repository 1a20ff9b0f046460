"""Losses with a logarithmic link: predictions, starts, exports, and the range of targets."""

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from sklearn.base import clone
from sklearn.linear_model import GammaRegressor, PoissonRegressor, Ridge, TweedieRegressor
from sklearn.metrics import mean_tweedie_deviance
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDRegressor, describe_trainable, losses
from onnxsgd.exceptions import ParameterError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(1000, 4))
MEAN = np.exp(X @ [0.5, -0.3, 0.2, 0.0] + 1.5)
TARGETS = {
    "poisson": RNG.poisson(MEAN).astype(float),
    "gamma": RNG.gamma(2.0, MEAN / 2),
    "tweedie": RNG.poisson(MEAN) * RNG.gamma(2.0, 1.0, size=1000),
}
SOLVED = {"poisson": PoissonRegressor, "gamma": GammaRegressor, "tweedie": TweedieRegressor}
POWERS = {"poisson": {}, "gamma": {}, "tweedie": {"power": 1.5, "link": "log"}}


def solver(loss, **options):
    return SOLVED[loss](**POWERS[loss], **options)


def run(estimator, data):
    session = onnxruntime.InferenceSession(estimator.to_onnx().SerializeToString())
    (output,) = session.get_outputs()
    return output.name, session.run(None, {session.get_inputs()[0].name: data.astype(np.float32)})[0]


def deviance(loss, y, prediction):
    power = {"poisson": 1, "gamma": 2, "tweedie": 1.5}[loss]
    return mean_tweedie_deviance(y, prediction, power=power)


@pytest.mark.parametrize("loss", TARGETS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
def test_a_fit_gains_what_the_solver_gains(loss, scale):
    y = scale * TARGETS[loss]
    solved = solver(loss, alpha=1e-4, max_iter=1000, tol=1e-8).fit(X, y)
    learned = OnnxSGDRegressor(loss=loss, random_state=0).fit(X, y)
    best, constant = deviance(loss, y, solved.predict(X)), deviance(loss, y, np.full(1000, y.mean()))
    assert deviance(loss, y, learned.predict(X)) < best + 0.005 * (constant - best)
    np.testing.assert_allclose(learned.coef_, solved.coef_, atol=0.06)
    assert learned.predict(X).min() > 0


@pytest.mark.parametrize("loss", TARGETS)
def test_a_fitted_model_continues_from_its_weights(loss):
    model = solver(loss).fit(X[:200], TARGETS[loss][:200])
    before = OnnxSGDRegressor(model, loss=loss)
    np.testing.assert_allclose(before.predict(X), model.predict(X), rtol=1e-5)
    np.testing.assert_allclose(before.coef_, model.coef_, rtol=1e-5)
    after = OnnxSGDRegressor(model, loss=loss, random_state=0).fit(X, TARGETS[loss])
    assert after._learner.link == "exp"
    name, found = run(after, X)
    assert name == "variable"
    np.testing.assert_allclose(found.ravel(), after.predict(X), rtol=1e-5)


def test_partial_fit_approaches_the_solver():
    """In the mean of eight draws; a standard error of a coefficient is 0.022."""
    differences = []
    for draw in range(8):
        rng = np.random.default_rng(draw)
        X = rng.normal(size=(1000, 4))
        y = rng.poisson(np.exp(X @ [0.5, -0.3, 0.2, 0.0] + 0.5)).astype(float)
        solved = PoissonRegressor(alpha=1e-4).fit(X, y)
        stream = OnnxSGDRegressor(loss="poisson", random_state=0)
        for rows in np.array_split(np.arange(1000), 20):
            stream.partial_fit(X[rows], y[rows])
        differences.append(stream.coef_ - solved.coef_)
    assert np.sqrt(np.mean(np.square(differences))) < 0.04


GRAPH = """<ir_version: 8, opset_import: ["": 17]>
    line (float[N, 4] x) => (float[N, 1] y)
    <float[4, 1] coef = {0.1, 0, 0, 0}, float[1] intercept = {0.5}>
    { z = MatMul(x, coef) RAW = Add(z, intercept) END }"""
ENDS = {
    "exponential": ("raw", "y = Exp(raw)"),
    "exponential and copy": ("raw", "e = Exp(raw) y = Identity(e)"),
    "logarithm": ("y", ""),
}


@pytest.mark.parametrize("end", ENDS)
def test_graphs_with_and_without_the_exponential(end):
    raw, tail = ENDS[end]
    graph = onnx.parser.parse_model(GRAPH.replace("RAW", raw).replace("END", tail))
    learner = OnnxSGDRegressor(graph, loss="poisson", random_state=0)
    expected = np.exp(0.1 * X[:, 0] + 0.5)
    np.testing.assert_allclose(learner.predict(X), expected, rtol=1e-5)
    learner.fit(X, TARGETS["poisson"])
    name, found = run(learner, X)
    assert name == "y"
    np.testing.assert_allclose(found.ravel(), learner.predict(X), rtol=1e-5)
    assert learner.score(X, TARGETS["poisson"]) > 0.5


def test_the_exponential_belongs_to_the_model_for_other_losses():
    graph = onnx.parser.parse_model(GRAPH.replace("RAW", "raw").replace("END", "y = Exp(raw)"))
    learner = OnnxSGDRegressor(graph, random_state=0).fit(X, TARGETS["poisson"])
    name, found = run(learner, X)
    np.testing.assert_allclose(found.ravel(), learner.predict(X), rtol=1e-5)
    assert learner._learner.score == name == "y"


def test_several_targets_have_their_own_means():
    y = np.column_stack([TARGETS["poisson"], 1000 * TARGETS["poisson"]])
    learner = OnnxSGDRegressor(loss="poisson", random_state=0).fit(X, y)
    assert learner.predict(X).shape == (1000, 2)
    np.testing.assert_allclose(np.diff(learner.intercept_), np.log(1000), atol=0.02)
    np.testing.assert_allclose(*learner.coef_, atol=0.02)
    np.testing.assert_allclose(run(learner, X)[1], learner.predict(X), rtol=1e-5)


def test_early_stopping_scores_predictions():
    y = TARGETS["poisson"]
    learner = OnnxSGDRegressor(loss="poisson", early_stopping=True, random_state=0)
    learner.fit(X[:800], y[:800], X_val=X[800:], y_val=y[800:])
    best = max(learner.validation_scores_)
    assert best == pytest.approx(learner.score(X[800:], y[800:]), abs=1e-6)
    assert best > 0.5


def test_sample_weights_count_samples():
    weight = RNG.integers(0, 3, size=1000)
    # long fits: in short ones the order of the samples moves coefficients by 0.02
    y, options = TARGETS["gamma"], {"loss": "gamma", "random_state": 0, "max_iter": 200, "tol": None}
    weighted = OnnxSGDRegressor(**options).fit(X, y, sample_weight=weight)
    repeated = OnnxSGDRegressor(**options).fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=0.015)


def test_a_constant_target_of_zeros_is_learned():
    learner = OnnxSGDRegressor(loss="poisson", random_state=0).fit(X, np.zeros(1000))
    assert 0 <= learner.predict(X).max() < 1e-3


def test_a_search_over_losses_and_their_exports_in_a_pipeline():
    pipeline = make_pipeline(StandardScaler(), OnnxSGDRegressor(random_state=0, max_iter=5, tol=None))
    grid = {"onnxsgdregressor__loss": ["squared_error", "poisson", losses.Tweedie(power=1.2)]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, TARGETS["poisson"])
    assert search.best_params_["onnxsgdregressor__loss"] != "squared_error"
    assert clone(search.best_estimator_).get_params()["onnxsgdregressor__loss"]


COUNTS = TARGETS["poisson"]
REFUSED = {
    "below the range": ({"loss": "poisson"}, COUNTS - 5, r"y holds -5: .*Poisson\(\).* >= 0"),
    "zero": ({"loss": "gamma"}, np.zeros(1000), r"y holds 0: .*Gamma\(\).* > 0"),
    "of another link": ({"model": Ridge(), "loss": "poisson"}, COUNTS, r"Ridge predicts the target"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    options, y, message = REFUSED[case]
    with pytest.raises(ParameterError, match=message):
        OnnxSGDRegressor(**options).fit(X, y)


def test_a_stream_cannot_change_its_link():
    y = TARGETS["poisson"]
    stream = OnnxSGDRegressor(loss="poisson").partial_fit(X[:100], y[:100])
    stream.set_params(loss="tweedie").partial_fit(X[100:200], y[100:200])
    stream.set_params(loss="squared_error")
    with pytest.raises(ParameterError, match="the link of the loss .* from 'log' to 'identity'"):
        stream.partial_fit(X[:100], y[:100])


def test_the_report_of_the_weights_is_that_of_the_model():
    model = PoissonRegressor().fit(X, TARGETS["poisson"])
    assert describe_trainable(model).trained == ["coef", "intercept"]
