"""Dropout nodes that act in training: their mark, and their ratio."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.dropout import acting_dropouts, acts, mark_dropouts, ratio_of
from onnxsgd.graph.lowering.dropout_ratio import with_dropout
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import to_ir, to_proto

X = np.random.RandomState(0).normal(size=(6, 2)).astype(np.float32)


def read(body, output="float[N, 2] Y"):
    text = f"""<ir_version: 9, opset_import: ["": 17]> g (float[N, 2] X) => ({output})
    <float none = {{0}}, float some = {{0.3}}, float all = {{1}}, bool on = {{1}}> {{ {body} }}"""
    model = to_ir(parser.parse_model(text))
    mark_dropouts(model.graph)
    return model


def names(model):
    return [(node.outputs[0].name, ratio_of(node)) for node in acting_dropouts(model.graph)]


BODY = "A = Dropout(X) B = Dropout(A, some) C = Dropout(B, none) D = Exp(some) E = Dropout(C, D) Y = Relu(E)"


def test_nodes_with_a_constant_ratio_above_zero_act():
    assert names(read(BODY)) == [("A", 0.5), ("B", 0.3)]


def test_lowering_keeps_these_alone():
    lowered = lower_for_training(read(BODY))
    assert names(lowered) == [("A", 0.5), ("B", 0.3)]
    assert not [node for node in lowered.graph if node.op_type == "Dropout" and not acts(node)]


def test_nodes_in_subgraphs_do_not_act():
    body = """Y = If(on) <then_branch = t () => (float[N, 2] P) { P = Dropout(X, some) },
        else_branch = e () => (float[N, 2] Q) { Q = Identity(X) }>"""
    assert not any(acts(node) for node in read(body).graph.all_nodes())


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(None, [("A", 0.5), ("B", 0.3)]), (0.7, [("A", 0.7), ("B", 0.7)]), (0.0, []), (0, [])],
)
def test_a_ratio_takes_the_place_of_those_of_the_graph(ratio, expected):
    model = lower_for_training(read(BODY))
    before = to_proto(model).SerializeToString()
    result = with_dropout(model, ratio)
    assert names(result) == expected
    assert to_proto(model).SerializeToString() == before
    proto = to_proto(result)
    onnx.checker.check_model(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"X": X})[0], np.maximum(X, 0))


@pytest.mark.parametrize(
    ("body", "output"),
    [("Y = Dropout(X)", "float[N, 2] Y"), ("Y, M = Dropout(X)", "float[N, 2] Y, bool[N, 2] M")],
)
def test_outputs_of_the_graph_keep_their_node(body, output):
    result = with_dropout(read(body, output), 0.0)
    assert [node.op_type for node in result.graph] == ["Dropout"]
    assert names(result) == []


def test_a_node_that_drops_everything_is_refused():
    with pytest.raises(GraphError, match="'Y' has the ratio 1.0: it must be below 1.*parameter dropout"):
        with_dropout(read("Y = Dropout(X, all)"), None)
    assert names(with_dropout(read("Y = Dropout(X, all)"), 0.5)) == [("Y", 0.5)]
