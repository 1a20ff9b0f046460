"""The native engine's own lowering keeps values and names."""

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from onnxsgd.gradient.native.lowering import NATIVE_FORMS, is_lowered, lower_path
from onnxsgd.graph.lowering.forms import FORMS
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.named_shapes import infer_shapes

ALL = (13, 15, 18, 20, 21)

LONG = """<int64[1] zero = {0}, int64[1] one = {1}, int64[1] twelve = {12},
    float[12] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>"""

#: The node, and the other parts of the graph.
NODES = [
    ("Cast", ALL, "y = Cast<to = 1>(x)", {}),
    ("Pow", ALL, "y = Pow(x, two)", {"weights": "<float two = {2}>"}),
    ("Pow", ALL, "y = Pow(x, three)", {"weights": "<int64 three = {3}>"}),
    ("Pow", ALL, "y = Pow(x, each)", {"weights": "<int32[4] each = {0, 1, 2, 3}>"}),
    ("Transpose", ALL, "y = Transpose(x)", {}),
    ("MatMul", ALL, "y = MatMul(x, w)", {"weights": "<float[4] w = {1, 2, 3, 4}>"}),
    ("MatMul", ALL, "y = MatMul(w, x)", {"weights": "<float[3] w = {1, 2, 3}>"}),
    ("MatMul", ALL, "v = Slice(x, zero, one) u = Reshape(v, twelve) y = MatMul(u, w)", {"weights": LONG}),
]


def parse(body, opset=18, weights=""):
    text = f"g (float[N, 3, 4] x) => (float[] y) {weights} {{ {body} }}"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = to_ir(proto)
    infer_shapes(model)
    return model


def test_every_form_of_this_engine_has_a_case():
    """The others have cases beside the forms shared with graphs of float64."""
    assert {op_type for _, op_type in NATIVE_FORMS.keys() - FORMS.keys()} == {node[0] for node in NODES}


@pytest.mark.parametrize(
    ("body", "opset", "more"),
    [
        pytest.param(body, opset, more, id=f"{index}-{opset}")
        for index, (_, opsets, body, more) in enumerate(NODES)
        for opset in opsets
    ],
)
def test_lowering_keeps_values(body, opset, more, execute):
    """Each form in each opset that has it."""
    model = parse(body, opset, **more)
    lowered = model.clone()
    lower_path(lowered, ["y"], ["x"])
    x = {"x": np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32)}
    expected = execute(to_proto(model), x, optimize=False)["y"]
    np.testing.assert_allclose(
        execute(to_proto(lowered), x, optimize=False)["y"], expected, rtol=2e-5, atol=2e-6
    )
    assert not any(is_lowered(node) for node in lowered.graph)


def test_nodes_that_no_gradient_passes_stay_unchanged():
    """The part before the first weight may hold any operator, and has faster kernels."""
    model = parse("a = Elu(x) b = Mul(a, w) y = Softplus(b)", weights="<float w = {2}>")
    lower_path(model, ["y"], ["w"])
    operators = [node.op_type for node in model.graph]
    assert operators[:2] == ["Elu", "Mul"]
    assert "Softplus" not in operators


def test_is_lowered_changes_nothing():
    """A description of a graph asks about each of its nodes."""
    model = parse("y = PRelu(x, w)", weights="<float w = {2}>")
    before = to_proto(model)
    (node,) = model.graph
    assert is_lowered(node)
    assert [use.node for use in node.inputs[0].uses()] == [node]
    assert to_proto(model) == before
    assert not is_lowered(ir.node("Elu", [None]))
