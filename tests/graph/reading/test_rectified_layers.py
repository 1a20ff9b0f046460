"""Layers with rectified values between them are found, as far as they follow one another."""

import onnx
import pytest

from onnxsgd.graph.model import to_ir
from onnxsgd.graph.reading.first_layers import FirstLayer
from onnxsgd.graph.reading.rectified_layers import RectifiedLayer, rectified_layers

_WEIGHTS = (
    "<float[3, 4] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, float[4] b = {0, 0, 0, 0}, "
    "float[2, 4] u = {1, 1, 1, 1, 1, 1, 1, 1}, float[2] c = {0, 0}, float[4] k = {1, 1, 1, 1}, "
    "float[2, 2] v = {1, 1, 1, 1}>"
)
_TRAINED = {"w", "b", "u", "c", "v"}
_FIRST = FirstLayer("x", "w", "b", False)


def _read(nodes, inputs="float[N, 3] x"):
    head = f'<ir_version: 8, opset_import: ["" : 18]> g ({inputs}) => (float[N, 2] y)'
    return to_ir(onnx.parser.parse_model(f"{head} {_WEIGHTS} {{ {nodes} }}"))


@pytest.mark.parametrize(
    ("between", "slope"),
    [
        ("h = Relu (z)", 0.0),
        ("h = LeakyRelu <alpha = 0.25> (z)", 0.25),
        ("h = LeakyRelu (z)", 0.01),
        ("h = Identity (z)", 1.0),
        ("r = Relu (z)  h = Dropout (r)", 0.0),
        ("r = LeakyRelu <alpha = 0.5> (z)  h = LeakyRelu <alpha = 0.5> (r)", 0.25),
    ],
)
@pytest.mark.parametrize("first", ["z = Gemm (x, w, b)", "p = MatMul (x, w)  z = Add (p, b)"])
def test_layers_with_rectified_values_between_them(first, between, slope):
    layers = rectified_layers(_read(f"{first}  {between}  y = Gemm <transB = 1> (h, u, c)"), _TRAINED)
    assert [found.layer.weight for found in layers] == ["w", "u"]
    assert layers[0].layer == _FIRST
    assert (layers[1].layer.intercept, layers[1].layer.is_transposed) == ("c", True)
    assert [found.slope for found in layers] == pytest.approx([slope, 1.0])


def test_the_last_layer_is_that_before_another_operator():
    nodes = (
        "z = Gemm (x, w, b)  h = Relu (z)  q = Gemm <transB = 1> (h, u, c)  t = Tanh (q)  y = MatMul (t, v)"
    )
    layers = rectified_layers(_read(nodes), _TRAINED)
    assert [(found.layer.weight, found.slope) for found in layers] == [("w", 0.0), ("u", 1.0)]
    assert isinstance(layers[0], RectifiedLayer)


@pytest.mark.parametrize(
    ("nodes", "trained"),
    [
        ("z = Gemm (x, w, b)  h = Tanh (z)  y = Gemm <transB = 1> (h, u, c)", _TRAINED),
        ("z = Gemm (x, w, b)  h = Relu (z)  y = Gemm <transB = 1> (h, u, c)", _TRAINED - {"w"}),
        # sums that a factor of the trained numbers would not scale
        ("z = Gemm (x, w, b)  h = Relu (z)  y = Gemm <transB = 1> (h, u, c)", _TRAINED - {"b"}),
        ("p = MatMul (x, w)  z = Add (p, k)  h = Relu (z)  y = Gemm <transB = 1> (h, u, c)", _TRAINED),
        # another reader of the values
        (
            "z = Gemm (x, w, b)  h = Relu (z)  q = Gemm <transB = 1> (h, u, c)"
            "  s = ReduceSum <keepdims = 1> (h)  y = Add (q, s)",
            _TRAINED,
        ),
        ("y = Gemm <transB = 1> (x, u, c)", _TRAINED),
    ],
)
def test_others_are_none(nodes, trained):
    inputs = "float[N, 4] x" if nodes.startswith("y") else "float[N, 3] x"
    assert rectified_layers(_read(nodes, inputs), trained) == ()


def test_two_inputs_have_none():
    nodes = "z = Gemm (x, w, b)  h = Relu (z)  q = Gemm <transB = 1> (h, u, c)  y = Add (q, o)"
    assert rectified_layers(_read(nodes, "float[N, 3] x, float[N, 2] o"), _TRAINED) == ()
