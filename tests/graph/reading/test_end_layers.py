"""Layers at both ends of a graph are found, and others are left alone."""

import onnx
import pytest

from onnxsgd.graph.model import to_ir
from onnxsgd.graph.reading.end_layers import FirstLayer, first_layers, last_layer

_WEIGHTS = "<float[3, 2] w = {1, 1, 1, 1, 1, 1}, float[2, 3] t = {1, 1, 1, 1, 1, 1}, float[2] b = {0, 0}>"


def read(nodes):
    head = '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 3] x) => (float[N, 2] y)'
    return to_ir(onnx.parser.parse_model(f"{head} {_WEIGHTS} {{ {nodes} }}"))


FIRST = {
    "y = Gemm (x, w, b)": FirstLayer("x", "w", "b", False),
    "y = Gemm (x, w)": FirstLayer("x", "w", None, False),
    "y = Gemm <transB = 1> (x, t, b)": FirstLayer("x", "t", "b", True),
    "z = MatMul (x, w)  y = Add (b, z)": FirstLayer("x", "w", "b", False),
    "z = MatMul (x, w)  y = Relu (z)": FirstLayer("x", "w", None, False),
    # an intercept that something else reads too
    "z = Gemm (x, w, b)  y = Mul (z, b)": FirstLayer("x", "w", None, False),
}
NONE = [
    "y = Gemm <alpha = 2.0> (x, w, b)",
    "z = Gemm (x, w, b)  s = ReduceSum <keepdims = 1> (x)  y = Add (z, s)",
    "c = Cast <to = 1> (x)  y = Gemm (c, w, b)",
    "z = MatMul (x, w)  v = MatMul (x, w)  y = Add (z, v)",
]


@pytest.mark.parametrize("nodes", FIRST)
def test_first_layers(nodes):
    assert first_layers(read(nodes), {"w", "t", "b"}) == (FIRST[nodes],)


@pytest.mark.parametrize("nodes", NONE)
def test_inputs_with_other_readers_have_none(nodes):
    assert first_layers(read(nodes), {"w", "t", "b"}) == ()


def test_frozen_weights_are_no_layer():
    model = read("y = Gemm (x, w, b)")
    assert first_layers(model, {"b"}) == ()
    assert first_layers(model, {"w"}) == (FirstLayer("x", "w", None, False),)


LAST = {
    "y = Gemm (x, w, b)": {"w", "b"},
    "z = MatMul (x, w)  s = Add (z, b)  y = Identity (s)": {"w", "b"},
    "z = MatMul (x, w)  y = Tanh (z)": set(),
    "z = MatMul (x, w)  u = MatMul (x, w)  y = Add (z, u)": set(),
    "z = MatMul (x, w)  r = Relu (z)  s = MatMul (r, t)  y = MatMul (s, w)": {"w"},
}


@pytest.mark.parametrize("nodes", LAST)
def test_last_layers(nodes):
    assert last_layer(read(nodes), {"w", "b"}) == LAST[nodes]
