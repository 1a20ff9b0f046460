"""Lowered graphs compute what they did, in operators that gradients pass."""

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsgd.gradient.derivative import DerivativeOptions, onnx_derivative
from onnxsgd.graph.lower import RULES, lower_for_training
from onnxsgd.graph.model import FROZEN, PARAMETER, to_ir, to_proto

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


STATISTICS = """<float[3] s = {1, 2, 3}, float[3] b = {4, 5, 6},
    float[3] m = {0.1, 0.2, 0.3}, float[3] v = {1, 2, 3}>"""

#: Operator, its opsets, the node, and what else the graph needs.
NODES = [
    ("Celu", ALL, "y = Celu<alpha = 0.7>(x)", {}),
    ("Celu", ALL, "y = Celu(x)", {}),
    ("Cosh", ALL, "y = Cosh(x)", {}),
    ("Cast", ALL, "y = Cast<to = 1>(x)", {}),
    ("Dropout", ALL, "y = Dropout(x)", {}),
    (
        "Dropout",
        ALL,
        "y, mask = Dropout(x, ratio, mode)",
        {"weights": "<float ratio = {0.4}, bool mode = {0}>"},
    ),
    ("Elu", ALL, "y = Elu<alpha = 1.5>(x)", {}),
    ("Elu", ALL, "y = Elu(x)", {}),
    ("Gelu", (20, 21), "y = Gelu(x)", {}),
    ("Gelu", (20, 21), 'y = Gelu<approximate = "tanh">(x)', {}),
    ("GlobalMaxPool", ALL, "y = GlobalMaxPool(x)", {}),
    ("GlobalMaxPool", ALL, "y = GlobalMaxPool(x)", {"x": "float[N, 3, 4, 5] x"}),
    ("HardSigmoid", ALL, "y = HardSigmoid<alpha = 0.3, beta = 0.4>(x)", {}),
    ("HardSigmoid", ALL, "y = HardSigmoid(x)", {}),
    ("HardSwish", (15, 18, 20, 21), "y = HardSwish(x)", {}),
    (
        "InstanceNormalization",
        ALL,
        "y = InstanceNormalization<epsilon = 0.01>(x, s, b)",
        {"weights": "<float[3] s = {1, 2, 3}, float[3] b = {4, 5, 6}>"},
    ),
    ("LpNormalization", ALL, "y = LpNormalization<p = 1, axis = 1>(x)", {}),
    ("LpNormalization", ALL, "y = LpNormalization(x)", {}),
    ("Mean", ALL, "a = Abs(x) y = Mean(x, a, c)", {"weights": "<float[3, 1] c = {1, 2, 3}>"}),
    ("Mish", (18, 20, 21), "y = Mish(x)", {}),
    ("PRelu", ALL, "y = PRelu(x, s)", {"weights": "<float[3, 1] s = {0.1, 0.2, 0.3}>"}),
    ("Pow", ALL, "y = Pow(x, two)", {"weights": "<float two = {2}>"}),
    ("Pow", ALL, "y = Pow(x, three)", {"weights": "<int64 three = {3}>"}),
    ("Pow", ALL, "y = Pow(x, each)", {"weights": "<int32[4] each = {0, 1, 2, 3}>"}),
    ("ReduceLogSum", (13, 15), "a = Abs(x) y = ReduceLogSum<axes = [1], keepdims = 0>(a)", {}),
    (
        "ReduceLogSum",
        (18, 21),
        "a = Abs(x) y = ReduceLogSum(a, axes)",
        {"weights": "<int64[2] axes = {0, -1}>"},
    ),
    ("ReduceL1", (13, 15), "y = ReduceL1<axes = [-1]>(x)", {}),
    ("ReduceL1", (18, 21), "y = ReduceL1<keepdims = 0>(x, axes)", {"weights": "<int64[1] axes = {1}>"}),
    ("ReduceL1", ALL, "y = ReduceL1(x)", {}),
    ("ReduceMax", (13, 15), "y = ReduceMax<axes = [1, 2], keepdims = 0>(x)", {}),
    ("ReduceMax", (18, 20, 21), "y = ReduceMax(x, axes)", {"weights": "<int64[1] axes = {-2}>"}),
    ("ReduceMax", ALL, "y = ReduceMax<keepdims = 0>(x)", {}),
    ("ReduceMin", ALL, "y = ReduceMin(x)", {}),
    ("ReduceMin", (18, 21), "y = ReduceMin<keepdims = 0>(x, axes)", {"weights": "<int64[2] axes = {1, 2}>"}),
    ("ReduceProd", (13, 15), "y = ReduceProd<axes = [2]>(x)", {}),
    (
        "ReduceProd",
        (18, 21),
        "y = ReduceProd<keepdims = 0>(x, axes)",
        {"weights": "<int64[2] axes = {1, 2}>"},
    ),
    ("ReduceSumSquare", (13, 15), "y = ReduceSumSquare<axes = [2]>(x)", {}),
    ("ReduceSumSquare", (18, 21), "y = ReduceSumSquare(x, axes)", {"weights": "<int64[1] axes = {0}>"}),
    ("Reciprocal", ALL, "e = Exp(x) d = Add(one, e) y = Reciprocal(d)", {"weights": "<float one = {1}>"}),
    ("Div", ALL, "e = Exp(x) d = Add(e, one) y = Div(one, d)", {"weights": "<float one = {1}>"}),
    ("Selu", ALL, "y = Selu(x)", {}),
    ("Selu", ALL, "y = Selu<alpha = 1.1, gamma = 0.9>(x)", {}),
    ("Sinh", ALL, "y = Sinh(x)", {}),
    ("Softplus", ALL, "y = Softplus(x)", {}),
    ("Softsign", ALL, "y = Softsign(x)", {}),
    ("Sum", ALL, "a = Neg(x) y = Sum(x, a, c)", {"weights": "<float[3, 1] c = {1, 2, 3}>"}),
    ("Sum", ALL, "y = Sum(x)", {}),
    ("Tan", ALL, "y = Tan(x)", {}),
    ("ThresholdedRelu", ALL, "y = ThresholdedRelu<alpha = 0.3>(x)", {}),
    ("Transpose", ALL, "y = Transpose(x)", {}),
    ("MatMul", ALL, "y = MatMul(x, w)", {"weights": "<float[4] w = {1, 2, 3, 4}>"}),
    ("BatchNormalization", ALL, "y = BatchNormalization(x, s, b, m, v)", {"weights": STATISTICS}),
    (
        "BatchNormalization",
        ALL,
        "y = BatchNormalization(x, s, b, m, v)",
        {"x": "float[N, 3] x", "weights": STATISTICS},
    ),
]

#: Rules that replace an operator by another form of itself.
SAME_OPERATOR = {"Cast", "Div", "MatMul", "Pow", "Transpose"}


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
    assert operator in SAME_OPERATOR or ("", operator) not in operators(lowered)
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
def test_what_has_no_exact_equivalent_is_left_alone(operator, attributes):
    """A rule whose precondition does not hold must not touch the node."""
    model = ml(operator, X, SCORES if "Classifier" in operator else [("y", FLOAT)], attributes)
    assert operators(lower_for_training(model)) == {("ai.onnx.ml", operator)}


def test_a_binary_classifier_has_one_column_of_scores():
    """Two mirrored rows are one set of parameters, in files as in scikit-learn's coef_."""
    lowered = lower_for_training(ml("LinearClassifier", X, SCORES, {**BINARY, "post_transform": "LOGISTIC"}))
    assert tuple(lowered.graph.initializers["coef"].shape) == (2, 1)
    np.testing.assert_array_equal(lowered.graph.initializers["intercept"].const_value.numpy(), [0.5])


def test_names_stay():
    """A user names tensors in trainable= and output=: what was computed still is, under its name."""
    model = parse("a = Softplus(x) coef = Identity(a) b = Sum(coef, a) y = Elu(b)", weights="<float z = {1}>")
    lowered = lower_for_training(model)
    computed = {value.name for node in lowered.graph for value in node.outputs}
    assert {"a", "coef", "b", "y"} <= computed
    names = [value.name for node in lowered.graph for value in node.outputs] + list(
        lowered.graph.initializers
    )
    assert len(names) == len(set(names))


def test_lowering_twice_changes_nothing():
    """Other rooms lower again, to be sure."""
    model = parse("a = Softplus(x) b = ReduceMax(a) c = Selu(b) y = Sum(c, x)")
    once = lower_for_training(model)
    assert to_proto(lower_for_training(once)) == to_proto(once)


def test_the_model_is_not_changed():
    """Lowering marks parameters and renames values in a copy."""
    model = parse("y = PRelu(x, s)", weights="<float[3, 1] s = {0.1, 0.2, 0.3}>")
    before = to_proto(model)
    lowered = lower_for_training(model)
    assert to_proto(model) == before
    assert lowered.graph.initializers["s"].metadata_props[PARAMETER] == "weight"


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


def test_batch_normalization_keeps_its_parameters():
    """Scale and bias stay under their names, as parameters; the statistics are constants."""
    model = parse(
        "y = BatchNormalization(x, s, b, m, v)",
        weights=STATISTICS,
    )
    initializers = lower_for_training(model).graph.initializers
    assert initializers["s"].metadata_props[PARAMETER] == "weight"
    assert initializers["b"].metadata_props[PARAMETER] == "intercept"
    statistics = [name for name, value in initializers.items() if FROZEN in value.metadata_props]
    assert sorted(statistics) == ["inverse_deviation", "mean"]


def test_outputs_that_are_inputs(run):
    """A graph may return what a rule passes through: the output must still be there, under its name."""
    model = parse("y = Dropout(x)")
    x = np.ones((2, 3, 4), np.float32)
    np.testing.assert_array_equal(run(lower_for_training(model), {"x": x})["y"], x)


def test_a_zip_map_becomes_the_matrix(run):
    """Files of skl2onnx return a list of dictionaries unless told otherwise."""
    text = """<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]>
        g (float[N, 2] x) => (seq(map(int64, float)) p) {
            s = Softmax(x)  p = ai.onnx.ml.ZipMap <classlabels_int64s = [3, 7]> (s) }"""
    lowered = lower_for_training(to_ir(onnx.parser.parse_model(text)))
    probabilities = run(lowered, {"x": np.zeros((5, 2), np.float32)})["p"]
    np.testing.assert_array_equal(probabilities, np.full((5, 2), 0.5))


@settings(max_examples=30, deadline=None)
@given(
    shapes=st.sampled_from(
        [((2, 3), (3,)), ((4, 1), (1, 5)), ((), (2, 2)), ((2, 3, 1), (3, 4)), ((1,), (1,))]
    ),
    operator=st.sampled_from(["Sum", "Mean"]),
    seed=st.integers(0, 2**16),
)
def test_broadcasts(shapes, operator, seed):
    """Variadic operators broadcast all their operands at once, the replacement two at a time."""
    from onnx.reference import ReferenceEvaluator

    rng = np.random.default_rng(seed)
    arrays = {
        name: rng.normal(size=shape).astype(np.float32) for name, shape in zip("ab", shapes, strict=True)
    }
    inputs = ", ".join(f"float[{', '.join(map(str, a.shape))}] {name}" for name, a in arrays.items())
    lowered = to_proto(lower_for_training(parse(f"y = {operator}(a, b, a)", x=inputs)))
    expected = 2 * arrays["a"] + arrays["b"]
    actual = ReferenceEvaluator(lowered).run(None, arrays)[0]
    np.testing.assert_allclose(actual, expected / (3 if operator == "Mean" else 1), rtol=1e-5, atol=1e-6)


SLOPES = [
    ("Softplus(x)", 0.5, 1.0),
    ("Elu(x)", 1.0, 1.0),
    ("Selu(x)", 1.0507 * 1.67326, 1.0507),
    ("Celu<alpha = 2.0>(x)", 1.0, 1.0),
    ("Mish(x)", 0.6, 1.0),
    ("Softsign(x)", 1.0, None),
    ("PRelu(x, s)", 1.0, 1.0),
]


@pytest.mark.parametrize(("node", "at_zero", "far"), SLOPES, ids=[node for node, _, _ in SLOPES])
def test_slopes_at_kinks_and_far_out(node, at_zero, far, run):
    """A score of exactly zero is what training starts from, and one of 1e4 must not make a NaN."""
    model = lower_for_training(parse(f"y = {node}", x="float[N, 2] x", weights="<float s = {0.1}>"))
    options = DerivativeOptions.FillGrad | DerivativeOptions.KeepOutputs
    derivative = onnx_derivative(to_proto(model), weights=[], inputs=["x"], options=options)
    slope = run(derivative, {"x": np.array([[0.0, 1e4], [-1e4, 1.0]], np.float32)})["x_grad"]
    assert np.isfinite(slope).all()
    np.testing.assert_allclose(slope[0, 0], at_zero, rtol=1e-4)
    if far is not None:
        np.testing.assert_allclose(slope[0, 1], far, rtol=1e-4)
