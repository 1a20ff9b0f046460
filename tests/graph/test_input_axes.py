"""The axis of the inputs of weights, of each operator that has one."""

import numpy as np
import onnx.parser
import pytest

from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.input_axes import input_axis
from onnxsgd.graph.model import to_ir

#: Nodes that read the weight w of a shape, and the axis of its inputs.
CASES = [
    ("y = MatMul(x, w)", (3, 4), 0),
    ("y = MatMul(w, x)", (3, 4), 1),
    ("y = MatMul(x, w)", (2, 3, 4), 1),
    ("y = Gemm(x, w)", (3, 4), 0),
    ("y = Gemm<transB = 1>(x, w)", (3, 4), 1),
    ("y = Gemm(w, x)", (3, 4), 1),
    ("y = Gemm<transA = 1>(w, x)", (3, 4), 0),
    ("t = Transpose(w) y = MatMul(x, t)", (3, 4), 1),
    ("t = Transpose<perm = [1, 0]>(w) i = Identity(t) y = Gemm<transB = 1>(x, i)", (3, 4), 0),
    ("c = Cast<to = 11>(w) y = MatMul(x, c)", (3, 4), 0),
    ("y = Conv(x, w)", (5, 2, 3, 3), 1),
    ("y = ConvTranspose(x, w)", (2, 5, 3, 3), 0),
    ("y = Gather(w, x)", (3, 4), 0),
    ("y = Gather<axis = 1>(w, x)", (3, 4), 1),
    ("y = LSTM<hidden_size = 2>(x, w, r)", (1, 8, 4), 2),
    ("y = GRU<hidden_size = 2>(x, r, w)", (1, 6, 2), 2),
    ("y = Mul(x, w)", (4,), 0),
    ("y = MatMul(x, w)", (4,), 0),
    ("p = MatMul(x, w) y = MatMul(p, w)", (4, 4), 0),
]
REFUSED = [
    ("y = Mul(x, w)", (3, 4), "Mul"),
    ("y = Conv<group = 2>(x, w)", (4, 1, 3, 3), "Conv"),
    ("p = MatMul(x, w) y = MatMul(w, p)", (4, 4), "MatMul"),
    ("p = MatMul(x, w) y = Mul(p, w)", (4, 4), "MatMul and Mul"),
]


def weight_of(nodes, shape):
    sizes = ", ".join(map(str, shape))
    values = ", ".join(["1"] * int(np.prod(shape)))
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        graph (float[N, 3] x, float[M] r) => (float[N] y)
        <float[{sizes}] w = {{{values}}}> {{ {nodes} }}""")
    return to_ir(model).graph.initializers["w"]


@pytest.mark.parametrize(("nodes", "shape", "axis"), CASES)
def test_the_axis_of_the_inputs(nodes, shape, axis):
    assert input_axis(weight_of(nodes, shape)) == axis


@pytest.mark.parametrize(("nodes", "shape", "readers"), REFUSED)
def test_weights_without_inputs_are_refused(nodes, shape, readers):
    with pytest.raises(UnsupportedError, match=f"The weight 'w', which {readers} reads, has no groups"):
        input_axis(weight_of(nodes, shape))
