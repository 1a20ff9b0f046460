"""Cutting keeps the ancestors of the tensor, and no other nodes."""

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxsgd.exceptions import GraphError, ParameterError
from onnxsgd.graph.cut import cut_at
from onnxsgd.graph.model import to_ir, to_proto

TEXT = """<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3, "own": 1]>
    g (float[N, 2] x, float[N, 2] extra) => (float[N, 2] y, int64[N] label)
    <float[2] w = {1, 2}, float[2] v = {3, 4}> {
        a = Mul(x, w)  b = Add(a, v)  y = Add(b, extra)  label = ArgMax <axis = 1, keepdims = 0> (y)
        c = own.Strange(x)
    }"""


def test_cut(run):
    """The rest of the graph, its inputs and its weights are gone, and the result is valid."""
    model = to_ir(onnx.parser.parse_model(TEXT))
    cut = cut_at(model, "a")
    proto = to_proto(cut)
    onnx.checker.check_model(proto)
    assert [node.op_type for node in proto.graph.node] == ["Mul"]
    assert [tensor.name for tensor in proto.graph.initializer] == ["w"]
    assert [value.name for value in proto.graph.input] == ["x"]
    assert cut.graph.outputs[0].shape[1] == 2
    x = np.array([[1.0, 1.0]], np.float32)
    np.testing.assert_array_equal(run(cut, x)["a"], [[1, 2]])


def test_the_model_is_not_changed():
    """Cutting at another tensor later must still be possible."""
    model = to_ir(onnx.parser.parse_model(TEXT))
    before = to_proto(model)
    cut_at(model, "a")
    assert to_proto(model) == before


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("w", ParameterError, "an input or an initializer"),
        ("x", ParameterError, "an input or an initializer"),
        ("labels", ParameterError, "'label'"),
        ("c", GraphError, "element type of 'c' is unknown"),
    ],
)
def test_refusals(name, error, message):
    """A misspelt name is answered with the right one."""
    with pytest.raises(error, match=message):
        cut_at(to_ir(onnx.parser.parse_model(TEXT)), name)
