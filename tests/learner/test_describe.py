"""The report on trained tensors, frozen ones, and the reasons."""

import numpy as np
import onnx.parser
import pytest
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline

from onnxsgd import OnnxSGDRegressor
from onnxsgd.exceptions import GraphError, ParameterError, ParameterTypeError
from onnxsgd.gradient.native import builder as orttraining
from onnxsgd.learner.describe import describe_trainable

X, Y = load_iris(return_X_y=True)
TEXT = """<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]>
    g (float[N, 2] x) => (float[N, 1] y)
    <float[2, 2] w = {1, 2, 3, 4}, float[2, 1] v = {1, 2}, float c = {1}> {
        h = MatMul(x, w)  f = ai.onnx.ml.Binarizer(h)  s = Mul(f, c)  y = MatMul(s, v) }"""


def test_an_estimator():
    """Parameters are trained, and the report names a PCA."""
    report = describe_trainable(make_pipeline(PCA(2), LogisticRegression()).fit(X, Y))
    assert report.trained == ["coef", "intercept"]
    assert {row.reason for row in report.tensors if not row.trained} == {"constant of PCA"}
    assert report.problem is None
    assert [(row.operator, row.count) for row in report.operators] == [("Gemm", 1)]
    assert report.operators[0].engines == ("onnxruntime-training", "portable")
    text = str(report)
    assert "transform_matrix  4 x 2  no       constant of PCA" in text
    assert "coef              2 x 3  yes      weight of Gemm" in text


@pytest.mark.parametrize("form", ["message", "bytes", "path"])
def test_a_graph(form, tmp_path):
    """A layer before an obstacle is frozen, and the report names the obstacle."""
    model = onnx.parser.parse_model(TEXT)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    source = {"message": model, "bytes": model.SerializeToString(), "path": tmp_path / "m.onnx"}[form]
    report = describe_trainable(source, engine="onnxruntime-training")
    rows = {row.name: row for row in report.tensors}
    assert report.trained == ["v"]
    assert "before the ai.onnx.ml.Binarizer" in rows["w"].reason
    assert rows["c"].reason == "constant, read by Mul"
    assert "and 1 more" in str(report)
    first = str(report).split("\n")[0]
    assert first == "score 'y', link identity: 1 of 3 tensors are trained, 2 of 7 numbers"
    assert describe_trainable(source, trainable=["c"], output="s").trained == ["c"]


def test_operators_from_the_first_trained_tensor_on():
    """Operators before it, or beside it, need no gradient and are not listed."""
    body = """u = Hardmax(x)  h = MatMul(u, w)  r = Relu(h)  s = Sin(x)  t = Add(r, s)  y = MatMul(t, v)"""
    model = onnx.parser.parse_model(TEXT[: TEXT.index("h = ")] + body + " }")
    rows = describe_trainable(model).operators
    assert [(row.operator, row.count) for row in rows] == [("MatMul", 2), ("Relu", 1), ("Add", 1)]


def test_a_model_that_cannot_be_trained_is_described():
    """A forest: no error, the reason instead."""
    report = describe_trainable(RandomForestClassifier(2, random_state=0).fit(X, Y))
    assert report.trained == []
    assert "TreeEnsembleClassifier" in report.problem
    assert report.problem in str(report)
    assert report.operators[0].engines == ()


OPEN = """<ir_version: 8, opset_import: ["": 18]>
    g (float[N, D] x) => (float[N, M] y) <float[2, 3] coef = {1, 2, 3, 4, 5, 6}, float[3] s = {1, 2, 4.2}> {
        h = Relu(x)  m = MatMul(h, coef)  y = Mul(m, s) }"""


@pytest.mark.parametrize(
    ("parameters", "trained"),
    [
        ({}, ["coef", "s"]),
        ({"output": "m"}, ["coef"]),
        ({"head": "linear"}, ["coef_1", "intercept"]),
        ({"head": "linear", "output": "h"}, ["coef", "intercept"]),
        ({"head": "linear", "trainable": ["coef"]}, ["coef", "coef_1", "intercept"]),
        ({"head": "linear", "trainable": ["s"]}, ["s", "coef_1", "intercept"]),
        ({"head": "linear", "trainable": lambda name: name == "s"}, ["s", "coef_1", "intercept"]),
        ({"head": "linear", "trainable": lambda name: False}, ["coef_1", "intercept"]),
        ({"trainable": lambda name: name == "s"}, ["s"]),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "onnxruntime-training", "portable"])
def test_a_report_agrees_with_a_fit(parameters, trained, engine):
    """With the same parameters, a fit trains the tensors of the report; a new layer is always among them."""
    if engine == "onnxruntime-training" and not orttraining.is_available():
        pytest.skip("needs the training edition")
    model = onnx.parser.parse_model(OPEN)
    data = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
    report = describe_trainable(model, data, engine=engine, **parameters)
    assert report.trained == trained
    estimator = OnnxSGDRegressor(model, engine=engine, max_iter=1, tol=None, **parameters)
    width = 1 if "head" in parameters else 3
    assert list(estimator.fit(data, np.ones((12, width))).get_weights()) == trained


def test_the_width_of_a_new_layer_follows_from_the_data():
    """X gives a dynamic size of the graph; without X the message names it."""
    model = onnx.parser.parse_model(OPEN)
    rows = describe_trainable(model, np.zeros((1, 2)), output="h", head="linear").tensors
    assert [(row.name, row.shape) for row in rows] == [("coef", (2, 1)), ("intercept", (1,))]
    with pytest.raises(GraphError, match="with unknown sizes"):
        describe_trainable(model, output="h", head="linear")
    with pytest.raises(ParameterError, match="head='deep'"):
        describe_trainable(model, head="deep")


def test_the_width_of_a_new_layer_behind_computed_sizes():
    """Exporters reshape the results of recurrent layers to sizes that the graph computes of their shapes."""
    body = """s = Shape(x)  n = Slice(s, zero, one)  a = Slice(s, one, two)  b = Slice(s, two, three)
        m = Mul(a, b)  k = Reshape(m, last)  t = Concat <axis = 0> (n, k)  h = Reshape(x, t)
        y = MatMul(h, w)"""
    numbers = ", ".join(
        f"int64[1] {name} = {{{n}}}" for n, name in enumerate(("zero", "one", "two", "three"))
    )
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[N, 2, 3] x) => (float[N, 1] y)
        <{numbers}, int64[1] last = {{-1}}, float[6, 1] w = {{1, 2, 3, 4, 5, 6}}> {{ {body} }}"""
    report = describe_trainable(onnx.parser.parse_model(text), np.zeros((1, 2, 3)), output="h", head="linear")
    assert {row.name: row.shape for row in report.tensors}["coef"] == (6, 1)


def test_html():
    """Notebooks show tables; names are escaped."""
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer[1].name = model.graph.node[3].input[1] = "<v>"
    html = describe_trainable(model)._repr_html_()
    assert "&lt;v&gt;" in html
    assert "<v>" not in html


def test_invalid_models_are_refused():
    """Objects of other types, and an estimator that is not fitted."""
    with pytest.raises(ParameterTypeError, match="fitted scikit-learn estimator"):
        describe_trainable(np.eye(2))
    with pytest.raises(NotFittedError):
        describe_trainable(LogisticRegression())


NORMALISED = """<ir_version: 9, opset_import: ["" : 17]>
network (float[N, 4] x) => (float[N, 1] y)
<float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] s = {1, 2}, float[2] t = {0, 1}, float[2] m = {0, 1},
 float[2] v = {1, 2}, float[2, 1] u = {1, 2}, float r = {0.5}, bool on = {1}> {
    a = MatMul(x, w)
    b = BatchNormalization<training_mode = MODE>(a, s, t, m, v)
    c = Dropout(b, r, on)
    y = MatMul(c, u)
}"""


def _is_w_or_v(name):
    return name in "wv"


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_norm": "train"},
        {"batch_norm": "frozen"},
        {"dropout": 0.25},
        {"batch_norm": "train", "dropout": 0.0, "trainable": ["u"]},
        {"batch_norm": "train", "trainable": _is_w_or_v},
        {"batch_norm": "train", "head": "linear", "output": "b"},
    ],
    ids="-".join,
)
def test_the_report_is_that_of_a_fit(mode, options):
    text = NORMALISED.replace("MODE", str(mode))
    model = onnx.parser.parse_model(text.replace("b = Batch", "b, q, z = Batch") if mode else text)
    fitted = OnnxSGDRegressor(model, max_iter=1, tol=None, random_state=0, **options).fit(X, Y)
    report = describe_trainable(model, **options)
    assert set(report.trained) == set(fitted.get_weights())
    assert report.problem is None
    reasons = {row.reason for row in report.tensors if row.name in "mv" and row.trained}
    assert reasons <= {"running statistic, updated without a gradient"}
    rows = {row.operator: row.engines for row in report.operators}
    assert "Dropout" not in rows or rows["Dropout"]


def test_modes_that_a_model_lacks_are_refused():
    plain = LinearRegression().fit(X, Y)
    for options, message in [
        ({"batch_norm": "train"}, "needs a BatchNormalization"),
        ({"batch_norm": "training"}, "must be 'frozen', 'train' or None"),
        ({"dropout": 0.5}, "needs a Dropout"),
        ({"dropout": 1.0}, "a number from 0 to below 1"),
        ({"dropout": True}, "a number from 0 to below 1"),
    ]:
        with pytest.raises(ParameterError, match=message):
            describe_trainable(plain, **options)
    with pytest.raises(ParameterError, match="trainable names 'm', a running statistic"):
        describe_trainable(
            onnx.parser.parse_model(NORMALISED.replace("MODE", "0")), batch_norm="train", trainable=["m", "w"]
        )
