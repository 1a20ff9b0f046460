"""InstanceNormalizations whose standardized input the gradient has made."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd.gradient.derivative import forward_backward_model
from onnxsgd.graph.lowering.forms import STANDARDIZED_FORMS, write_out
from onnxsgd.graph.model import to_ir, to_proto

#: The constants.
ONES = {"s": np.ones(3, np.float32), "b": np.zeros(3, np.float32)}
KEPT = {
    "a scale": {**ONES, "s": np.array([1, 1, 2], np.float32)},
    "a bias": {**ONES, "b": np.array([0, 1, 0], np.float32)},
}


def models(shape, constants, opset=18, nodes="n = InstanceNormalization<epsilon = 0.01>(X, s, b)"):
    """Return the gradient of a normalization with a factor, and the same written out."""
    factor = [3, *[1] * len(shape[2:])]
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": {opset}]>
        g (float{list(shape)} X, float{factor} G, float[3] T) => (float{list(shape)} Y)
        {{ {nodes} Y = Mul(n, G) }}"""
    )
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    inputs = ["X", "G"] + ["T"] * ("T)" in nodes)
    both = forward_backward_model(to_ir(onnx.shape_inference.infer_shapes(model)), [], inputs, "portable")
    before = to_proto(both)
    write_out(both, STANDARDIZED_FORMS)
    both.graph.sort()
    return before, to_proto(both)


def operators(model):
    return [node.op_type for node in model.graph.node]


def test_every_form_of_standardized_tensors_is_tested():
    assert set(STANDARDIZED_FORMS) == {("", "InstanceNormalization")}


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 2)], ids=str)
def test_the_same_numbers(shape, opset):
    before, after = models(shape, ONES, opset)
    assert "InstanceNormalization" in operators(before)
    assert "InstanceNormalization" not in operators(after)
    compare(before, after)


def compare(before, after):
    """Assert that two models compute the same."""
    rng = np.random.default_rng(0)
    feeds = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in before.graph.input
    }
    feeds = {key: rng.normal(size=size).astype(np.float32) for key, size in feeds.items()}
    for expected, found in zip(
        *(ReferenceEvaluator(each).run(None, feeds) for each in (before, after)), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", KEPT)
def test_other_normalizations_stay(name):
    assert "InstanceNormalization" in operators(models((2, 3, 5), KEPT[name])[1])


def test_a_trained_scale_stays():
    nodes = "n = InstanceNormalization<epsilon = 0.01>(X, T, b)"
    assert "InstanceNormalization" in operators(models((2, 3, 5), {"b": ONES["b"]}, nodes=nodes)[1])


def test_each_epsilon_has_its_own():
    """Two normalizations of one tensor: each takes the values of its own gradient."""
    nodes = (
        "m = InstanceNormalization<epsilon = 0.01>(X, s, b) l = InstanceNormalization<epsilon = 2.0>(X, s, b)"
    )
    before, after = models((2, 3, 5), ONES, nodes=f"{nodes} n = Mul(m, l)")
    assert "InstanceNormalization" not in operators(after)
    compare(before, after)
