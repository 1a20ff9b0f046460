"""The frozen part of a graph is cut off where it hands over one row for each sample."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from onnxsgd.graph.cut import cut_at
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.split import split_frozen, undivided


def read(text, **arrays):
    proto = parser.parse_model('<ir_version: 9, opset_import: ["" : 18]> ' + text)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in arrays.items())
    return to_ir(proto)


def run(model, feeds):
    session = onnxruntime.InferenceSession(
        to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)[0]


@pytest.fixture
def arrays():
    rng = np.random.RandomState(0)
    return {"V": rng.normal(size=(3, 4)).astype(np.float32), "W": rng.normal(size=(4, 2)).astype(np.float32)}


@pytest.mark.parametrize(
    ("text", "features", "tail"),
    [
        ("a = MatMul(X, V) h = Tanh(a) Y = MatMul(h, W)", ("h",), ["MatMul"]),
        ("a = MatMul(X, V) h = Tanh(a) b = MatMul(h, W) Y = Add(b, b)", ("h",), ["MatMul", "Add"]),
        (
            "h = MatMul(X, V) b = MatMul(h, W) s = ReduceSum(h) Y = Mul(b, s)",
            ("h",), ["MatMul", "ReduceSum", "Mul"],
        ),
        (
            "h = MatMul(X, V) b = MatMul(h, W) n = Shape(b) Y = Reshape(b, n)",
            ("h",), ["MatMul", "Shape", "Reshape"],
        ),
    ],
)  # fmt: skip
def test_the_two_parts_compute_what_the_whole_does(arrays, text, features, tail):
    model = read(f"g (float[N,3] X) => (float[N,2] Y) {{ {text} }}".replace(") ", ")\n"), **arrays)
    X = np.random.RandomState(1).normal(size=(6, 3)).astype(np.float32)
    parts = split_frozen(model, ["W"])
    assert parts.features == features
    assert [node.op_type for node in parts.tail.graph] == tail
    handed_over = {name: run(cut_at(model, name), {"X": X}) for name in parts.features}
    np.testing.assert_allclose(run(parts.tail, handed_over), run(model, {"X": X}), rtol=1e-6)


def test_a_first_layer_that_is_trained_leaves_no_frozen_part(arrays):
    model = read("g (float[N,3] X) => (float[N,2] Y) {\n a = MatMul(X, V)\n Y = MatMul(a, W)\n}", **arrays)
    parts = split_frozen(model, ["V", "W"])
    assert parts.features == ("X",)
    assert undivided(model).features == ("X",)
