"""Sizes fixed by the data."""

import onnx

from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import to_ir
from onnxsgd.graph.sizes import fix_sizes

#: The number of rows passes through integers of another type, as exporters from TensorFlow write it.
_COMPUTED = """
<ir_version: 8, opset_import: ["" : 18]>
agraph (float[N, H] x) => (float[M, 1] y)
<int64[1] zero = {0}, int64[1] one = {1}, int32[1] width = {1}, int64[1] flat = {-1}>
{
    shape = Shape (x)
    small = Cast <to = 6> (shape)
    rows = Slice (small, zero, one)
    both = Concat <axis = 0> (rows, width)
    target = Cast <to = 7> (both)
    mean = ReduceMean <keepdims = 0> (x, one)
    y = Reshape (mean, target)
    turned = Transpose <perm = [1, 0]> (y)
    all = Reshape (x, flat)
}
"""


def _lowered():
    return lower_for_training(to_ir(onnx.parser.parse_model(_COMPUTED)))


def test_open_sizes_are_those_of_the_data():
    fixed = fix_sizes(_lowered(), 4, {"x": (7,)})
    shapes = {value.name: value.shape for node in fixed.graph for value in node.outputs}
    assert fixed.graph.inputs[0].shape == (4, 7)
    assert shapes["y"] == (4, 1)
