"""Tests of graph/nodes.py: an accessor names the tensor or the node that lacks a fact."""

import onnx_ir as ir
import pytest

from onnxsgd.graph import nodes


@pytest.mark.parametrize(
    "read",
    [
        nodes.content,
        nodes.element_type,
        nodes.maker,
        nodes.shape_of,
        lambda value: nodes.fixed_size(value, 0),
    ],
    ids=["content", "element_type", "maker", "shape_of", "fixed_size"],
)
def test_missing_fact_names_the_tensor(read):
    with pytest.raises(LookupError, match="'x'"):
        read(ir.Value(name="x"))


def test_symbolic_size_is_not_fixed():
    value = ir.Value(name="x", shape=ir.Shape(["N", 3]))
    assert nodes.fixed_size(value, 1) == 3
    with pytest.raises(LookupError, match="axis 0 of 'x'"):
        nodes.fixed_size(value, 0)


def test_known_facts_are_returned():
    tensor = ir.tensor([1.0, 2.0], name="x")
    value = ir.Value(name="x", const_value=tensor, shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.FLOAT))
    assert nodes.content(value) is tensor
    assert nodes.element_type(value) == ir.DataType.FLOAT
    assert list(nodes.shape_of(value)) == [2]


def test_missing_input_names_the_node():
    value = ir.Value(name="x")
    node = ir.Node("", "Clip", [value, None], name="clip")
    assert nodes.required(node, 0) is value
    with pytest.raises(LookupError, match="Clip 'clip' lacks its input 1"):
        nodes.required(node, 1)
    with pytest.raises(LookupError, match="'clip' is in no graph"):
        nodes.graph_of(node)
    graph = ir.Graph([value], node.outputs, nodes=[node], opset_imports={"": 18})
    assert nodes.graph_of(node) is graph
