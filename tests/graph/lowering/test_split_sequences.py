"""Parts read from sequences are parts of a Split with the same numbers, or the graph is unchanged."""

import numpy as np
import onnx
import pytest
from graph.lowering.lowered import operators

from onnxsgd import describe_trainable, onnx_derivative
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.lowering.split_sequences import split_sequences
from onnxsgd.graph.model import to_ir, to_proto

#: Sizes of parts, or one size, or none, of the axis of 5 or of 3 elements.
SPLITS = [
    "SplitToSequence <axis = 1> (X, sizes)",
    "SplitToSequence <axis = -2> (X, sizes)",
    "SplitToSequence <axis = 1> (X, whole)",
    "SplitToSequence <axis = 1> (X, two)",
    "SplitToSequence <axis = 2, keepdims = 0> (X, all)",
    "SplitToSequence <axis = 2> (X)",
    "SplitToSequence <axis = -1, keepdims = 0> (X)",
    "SplitToSequence <axis = 1> (X, computed)",
]

CONSTANTS = """<int64[2] sizes = {2, 3}, int64[1] whole = {5}, int64[3] all = {1, 1, 1},
    int64[2] short = {2, 2}, int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 three = {3},
    int64 last = {-1}, int64 far = {7}>"""


def parse(body, x="float[N, 5, 3] X, int64 K", y="float[] Y"):
    text = f'<ir_version: 8, opset_import: ["": 18]> g ({x}) => ({y}) {CONSTANTS} {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def data(model):
    rng = np.random.default_rng(0)
    feeds = {"X": rng.normal(size=(4, 5, 3)).astype(np.float32), "K": np.array(0)}
    return {value.name: feeds[value.name] for value in model.graph.input}


def assert_same(model, run):
    lowered = lower_for_training(to_ir(model))
    onnx.checker.check_model(to_proto(lowered), full_check=True)
    np.testing.assert_array_equal(run(lowered, data(model))["Y"], run(model, data(model))["Y"])
    return {name for _, name in operators(lowered)}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("position", ["zero", "last"])
def test_a_part_is_read_from_a_split(split, position, run):
    """Also parts of unequal sizes, and single elements that lose their axis."""
    body = f"computed = Sub(three, one) S = {split} Y = SequenceAt(S, {position})"
    left = assert_same(parse(body), run)
    assert "Split" in left
    assert not left & {"SplitToSequence", "SequenceAt"}


def test_several_nodes_read_one_part(run):
    """Each keeps its name, which a user may have chosen as output or in trainable=."""
    model = parse(
        "S = SplitToSequence <axis = 2> (X) A = SequenceAt(S, one) B = SequenceAt(S, one)"
        "C = SequenceAt(S, last) D = Mul(A, B) Y = Sub(D, C)"
    )
    assert "SequenceAt" not in assert_same(model, run)
    lowered = lower_for_training(to_ir(model))
    assert {"A", "B", "C"} <= {value.name for node in lowered.graph for value in node.outputs}


def test_a_branch_reads_a_part(run):
    """A subgraph captures the sequence."""
    branches = "then_branch = a () => (float[] T) { T = SequenceAt(S, zero) }, "
    branches += "else_branch = b () => (float[] E) { E = SequenceAt(S, one) }"
    body = f"S = SplitToSequence <axis = 1> (X, sizes) C = Equal(K, zero) Y = If (C) <{branches}>"
    model = parse(body)
    for body in model.graph.node[-1].attribute:
        body.g.output[0].type.tensor_type.ClearField("shape")
    assert not assert_same(model, run) & {"SplitToSequence", "SequenceConstruct"}


@pytest.mark.parametrize(
    "body",
    [
        "S = SplitToSequence <axis = 1> (X, sizes) Y = SequenceAt(S, K)",
        "S = SplitToSequence <axis = 0> (X, two) Y = SequenceAt(S, one)",
        "S = SplitToSequence <axis = 0> (X) Y = SequenceAt(S, one)",
        "S = SplitToSequence <axis = 1> (X, sizes) Y = ConcatFromSequence <axis = 1> (S)",
        "S = SplitToSequence <axis = 2, keepdims = 0> (X, one) Y = SequenceAt(S, one)",
    ],
)
def test_others_stay_and_can_be_run(body, run):
    """An input as position, an open number of parts, a reader of the sequence, the runtime's own form."""
    assert "SplitToSequence" in assert_same(parse(body), run)


@pytest.mark.parametrize(
    ("body", "x"),
    [
        ("S = SplitToSequence <axis = 1> (X, short) Y = SequenceAt(S, zero)", "float[N, 5, 3] X"),
        ("S = SplitToSequence <axis = 1> (X, sizes) Y = SequenceAt(S, far)", "float[N, 5, 3] X"),
        ("S = SplitToSequence <axis = 1> (X, zero) Y = SequenceAt(S, zero)", "float[N, 5, 3] X"),
        ("S = SplitToSequence <axis = 3> (X, two) Y = SequenceAt(S, zero)", "float[N, 5, 3] X"),
        # a file may declare any size
        ("S = SplitToSequence <axis = 1> (X) Y = SequenceAt(S, zero)", "float[N, 1000000000000, 3] X"),
    ],
)
def test_what_cannot_be_run_is_not_converted(body, x):
    """The runtime names the fault, in the nodes of the user."""
    model = to_ir(parse(body, x))
    before = to_proto(model)
    assert not split_sequences(model)
    assert to_proto(model) == before


PROJECTION = """
    S = SplitToSequence <axis = 0> (W, cut) Q = SequenceAt(S, zero) R = SequenceAt(S, one)
    B = SplitToSequence <axis = 0> (b, cut) C = SequenceAt(B, zero) D = SequenceAt(B, one)
    q = MatMul(Q, X) k = MatMul(R, X) h = Add(q, C) i = Add(k, D) s = Tanh(h) Y = Mul(s, i)
"""


def projection():
    """Return a graph in which torch's exporter splits a weight and a bias."""
    constants = (
        "<int64[2] cut = {1, 1}, int64 zero = {0}, int64 one = {1}, float[2, 3] W = {0.5, -1.25, 0.75, "
    )
    constants += "1.5, 0.25, -0.625}, float[2, 1] b = {0.375, -0.875}>"
    text = f'<ir_version: 8, opset_import: ["": 18]> g (float[3, 4] X) => (float[1, 4] Y) {constants}'
    return onnx.parser.parse_model(f"{text} {{ {PROJECTION} }}")


def test_split_parameters_are_trained():
    """They were frozen in silence, as parameters before the SequenceAt."""
    assert {"W", "b"} <= set(describe_trainable(projection()).trained)


def test_gradients_are_those_of_the_formula(run):
    X = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    W, b = np.array([[0.5, -1.25, 0.75], [1.5, 0.25, -0.625]]), np.array([[0.375], [-0.875]])
    h, i = W @ X + b
    slope = np.array([(1 - np.tanh(h) ** 2) * i, np.tanh(h)])
    gradient = onnx_derivative(projection(), weights=["W", "b"], inputs=[])
    feeds = {
        "X": X,
        "W": W.astype(np.float32),
        "b": b.astype(np.float32),
        "Y_grad": np.ones((1, 4), np.float32),
    }
    found = run(gradient, feeds)
    # rounding of float32 in sums of four numbers
    np.testing.assert_allclose(found["W_grad"], slope @ X.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["b_grad"], slope.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-6)
