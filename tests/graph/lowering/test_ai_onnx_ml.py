"""Operators of ai.onnx.ml become layers that compute the same."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from graph.lowering.lowered import operators

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.lowering.ai_onnx_ml import _LINKS as LINKS
from onnxsgd.graph.lowering.ai_onnx_ml import ML_RULES
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.lowering.svm import _KERNELS as KERNELS
from onnxsgd.graph.model import to_ir, to_proto


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


@pytest.mark.parametrize(("column", "is_part"), [(1, True), (-2, True), (2, False)])
def test_a_column_of_single_ones_is_that_one(column, is_part, run):
    """Two scores, and a table of two columns: the scores need no table, columns of the other one do."""
    text = f"""<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]>
        g (float[N, 1] x) => (float[N, 1] y) <int64[1] column = {{{column}}}> {{
            m = Neg(x) e = Exp(x) t = Concat <axis = 1> ({"m, x, e" if is_part else "m, x, w"})
            y = ai.onnx.ml.ArrayFeatureExtractor(t, column) }}"""
    if not is_part:
        text = text.replace("e = Exp(x)", "w = Concat <axis = 1> (x, x)")
    lowered = lower_for_training(to_ir(onnx.parser.parse_model(text)))
    assert ("Gather" in {name for _, name in operators(lowered)}) is not is_part
    x = np.arange(1, 6, dtype=np.float32)[:, None]
    table = np.hstack([-x, x, np.exp(x)] if is_part else [-x, x, x, x])
    np.testing.assert_array_equal(run(lowered, {"x": x})["y"][:, 0], table[:, column])


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
