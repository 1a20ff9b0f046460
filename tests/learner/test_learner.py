"""A model is prepared once: equal graphs share derived objects, and no mutable ones."""

import copy
import hashlib
import pickle

import numpy as np
import onnx
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, describe_trainable, load, plot_graph
from onnxsgd.exceptions import ParameterError
from onnxsgd.learner import build as _build
from onnxsgd.learner import model_source as _sources
from onnxsgd.learner.model_source import read_source

_MODEL = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["" : 18]> agraph (float[N, 3] x) => (float[N, 2] y)
    <float[3, 4] a = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, float[4, 2] b = {1, 1, 1, 1, 1, 1, 1, 1}>
    { m = MatMul (x, a)  h = Tanh (m)  y = MatMul (h, b) }"""
)
_X = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
_Y = _X[:, :2] @ np.array([[1, 2], [3, 4]], np.float32)


def _regressor(model=_MODEL, **options):
    settings = {"max_iter": 3, "tol": None, "random_state": 0, "eta0": 0.01, "learning_rate": "constant"}
    return OnnxSGDRegressor(model, **settings | options)


def test_a_second_fit_prepares_nothing(monkeypatch):
    first = _regressor().fit(_X, _Y)
    monkeypatch.setattr(_sources, "_read_graph", None)
    monkeypatch.setattr(_build, "_graph_learner", None)
    for model in (_MODEL, copy.deepcopy(_MODEL), _MODEL.SerializeToString(deterministic=True)):
        second = _regressor(model, alpha=0.1).fit(_X, _Y)
        assert second._learner is first._learner


def test_estimators_that_share_a_graph_share_no_weights():
    first = _regressor().fit(_X, _Y)
    weights, prediction = first.get_weights(), first.predict(_X)
    _regressor(eta0=0.001).fit(-_X, _Y)
    for name, array in first.get_weights().items():
        np.testing.assert_array_equal(array, weights[name])
    np.testing.assert_array_equal(first.predict(_X), prediction)
    np.testing.assert_array_equal(_regressor().fit(_X, _Y).predict(_X), prediction)


def test_a_graph_that_was_changed_is_another():
    model = copy.deepcopy(_MODEL)
    before = _regressor(model, max_iter=1, eta0=1e-9).fit(_X, _Y).predict(_X)
    doubled = onnx.numpy_helper.to_array(model.graph.initializer[1]) * 2
    model.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(doubled, "b"))
    after = _regressor(model, max_iter=1, eta0=1e-9).fit(_X, _Y).predict(_X)
    np.testing.assert_allclose(after, 2 * before, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"trainable": ["b"]},
        {"trainable": lambda name: name == "a"},
        {"trainable": np.array(["b"])},
        {"output": "h"},
        {"head": "linear"},
        {"engine": "portable"},
    ],
    ids=["list", "function", "array", "output", "head", "engine"],
)
def test_other_options_make_another_learner(options):
    y = np.hstack([_Y, _Y]) if "output" in options else _Y
    plain = _regressor().fit(_X, _Y)
    other = _regressor(**options).fit(_X, y)
    assert other._learner is not plain._learner
    again = _regressor(**options).fit(_X, y)
    # the result of a function may change
    assert (again._learner is other._learner) == (not callable(options.get("trainable")))


def test_a_new_layer_follows_the_data():
    widths = [_regressor(head="linear").fit(_X, y).predict(_X).shape for y in (_Y, _Y[:, :1].ravel())]
    assert widths == [(30, 2), (30,)]


def test_labels_are_not_shared():
    labels = np.array(["no", "yes"])[(_Y[:, 0] > 0).astype(int)]
    first = OnnxSGDClassifier(_MODEL, max_iter=2, tol=None).fit(_X, labels)
    second = OnnxSGDClassifier(_MODEL, max_iter=2, tol=None).fit(_X, labels == "yes")
    assert second._learner is first._learner
    assert list(first.classes_) == ["no", "yes"]
    assert list(second.classes_) == [False, True]


def test_large_graphs_are_not_remembered(monkeypatch):
    assert read_source(_MODEL).digest is not None
    monkeypatch.setattr(_sources, "LARGEST_CACHED", 10)
    for model in (_MODEL, _MODEL.SerializeToString()):
        assert read_source(model).digest is None
    _regressor().fit(_X, _Y)


def test_linear_models_of_one_size_share_their_graph():
    first, second = (_regressor(None).fit(_X, _Y) for _ in range(2))
    assert second._learner is first._learner
    np.testing.assert_array_equal(second.coef_, first.coef_)
    assert _regressor(None).fit(_X[:, :2], _Y)._learner is not first._learner
    assert _regressor(None).fit(_X, _Y[:, 0])._learner is not first._learner


def _own():
    learner = OnnxSGDRegressor()
    learner.model = learner
    return learner


def _in_a_pipeline():
    learner = OnnxSGDRegressor()
    learner.model = make_pipeline(StandardScaler(), learner)
    return learner


def _of_two():
    first, second = OnnxSGDRegressor(), OnnxSGDRegressor()
    first.model, second.model = second, first
    return first


def _in_a_list():
    steps = [("scale", StandardScaler())]
    steps.append(("again", steps))
    return OnnxSGDRegressor(Pipeline(steps))


def _fitted():
    learner = OnnxSGDRegressor(random_state=0).fit(_X, _Y[:, 0])
    learner.model = learner
    return learner


@pytest.mark.parametrize("make", [_own, _in_a_pipeline, _of_two, _in_a_list, _fitted])
def test_an_estimator_inside_itself_is_refused(make, tmp_path):
    """It was a RecursionError."""
    calls = {
        "fit": lambda e: e.fit(_X, _Y[:, 0]),
        "partial_fit": lambda e: e.partial_fit(_X, _Y[:, 0]),
        "save": lambda e: e.save(tmp_path / "file"),
        "describe_trainable": lambda e: describe_trainable(e.model),
    }
    if make is not _fitted:
        calls |= {"predict": lambda e: e.predict(_X), "to_onnx": lambda e: e.to_onnx(), "plot": plot_graph}
    for call in calls.values():
        with pytest.raises(ParameterError, match="model holds an object of .* that is a parameter of itself"):
            call(make())


def test_an_estimator_twice_in_a_model_is_no_circle():
    scaler = StandardScaler()
    assert read_source(Pipeline([("a", scaler), ("b", scaler)])) is not None


def test_trained_tensors_keep_their_documentation_and_metadata(tmp_path):
    model = copy.deepcopy(_MODEL)
    for tensor in model.graph.initializer:
        tensor.doc_string = f"the layer {tensor.name}"
        tensor.metadata_props.add(key="origin", value=tensor.name)
    estimator = _regressor(model, trainable="b").fit(_X, _Y)
    estimator.save(tmp_path / "e.onnxsgd")
    for found in (estimator, pickle.loads(pickle.dumps(estimator)), load(tmp_path / "e.onnxsgd")):
        for tensor in found.to_onnx().graph.initializer:
            assert tensor.doc_string == f"the layer {tensor.name}"
            assert [(entry.key, entry.value) for entry in tensor.metadata_props] == [("origin", tensor.name)]


def test_one_name_is_trained():
    """The report takes it too."""
    found = _regressor(trainable="b").fit(_X, _Y)
    assert list(found.get_weights()) == ["b"]
    assert describe_trainable(_MODEL, trainable="b").trained == ["b"]
    with pytest.raises(ParameterError, match="trainable names 'c'"):
        _regressor(trainable="c").fit(_X, _Y)


def test_the_digest_of_the_last_graph_is_kept(monkeypatch):
    other = copy.deepcopy(_MODEL)
    other.graph.name = "other"
    graphs = [model.SerializeToString(deterministic=True) for model in (_MODEL, other)]
    digests = [read_source(content).digest for content in graphs]
    assert digests[0] != digests[1]
    hashed, sha256 = [], hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", lambda content: hashed.append(content) or sha256(content))
    for number in (1, 1, 0, 0, 1):
        assert read_source(bytes(bytearray(graphs[number]))).digest == digests[number]
    assert hashed == [graphs[0], graphs[1]]


@pytest.mark.parametrize("model", [RandomForestClassifier(20, random_state=0), GaussianNB()])
def test_a_new_layer_is_put_on_probabilities_not_on_their_logarithms(model):
    """Those of zero are large numbers, which hid all others: the accuracy on a forest was 0.45."""
    X, y = load_digits(return_X_y=True)
    model.fit(X[:900], y[:900])
    learner = OnnxSGDClassifier(model, head="linear", random_state=0).fit(X[900:1400], y[900:1400])
    assert learner.score(X[1400:], y[1400:]) > model.score(X[1400:], y[1400:]) - 0.02
    weights = learner.get_weights()
    expected = model.predict_proba(X) @ weights["coef"] + weights["intercept"]
    np.testing.assert_allclose(learner.decision_function(X), expected, rtol=1e-4, atol=2e-5)
