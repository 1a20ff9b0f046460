"""The axis of the classes, from the last layer of a graph."""

import onnx.parser
import pytest

from onnxsgd.graph.class_axis import class_axis
from onnxsgd.graph.model import to_ir

WEIGHTS = """<float[4, 3, 1, 1] w, float[4, 3, 1] v, float[3, 4] m, float[4] b, float[3, 4, 2, 2] u,
    int64[1] one = {1}>"""


@pytest.mark.parametrize(
    ("shape", "body", "axis"),
    [
        ("N, 3, 5, 6", "y = Conv(x, w)", 1),
        ("N, 3, 5, 6", "y = ConvTranspose(x, u)", 1),
        ("N, 3, 5", "a = Conv(x, v) y = Transpose<perm = [0, 2, 1]>(a)", 2),
        ("N, 5, 3", "y = MatMul(x, m)", 2),
        ("N, 5, 3", "a = MatMul(x, m) c = Add(a, b) d = Relu(c) y = Transpose<perm = [0, 2, 1]>(d)", 1),
        ("N, 5, 3", "a = MatMul(x, m) y = Add(b, a)", 2),
        ("N, 5, 3", "a = MatMul(x, m) y = CumSum(a, one)", None),
        ("N, 5, 3", "y = Relu(x)", None),
    ],
)
def test_axis_of_the_outputs_of_the_last_layer(shape, body, axis):
    rank = shape.count(",") + 1
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    graph (float[{shape}] x) => (float[{", ".join("NABCD"[:rank])}] y) {WEIGHTS} {{ {body} }}"""
    model = to_ir(infer_shapes_of(text))
    assert class_axis(model.graph.outputs[0]) == axis


def infer_shapes_of(text):
    return onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
