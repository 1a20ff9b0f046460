"""Integers computed from constants are folded, and no other values."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from onnxsgd import OnnxSGDRegressor, onnx_derivative
from onnxsgd.exceptions import GraphError
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.sizes import fix_sizes

#: Pads as PyTorch's exporter writes them: concatenated, reversed, flattened.
_PADS = """
<ir_version: 9, opset_import: ["" : 18]>
agraph (float[N, 1, 4] x) => (float[N, 1, M] y)
<float[1, 1, 2] w = {1, 2}, int64[4] given = {1, 2, 0, 0}, int64[2] rows = {-1, 2}, int64[1] flat = {-1},
 int64[1] zeros = {2}, int64[1] start = {-1}, int64[1] end = {-100}, int64[1] axis = {0},
 int64[1] back = {-1}>
{
    more = ConstantOfShape <value: tensor = int64[1] {0}> (zeros)
    all = Concat <axis = 0> (given, more)
    table = Reshape (all, rows)
    reversed = Slice (table, start, end, axis, back)
    turned = Transpose <perm = [1, 0]> (reversed)
    pads = Reshape (turned, flat)
    padded = Pad <mode = "reflect"> (x, pads)
    y = Conv (padded, w)
}
"""


def _lower(text):
    model = onnx.parser.parse_model(text)
    return model, lower_for_training(to_ir(model))


def _run(model, **feeds):
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, feeds
    )


def test_pads_become_a_constant():
    """Without it, a padded convolution of PyTorch has no gradient for its input."""
    model, lowered = _lower(_PADS)
    assert [node.op_type for node in lowered.graph] == ["Pad", "Conv"]
    np.testing.assert_array_equal(lowered.graph.initializers["pads"].const_value, [0, 0, 1, 0, 0, 2])
    x = np.random.default_rng(0).normal(size=(2, 1, 4)).astype(np.float32)
    np.testing.assert_array_equal(_run(to_proto(lowered), x=x)[0], _run(model, x=x)[0])
    gradient = onnx_derivative(model, weights=[], inputs=["x"])
    (found,) = _run(gradient, x=x, y_grad=np.ones((2, 1, 6), np.float32))
    # the operand of the Conv is x_1, x_0, x_1, x_2, x_3, x_2, x_1, counted 1, 3, 3, 3, 3, 3, 2 times in y
    np.testing.assert_allclose(found[0, 0], [3.0, 6.0, 6.0, 3.0])


def test_functions_of_a_weight_follow_it():
    """A folded transpose of a weight would stay fixed while the weight learns."""
    _, lowered = _lower(
        """<ir_version: 9, opset_import: ["" : 18]>
        agraph (float[N, 2] x) => (float[N, 3] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>
        { t = Transpose <perm = [1, 0]> (w)  y = MatMul (x, t) }"""
    )
    assert [node.op_type for node in lowered.graph] == ["Transpose", "MatMul"]


def test_outputs_and_sizes_of_data_stay_computed():
    """A graph that returns a constant still returns it, and functions of the data are left alone."""
    model, lowered = _lower(
        """<ir_version: 9, opset_import: ["" : 18]>
        agraph (float[N, 2] x) => (float[N, 2] y, int64[1] k) <int64[1] one = {1}, float half = {0.5}>
        { k = Add (one, one)  s = Shape (x)  z = Expand (half, s)  y = Mul (x, z) }"""
    )
    assert [node.op_type for node in lowered.graph] == [node.op_type for node in model.graph.node]
    x = np.ones((3, 2), np.float32)
    for found, expected in zip(_run(to_proto(lowered), x=x), _run(model, x=x), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_large_integers_stay_computed():
    """A mask of a million booleans would only fill the file."""
    _, lowered = _lower(
        """<ir_version: 9, opset_import: ["" : 18]>
        agraph (float[N, 9999] x) => (float[N, 9999] y) <int64[1] size = {9999}, float zero = {0}>
        { m = ConstantOfShape <value: tensor = bool[1] {1}> (size)  y = Where (m, x, zero) }"""
    )
    assert "ConstantOfShape" in [node.op_type for node in lowered.graph]


def test_folding_twice_changes_nothing():
    _, lowered = _lower(_PADS)
    again = lower_for_training(lowered)
    assert [node.op_type for node in again.graph] == [node.op_type for node in lowered.graph]
    assert set(again.graph.initializers) == set(lowered.graph.initializers)
    assert isinstance(again, ir.Model)


def test_comparisons_and_roundings_of_a_weight_follow_it():
    """A folded mask of a weight would stay that of its first values."""
    model, lowered = _lower(
        """<ir_version: 9, opset_import: ["" : 18]>
        agraph (float[N, 2] x) => (float[N, 2] y) <float[2] b = {1, 1}, float zero = {0}>
        { positive = Greater (b, zero) kept = Where (positive, b, zero) y = Add (x, kept) }"""
    )
    assert "Greater" in [node.op_type for node in lowered.graph]
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.float32([-1, 1]), "b"))
    x = np.zeros((1, 2), np.float32)
    learner = OnnxSGDRegressor(
        model, trainable=["b"], max_iter=1, tol=None, learning_rate="invscaling", eta0=1e-9
    )
    learner.fit(x, np.zeros((1, 2)))
    learner.set_weights({"b": np.float32([3, -2])})
    np.testing.assert_array_equal(learner.predict(x), [[3, 0]])


@pytest.mark.parametrize(
    ("node", "cause"),
    [
        ("Gather (table, places)", "index 7 is out of bounds"),
        ("Reshape (table, odd)", "cannot reshape array of size 2"),
        ("ScatterElements (table, places, table)", "index 7 is out of bounds"),
    ],
)
def test_constants_that_cannot_be_computed_are_named(node, cause):
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[N, 4] x) => (float[N, 4] y)
        <float[4, 4] w = {{{", ".join("1" * 16)}}}, int64[2] table = {{-1, 4}}, int64[2] places = {{7, 0}},
         int64[1] odd = {{3}}>
        {{ shape = {node} flat = Reshape (x, shape) y = MatMul (flat, w) }}"""
    )
    for read in (onnx_derivative, lambda model: OnnxSGDRegressor(model).fit(np.eye(4), np.eye(4))):
        with pytest.raises(GraphError, match=f"One of the constants 'shape' of the graph .*{cause}"):
            read(model)


#: As torch writes group normalization: axes are a range, which depends on folded sizes.
_RANGE = """
<ir_version: 9, opset_import: ["" : 18]>
agraph (float[N, 8, 3] x) => (float[N, 8, 3] y)
<float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}, int64 one = {1}, int64 three = {3}>
{ end = Sub (three, one)  axes = Range (one, end, one)  column = Unsqueeze (w, axes)  y = Mul (x, column) }
"""


def test_sizes_that_follow_from_folded_ones_are_folded():
    _, lowered = _lower(_RANGE)
    assert [node.op_type for node in lowered.graph] == ["Unsqueeze", "Mul"]
    assert str(lowered.graph.node(0).outputs[0].shape) == "[8,1]"


#: As torch writes recurrent networks, whose weights are sliced by the width of a state.
_STATES = """
<ir_version: 9, opset_import: ["" : 18]>
agraph (float[SAMPLES, 6] x) => (float[SAMPLES, 6] y, int64[1] n)
<float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, int64[1] zero = {0}, int64[1] four = {4}>
{
    width = Shape <start = 1> (x)
    end = Sub (width, four)
    part = Slice (w, zero, end, zero)
    n = Shape <end = 1> (x)
    largest = ReduceMax <keepdims = 0> (part)
    y = Add (x, largest)
}
"""


@pytest.mark.parametrize("samples", ["N", "5"])
def test_known_widths_are_folded_and_numbers_of_samples_are_not(samples):
    model, lowered = _lower(_STATES.replace("SAMPLES", samples))
    assert [node.op_type for node in lowered.graph] == ["Slice", "Shape", "ReduceMax", "Add"]
    assert str(lowered.graph.node(0).outputs[0].shape) == "[2,2]"
    x = np.ones((5, 6), np.float32)
    for found, expected in zip(_run(to_proto(lowered), x=x), _run(model, x=x), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_all_sizes_of_batches_of_one_size_are_known():
    """Inference does not follow a product through Reshape."""
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    agraph (float[N, 2, 3] x) => (float[N, M] y)
    <int64[1] whole = {-1}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] zero = {0}>
    {
        sizes = Shape (x)
        n = Slice (sizes, zero, one)
        a = Slice (sizes, one, two)
        b = Slice (sizes, two, three)
        product = Mul (a, b)
        flat = Reshape (product, whole)
        shape = Concat <axis = 0> (n, flat)
        y = Reshape (x, shape)
    }
    """
    model = onnx.parser.parse_model(text)
    fixed = fix_sizes(to_ir(model), 4)
    assert str(fixed.graph.outputs[0].shape) == "[4,6]"
    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    np.testing.assert_array_equal(_run(to_proto(fixed), x=x)[0], x.reshape(4, 6))
    assert any(node.op_type == "Shape" for node in fix_sizes(to_ir(model), "N").graph)
