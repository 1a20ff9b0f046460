"""A graph exported for training becomes a function of its inputs."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from onnxsgd import OnnxSGDRegressor
from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.lowering.inference_mode import _SWITCHES as SWITCHES
from onnxsgd.graph.lowering.inference_mode import inference_form
from onnxsgd.graph.model import to_ir, to_proto

HEAD = '<ir_version: 9, opset_import: ["": 17]>'
STATISTICS = (
    "<float[3] g = {1, 2, 3}, float[3] b = {0, 1, 2}, float[3] m = {1, 0, -1}, float[3] v = {4, 1, 9}, "
    "bool on = {1}, float rate = {0.5}>"
)
X = np.random.RandomState(0).normal(size=(6, 3)).astype(np.float32)
NORMALIZED = (X - [1, 0, -1]) / np.sqrt(np.float64([4, 1, 9]) + 1e-5) * [1, 2, 3] + [0, 1, 2]


def read(body, output="float[N, 3] Y"):
    return to_ir(parser.parse_model(f"{HEAD} agraph (float[N, 3] X) => ({output}) {STATISTICS} {{ {body} }}"))


def run(model, x=X):
    session = onnxruntime.InferenceSession(
        to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"X": x})


def test_batch_normalization_takes_the_running_statistics():
    model, switched = inference_form(read("Y, rm, rv = BatchNormalization<training_mode = 1>(X, g, b, m, v)"))
    assert switched == {"BatchNormalization": ("Y",)}
    np.testing.assert_allclose(run(model)[0], NORMALIZED, rtol=1e-5)
    np.testing.assert_allclose(run(model, X[:1])[0], NORMALIZED[:1], rtol=1e-5)


def test_running_statistics_that_are_returned_do_not_move():
    body = "Y, rm, rv = BatchNormalization<training_mode = 1>(X, g, b, m, v)"
    model, _ = inference_form(read(body, "float[N, 3] Y, float[3] rv, float[3] rm"))
    assert [value.name for value in model.graph.outputs] == ["Y", "rv", "rm"]
    found = run(model)
    np.testing.assert_array_equal(found[1], [4, 1, 9])
    np.testing.assert_array_equal(found[2], [1, 0, -1])


def test_dropout_is_off():
    model, switched = inference_form(read("Y = Dropout(X, rate, on)"))
    assert switched == {"Dropout": ("Y",)}
    np.testing.assert_array_equal(run(model)[0], X)


def test_an_input_for_the_training_mode_is_dropped():
    signature = "agraph (float[N, 3] X, bool train) => (float[N, 3] Y) <float rate = {0.5}>"
    text = f"{HEAD} {signature} {{ Y = Dropout(X, rate, train) }}"
    model, _ = inference_form(to_ir(parser.parse_model(text)))
    assert [value.name for value in model.graph.inputs] == ["X"]
    np.testing.assert_array_equal(run(model)[0], X)


#: Random numbers and their mean.
MEANS = [
    ("RandomNormalLike<mean = 2.5, scale = 3.0>(X)", 2.5),
    ("RandomUniformLike<low = 1.0, high = 4.0>(X)", 2.5),
    ("RandomNormal<shape = [3], mean = -1.0>()", -1.0),
    ("RandomUniform<shape = [3]>()", 0.5),
]

#: Random numbers whose mean is none of their values.
REFUSED = ["Bernoulli(X)", "Multinomial<dtype = 6>(X)"]


def operator_of(node):
    return node.split("(")[0].split("<")[0]


def test_every_switch_has_a_case():
    """BatchNormalization and Dropout have tests above."""
    drawn = {operator_of(node) for node in [*(node for node, _ in MEANS), *REFUSED]}
    assert set(SWITCHES) == drawn | {"BatchNormalization", "Dropout"}


@pytest.mark.parametrize(("node", "mean"), MEANS)
def test_random_numbers_become_their_mean(node, mean):
    model, _ = inference_form(read(f"R = {node}\nY = Add(X, R)"))
    np.testing.assert_allclose(run(model)[0], X + mean, rtol=1e-6)


def test_subgraphs_are_switched_too():
    body = """Y = If(on) <then_branch = t () => (float[N, 3] P) { P = Dropout(X, rate, on) },
        else_branch = e () => (float[N, 3] Q) { Q = Identity(X) }>"""
    model, switched = inference_form(read(body))
    assert switched == {"Dropout": ("P",)}
    np.testing.assert_array_equal(run(model)[0], X)


@pytest.mark.parametrize("node", REFUSED)
def test_draws_without_a_mean_are_refused_by_name(node):
    output = "float[N, 3] Y" if node.startswith("B") else "int32[N, 1] Y"
    with pytest.raises(UnsupportedError, match=operator_of(node)):
        inference_form(read(f"Y = {node}", output))


def test_a_graph_for_inference_is_returned_unchanged():
    model = read("Z = Dropout(X, rate)\nY = BatchNormalization(Z, g, b, m, v)")
    assert inference_form(model) == (model, {})


def test_an_estimator_predicts_the_same_alone_and_in_batches_and_says_why():
    text = f"""{HEAD} agraph (float[N, 3] X) => (float[N, 1] Y)
    <float[3] g = {{1, 1, 1}}, float[3] b = {{0, 0, 0}}, float[3] m = {{1, 0, -1}}, float[3] v = {{4, 1, 9}},
     float[3, 1] W = {{1, 2, 3}}> {{
        H, rm, rv = BatchNormalization<training_mode = 1>(X, g, b, m, v)
        R = RandomNormalLike(H)
        D = Add(H, R)
        Y = MatMul(D, W)
    }}"""
    learner = OnnxSGDRegressor(
        parser.parse_model(text), trainable=["W"], max_iter=2, tol=None, random_state=0, batch_norm="frozen"
    )
    with pytest.warns(UserWarning, match="exported for training: its RandomNormalLike nodes") as caught:
        learner.fit(X, X.sum(axis=1))
    assert len(caught) == 1
    together = learner.predict(X)
    np.testing.assert_allclose([learner.predict(X[i : i + 1])[0] for i in range(6)], together, rtol=1e-6)
    expected = (X - [1, 0, -1]) / np.sqrt(np.float64([4, 1, 9]) + 1e-5) @ learner.get_weights()["W"]
    np.testing.assert_allclose(together, expected[:, 0], rtol=1e-5)
    exported = learner.to_onnx()
    assert not any(
        attribute.name == "training_mode" for node in exported.graph.node for attribute in node.attribute
    )
    session = onnxruntime.InferenceSession(exported.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"X": X})[0][:, 0], together, rtol=1e-6)
    onnx.checker.check_model(exported)
