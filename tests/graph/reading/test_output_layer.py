"""The last layer is found on every way to the output, with its factors and the constants added to it."""

import numpy as np
import onnx
import pytest

from onnxsgd.graph.model import to_ir
from onnxsgd.graph.reading import output_layer as module
from onnxsgd.graph.reading.output_layer import output_layer

_TENSORS = (
    "<float[3, 2] w = {1, 1, 1, 1, 1, 1}, float[3, 2] u = {1, 1, 1, 1, 1, 1}, "
    "float[2, 3] t = {3, 0, 4, 0, 2, 0}, float[2] b = {0, 0}, float[1, 2] c = {0, 0}, float[1] d = {0}, "
    "float[3, 1] v = {1, 1, 1}, float[3, 1] k = {1, 1, 1}, float[2, 2] diagonal = {100, 0, 0, 0.5}, "
    "float[2, 3, 1] f = {1, 1, 1, 1, 1, 1}, int64[2] pair = {0, 2}, int64[1] axis = {2}, "
    "float[2] std = {10, 0.5}, float[1] mean = {7}, float[2] means = {3, 4}, float zero = {0}>"
)


def layer_of(nodes, weights, n_outputs=2):
    head = f'<ir_version: 8, opset_import: ["" : 18]> g (float[N, 3] x) => (float[N, {n_outputs}] y)'
    proto = onnx.parser.parse_model(f"{head} {_TENSORS} {{ {nodes} }}")
    return output_layer(to_ir(onnx.shape_inference.infer_shapes(proto)), weights, n_outputs)


def read(nodes, weights=("w", "u", "b", "c", "f")):
    layer = layer_of(nodes, weights)
    found = {part.name: (part.start, part.factors, part.shape) for part in layer.weights}
    return found, layer.offset


ONE = (1.0, 1.0)
W, B, C = (0, ONE, (1, 2)), (0, ONE, (2,)), (0, ONE, (1, 2))
ZERO = (0.0, 0.0)
LAYERS = {
    "y = Gemm (x, w, b)": ({"w": W, "b": B}, ZERO),
    "z = MatMul (x, w)  s = Add (z, b)  y = Identity (s)": ({"w": W, "b": B}, ZERO),
    "y = Gemm <alpha = 2.0, beta = 4.0> (x, w, b)": (
        {"w": (0, (2.0, 2.0), (1, 2)), "b": (0, (4.0, 4.0), (2,))},
        ZERO,
    ),
    "z = MatMul (x, w)  p = MatMul (x, u)  s = Sub (z, p)  y = Add (s, c)": (
        {"w": W, "u": (0, (-1.0, -1.0), (1, 2)), "c": C},
        ZERO,
    ),
    "z = Gemm (x, w, b)  s = Mul (z, std)  y = Add (s, means)": (
        {"w": (0, (10.0, 0.5), (1, 2)), "b": (0, (10.0, 0.5), (2,))},
        (3.0, 4.0),
    ),
    "z = Gemm (x, w, b)  n = Neg (z)  s = Add (mean, n)  y = Div (s, std)": (
        {"w": (0, (-0.1, -2.0), (1, 2)), "b": (0, (-0.1, -2.0), (2,))},
        (0.7, 14.0),
    ),
    # a frozen product has the factors of its columns, and what lies before it has no axis of outputs
    "z = Gemm (x, w, b)  y = MatMul (z, diagonal)": (
        {"w": (0, (100.0, 0.5), (1, 1)), "b": (0, (100.0, 0.5), (1,))},
        None,
    ),
    "z = MatMul (x, w)  r = Relu (z)  s = MatMul (r, t)  y = MatMul (s, u)": ({"u": W}, ZERO),
    "z = Gemm (x, w, b)  y = Relu (z)": ({"w": W, "b": B}, None),
    "z = MatMul (x, w)  y = Tanh (z)": ({}, None),
    "z = MatMul (x, w)  y = Div (z, zero)": ({}, ZERO),
    "p = MatMul (x, v)  q = MatMul (x, v)  z = Concat <axis = 1> (p, q)  y = Add (z, c)": ({"c": C}, None),
    "z = MatMul (x, w)  y = Add (z, z)": ({"w": W}, None),
    # several operators that keep the columns, and several that lose them
    "z = MatMul (x, w)  a = Cast <to = 1> (z)  r = Reshape (a, pair)  h = Flatten (r)  y = Sum (b, h)": (
        {"w": W, "b": B},
        ZERO,
    ),
    "z = Gemm (x, w, b)  r = Transpose (z)  y = Transpose (r)": (
        {"w": (0, ONE, (1, 1)), "b": (0, ONE, (1,))},
        ZERO,
    ),
    "z = Gemm (x, w, b)  e = Unsqueeze (z, axis)  y = Squeeze (e, axis)": (
        {"w": (0, ONE, (1, 1)), "b": (0, ONE, (1,))},
        ZERO,
    ),
    "z = MatMul (x, w)  p = Abs (z)  q = Max (p, zero)  r = Min (q, mean)  y = Clip (r, zero)": (
        {"w": W},
        None,
    ),
    "e = Unsqueeze (x, axis)  z = Conv (e, f, b)  r = LeakyRelu (z)  y = Squeeze (r, axis)": (
        {"f": (0, ONE, (1, 1, 1)), "b": (0, ONE, (1,))},
        None,
    ),
}


@pytest.mark.parametrize("nodes", LAYERS)
def test_layers(nodes):
    found, offset = read(nodes)
    expected, expected_offset = LAYERS[nodes]
    assert found.keys() == expected.keys()
    for name, (start, factors, shape) in found.items():
        assert (start, shape) == expected[name][::2]
        np.testing.assert_allclose(factors, expected[name][1], rtol=1e-6)
    assert (offset is None) == (expected_offset is None)
    if offset is not None:
        np.testing.assert_allclose(offset, expected_offset, rtol=1e-6)


def test_every_operator_has_a_case():
    assert all(any(f"= {operator} " in nodes for nodes in LAYERS) for operator in module._READERS)


@pytest.mark.parametrize("trained", ["w", "b"])
def test_a_part_of_the_weights(trained):
    found, offset = read("z = MatMul (x, w)  y = Add (z, b)", {trained})
    assert found == {trained: {"w": W, "b": B}[trained]}
    # the frozen product depends on data
    assert offset == (ZERO if trained == "w" else None)


def test_columns_have_layers_of_their_own():
    nodes = "p = MatMul (x, v)  q = Gemm (x, k, d)  s = Mul (q, mean)  y = Concat <axis = 1> (p, s)"
    found, _ = read(nodes, ("v", "k", "d"))
    assert found["v"] == (0, (1.0,), (1, 1))
    assert found["k"] == (1, (7.0,), (1, 1))
    assert found["d"] == (1, (7.0,), (1,))


def test_units_are_scales_over_factors():
    nodes = "z = Gemm (x, w, b)  y = Mul (z, std)"
    layer = layer_of(nodes, ("w", "b"))
    units = {part.name: part.unit(np.array([5.0, 3.0])) for part in layer.weights}
    np.testing.assert_allclose(units["w"], [[0.5, 6.0]])
    np.testing.assert_allclose(units["b"], [0.5, 6.0])
    assert not layer.is_even


def test_weights_without_an_axis_of_outputs_have_the_root_mean_square():
    nodes = "z = MatMul (x, w)  y = MatMul (z, diagonal)"
    (part,) = layer_of(nodes, ("w",)).weights
    np.testing.assert_allclose(part.unit(np.array([200.0, 3.0])), [[np.sqrt((2.0**2 + 6.0**2) / 2)]])


def test_scaled_weights_have_the_factors_of_their_outputs():
    weight, scales = np.array([[1.0, -2.0], [4.0, 8.0]]), np.array([0.5, 0.25])
    (aligned, *_) = (
        part
        for part in layer_of("z = Gemm (x, w, b)  y = Mul (z, std)", ("w", "b")).weights
        if part.name == "w"
    )
    np.testing.assert_allclose(aligned.scaled(weight, scales), weight * scales)
    (mixed,) = layer_of("z = MatMul (x, w)  y = MatMul (z, diagonal)", ("w",)).weights
    np.testing.assert_allclose(mixed.scaled(weight, scales), 0.5 * weight)


@pytest.mark.parametrize(
    ("nodes", "is_even"),
    [
        ("y = Gemm (x, v, d)", True),
        ("z = MatMul (x, v)  s = Mul (z, mean)  y = Add (s, d)", False),
        ("z = Gemm (x, v, d)  y = Div (z, mean)", True),
    ],
)
def test_one_output_is_even_unless_factors_differ(nodes, is_even):
    assert layer_of(nodes, ("v", "d"), 1).is_even is is_even
