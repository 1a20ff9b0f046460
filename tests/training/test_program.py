"""The frozen part is computed once for each sample, if its results fit, and changes no number."""

import warnings

import numpy as np
import onnx
import pytest
from scipy import sparse
from scipy.special import expit, softmax
from scipy.stats import entropy
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPRegressor

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.engine import predict as inference
from onnxsgd.engine.step.linear_adam import LinearAdamRunner
from onnxsgd.runtime.cache import cache
from onnxsgd.training import program as _program
from onnxsgd.training.start import StartFinder

#: The trained layer reads a frozen feature, and the input itself.
_MODEL = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["" : 18]> agraph (float[N, 3] x) => (float[N, 1] y)
    <float[3, 4] frozen = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, float[7, 1] w = {1, 1, 1, 1, 1, 1, 1}>
    { m = MatMul (x, frozen)  f = Tanh (m)  a = Concat <axis = 1> (f, x)  y = MatMul (a, w) }"""
)
#: The same, where it reads the input beside the layer.
_BESIDE = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["" : 18]> agraph (float[N, 3] x) => (float[N, 1] y)
    <float[3, 3] frozen = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3, 1] w = {1, 1, 1}, float[3, 1] v = {1, 1, 1}>
    { m = MatMul (x, frozen)  f = Tanh (m)  a = MatMul (f, w)  b = MatMul (x, v)  y = Add (a, b) }"""
)
_X = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
_Y = np.sin(_X).sum(axis=1)


def _fit(model, names):
    """Fit by a named rate, where results that do not fit are computed in each step."""
    estimator = OnnxSGDRegressor(
        model, trainable=names, max_iter=4, tol=None, batch_size=8, random_state=0, learning_rate="invscaling"
    )
    return estimator.fit(_X, _Y).get_weights()


@pytest.mark.parametrize(
    ("model", "names"), [(_MODEL, ["w"]), (_BESIDE, ["w", "v"])], ids=["behind", "beside"]
)
def test_the_frozen_part_changes_no_number(model, names, monkeypatch):
    """It may be computed beforehand or in each step, also if the tail reads an input as well."""
    kept = _fit(model, names)
    monkeypatch.setattr(_program, "_KEPT_BYTES", 0)
    monkeypatch.setattr(_program, "_fits", lambda program, features: False)
    in_each_step = _fit(model, names)
    for name in names:
        np.testing.assert_allclose(kept[name], in_each_step[name], rtol=1e-5)


@pytest.mark.parametrize(
    "settings", [{"max_iter": 4}, {"max_iter": 20, "batch_size": 1}], ids=["steps", "loop"]
)
@pytest.mark.parametrize(
    ("model", "names"), [(_MODEL, ["w"]), (_BESIDE, ["w", "v"])], ids=["behind", "beside"]
)
def test_results_of_each_batch_are_standardised_as_stored_ones_are(model, names, settings, monkeypatch):
    """With results of a step, which are not standardised, weights differ by 0.1 and more."""
    estimator = OnnxSGDRegressor(model, trainable=names, tol=None, random_state=0, **settings)
    X = _X * np.float32([1.0, 0.3, 5.0])
    kept = estimator.fit(X, _Y, X_val=X[:5], y_val=_Y[:5])
    weights, scores = kept.get_weights(), kept.validation_scores_
    monkeypatch.setattr(_program, "_fits", lambda program, features: False)
    cache.clear()
    computed = estimator.fit(X, _Y, X_val=X[:5], y_val=_Y[:5])
    np.testing.assert_allclose(computed.validation_scores_, scores, rtol=1e-4)
    for name in names:
        np.testing.assert_allclose(computed.get_weights()[name], weights[name], rtol=1e-4, atol=1e-5)


def test_results_that_do_not_fit_are_not_stored(monkeypatch):
    """One-hot bytes are hundreds of times larger than bytes: for all samples they may not fit into memory."""
    programs = []
    make = _program.make_program
    monkeypatch.setattr(_program, "make_program", lambda *args: programs.append(make(*args)) or programs[-1])
    size = 30 * 7 * 4
    for limit in (size, size - 1):
        monkeypatch.setattr(_program, "_KEPT_BYTES", limit)
        # fits of one graph share the program
        cache.clear()
        _fit(_MODEL, ["w"])
    kept, computed = programs
    assert list(kept.parts.frozen) == ["a"]
    assert computed.parts.frozen == {}
    assert computed.parts.split.features == ("x",)


def test_large_samples_are_computed_a_few_at_a_time(monkeypatch):
    """Intermediate tensors of a graph are many times larger than its result."""
    estimator = OnnxSGDRegressor(_MODEL, max_iter=1, tol=None).fit(_X, _Y)
    expected = estimator.predict(_X)
    sizes = []
    original = inference.InferenceGraph._run_block
    monkeypatch.setattr(inference, "_TENSOR_BLOCK", 100)
    monkeypatch.setattr(
        inference.InferenceGraph,
        "_run_block",
        lambda self, *given: sizes.append(len(given[-1]["x"])) or original(self, *given),
    )
    np.testing.assert_array_equal(estimator.predict(_X), expected)
    # a row of x may become 8 times as large
    assert sizes == [4, 4, 4, 4, 4, 4, 4, 2]


@pytest.mark.parametrize(
    ("n_rows", "settings", "n_updates"),
    [
        (4095, {}, 128),
        (4096, {}, 64),
        (8192, {}, 64),
        (20_000, {}, 157),
        (8192, {"batch_size": 32}, 256),
        (8192, {"learning_rate": "constant"}, 256),
    ],
)
def test_many_rows_of_a_linear_model_have_larger_batches(n_rows, settings, n_updates):
    """From 4,096 rows on an epoch has at least 64 updates, of 64 rows or of 128."""
    X = np.resize(_X, (n_rows, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert OnnxSGDRegressor(max_iter=1, tol=None, **settings).fit(X, X[:, 0]).t_ == n_updates


@pytest.mark.parametrize(
    ("settings", "n_calls"), [({}, 5), ({"learning_rate": "constant", "batch_size": 8}, 0)]
)
def test_linear_streams_that_find_their_rate_make_the_updates_of_a_call_at_once(
    settings, n_calls, monkeypatch
):
    """The numbers are those of single steps but for rounding; calls share the specification of the step."""
    runs, run = [], LinearAdamRunner.run

    def counting(self, plan, scalars, found):
        runs.append(len(found))
        run(self, plan, scalars, found)

    def stream():
        estimator = OnnxSGDRegressor(random_state=0, **settings)
        for start in range(0, 160, 32):
            estimator.partial_fit(rows[start : start + 32], target[start : start + 32])
        return estimator

    rows = np.random.default_rng(1).normal(size=(160, 3))
    target = rows @ [1.0, -2.0, 0.5] + 3.0
    monkeypatch.setattr(LinearAdamRunner, "run", counting)
    found = stream()
    assert runs == [4] * n_calls
    plan = found._known_plan[1]
    assert (len(plan.steps), len(plan.programs)) == (1, 1)
    monkeypatch.setattr(_program, "_MANY_BATCHES_OF_STREAM", 1000)
    # streams of one graph share the choice
    cache.clear()
    single = stream()
    assert len(runs) == n_calls
    np.testing.assert_allclose(found.coef_, single.coef_, rtol=1e-4)
    np.testing.assert_allclose(found.loss_curve_, single.loss_curve_, rtol=1e-4)


def test_large_targets_leave_a_sixteenth_of_the_unit_and_extreme_ones_nothing():
    rng = np.random.default_rng(0)
    target = rng.normal(size=(1000, 3))
    target[:100] += [0.0, 5000.0, 0.0]
    target[:3] += [0.0, 0.0, 1e7]
    found = _program._with_usual_unit(target).std(axis=0)
    # clipped at three deviations, 1 percent and a tenth of which are
    assert found[0] == pytest.approx(1.0, abs=0.05)
    assert found[1] == pytest.approx(target[:, 1].std() / 16)
    assert found[2] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("model", "loss", "kind", "expected"),
    [
        (None, "huber", "dense", 1), (None, "huber", "sparse", 0), (None, "huber", "part", 0),
        (None, "quantile", "dense", 0), (None, "squared_error", "dense", 0), ("network", "huber", "dense", 0),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_outliers_leave_the_unit_of_linear_fits_of_dense_data_alone(monkeypatch, model, loss, kind, expected):
    """Networks, sparse data and streams keep that of all targets."""
    calls, usual = [], _program._with_usual_unit
    monkeypatch.setattr(_program, "_with_usual_unit", lambda target: calls.append(1) or usual(target))
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = X @ [1.0, 2.0, 3.0] + rng.normal(size=60)
    if model is not None:
        model = MLPRegressor(hidden_layer_sizes=(4,), max_iter=1, random_state=0).fit(X, y)
    learner = OnnxSGDRegressor(model, loss=loss, random_state=0)
    table = sparse.csr_array(X) if kind == "sparse" else X
    (learner.partial_fit if kind == "part" else learner.fit)(table, y)
    assert len(calls) == expected


@pytest.mark.parametrize("kind", ["one of two", "one against the rest", "several", "margins", "numbers"])
def test_surprise_is_the_loss_beyond_the_expected_one(kind, monkeypatch):
    """That is the entropy of the probabilities, or the loss of scaled predictions; margins have none."""
    X, y = load_iris(return_X_y=True)
    y = y > 0 if kind == "one of two" else y
    given = {
        "one against the rest": OneVsRestClassifier(LogisticRegression()),
        "numbers": Ridge(),
        "margins": SGDClassifier(random_state=0),
    }.get(kind, LogisticRegression(max_iter=1000))
    learner = OnnxSGDRegressor if kind == "numbers" else OnnxSGDClassifier
    loss = {} if kind != "margins" else {"loss": "hinge"}
    found = []
    find = StartFinder.find_in_part
    monkeypatch.setattr(
        StartFinder, "find_in_part", lambda *args, **more: found.append(args[2]) or find(*args[:2], None)
    )
    learner(given.fit(X, y), random_state=0, **loss).partial_fit(X, y)
    (surprise,) = found
    if kind == "margins":
        assert surprise is None
        return
    n_scores = 1 if kind in ("one of two", "numbers") else 3
    raw = np.random.default_rng(0).normal(size=(150, n_scores))
    if kind == "numbers":
        slope, shift = np.polyfit(raw[:, 0], y, 1)
        expected = (raw[:, 0] - y) ** 2 / 2 - (slope * raw[:, 0] + shift - y) ** 2 / 2
    elif kind == "several":
        p = softmax(raw, axis=1)
        expected = -np.log(p[np.arange(150), y]) - entropy(p, axis=1)
    else:
        p, labels = expit(raw), y[:, None] == (np.arange(3) if n_scores == 3 else np.ones(1))
        of_labels = -np.log(np.where(labels, p, 1 - p))
        expected = (of_labels + p * np.log(p) + (1 - p) * np.log(1 - p)).sum(axis=1)
    found = surprise(raw.astype(np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
