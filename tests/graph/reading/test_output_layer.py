"""The last layer is found on every way to the output, with its factors and the constants added to it."""

import math

import numpy as np
import onnx
import pytest

from onnxsgd.graph.model import to_ir
from onnxsgd.graph.reading import output_layer as module
from onnxsgd.graph.reading.output_layer import output_layer


def _numbers(*sizes):
    """Return a tensor of ones, as text."""
    return "{" + ", ".join(["1"] * math.prod(sizes)) + "}"


_TENSORS = (
    "<float[3, 2] w = {1, 1, 1, 1, 1, 1}, float[3, 2] u = {1, 1, 1, 1, 1, 1}, "
    "float[2, 3] t = {3, 0, 4, 0, 2, 0}, float[2] b = {0, 0}, float[1, 2] c = {0, 0}, float[1] d = {0}, "
    "float[3, 1] v = {1, 1, 1}, float[3, 1] k = {1, 1, 1}, float[2, 2] diagonal = {100, 0, 0, 0.5}, "
    "float[2, 3, 1] f = {1, 1, 1, 1, 1, 1}, int64[2] pair = {0, 2}, int64[1] axis = {2}, "
    "float[2] std = {10, 0.5}, float[1] mean = {7}, float[2] means = {3, 4}, float zero = {0}, "
    f"float[4, 2, 3, 3] image = {_numbers(4, 2, 3, 3)}, float[2, 4, 1, 1] up = {_numbers(2, 4)}, "
    "float[4] four = {0, 0, 0, 0}, float[4, 1, 1] each = {1, 2, 3, 4}, float[4] twice = {1, 1, 2, 2}, "
    f"float[2, 1] one = {_numbers(2)}, float[2, 4] steps = {_numbers(2, 4)}, float[1] zeros = {{0}}, "
    f"float[3, 1] of_step = {_numbers(3)}, float[18, 12] flat = {_numbers(18, 12)}, "
    f"float[12] twelve = {_numbers(12)}, int64[2] hw = {{2, 3}}, int64[3] thrice = {{0, 3, 4}}, "
    "int64[2] rows = {-1, 2}, int64[4] sizes = {0, 3, 2, 2}>"
)


def layer_of(nodes, weights, n_outputs=2):
    return dense_layer_of("3", f"{n_outputs}", nodes, weights)


def dense_layer_of(sizes, shape, nodes, weights):
    head = f'<ir_version: 8, opset_import: ["" : 18]> g (float[N, {sizes}] x) => (float[N, {shape}] y)'
    proto = onnx.parser.parse_model(f"{head} {_TENSORS} {{ {nodes} }}")
    return output_layer(to_ir(onnx.shape_inference.infer_shapes(proto)), weights, _sizes(shape))


def _sizes(shape):
    return tuple(map(int, shape.split(",")))


def read(nodes, weights=("w", "u", "b", "c", "f")):
    layer = layer_of(nodes, weights)
    found = {part.name: (part.outputs[0], tuple(part.factors), part.shape) for part in layer.weights}
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
    "z = Gemm (x, w, b)  r = Transpose (z)  y = Transpose (r)": ({"w": W, "b": B}, ZERO),
    "z = Gemm (x, w, b)  e = Unsqueeze (z, axis)  y = Squeeze (e, axis)": ({"w": W, "b": B}, ZERO),
    "z = MatMul (x, w)  p = Abs (z)  q = Max (p, zero)  r = Min (q, mean)  y = Clip (r, zero)": (
        {"w": W},
        None,
    ),
    "e = Unsqueeze (x, axis)  z = Conv (e, f, b)  r = LeakyRelu (z)  y = Squeeze (r, axis)": (
        {"f": (0, ONE, (2, 1, 1)), "b": B},
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
    cases = [*LAYERS, *(nodes for _, _, nodes in DENSE)]
    assert all(any(f"= {operator} " in nodes for nodes in cases) for operator in module._READERS)


#: The shape of the input, that of the output, and the nodes; the channel of each output in its weights.
DENSE = {
    ("2, 5, 5", "4, 3, 3", "y = Conv (x, image, four)"): {"image": [9, 0], "four": [9, 0]},
    ("2, 3, 3", "4, 3, 3", "y = ConvTranspose (x, up, four)"): {"up": [9, 0], "four": [9, 0]},
    ("2, 3, 3", "3, 3, 4", "z = ConvTranspose (x, up, four)  y = Transpose <perm = [0, 2, 3, 1]> (z)"): {
        "up": [1, 9],
        "four": [1, 9],
    },
    ("2, 5, 5", "4", "z = Conv (x, image, four)  p = GlobalAveragePool (z)  y = Flatten (p)"): {
        "image": [1, 0],
        "four": [1, 0],
    },
    ("2, 5, 5", "4", "z = Conv (x, image, four)  y = ReduceMean <keepdims = 0> (z, hw)"): {
        "image": [1, 0],
        "four": [1, 0],
    },
    ("2, 5, 5", "4, 1, 1", "z = Conv (x, image, four)  y = ReduceMean (z, hw)"): {
        "image": [1, 0],
        "four": [1, 0],
    },
    ("2, 5, 5", "4, 2, 2", "z = Conv (x, image, four)  y = AveragePool <kernel_shape = [2, 2]> (z)"): {
        "image": [4, 0],
        "four": [4, 0],
    },
    ("2, 5, 5", "4, 6, 6", "z = Conv (x, image, four)  y = Resize (z, , twice)"): {
        "image": [36, 0],
        "four": [36, 0],
    },
    ("3, 2", "3, 4", "z = MatMul (x, steps)  y = Add (z, four)"): {"steps": [1, 4], "four": [1, 4]},
    ("3, 2", "3, 1", "z = MatMul (x, one)  y = Add (z, zeros)"): {"one": [3, 0], "zeros": [3, 0]},
    ("3, 2", "3", "z = MatMul (x, one)  s = Add (z, zeros)  y = Squeeze (s, axis)"): {
        "one": [3, 0],
        "zeros": [3, 0],
    },
    # a summand for each step
    ("3, 2", "3, 1", "z = MatMul (x, one)  y = Add (z, of_step)"): {"one": [3, 0], "of_step": [1, 0]},
    ("3, 2", "3, 4", "r = Reshape (x, rows)  z = Gemm (r, steps, four)  y = Reshape (z, thrice)"): {
        "steps": [1, 4],
        "four": [1, 4],
    },
    ("18", "3, 2, 2", "z = Gemm (x, flat, twelve)  y = Reshape (z, sizes)"): {
        "flat": [1, 0],
        "twelve": [1, 0],
    },
}


@pytest.mark.parametrize("case", DENSE)
def test_outputs_of_several_axes_have_the_channels_of_their_weights(case):
    sizes, shape, nodes = case
    layer = dense_layer_of(sizes, shape, nodes, DENSE[case].keys())
    assert {part.name for part in layer.weights} == DENSE[case].keys()
    np.testing.assert_array_equal(layer.offset, np.zeros(math.prod(_sizes(shape))))
    outputs = np.arange(math.prod(_sizes(shape)))
    for part in layer.weights:
        inner, last = DENSE[case][part.name]
        n_channels = np.prod(part.shape)
        expected = outputs % n_channels if last else outputs // inner
        order = np.argsort(part.outputs)
        np.testing.assert_array_equal(part.outputs[order], outputs)
        np.testing.assert_array_equal(part.channels[order], expected)


def test_constants_of_channels_are_factors_and_summands():
    nodes = "z = Conv (x, image, four)  s = Mul (z, each)  y = Add (s, each)"
    layer = dense_layer_of("2, 4, 4", "4, 2, 2", nodes, ("image", "four"))
    factors = np.repeat([1.0, 2.0, 3.0, 4.0], 4)
    np.testing.assert_array_equal(layer.offset, factors)
    for part in layer.weights:
        assert np.prod(part.shape) == 4
        np.testing.assert_array_equal(part.factors[np.argsort(part.outputs)], factors)


def test_parts_of_a_concat_have_channels_of_their_own():
    nodes = "p = MatMul (x, one)  q = MatMul (x, steps)  y = Concat <axis = 2> (p, q)"
    layer = dense_layer_of("3, 2", "3, 5", nodes, ("one", "steps"))
    found = {part.name: (part.outputs.tolist(), part.channels.tolist()) for part in layer.weights}
    rows = np.arange(15).reshape(3, 5)
    assert found["one"] == (rows[:, 0].tolist(), [0, 0, 0])
    assert found["steps"] == (rows[:, 1:].ravel().tolist(), [0, 1, 2, 3] * 3)


def test_elements_of_a_mean_have_no_outputs_of_their_own():
    nodes = "z = MatMul (x, steps)  r = Reshape (z, sizes)  y = GlobalAveragePool (r)"
    layer = dense_layer_of("3, 2", "3, 1, 1", nodes, ("steps",))
    assert [part.shape for part in layer.weights] == [(1, 1)]


def test_outputs_of_a_channel_are_pooled():
    layer = dense_layer_of("2, 4, 4", "4, 2, 2", "y = Conv (x, image, four)", ("image", "four"))
    values = np.arange(16.0)
    np.testing.assert_allclose(layer.pooled(values), np.repeat([1.5, 5.5, 9.5, 13.5], 4))
    bias = next(part for part in layer.weights if part.name == "four")
    np.testing.assert_allclose(bias.unit(values), np.sqrt((values**2).reshape(4, 4).mean(axis=1)))
    np.testing.assert_array_equal(bias.scaled(np.ones(4), values), [3, 7, 11, 15])


def test_large_scales_have_finite_units():
    layer = dense_layer_of("2, 4, 4", "4, 2, 2", "y = Conv (x, image, four)", ("four",))
    np.testing.assert_allclose(
        layer.weights[0].unit(np.full(16, 1e30, np.float32)), np.full(4, 1e30), rtol=1e-6
    )


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
