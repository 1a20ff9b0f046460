"""Multiplications of a graph, counted by hand."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from onnxsgd.graph.multiplications import _COUNTS, count_multiplications

#: The nodes that compute Y from X, the shape of a row, further tensors, and the multiplications of a row.
CASES = {
    "MatMul": ("Y = MatMul(X, W)", "[N, 4]", "float[4, 5] W", 4 * 5),
    "MatMul of sequences": ("Y = MatMul(X, W)", "[N, 3, 4]", "float[4, 5] W", 3 * 4 * 5),
    "Gemm": ("Y = Gemm<transB=1>(X, W, B)", "[N, 4]", "float[5, 4] W, float[5] B", 4 * 5),
    "Conv": ("Y = Conv<group=2>(X, W)", "[N, 4, 6, 6]", "float[8, 2, 3, 3] W", 8 * 4 * 4 * 2 * 9),
    "ConvTranspose": ("Y = ConvTranspose(X, W)", "[N, 4, 6, 6]", "float[4, 3, 2, 2] W", 4 * 36 * 3 * 4),
    "Relu": ("Y = Relu(X)", "[N, 4]", "", 0),
}
CELLS = {"RNN": 1, "GRU": 3, "LSTM": 4}


def counted(nodes, row, tensors, batch_size=7):
    inputs = ", ".join(filter(None, [f"float{row} X", tensors]))
    text = f'<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => (float[A] Y) {{ {nodes} }}'
    model = parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    graph = ir.from_proto(model)
    fixed = {value.name: value for value in graph.graph.inputs if value.name != "X"}
    for value in fixed.values():
        graph.graph.inputs.remove(value)
        shape = value.shape.numpy()
        value.const_value = ir.tensor(np.zeros(shape, np.float32))
        graph.graph.initializers[value.name] = value
    return count_multiplications(graph, batch_size, {})


@pytest.mark.parametrize("name", CASES)
def test_multiplications_of_a_batch(name):
    nodes, row, tensors, expected = CASES[name]
    found = counted(nodes, row, tensors)
    assert found.total == 7 * expected
    assert found.of_tables == (7 * expected if row == "[N, 4]" else 0)


@pytest.mark.parametrize("cell", CELLS)
def test_multiplications_of_recurrent_layers(cell):
    gates = CELLS[cell]
    nodes = f"S = Transpose<perm=[1, 0, 2]>(X) Y = {cell}<hidden_size=6>(S, W, R)"
    found = counted(nodes, "[N, 20, 5]", f"float[1, {6 * gates}, 5] W, float[1, {6 * gates}, 6] R")
    assert found.total == 7 * 20 * 6 * gates * (5 + 6)


def test_open_shapes_count_as_none():
    assert counted("Y = MatMul(X, X)", "[N, M]", "").total == 0


def test_every_operator_has_a_case():
    assert set(_COUNTS) <= {*CASES, *CELLS}
