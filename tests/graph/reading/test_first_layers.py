"""First layers of a graph are found, and others are left alone."""

import numpy as np
import onnx
import pytest

from onnxsgd.graph.model import to_ir
from onnxsgd.graph.reading.first_layers import FirstLayer, first_layers

_WEIGHTS = (
    "<float[3, 2] w = {1, 1, 1, 1, 1, 1}, float[3, 2] u = {1, 1, 1, 1, 1, 1}, "
    "float[2, 3] t = {1, 1, 1, 1, 1, 1}, float[2] b = {0, 0}, float[2] k = {3, 4}>"
)


def read(nodes):
    head = '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 3] x) => (float[N, 2] y)'
    return to_ir(onnx.parser.parse_model(f"{head} {_WEIGHTS} {{ {nodes} }}"))


FIRST = {
    "y = Gemm (x, w, b)": FirstLayer("x", "w", "b", False),
    "y = Gemm (x, w)": FirstLayer("x", "w", None, False),
    "y = Gemm <transB = 1> (x, t, b)": FirstLayer("x", "t", "b", True),
    "z = MatMul (x, w)  y = Add (b, z)": FirstLayer("x", "w", "b", False),
    "z = MatMul (x, w)  y = Relu (z)": FirstLayer("x", "w", None, False),
    "z = MatMul (x, w)  n = Add (z, k)  y = Add (n, b)": FirstLayer("x", "w", "b", False),
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


def test_branches_share_an_intercept():
    layers = first_layers(
        read("p = MatMul (x, w)  q = MatMul (x, u)  s = Add (p, q)  y = Add (s, b)"), {"w", "u", "b"}
    )
    assert layers == (FirstLayer("x", "w", "b", False), FirstLayer("x", "u", "b", False))


def test_frozen_weights_are_no_layer():
    model = read("y = Gemm (x, w, b)")
    assert first_layers(model, {"b"}) == ()
    assert first_layers(model, {"w"}) == (FirstLayer("x", "w", None, False),)


_IMAGES = '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 4, 5, 5] x) => (float[N, 2, 5, 5] y)'
_FILTERS = (
    "<float[2, 4, 3, 3] f, float[2, 2, 3, 3] g, float[2, 4, 1, 1] h, float[5, 5] w, float[2] b, float[5] c>"
)
LAYERS_OF_IMAGES = {
    "y = Conv <pads = [1, 1, 1, 1]> (x, f, b)": [FirstLayer("x", "f", None, False, 1)],
    "y = Conv <group = 2, pads = [1, 1, 1, 1]> (x, g)": [FirstLayer("x", "g", None, False, 2)],
    "p = Conv <pads = [1, 1, 1, 1]> (x, f)  q = Conv (x, h)  y = Add (p, q)": [
        FirstLayer("x", "f", None, False, 1),
        FirstLayer("x", "h", None, False, 1),
    ],
    # the coefficients of a product belong to the last axis, those of a convolution to the second
    "p = MatMul (x, w)  y = Add (p, c)": [FirstLayer("x", "w", "c", False)],
    "p = Conv <pads = [1, 1, 1, 1]> (x, f)  q = MatMul (x, w)  r = Conv (q, h)  y = Add (p, r)": [],
}


@pytest.mark.parametrize("nodes", LAYERS_OF_IMAGES)
def test_layers_of_images(nodes):
    inputs = _FILTERS.strip("<>").replace(", float", " @float").split(" @")
    head = _IMAGES.replace(" x) =>", f" x, {', '.join(inputs)}) =>")
    model = to_ir(onnx.parser.parse_model(f"{head} {{ {nodes} }}"))
    layers = first_layers(model, {"f", "g", "h", "w", "b", "c"})
    assert [layer for layer in layers if layer.feature == "x"] == LAYERS_OF_IMAGES[nodes]


def test_numbers_of_channels_reach_the_coefficients_of_their_group():
    layer = FirstLayer("x", "f", None, False, 2)
    spread = layer.spread(np.array([1.0, 2.0, 3.0, 4.0]), (6, 2, 3, 3))
    np.testing.assert_array_equal(spread[:, :, 0, 0], [[1, 2]] * 3 + [[3, 4]] * 3)
    assert FirstLayer("x", "f", None, False, 1).spread(np.ones(4), (6, 4, 3, 3)).shape == (1, 4, 1, 1)
