"""The frozen part of a graph ends at tensors with one row for each sample."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from onnxsgd.graph.cut import cut_at
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.reading.frozen_split import split_frozen, undivided


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
def test_the_two_parts_compute_the_same_as_the_whole(arrays, text, features, tail):
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


def test_positions_within_the_batch_are_not_taken_for_data(arrays):
    # GPT-2 picks the score of the last token with Range(0, n): shuffled as data, it would pick others
    text = """g (float[N,3] X) => (float[N,1] Y) <int64 o = {0}, int64 i = {1}, int64[1] l = {1}> {
        h = MatMul(X, V)
        a = ArgMax<axis = 1, keepdims = 0>(h)
        s = Shape(h)
        n = Gather(s, o)
        r = Range(o, n, i)
        ru = Unsqueeze(r, l)
        au = Unsqueeze(a, l)
        w = Concat<axis = 1>(ru, au)
        b = MatMul(h, U)
        g = GatherND(b, w)
        Y = Unsqueeze(g, l)
    }"""
    model = read(text, V=arrays["V"], U=np.eye(4, dtype=np.float32))
    parts = split_frozen(model, ["U"])
    assert set(parts.features) == {"h", "au"}
    X = np.random.RandomState(1).normal(size=(6, 3)).astype(np.float32)
    order = [3, 1, 5, 0, 2, 4]
    handed_over = {name: run(cut_at(model, name), {"X": X})[order] for name in parts.features}
    np.testing.assert_allclose(run(parts.tail, handed_over), run(model, {"X": X})[order], rtol=1e-6)


LOOP = """b = Loop(trips, yes, h) <
    body = one (int64 k, bool c, float[N,4] carried) => (bool d, float[N,4] next) {
        d = Identity(c)
        m = MatMul(carried, S)
        next = Add(m, captured)
    }>"""


def test_a_tensor_that_a_loop_captures_is_read(arrays):
    # the frozen tensor `captured` is read only inside the loop, like the trained S
    text = f"""g (float[N,3] X) => (float[N,4] Y) <int64 trips = {{2}}, bool yes = {{1}}> {{
        h = MatMul(X, V)
        captured = Tanh(h)
        {LOOP}
        Y = Identity(b)
    }}"""
    model = read(text, V=arrays["V"], S=np.eye(4, dtype=np.float32) / 2)
    parts = split_frozen(model, ["S"])
    assert set(parts.features) == {"h", "captured"}
    X = np.random.RandomState(1).normal(size=(6, 3)).astype(np.float32)
    handed_over = {name: run(cut_at(model, name), {"X": X}) for name in parts.features}
    np.testing.assert_allclose(run(parts.tail, handed_over), run(model, {"X": X}), rtol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "converts"),
    [
        ("c = Cast<to = 1>(x)  h = Sub(c, m)", True),
        ("c = Cast<to = 1>(x)  h = Gemm(c, m)", False),
        ("h = Cast<to = 1>(x)", True),
    ],
    ids=["arithmetic", "layer", "type"],
)
def test_a_frozen_part_without_layers_converts(nodes, converts):
    text = f"""<ir_version: 8, opset_import: ["" : 18]> g (uint8[N, 2] x) => (float[N, 2] y)
    <float[2, 2] w = {{1, 2, 3, 4}}, float[2, 2] m = {{1, 2, 3, 4}}> {{ {nodes}  y = MatMul(h, w) }}"""
    text = text.replace("float[2, 2] m = {1, 2, 3, 4}", "float[2] m = {1, 2}") if "Sub" in nodes else text
    split = split_frozen(to_ir(onnx.parser.parse_model(text)), ["w"])
    assert split.features == ("h",)
    assert split.converts == converts
