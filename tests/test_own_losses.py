"""Losses that users give: as an ONNX graph, or as a function of onnxscript."""

import pickle

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnxscript import FLOAT, script
from onnxscript import opset18 as op
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, add_loss_output, losses
from onnxsgd.exceptions import (
    GradientError,
    GraphError,
    NotTrainableError,
    ParameterError,
    ParameterTypeError,
)
from onnxsgd.testing import check_gradients

RNG = np.random.default_rng(0)
X, Y = load_diabetes(return_X_y=True)
Y = (Y - Y.mean()) / Y.std()


@script(default_opset=op)
def half(x):
    return op.Mul(x, 0.5)


@script(default_opset=op)
def cauchy_function(y_true, raw_prediction):
    r = raw_prediction - y_true
    return op.Log(half(r * r) + 1.0)


@script(default_opset=op)
def sample_function(y_true: FLOAT["N", "K"], raw_prediction: FLOAT["N", "K"]) -> FLOAT["N"]:  # noqa: F821
    r = raw_prediction - y_true
    return op.ReduceSum(half(r * r), [1], keepdims=0)


class Cauchy(losses.Loss):
    def value(self, op, y_true, raw_prediction):
        r = op.Sub(raw_prediction, y_true)
        return op.Log(op.Add(op.Mul(op.Mul(r, r), 0.5), 1.0))


def graph(
    nodes, inputs="float[N, K] y_true, float[N, K] raw_prediction", opset=18, output="float[N, K] loss"
):
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => ({output}) {nodes}'
    )


CAUCHY = (
    "<float one = {1}, float half = {0.5}> { r = Sub(raw_prediction, y_true) s = Mul(r, r) "
    "h = Mul(s, half) t = Add(h, one) loss = Log(t) }"
)
SQUARES = "{ r = Sub(raw_prediction, y_true) s = Mul(r, r) a = Constant<value_ints = [1]>() loss = %s }"


def cauchy(y, z):
    return np.log1p((z - y) ** 2 / 2), (z - y) / (1 + (z - y) ** 2 / 2)


def squares(y, z):
    return (z - y) ** 2, 2 * (z - y)


def half_squares(y, z):
    return (z - y) ** 2 / 2, z - y


#: Each model, with its value of elements and its gradient in numpy.
MODELS = {
    "graph": (graph(CAUCHY), cauchy),
    "bytes": (graph(CAUCHY).SerializeToString(), cauchy),
    "inputs in another order": (
        graph(CAUCHY, inputs="float[N, K] raw_prediction, float[N, K] y_true", opset=15),
        cauchy,
    ),
    "double": (
        graph(CAUCHY.replace("float", "double"), "double[N, K] y_true, double[N, K] raw_prediction",
              output="double[N, K] loss"),
        cauchy,
    ),
    "a loss for each sample": (
        graph(SQUARES % "ReduceSum<keepdims = 0>(s, a)", output="float[N] loss"),
        squares,
    ),
    "a column": (graph(SQUARES % "ReduceSum(s, a)", output="float[N, 1] loss"), squares),
    "onnxscript": (cauchy_function, cauchy),
    "onnxscript, a loss for each sample": (sample_function, half_squares),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("opset", [13, 18])
def test_value_and_gradient(name, dtype, opset):
    model, formula = MODELS[name]
    loss = losses.FromONNX(model)
    scored = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g ({dtype}[N, 2] x) => ({dtype}[N, 2] f)'
        "{ f = Identity(x) }"
    )
    with_loss = add_loss_output(scored, loss, weight_name="w")
    session = onnxruntime.InferenceSession(with_loss.SerializeToString(), providers=["CPUExecutionProvider"])
    numpy_type = np.float32 if dtype == "float" else np.float64
    z, y = (RNG.normal(size=(8, 2)).astype(numpy_type) for _ in range(2))
    w = RNG.uniform(size=8).astype(numpy_type)
    value = session.run(["loss"], {"x": z, "label": y, "w": w})[0].item()
    expected = (w[:, None] * formula(y.astype(float), z.astype(float))[0]).sum()
    assert value == pytest.approx(expected, rel=1e-5 if dtype == "float" else 1e-12)
    assert check_gradients(loss, dtype=numpy_type, random_state=0).n_checked == 15


@pytest.mark.parametrize("name", ["graph", "onnxscript"])
@pytest.mark.parametrize(
    "options", [{}, {"dtype": "float64"}, {"learning_rate": "invscaling", "batch_size": 1}], ids=str
)
def test_training_is_that_of_the_same_formula(name, options):
    weight = RNG.uniform(0, 2, size=len(Y))
    settings = {"random_state": 0, "max_iter": 5, "tol": None} | options
    found, expected = (
        OnnxSGDRegressor(Ridge().fit(X, Y), loss=loss, **settings).fit(X, Y, sample_weight=weight)
        for loss in (losses.FromONNX(MODELS[name][0]), Cauchy())
    )
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-6)
    np.testing.assert_allclose(found.loss_curve_, expected.loss_curve_, rtol=1e-6)


def test_sparse_data_streams_and_exported_steps(tmp_path):
    loss = losses.FromONNX(cauchy_function)
    table = sparse.random(300, 30, 0.2, format="csr", random_state=0)
    y = table @ np.linspace(-1, 1, 30)
    assert OnnxSGDRegressor(loss=loss, random_state=0).fit(table, y).score(table, y) > 0.9
    stream = OnnxSGDRegressor(loss=loss, random_state=0)
    for _ in range(20):
        stream.partial_fit(table, y)
    assert stream.score(table, y) > 0.8
    manifest = OnnxSGDRegressor(loss=loss, random_state=0).fit(X, Y).export_training_step(tmp_path / "s.onnx")
    step = onnx.load(tmp_path / "s.onnx")
    assert {node.domain for node in step.graph.node} == {""}
    assert "FromONNX" in manifest.read_text()


def test_classification():
    hinge = (
        "<float one = {1}> { m = Mul(raw_prediction, y_true) d = Sub(one, m) r = Relu(d) loss = Mul(r, r) }"
    )
    # a named rate: under auto, penalties of epochs are exact in one loop alone, and decisions may differ
    settings = {"learning_rate": "invscaling", "max_iter": 5, "tol": None, "random_state": 0}
    model = OnnxSGDClassifier(loss=losses.FromONNX(graph(hinge), targets="sign"), **settings)
    same = OnnxSGDClassifier(loss="squared_hinge", **settings)
    np.testing.assert_allclose(model.fit(X, Y > 0).coef_, same.fit(X, Y > 0).coef_, rtol=1e-4, atol=1e-6)
    joint = (
        "{ p = LogSoftmax(raw_prediction) q = Mul(p, y_true) a = Constant<value_ints = [1]>() "
        "s = ReduceSum(q, a) loss = Neg(s) }"
    )
    loss = losses.FromONNX(
        graph(joint, output="float[N, 1] loss"), targets="indicator", probabilities="softmax"
    )
    labels = np.digitize(Y, [-0.5, 0.5])
    settings = {"learning_rate": "constant", "eta0": 0.1, "max_iter": 20, "tol": None, "random_state": 0}
    found, same = (
        OnnxSGDClassifier(loss=each, **settings).fit(X, labels) for each in (loss, losses.CrossEntropy())
    )
    np.testing.assert_allclose(found.predict_proba(X), same.predict_proba(X), atol=1e-5)


def test_a_logarithmic_link():
    poisson = "{ m = Exp(raw_prediction) p = Mul(y_true, raw_prediction) loss = Sub(m, p) }"
    loss = losses.FromONNX(graph(poisson), targets="non-negative", link="log")
    counts = RNG.poisson(np.exp(Y / 2))
    settings = {"random_state": 0, "learning_rate": "constant", "max_iter": 20, "tol": None}
    found, same = (OnnxSGDRegressor(loss=each, **settings).fit(X, counts) for each in (loss, "poisson"))
    np.testing.assert_allclose(found.predict(X), same.predict(X), rtol=1e-4)
    with pytest.raises(ParameterError, match=r"y holds -1: the loss FromONNX\(<g, 3 nodes>, targets="):
        found.fit(X, counts - 1)


def test_pickles_clones_and_searches():
    loss = losses.FromONNX(graph(CAUCHY))
    copy = pickle.loads(pickle.dumps(loss))
    assert copy == loss
    assert hash(copy) == hash(loss)
    assert losses.FromONNX(graph(SQUARES % "Identity(s)")) != loss
    assert repr(loss) == "FromONNX(<g, 5 nodes>)"
    assert type(loss.get_params()["model"]) is bytes
    grid = {"loss": [loss, losses.FromONNX(cauchy_function), "squared_error"]}
    model = OnnxSGDRegressor(random_state=0, max_iter=5, tol=None)
    search = GridSearchCV(model, grid, cv=3, error_score="raise").fit(X, Y)
    again = clone(search.best_estimator_)
    assert again.loss == search.best_estimator_.loss
    fitted = OnnxSGDRegressor(loss=loss, random_state=0).fit(X, Y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))


ONE = "{ loss = Sub(raw_prediction, y_true) }"
DIFFERENCE = "{ d = Sub(raw_prediction, y_true) %s }"
INTEGERS = "int64[N, K] y_true, int64[N, K] raw_prediction"
SEVEN = "<float[7] c = {1, 2, 3, 4, 5, 6, 7}> "
OTHER_DOMAIN = """<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]>
    g (float[N, K] y_true, float[N, K] raw_prediction) => (float[N, K] loss)
    { d = Sub(raw_prediction, y_true) loss = ai.onnx.ml.Scaler<scale = [1.0]>(d) }"""
BRANCH = """{ c = Constant<value_ints = [1]>() b = Cast<to = 9>(c) loss = If(b) <
    then_branch = t () => (float[N, K] u) { u = Identity(y_true) },
    else_branch = e () => (float[N, K] v) { v = Identity(raw_prediction) }> }"""
REFUSED = {
    "names": (
        graph("{ loss = Sub(a, b) }", "float[N, K] a, float[N, K] b"),
        r"inputs \['y_true', 'raw_pr.*it has \['a', 'b'\]",
    ),
    "a third input": (graph(ONE, "float[N, K] y_true, float[N, K] raw_prediction, float c"), r"has .*'c'\]"),
    "two outputs": (
        graph(DIFFERENCE % "loss = Exp(d)", output="float[N, K] loss, float[N, K] d"),
        r"one output; .*\['loss', 'd'\]",
    ),
    "integers": (graph(ONE, INTEGERS, output="int64[N, K] loss"), "both be of type float"),
    "a mean": (
        graph(DIFFERENCE % "loss = ReduceMean<keepdims = 0>(d)", output="float loss"),
        r"for each element, or for each sample, .* returns float32 of shape \(\)",
    ),
    "a matrix": (
        graph("{ t = Transpose(y_true) loss = MatMul(raw_prediction, t) }"),
        r"returns float32 of shape \(5, 5\)",
    ),
    "booleans": (graph("{ loss = Less(raw_prediction, y_true) }", output="bool[N, K] loss"), "returns bool"),
    "an old opset": (graph(ONE, opset=11), "must have opset 13 or later, not 11"),
    "another operator": (
        onnx.parser.parse_model(OTHER_DOMAIN),
        "standard operators; Scaler is one of 'ai.onnx.ml'",
    ),
    "no graph": (b"", "must be a valid ONNX model"),
    "no model": (onnx.ModelProto(), "must be a valid ONNX model"),
    "shapes": (graph(SEVEN + DIFFERENCE % "loss = Mul(d, c)"), r"fails on tables of shape \(5, 3\)"),
    "no prediction": (
        graph("{ loss = Mul(y_true, y_true) }"),
        "must depend on raw_prediction; 'loss' has no",
    ),
    "its size alone": (
        graph("{ s = Shape(raw_prediction) t = Expand(y_true, s) loss = Mul(t, t) }"),
        "must depend on raw_prediction",
    ),
    "a comparison": (
        graph("{ s = Less(raw_prediction, y_true) loss = CastLike(s, y_true) }"),
        "must depend on raw_prediction",
    ),
    "a branch": (graph(BRANCH), "no subgraphs, as If has"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    model, message = REFUSED[name]
    with pytest.raises(GraphError, match=message):
        losses.FromONNX(model)


def test_refused_parameters():
    with pytest.raises(ParameterTypeError, match=r"model=7 is not accepted: .* function of onnxscript"):
        losses.FromONNX(7)
    for name in ("targets", "link", "probabilities"):
        with pytest.raises(ParameterError, match=rf"{name}='other' is not accepted: it must be one of"):
            losses.FromONNX(graph(CAUCHY), **{name: "other"})
    with pytest.raises(ParameterError, match=r"\['loss'\] are no parameters of FromONNX"):
        losses.FromONNX(graph(CAUCHY)).set_params(loss=1)


@pytest.mark.parametrize("targets", ["sign", "indicator"])
def test_targets_of_labels_are_refused_in_a_regression(targets):
    loss = losses.FromONNX(graph(CAUCHY), targets=targets)
    with pytest.raises(
        ParameterError, match=rf"targets='{targets}', two values .* 'real', 'non-negative' or"
    ):
        OnnxSGDRegressor(loss=loss).fit(X, Y)


def test_an_operator_without_a_gradient_is_refused_where_it_is_trained():
    broken = losses.FromONNX(
        graph("{ d = Sub(raw_prediction, y_true) v, i = Unique<axis = 1>(d) loss = Add(d, v) }")
    )
    with pytest.raises((NotTrainableError, GraphError, GradientError), match="Unique"):
        OnnxSGDRegressor(loss=broken).fit(X, Y)


@pytest.mark.parametrize("targets", ["real", "non-negative", "positive"])
def test_real_targets_are_refused_in_a_classification(targets):
    loss = losses.FromCallable(squares, targets=targets)
    with pytest.raises(ParameterError, match=f"targets='{targets}', real numbers: a classification takes"):
        OnnxSGDClassifier(loss=loss).fit([[0.0], [1.0]], [0, 1])


def test_losses_that_a_classifier_takes_by_name_are_taken_as_objects():
    X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), [0, 0, 1, 1]
    assert OnnxSGDClassifier(loss=losses.Huber(), random_state=0).fit(X, y).score(X, y) == 1
    with pytest.raises(ParameterError, match="GaussianNLL"):
        OnnxSGDClassifier(loss=losses.GaussianNLL()).fit(X, y)
