"""Picks of one place before transpositions and reshapes: the same numbers, of fewer moved ones."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd.gradient.portable.rules.picks_first import put_picks_first

#: Nodes with an input X [2, 3, 4, 5], and the operators of the graph that is written.
MOVED = {
    "transpose": (
        "T = Transpose<perm = [2, 0, 3, 1]>(X) Y = Gather<axis = 0>(T, K)",
        ["Gather", "Transpose"],
    ),
    "axis from the end": ("T = Transpose<perm = [0, 2, 1, 3]>(X) Y = Gather<axis = -2>(T, K)", ["Gather"]),
    "reshape": ("T = Reshape(X, S) Y = Gather<axis = 1>(T, K)", ["Gather", "Reshape"]),
    "both": (
        "D = Transpose<perm = [0, 2, 1, 3]>(X) R = Reshape(D, S) T = Transpose<perm = [1, 0, 2]>(R)"
        " Y = Gather<axis = 0>(T, K)",
        ["Gather", "Reshape"],
    ),
}
KEPT = {
    "an axis that is reshaped": "T = Reshape(X, S) Y = Gather<axis = 2>(T, K)",
    "another reader": "T = Transpose<perm = [1, 0, 2, 3]>(X) Y = Gather<axis = 0>(T, K) Z = Neg(T)",
    "several places": "T = Transpose<perm = [1, 0, 2, 3]>(X) Y = Gather<axis = 0>(T, P)",
    "places of the data": "T = Transpose<perm = [1, 0, 2, 3]>(X) Y = Gather<axis = 0>(T, J)",
    "another operator": "T = Neg(X) Y = Gather<axis = 0>(T, K)",
}


def parse(text, batch="2"):
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> g (float[{batch},3,4,5] X, int64 J) => (float[A] Y)
        <int64 K = {{-2}}, int64[2] P = {{0, 1}}, int64[3] S = {{0, 0, -1}}> {{ {text} }}"""
    )


def moved(model):
    result = ir.from_proto(model)
    put_picks_first(result.graph)
    return ir.to_proto(result)


def run(model):
    X = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    return ReferenceEvaluator(model).run(["Y"], {"X": X, "J": np.array(1)})[0]


@pytest.mark.parametrize("name", MOVED)
def test_moved(name):
    text, operators = MOVED[name]
    model = parse(text)
    result = moved(model)
    assert [node.op_type for node in result.graph.node] == operators
    np.testing.assert_array_equal(run(result), run(model))


@pytest.mark.parametrize("name", KEPT)
def test_kept(name):
    model = parse(KEPT[name])
    result = moved(model)
    assert [node.op_type for node in result.graph.node] == [node.op_type for node in model.graph.node]
    np.testing.assert_array_equal(run(result), run(model))


def test_an_open_number_of_rows():
    result = moved(parse(MOVED["both"][0], batch="N"))
    assert [node.op_type for node in result.graph.node] == MOVED["both"][1]


def test_an_output_of_the_graph_stays():
    model = parse(MOVED["transpose"][0])
    model.graph.output.add(name="T", type=model.graph.output[0].type)
    assert moved(model) == ir.to_proto(ir.from_proto(model))
