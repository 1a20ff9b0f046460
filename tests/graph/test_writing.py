"""Tests of graph/writing.py and graph/append.py: names, uses and outputs survive a replacement."""

import numpy as np
import onnx_ir as ir
import pytest

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.append import appending, graft
from onnxsgd.graph.model import FROZEN
from onnxsgd.graph.nodes import maker
from onnxsgd.graph.writing import add_initializer, computed, displace, replace_nodes

FLOAT = ir.DataType.FLOAT


@pytest.fixture
def graph():
    """Return y = Neg(Exp(x))."""
    x = ir.val("x", FLOAT, [2])
    e = computed("Exp", [x], name="e", like=x)
    y = computed("Neg", [e], name="y", like=x)
    return ir.Graph([x], [y], nodes=[maker(e), maker(y)], opset_imports={"": 18}, name="g")


def operators(graph):
    return [node.op_type for node in graph]


def test_nodes_of_a_replacement_are_replaced_in_turn(graph):
    """Exp becomes Tanh, and that Sin of Cos: each rule sees the nodes of the one before."""

    def find(node):
        if node.op_type == "Exp":
            new = computed("Tanh", node.inputs, name="t")
            return [maker(new)], [new]
        if node.op_type == "Tanh":
            inner = computed("Cos", node.inputs, name="c")
            outer = computed("Sin", [inner], name="s")
            return [maker(inner), maker(outer)], [outer]
        return None

    assert replace_nodes(graph, find) == 2
    assert operators(graph) == ["Cos", "Sin", "Neg"]
    assert graph.outputs[0].name == "y"


def test_a_replaced_output_stays_an_output(graph):
    def find(node):
        return ([], [node.inputs[0]]) if node.op_type == "Neg" else None

    replace_nodes(graph, find)
    assert operators(graph) == ["Exp"]
    assert [value.name for value in graph.outputs] == ["e"]


def test_a_displaced_value_leaves_its_name_and_its_readers(graph):
    (old,) = graph.outputs
    new = displace(old, "before")
    graph.append(maker(computed("Identity", [old])))
    assert (old.name, new.name, new.shape) == ("before", "y", ir.Shape([2]))
    assert list(graph.outputs) == [new]


def test_an_initializer_has_the_type_and_the_shape_of_its_array(graph):
    value = add_initializer(graph, "w", np.zeros((2, 0), np.int64))
    assert (value.dtype, value.shape) == (ir.DataType.INT64, ir.Shape([2, 0]))
    assert graph.initializers["w"] is value


def test_appended_constants_are_no_weights(graph):
    with appending(graph) as op:
        op.Add(graph.outputs[0], 0.5)
    (constant,) = graph.initializers.values()
    assert constant.metadata_props[FROZEN] == "constant of a formula"


def test_grafted_names_have_the_prefix_and_are_new(graph):
    names = {"x", "e", "y", "loss_Add"}
    total = graft(graph, names, "loss", lambda op: op.Add(graph.outputs[0], 0.5))
    assert not graph.initializers
    assert operators(graph) == ["Exp", "Neg", "Constant", "Add"]
    assert total.name == "loss_Add_1"
    assert total.name in names


def test_an_operator_of_a_later_opset_is_refused(graph):
    with pytest.raises(GraphError, match="Opset 18 has no operator Gelu"):
        graft(graph, {"x", "e", "y"}, "loss", lambda op: op.Gelu(graph.outputs[0]))
