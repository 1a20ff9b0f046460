"""Operators written out compute the same numbers."""

import numpy as np
import onnx
import onnx.parser
import pytest
from graph.lowering.lowered import operators, parse
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsgd.graph.lowering.forms import FORMS, write_out
from onnxsgd.graph.lowering.forms.layers import MATRIX_FORMS
from onnxsgd.graph.model import to_proto

ALL = (13, 15, 18, 20, 21)


STATISTICS = """<float[3] s = {1, 2, 3}, float[3] b = {4, 5, 6},
    float[3] m = {0.1, 0.2, 0.3}, float[3] v = {1, 2, 3}>"""


#: Operator, its opsets, the node, and further parts of the graph.
NODES = [
    ("Celu", ALL, "y = Celu<alpha = 0.7>(x)", {}),
    ("Celu", ALL, "y = Celu(x)", {}),
    ("Cosh", ALL, "y = Cosh(x)", {}),
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
    ("Selu", ALL, "y = Selu(x)", {}),
    ("Selu", ALL, "y = Selu<alpha = 1.1, gamma = 0.9>(x)", {}),
    ("Sinh", ALL, "y = Sinh(x)", {}),
    ("Softplus", ALL, "y = Softplus(x)", {}),
    ("Softsign", ALL, "y = Softsign(x)", {}),
    ("Sum", ALL, "a = Neg(x) y = Sum(x, a, c)", {"weights": "<float[3, 1] c = {1, 2, 3}>"}),
    ("Sum", ALL, "y = Sum(x)", {}),
    ("Tan", ALL, "y = Tan(x)", {}),
    ("ThresholdedRelu", ALL, "y = ThresholdedRelu<alpha = 0.3>(x)", {}),
    ("BatchNormalization", ALL, "y = BatchNormalization(x, s, b, m, v)", {"weights": STATISTICS}),
    (
        "BatchNormalization",
        ALL,
        "y = BatchNormalization(x, s, b, m, v)",
        {"x": "float[N, 3] x", "weights": STATISTICS},
    ),
]


#: Layers on matrices: operator, node, and weights.
MATRIX_NODES = [
    ("BatchNormalization", "y = BatchNormalization(x, s, b, m, v)", STATISTICS),
    ("BatchNormalization", "y = BatchNormalization<epsilon = 0.1>(x, s, b, m, v)", STATISTICS),
]


@pytest.mark.parametrize(
    ("operator", "opset", "body", "more"),
    [
        pytest.param(operator, opset, body, more, id=f"{operator}-{index}-opset{opset}")
        for index, (operator, opsets, body, more) in enumerate(NODES)
        for opset in opsets
    ],
)
def test_forms_keep_values(operator, opset, body, more, run):
    """Each operator in each form, in each opset that has it."""
    model = parse(body, opset, **more)
    lowered = model.clone()
    write_out(lowered)
    onnx.checker.check_model(to_proto(lowered), full_check=True)
    assert ("", operator) not in operators(lowered)
    rng = np.random.default_rng(0)
    shape = [5 if not isinstance(size, int) else size for size in model.graph.inputs[0].shape]
    for scale in (1.0, 20.0):
        x = {"x": (scale * rng.normal(size=shape)).astype(np.float32)}
        expected, actual = run(model, x)["y"], run(lowered, x)["y"]
        assert actual.shape == expected.shape
        # values of 1e8 and more (cosh, products) are compared to rounding, those near zero to the scale of x
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6 * scale)


def test_every_form_of_matrices_is_tested():
    assert {name for _, name in MATRIX_FORMS} == {node[0] for node in MATRIX_NODES}


@pytest.mark.parametrize("opset", ALL)
@pytest.mark.parametrize(("operator", "body", "weights"), MATRIX_NODES)
def test_forms_of_matrices_keep_values(operator, body, weights, opset, run):
    """A second form of the same layer, in the compiled step."""
    model = parse(body, opset, x="float[N, 3] x", weights=weights)
    written = model.clone()
    write_out(written, MATRIX_FORMS)
    onnx.checker.check_model(to_proto(written), full_check=True)
    assert ("", operator) not in operators(written)
    x = {"x": np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)}
    np.testing.assert_allclose(run(written, x)["y"], run(model, x)["y"], rtol=2e-6, atol=1e-6)


def test_forms_of_matrices_leave_images_alone():
    model = parse("y = BatchNormalization(x, s, b, m, v)", weights=STATISTICS)
    write_out(model, MATRIX_FORMS)
    assert operators(model) == {("", "BatchNormalization")}


def test_every_form_is_tested():
    """A form without a case above would go unnoticed."""
    assert {name for _, name in FORMS} == {node[0] for node in NODES}


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
    model = parse(f"y = {operator}(a, b, a)", x=inputs)
    write_out(model)
    expected = 2 * arrays["a"] + arrays["b"]
    actual = ReferenceEvaluator(to_proto(model)).run(None, arrays)[0]
    np.testing.assert_allclose(actual, expected / (3 if operator == "Mean" else 1), rtol=1e-5, atol=1e-6)
