"""The nodes between trained tensors and outputs: others may be of any operator."""

import onnx.parser
import pytest

from onnxsgd.graph.gradient_path import find_path, values_upstream
from onnxsgd.graph.model import find_value, to_ir

TEXT = """<ir_version: 8, opset_import: ["": 18]> g (float[N, 2] x, bool c) => (float[N, 2] y, float[N, 2] z)
    <float[2] w = {1, 2}, float[2] v = {3, 4}> {
      before = Floor(x)
      h = Mul(before, w)
      places = ArgMax<axis = 1, keepdims = 1>(h)
      beside = Cast<to = 1>(places)
      i = If (c) <then_branch = t () => (float[N, 2] p) { p = Add(h, v) },
                  else_branch = e () => (float[N, 2] q) { q = Identity(h) }>
      y = Add(i, beside)
      z = Exp(before) }"""


@pytest.fixture
def graph():
    return to_ir(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(TEXT))).graph


def anything(node, index):
    return True


def path(graph, wrt, outputs, passes=anything):
    sources, ends = ([find_value(graph, name) for name in names] for names in (wrt, outputs))
    return find_path(graph, sources, ends, passes)


@pytest.mark.parametrize(
    ("wrt", "outputs", "nodes"),
    [
        ("w", "y", ["Mul", "If", "Add"]),
        ("v", "y", ["If", "Add"]),
        ("x", "y", ["Floor", "Mul", "If", "Add"]),
        ("x", "z", ["Floor", "Exp"]),
        ("w", "z", []),
        ("wx", "yz", ["Floor", "Mul", "If", "Add", "Exp"]),
    ],
)
def test_nodes_before_and_beside_are_left_out(graph, wrt, outputs, nodes):
    """Through integers no gradient passes; tensors that a branch captures are read by it."""
    found = path(graph, wrt, outputs)
    assert [node.op_type for node in found.nodes] == nodes
    assert {value.name for value in found.values} >= set(wrt if nodes else "")


def test_an_operator_without_gradient_ends_the_path(graph):
    found = path(graph, "xw", "y", lambda node, index: node.op_type != "Floor")
    assert [node.op_type for node in found.nodes] == ["Mul", "If", "Add"]
    assert "x" not in {value.name for value in found.values}


def test_upstream_holds_what_no_trained_tensor_reaches(graph):
    upstream = values_upstream(graph, [find_value(graph, "y")], anything)
    assert {value.name for value in upstream} == {"y", "i", "h", "before", "x", "w", "v", "beside"}


def test_a_node_that_reads_a_tensor_where_no_gradient_passes_is_beside():
    """Pow has no gradient for its exponent here; its base is frozen."""
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y)
        <float[2] w = {1, 2}> { h = Mul(x, w) g = Pow(x, h) y = Add(h, g) }"""
    graph = to_ir(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))).graph
    found = path(graph, "w", "y", lambda node, index: (node.op_type, index) != ("Pow", 1))
    assert [node.op_type for node in found.nodes] == ["Mul", "Add"]
