"""A graph that does not fit the data, or mixes samples, is refused with a clear message."""

import numpy as np
import onnx
import pytest

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.exceptions import ConvergenceError, GraphError
from onnxsgd.gradient.native import builder as orttraining
from onnxsgd.learner import score_check
from onnxsgd.runtime.cache import cache


def _model(text):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> agraph {text}')


_X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
_Y = _X @ [1.0, 2.0, 3.0]


def test_a_graph_for_one_sample_learns_from_many():
    """An export without dynamic axes is the most common one."""
    model = _model(
        """(float[1, 3] x) => (float[1] y) <float[3, 1] w = {0, 0, 0}, int64[1] flat = {1}>
        { m = MatMul (x, w)  y = Reshape (m, flat) }"""
    )
    estimator = OnnxSGDRegressor(
        model, penalty=None, learning_rate="constant", eta0=0.3, batch_size=12, max_iter=300, tol=None
    ).fit(_X, _Y)
    np.testing.assert_allclose(estimator.get_weights()["w"].ravel(), [1, 2, 3], atol=1e-3)
    np.testing.assert_allclose(estimator.predict(_X), _Y, atol=1e-2)


@pytest.mark.parametrize(
    "mixing",
    [
        "m = MatMul (x, w)  a = ReduceMean <keepdims = 1> (m, zero)  y = Sub (m, a)",
        "s = Squeeze (x, zero)  y = MatMul (s, w)",
        "t = Transpose <perm = [1, 0]> (x)  r = Reshape (t, one)  y = MatMul (r, w)",
    ],
)
def test_a_graph_for_one_sample_that_mixes_several_is_refused(mixing):
    """An operation that is right for one sample is wrong for two: the message gives the remedy."""
    model = _model(
        f"""(float[1, 3] x) => (float[1, 1] y) <float[3, 1] w = {{1, 1, 1}}, int64[1] zero = {{0}},
        int64[2] one = {{1, 3}}> {{ {mixing} }}"""
    )
    with pytest.raises(GraphError, match=r"exported for batches of 1 and .*\(dynamic axes\)"):
        OnnxSGDRegressor(model).fit(_X, _Y)


def test_predictions_that_are_no_number_are_not_taken_for_mixed_ones():
    model = _model(
        """(float[1, 3] x) => (float[1, 1] y) <float[3, 1] w = {1, 1, 1}>
        { m = MatMul (x, w)  y = Sqrt (m) }"""
    )
    for learning_rate in ("auto", "invscaling"):
        with pytest.raises(ConvergenceError):
            OnnxSGDRegressor(model, learning_rate=learning_rate).fit(_X, _Y)
        with pytest.raises(ConvergenceError):
            OnnxSGDRegressor(model, learning_rate=learning_rate).partial_fit(_X, _Y)


def test_an_input_without_samples_is_refused():
    """A state that all samples share, or a single number, is no feature."""
    model = _model(
        """(float[N, 3] x, float[2, N, 3] state) => (float[N, 1] y)
        <float[3, 1] w = {1, 1, 1}, int64[1] zero = {0}>
        { s = ReduceSum <keepdims = 0> (state, zero)  a = Add (x, s)  y = MatMul (a, w) }"""
    )
    X = {"x": _X, "state": np.zeros((12, 12, 3))}
    with pytest.raises(
        GraphError, match=r"Input 'state' of the graph has shape \(2, 'any', 3\): each input must"
    ):
        OnnxSGDRegressor(model).fit(X, _Y)


def test_a_failure_of_the_runtime_has_a_sentence():
    """Only the runtime finds sizes that do not match."""
    model = _model("""(float[N, A] x) => (float[N, 1] y) <float[3, 1] w = {1, 1, 1}> { y = MatMul (x, w) }""")
    with pytest.raises(GraphError, match=r"The graph fails on inputs of shapes \{'x': \(\d, 2\)\}: "):
        OnnxSGDRegressor(model).fit(_X[:, :2], _Y)


def test_a_layer_on_open_sizes_takes_those_of_the_data():
    """A network for pictures of any size is fixed to the size of its training data."""
    model = _model("(float[N, A, B] x) => (float[N, A, B] y) { y = Relu (x) }")
    X = np.random.default_rng(0).normal(size=(20, 2, 3)).astype(np.float32)
    estimator = OnnxSGDClassifier(model, head="linear", max_iter=3, tol=None).fit(X, X[:, 0, 0] > 0)
    assert estimator.get_weights()["coef"].shape == (6, 1)
    with pytest.raises(GraphError, match=r"takes \('any', 2, 3\)"):
        estimator.predict(np.zeros((4, 2, 4)))


@pytest.mark.parametrize("engine", ["onnxruntime-training", "portable"])
def test_open_sizes_inside_are_settled_for_the_step(engine):
    """A convolutional network does not declare the size of its pictures."""
    if engine == "onnxruntime-training" and not orttraining.is_available():
        pytest.skip("the installed onnxruntime cannot train")
    model = _model(
        """(float[N, 1, H, W] x) => (float[N, 2] y) <float[2, 1, 2, 2] k = {1, 2, 3, 4, 4, 3, 2, 1}>
        { c = Conv (x, k)  t = Tanh (c)  p = GlobalAveragePool (t)  y = Flatten (p) }"""
    )
    X = np.random.default_rng(0).normal(size=(20, 1, 5, 4)).astype(np.float32)
    estimator = OnnxSGDClassifier(model, engine=engine, max_iter=3, tol=None, classes=[0, 1])
    before = estimator.fit(X, X[:, 0, 0, 0] > 0).get_weights()["k"]
    estimator.partial_fit(X[:, :, :, :3], X[:, 0, 0, 0] > 0)
    assert np.isfinite(estimator.loss_curve_).all()
    assert not np.array_equal(before, estimator.get_weights()["k"])


def test_a_known_graph_is_not_tried_again(monkeypatch):
    tried, run = [], score_check._run
    monkeypatch.setattr(score_check, "_run", lambda *args: tried.append(args) or run(*args))
    cache.clear()
    text = "(float[N, 3] x) => (float[N, 1] y) <float[3, 1] w = {1, 1, 1}> { y = MatMul (x, w) }"
    for _ in range(3):
        OnnxSGDRegressor(_model(text), learning_rate="constant", eta0=1e-3).partial_fit(_X, _Y)
    assert len(tried) == 1
    # one sample tells less than three
    OnnxSGDRegressor(_model(text), learning_rate="constant", eta0=1e-3).partial_fit(_X[:1], _Y[:1])
    assert len(tried) == 2


def test_numbers_of_whole_inputs_are_tried_in_each_fit():
    """Some of them may be no rows of a table."""
    model = _model(
        """(int64[N, 1] x) => (float[N, 1] y) <float[5, 1] w = {1, 2, 3, 4, 5}, int64[1] last = {2}>
        { g = Gather (w, x)  y = Squeeze (g, last) }"""
    )
    known, unknown = np.arange(5)[:, None], np.arange(3, 8)[:, None]
    estimator = OnnxSGDRegressor(model, learning_rate="constant", eta0=1e-3).fit(known, np.ones(5))
    with pytest.raises(GraphError, match="fails on inputs"):
        estimator.fit(unknown[2:], np.ones(3))
