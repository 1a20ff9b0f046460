"""Sequences that loops fill become scan outputs with the same numbers, or the graph is unchanged."""

import numpy as np
import onnx
import pytest

from onnxsgd import onnx_derivative
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import to_ir

LOOP = """
    S = SequenceEmpty ()
    L = Loop <body = b (int64 i, bool c, s) => (bool d, t) {
        d = Identity(c) k = Cast<to = 1>(i) p = Mul(W, k) q = Sin(p) t = SequenceInsert(s, q)
    }> (N, C, S)
"""

#: Another state beside the sequence, another sequence, and a scan output.
MIXED = """
    S = SequenceEmpty () R = SequenceEmpty ()
    L, H, M, Z = Loop <body = b (int64 i, bool c, s, float[2, 3] h, r) => (bool d, t, float[2, 3] g, u, e) {
        d = Identity(c) g = Mul(h, W) e = Sin(g) t = SequenceInsert(s, g) u = SequenceInsert(r, e)
    }> (N, C, S, W, R)
    A = ConcatFromSequence <axis = 1> (L)
    B = ConcatFromSequence <axis = 0> (M)
    Q = ReduceSum <keepdims = 0> (A) V = ReduceSum <keepdims = 0> (B) P = ReduceSum <keepdims = 0> (H)
    O = ReduceSum <keepdims = 0> (Z) F = Mul(Q, V) G = Mul(P, O) Y = Sub(F, G)
"""

#: The sizes of the inserted tensor are inferred from constants that the body captures.
CAPTURED = """
    S = SequenceEmpty ()
    L = Loop <body = b (int64 i, bool c, s) => (bool d, t) {
        d = Identity(c) e = Greater(i, one) p = If(e) <
            then_branch = x () => (v) { f = Slice(W, zeros, ends) v = ReduceMean(f, zeros) },
            else_branch = y () => (w) { f = Slice(W, zeros, ends) h = Mul(f, f) w = ReduceSum(h, zeros) }>
        t = SequenceInsert(s, p)
    }> (N, C, S)
    Y = ConcatFromSequence <axis = 0> (L)
"""

#: A tensor that grows in each iteration.
RAGGED = """
    S = SequenceEmpty ()
    L, E = Loop <body = b (int64 i, bool c, s, float[K, 3] h) => (bool d, t, float[J, 3] g) {
        d = Identity(c) g = Concat <axis = 0> (h, W) t = SequenceInsert(s, g)
    }> (N, C, S, W)
    Y = ConcatFromSequence <axis = 0> (L)
"""

JOINS = [f"{LOOP} Y = ConcatFromSequence <axis = {axis}> (L)" for axis in (0, 1, -1)]
JOINS += [f"{LOOP} Y = ConcatFromSequence <axis = {axis}, new_axis = 1> (L)" for axis in (0, 1, 2, -1)]


def parse(body, opset=18):
    weights = "<float[2, 3] W = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}, int64 one = {1}, int64[1] zeros = {0}>"
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (int64 N, bool C, int64[1] ends) => (float[] Y)'
    model = onnx.parser.parse_model(f"{text} {weights} {{ {body} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def feeds(model, turns):
    data = {"N": np.array(turns), "C": np.array(True), "ends": np.array([2])}
    return {value.name: data[value.name] for value in model.graph.input}


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("body", [*JOINS, MIXED, CAPTURED])
def test_a_loop_collects_the_tensors_of_its_sequence(body, turns, run):
    model = parse(body)
    lowered = lower_for_training(to_ir(model))
    assert "ConcatFromSequence" not in {node.op_type for node in lowered.graph}
    expected, found = (run(m, feeds(model, turns))["Y"] for m in (model, lowered))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("body", [JOINS[0], JOINS[-1]])
def test_no_iteration_gives_an_empty_result(body, run):
    # the runtime refuses to join an empty sequence
    lowered = lower_for_training(to_ir(parse(body)))
    found = run(lowered, feeds(parse(body), 0))["Y"]
    assert found.shape == ((0, 3) if body is JOINS[0] else (2, 3, 0))


@pytest.mark.parametrize(
    "body",
    [
        RAGGED,
        f"{LOOP} M = SequenceAt(L, one) Y = Identity(M)",
        f"{LOOP} M = SequenceAt(L, one) A = ConcatFromSequence <axis = 0> (L) Y = Concat <axis = 0> (A, M)",
        f"{LOOP} Y = ConcatFromSequence <axis = 0> (L)".replace("(s, q)", "(s, q, at)").replace(
            "q = ", "at = Constant <value_int = 0> () q = "
        ),
    ],
)
def test_other_sequences_stay_and_can_be_run(body, run):
    model = parse(body)
    lowered = lower_for_training(to_ir(model))
    assert any(node.op_type == "SequenceEmpty" for node in lowered.graph)
    expected, found = (run(m, feeds(model, 3))["Y"] for m in (model, lowered))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("turns", [1, 4])
def test_gradients(turns, run):
    """Against central differences in the runtime, of W in the whole loop."""
    model = parse(MIXED)
    gradient = onnx_derivative(model, weights=["W"], inputs=[])
    weight = np.array([[0.9, -1.1, 0.8], [1.2, 0.7, -1.3]], np.float32)
    seed = np.array(1, np.float32)
    found = run(gradient, {**feeds(model, turns), "W": weight, "Y_grad": seed})["W_grad"]
    expected = np.zeros_like(weight)
    for place in np.ndindex(weight.shape):
        ends = []
        for step in (1e-2, -1e-2):
            moved = weight.copy()
            moved[place] += step
            tensor = next(t for t in model.graph.initializer if t.name == "W")
            tensor.CopyFrom(onnx.numpy_helper.from_array(moved, "W"))
            ends.append(run(model, feeds(model, turns))["Y"])
        expected[place] = (ends[0] - ends[1]) / 2e-2
    # the third derivative times the square of the step, relative to gradients of about 10
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=2e-2)
