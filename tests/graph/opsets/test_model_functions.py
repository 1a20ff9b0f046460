"""Functions that a model defines are inlined, or refused in one sentence."""

import onnx
import onnx.parser
import pytest

from onnxsgd.exceptions import GraphError, UnsupportedError
from onnxsgd.graph.loading.load import load_model


def test_functions_are_inlined():
    """The dynamo exporter of torch writes functions; no later step supports them."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18, "own": 1]>
        g (float[N, 3] x) => (float[N, 3] y) { y = own.Twice(x) }
        <domain: "own", opset_import: ["": 18]> Twice (a) => (b) { b = Add(a, a) }"""
    )
    loaded = load_model(model)
    assert [node.op_type for node in loaded.graph.node] == ["Add"]
    assert not loaded.functions


@pytest.mark.parametrize(("outer", "inner"), [(15, 18), (18, 15), (20, 14)])
def test_functions_of_another_opset_are_inlined(outer, inner):
    """The checker accepts them if their nodes mean the same, and onnx does not inline them."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {outer}, "own": 1]>
        g (float[N, 3] x) => (float[N, 3] y) {{ y = own.Twice(x) }}
        <domain: "own", opset_import: ["": {inner}]> Twice (a) => (b) {{ b = Add(a, a) }}"""
    )
    loaded = load_model(model)
    assert [node.op_type for node in loaded.graph.node] == ["Add"]


def test_functions_whose_subgraphs_mean_something_else_are_refused():
    """The checker compares the nodes of a function, not those of its subgraphs."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18, "own": 1]>
        g (float[N, 3] x) => (float[N, 1] y) <bool c = {1}> { y = own.Mean(c, x) }
        <domain: "own", opset_import: ["": 17]> Mean (c, a) => (b) {
        b = If(c) <then_branch = t () => (float[N, 1] r) { r = ReduceMean<axes = [1]>(a) },
                   else_branch = e () => (float[N, 1] s) { s = ReduceMax<axes = [1]>(a) }> }"""
    )
    with pytest.raises(UnsupportedError, match="imports opset 17, and the model 18: its ReduceMean"):
        load_model(model)


def test_operands_beyond_those_of_a_function_are_refused():
    """In one sentence: onnx raises an assertion of its C++ code."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18, "own": 1]>
        g (float[N, 3] x) => (float[N, 3] y) { y = own.Twice(x, x) }
        <domain: "own", opset_import: ["": 18]> Twice (a) => (b) { b = Add(a, a) }"""
    )
    with pytest.raises(GraphError, match="cannot be inlined: .*exceed number of formal parameters"):
        load_model(model)
