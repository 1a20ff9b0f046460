"""Lowered graphs compute the same, in operators that gradients pass."""

import numpy as np
import onnx
import onnx.parser
import pytest
from graph.lowering.lowered import operators, parse

from onnxsgd.graph.lowering.lower import RULES, lower_for_training
from onnxsgd.graph.model import to_ir, to_proto

ALL = (13, 15, 18, 20, 21)


#: Operator, its opsets, the node, and further parts of the graph.
NODES = [
    ("Dropout", ALL, "y = Dropout(x)", {}),
    (
        "Dropout",
        ALL,
        "y, mask = Dropout(x, ratio, mode)",
        {"weights": "<float ratio = {0.4}, bool mode = {0}>"},
    ),
    (
        "Reshape",
        ALL,
        "s = Shape(x) v = Slice(s, zero, one) n = Squeeze(v) w = Reshape(n, minus) "
        "t = Concat<axis = 0>(w, minus) z = Reshape(x, t) y = ReduceSum<keepdims = 0>(z)",
        {"weights": "<int64[1] minus = {-1}, int64[1] zero = {0}, int64[1] one = {1}>"},
    ),
    ("CastLike", ALL[1:], "y = CastLike(x, like)", {"weights": "<float like = {2}>"}),
    ("CastLike", ALL[1:], "i = CastLike(x, like) y = CastLike(i, x)", {"weights": "<int64 like = {2}>"}),
    ("Reciprocal", ALL, "e = Exp(x) d = Add(one, e) y = Reciprocal(d)", {"weights": "<float one = {1}>"}),
    ("Div", ALL, "e = Exp(x) d = Add(e, one) y = Div(one, d)", {"weights": "<float one = {1}>"}),
]


@pytest.mark.parametrize(
    ("operator", "opset", "body", "more"),
    [
        pytest.param(operator, opset, body, more, id=f"{operator}-{index}-opset{opset}")
        for index, (operator, opsets, body, more) in enumerate(NODES)
        for opset in opsets
    ],
)
def test_rules_keep_values(operator, opset, body, more, run):
    """Each operator in each form, in each opset that has it."""
    model = parse(body, opset, **more)
    lowered = lower_for_training(model)
    onnx.checker.check_model(to_proto(lowered), full_check=True)
    assert operator in ("Div", "Reshape") or ("", operator) not in operators(lowered)
    # the one of the data stays
    assert operator != "Reshape" or [node.op_type for node in lowered.graph].count("Reshape") == 1
    rng = np.random.default_rng(0)
    shape = [5 if not isinstance(size, int) else size for size in model.graph.inputs[0].shape]
    for scale in (1.0, 20.0):
        x = {"x": (scale * rng.normal(size=shape)).astype(np.float32)}
        expected, actual = run(model, x)["y"], run(lowered, x)["y"]
        assert actual.shape == expected.shape
        # values of 1e8 and more (cosh, products) are compared to rounding, those near zero to the scale of x
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6 * scale)


def test_every_rule_for_standard_operators_is_tested():
    """A rule without a case above would go unnoticed."""
    assert {name for domain, name in RULES if domain == ""} == {node[0] for node in NODES}


def test_names_stay():
    """A user names tensors in trainable= and output=: computed tensors stay, under their names."""
    body = "e = Exp(x) d = Add(e, one) a = Div(one, d) coef = Identity(a) b = Dropout(coef) y = Elu(b)"
    model = parse(body, weights="<float one = {1}>")
    lowered = lower_for_training(model)
    computed = {value.name for node in lowered.graph for value in node.outputs}
    assert {"a", "coef", "y"} <= computed
    names = [value.name for node in lowered.graph for value in node.outputs] + list(
        lowered.graph.initializers
    )
    assert len(names) == len(set(names))


def test_lowering_twice_changes_nothing():
    """Other modules lower graphs that may be lowered already."""
    model = parse("e = Exp(x) d = Add(e, one) a = Div(one, d) y = Dropout(a)", weights="<float one = {1}>")
    once = lower_for_training(model)
    assert to_proto(lower_for_training(once)) == to_proto(once)


def test_the_model_is_not_changed():
    """Lowering names unknown sizes and renames values in a copy."""
    model = parse(
        "a = Dropout(x) y = PRelu(a, s)", weights="<float[3, 1] s = {0.1, 0.2, 0.3}>", x="float[N, M] x"
    )
    before = to_proto(model)
    lower_for_training(model)
    assert to_proto(model) == before


@pytest.mark.parametrize("operator", ["Elu", "HardSwish", "Softsign", "ReduceMax", "Sum", "Mean"])
def test_operators_that_an_engine_has_a_gradient_of_stay(operator):
    """Each engine has its own lowering: one operator has one gradient."""
    assert operators(lower_for_training(parse(f"y = {operator}(x)"))) == {("", operator)}


@pytest.mark.parametrize(
    "constant",
    ["value = float[3, 1] {1, 2, 3}", "value_float = 2.0", "value_floats = [1.0, 2.0, 3.0, 4.0]"],
)
def test_constants_become_initializers(constant, run):
    """Exporters such as Paddle's keep every weight in a node."""
    model = parse(f"w = Constant<{constant}>() y = Mul(x, w)")
    lowered = lower_for_training(model)
    assert operators(lowered) == {("", "Mul")}
    assert list(lowered.graph.initializers) == ["w"]
    x = {"x": np.ones((2, 3, 4), np.float32)}
    np.testing.assert_array_equal(run(lowered, x)["y"], run(model, x)["y"])


def test_outputs_that_are_inputs(run):
    """A rule may return its operand: the output must keep its name."""
    model = parse("y = Dropout(x)")
    x = np.ones((2, 3, 4), np.float32)
    np.testing.assert_array_equal(run(lower_for_training(model), {"x": x})["y"], x)


def test_a_zip_map_becomes_the_matrix(run):
    """Files of skl2onnx return a list of dictionaries by default."""
    text = """<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]>
        g (float[N, 2] x) => (seq(map(int64, float)) p) {
            s = Softmax(x)  p = ai.onnx.ml.ZipMap <classlabels_int64s = [3, 7]> (s) }"""
    lowered = lower_for_training(to_ir(onnx.parser.parse_model(text)))
    probabilities = run(lowered, {"x": np.zeros((5, 2), np.float32)})["p"]
    np.testing.assert_array_equal(probabilities, np.full((5, 2), 0.5))
