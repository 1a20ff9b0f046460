"""Lowered graphs compute the same, in operators that gradients pass."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.lowering.ai_onnx_ml import _LINKS as LINKS
from onnxsgd.graph.lowering.ai_onnx_ml import ML_RULES
from onnxsgd.graph.lowering.lower import RULES, lower_for_training
from onnxsgd.graph.lowering.svm import _KERNELS as KERNELS
from onnxsgd.graph.model import to_ir, to_proto

ALL = (13, 15, 18, 20, 21)


def parse(body, opset=18, x="float[N, 3, 4] x", y="float[] y", weights=""):
    imports = f'["": {opset}, "ai.onnx.ml": 3]'
    text = f"<ir_version: 8, opset_import: {imports}> g ({x}) => ({y}) {weights} {{ {body} }}"
    proto = onnx.parser.parse_model(text)
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    inferred = onnx.shape_inference.infer_shapes(proto)
    return to_ir(inferred)


def operators(model):
    return {(node.domain, node.op_type) for node in model.graph}


#: Operator, its opsets, the node, and further parts of the graph.
NODES = [
    ("Dropout", ALL, "y = Dropout(x)", {}),
    (
        "Dropout",
        ALL,
        "y, mask = Dropout(x, ratio, mode)",
        {"weights": "<float ratio = {0.4}, bool mode = {0}>"},
    ),
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
    assert operator == "Div" or ("", operator) not in operators(lowered)
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


def ml(op_type, x, outputs, attributes, inputs=1):
    """Make a graph of one ``ai.onnx.ml`` operator."""
    make = onnx.helper.make_tensor_value_info
    names = [f"x{i}" for i in range(inputs)]
    kind = onnx.TensorProto.FLOAT if x.dtype == np.float32 else onnx.TensorProto.INT64
    node = onnx.helper.make_node(op_type, names, list(dict(outputs)), domain="ai.onnx.ml", **attributes)
    ins = [make(name, kind, [None, x.shape[1]]) for name in names]
    outs = [make(name, kind, None) for name, kind in outputs]
    imports = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    graph = onnx.helper.make_graph([node], "g", ins, outs)
    return to_ir(onnx.helper.make_model(graph, opset_imports=imports, ir_version=8))


X = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
ZEROS = np.vstack([X, np.zeros((1, 2), np.float32)])
FLOAT, INT, STRING = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.STRING
SCORES = [("label", INT), ("scores", FLOAT)]
BINARY = {"coefficients": [-1.0, 2, 1, -2], "intercepts": [-0.5, 0.5], "classlabels_ints": [3, 7]}
TERNARY = {
    "coefficients": [-1.0, 2, 1, -2, 0, 3],
    "intercepts": [-0.5, 0.5, 0.1],
    "classlabels_ints": [3, 7, 9],
}
VECTORS = {"support_vectors": [1.0, 0, 0, 1, 1, 1], "coefficients": [1.0, -0.5, -0.5], "rho": [0.2]}
MACHINES = [
    {"kernel_type": kernel, "kernel_params": [0.5, 0.1, 3.0]}
    for kernel in ("LINEAR", "RBF", "POLY", "SIGMOID")
]
ML_NODES = [
    *(
        ("LinearClassifier", X, SCORES, {**TERNARY, "post_transform": link})
        for link in ("NONE", "LOGISTIC", "SOFTMAX")
    ),
    *(
        ("LinearClassifier", X, SCORES, {**BINARY, "post_transform": link})
        for link in ("NONE", "LOGISTIC", "SOFTMAX")
    ),
    ("LinearClassifier", X, SCORES, {**BINARY, "coefficients": [1.0, 2, 3, 4], "post_transform": "SOFTMAX"}),
    (
        "LinearClassifier",
        X,
        [("label", STRING), ("scores", FLOAT)],
        {"coefficients": [-1.0, 2, 1, -2], "intercepts": [0.0, 0.0], "classlabels_strings": ["no", "yes"]},
    ),
    (
        "LinearClassifier",
        X,
        SCORES,
        {key: TERNARY[key] for key in ("coefficients", "classlabels_ints", "intercepts")},
    ),
    ("LinearClassifier", (10 * X).astype(np.int64), SCORES, TERNARY),
    ("LinearRegressor", X, [("y", FLOAT)], {"coefficients": [1.0, 2.0], "intercepts": [3.0]}),
    (
        "LinearRegressor",
        X,
        [("y", FLOAT)],
        {"coefficients": [1.0, 2.0, 3.0, 4.0], "intercepts": [3.0, -1.0], "targets": 2},
    ),
    ("LinearRegressor", X, [("y", FLOAT)], {"coefficients": [1.0, 2.0]}),
    ("Normalizer", ZEROS, [("y", FLOAT)], {"norm": "L1"}),
    ("Normalizer", ZEROS, [("y", FLOAT)], {"norm": "L2"}),
    ("Normalizer", ZEROS, [("y", FLOAT)], {"norm": "MAX"}),
    ("Scaler", X, [("y", FLOAT)], {"offset": [1.0, 2.0], "scale": [3.0, 4.0]}),
    ("Scaler", X, [("y", FLOAT)], {"offset": [1.0], "scale": [3.0]}),
    ("Scaler", (10 * X).astype(np.int64), [("y", FLOAT)], {"offset": [1.0, 2.0], "scale": [3.0, 4.0]}),
    ("FeatureVectorizer", X, [("y", FLOAT)], {"inputdimensions": [2, 2]}),
    *(("SVMRegressor", X, [("y", FLOAT)], {**VECTORS, **machine, "n_supports": 3}) for machine in MACHINES),
    *(
        (
            "SVMClassifier",
            X,
            SCORES,
            {**VECTORS, **machine, "vectors_per_class": [1, 2], "classlabels_ints": [3, 7]},
        )
        for machine in MACHINES
    ),
]


def test_every_rule_for_ml_has_a_case():
    """An ArrayFeatureExtractor reads a second operand: see test_columns_of_numbers."""
    assert {name for _, name in ML_RULES} - {node[0] for node in ML_NODES} == {"ArrayFeatureExtractor"}


def test_every_link_has_a_case():
    assert set(LINKS) == {node[3].get("post_transform", "NONE") for node in ML_NODES}


def test_every_kernel_has_a_case():
    """The linear one needs no function: its two products become one."""
    for operator in ("SVMClassifier", "SVMRegressor"):
        assert {*KERNELS, "LINEAR"} == {node[3]["kernel_type"] for node in ML_NODES if node[0] == operator}


def test_columns_of_numbers(run):
    text = """<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]>
        g (float[N, 4] x) => (float[N, 3] y) <int64[3] columns = {2, 0, 3}>
        { y = ai.onnx.ml.ArrayFeatureExtractor(x, columns) }"""
    lowered = lower_for_training(to_ir(onnx.parser.parse_model(text)))
    assert not any(domain == "ai.onnx.ml" for domain, _ in operators(lowered))
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    np.testing.assert_array_equal(run(lowered, {"x": x})["y"], x[:, [2, 0, 3]])


@pytest.mark.parametrize(
    ("operator", "x", "outputs", "attributes"), ML_NODES, ids=[f"{n[0]}-{i}" for i, n in enumerate(ML_NODES)]
)
def test_rules_for_ml_keep_values(operator, x, outputs, attributes, run):
    """Labels are equal, scores to float32 rounding; nothing is left of the domain without gradients."""
    model = ml(operator, x, outputs, attributes, inputs=len(attributes.get("inputdimensions", [0])))
    lowered = lower_for_training(model)
    onnx.checker.check_model(to_proto(lowered))
    assert not any(domain == "ai.onnx.ml" for domain, _ in operators(lowered))
    feeds = {value.name: x for value in model.graph.inputs}
    expected, actual = run(model, feeds), run(lowered, feeds)
    for name, kind in outputs:
        if kind == FLOAT:
            np.testing.assert_allclose(actual[name], expected[name], rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(actual[name], expected[name])


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("LinearClassifier", {**TERNARY, "post_transform": "PROBIT"}),
        ("LinearClassifier", {**BINARY, "coefficients": [1.0, 2.0], "intercepts": [0.5]}),
        ("LinearRegressor", {"coefficients": [1.0, 2.0], "post_transform": "LOGISTIC"}),
        (
            "SVMClassifier",
            {**VECTORS, **MACHINES[1], "vectors_per_class": [1, 1, 1], "classlabels_ints": [3, 7, 9]},
        ),
        ("SVMRegressor", {**VECTORS, **MACHINES[1], "n_supports": 3, "one_class": 1}),
    ],
)
def test_nodes_without_an_exact_equivalent_are_left_alone(operator, attributes):
    """A rule whose precondition does not hold must not touch the node."""
    model = ml(operator, X, SCORES if "Classifier" in operator else [("y", FLOAT)], attributes)
    assert operators(lower_for_training(model)) == {("ai.onnx.ml", operator)}


@pytest.mark.parametrize("operator", ["LinearRegressor", "SVMRegressor"])
def test_data_of_three_axes_is_refused(operator):
    """Linear models take rows: neither the checker nor inference compares the rank."""
    attributes = {**VECTORS, **MACHINES[1], "n_supports": 3}
    if operator == "LinearRegressor":
        attributes = {"coefficients": [1.0, 2.0]}
    model = ml(operator, X, [("y", FLOAT)], attributes)
    model.graph.inputs[0].shape = ir.Shape(["N", 4, 2])
    with pytest.raises(GraphError, match=f"The {operator} that computes 'y' reads 'x0', of 3 axes"):
        lower_for_training(model)


def test_a_binary_classifier_has_one_column_of_scores():
    """Two mirrored rows are one set of parameters, in files as in scikit-learn's coef_."""
    lowered = lower_for_training(ml("LinearClassifier", X, SCORES, {**BINARY, "post_transform": "LOGISTIC"}))
    assert tuple(lowered.graph.initializers["coef"].shape) == (2, 1)
    np.testing.assert_array_equal(lowered.graph.initializers["intercept"].const_value.numpy(), [0.5])


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
