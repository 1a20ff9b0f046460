"""The two forms of a model, and the names in it."""

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.model import (
    find_value,
    graph_names,
    nodes_within,
    real_initializers,
    subgraphs,
    to_ir,
    to_proto,
    unique_name,
)

TEXT = """<ir_version: 8, opset_import: ["": 18]> g (float[N, 2] x, bool c) => (float[N, 2] y)
    <float[2] w = {1, 2}, int64[1] axes = {0}>
    { h = Mul(x, w)
      y = If (c) <then_branch = t () => (float[N, 2] p) { p = Add(h, w) },
                  else_branch = e () => (float[N, 2] q) <float[2] inner = {5, 6}> { q = Sub(h, inner) }> }"""


@pytest.fixture
def model():
    return onnx.parser.parse_model(TEXT)


def test_a_copy_shares_nothing_with_the_model_of_the_user(model):
    before = model.SerializeToString(deterministic=True)
    copy = to_ir(model)
    copy.graph.initializers["w"].const_value = None
    copy.graph.inputs[0].name = "other"
    assert model.SerializeToString(deterministic=True) == before


def test_a_zip_map_of_the_user_stays():
    """It becomes a matrix in the copy alone."""
    text = """<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]>
        g (float[N, 2] s) => (seq(map(int64, float)) p) {
            p = ai.onnx.ml.ZipMap <classlabels_int64s = [3, 7]> (s) }"""
    model = onnx.parser.parse_model(text)
    before = model.SerializeToString(deterministic=True)
    assert [node.op_type for node in to_ir(model).graph] == ["Identity"]
    assert model.SerializeToString(deterministic=True) == before


def test_a_round_trip_keeps_the_function(model):
    x = np.array([[3.0, 4.0]], np.float32)
    for condition in (True, False):
        first, again = (
            onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x, "c": np.array(condition)})[0]
            for proto in (model, to_proto(to_ir(model)))
        )
        np.testing.assert_array_equal(first, [[4, 10]] if condition else [[-2, 2]])
        np.testing.assert_array_equal(again, first)


def test_metadata_of_tensors_is_written_once():
    """Of initializers, constants and those in bodies; each round trip added it once more."""
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
            k = Constant <value = float[2] {3, 4}> ()
            y = If (c) <then_branch = a () => (float[2] p) <float[2] u = {5, 6}> { p = Add(x, u) },
                        else_branch = b () => (float[2] q) { s = Add(w, k)  q = Add(x, s) }>
        }"""
    )
    branch = proto.graph.node[1].attribute[0].g
    for tensor in (proto.graph.initializer[0], proto.graph.node[0].attribute[0].t, branch.initializer[0]):
        tensor.metadata_props.add(key="origin", value="somewhere")
    again = to_proto(to_ir(to_proto(to_ir(proto))))
    body = again.graph.node[1].attribute[0].g
    for tensor in (again.graph.initializer[0], again.graph.node[0].attribute[0].t, body.initializer[0]):
        assert [(entry.key, entry.value) for entry in tensor.metadata_props] == [("origin", "somewhere")]
    assert len(proto.graph.initializer[0].metadata_props) == 1


def test_sparse_initializers_are_refused_by_name(model):
    """The library would drop them silently."""
    values = onnx.helper.make_tensor("thin", onnx.TensorProto.FLOAT, [1], [1.0])
    places = onnx.helper.make_tensor("places", onnx.TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, places, [4]))
    with pytest.raises(GraphError, match="'thin' is sparse.*make it dense"):
        to_ir(model)


def test_names_of_subgraphs_are_in_use(model):
    """A new tensor with the name of an inner one would be captured in its place."""
    graph = to_ir(model).graph
    assert {"x", "c", "y", "w", "axes", "h", "p", "q", "inner"} <= graph_names(graph)


def test_a_unique_name_is_reserved():
    taken = {"a", "a_1"}
    assert [unique_name(base, taken) for base in ("a", "a", "b")] == ["a_2", "a_3", "b"]


def test_values_are_found_by_name(model):
    graph = to_ir(model).graph
    assert find_value(graph, "w").is_initializer()
    assert find_value(graph, "x").is_graph_input()
    assert find_value(graph, "h").producer().op_type == "Mul"
    assert find_value(graph, "nothing") is None
    assert [value.name for value in real_initializers(graph)] == ["w"]


def test_both_branches_are_subgraphs(model):
    assert sorted(graph.name for graph in subgraphs(model.graph.node)) == ["e", "t"]


def test_nodes_of_every_depth_in_order():
    nested = """<ir_version: 8, opset_import: ["": 18]> g (float[2] x, bool c) => (float[2] y)
    { h = Neg(x)
      z = If (c) <then_branch = t () => (p) { a = If (c) <then_branch = u () => (r) { r = Exp(h) },
                                                          else_branch = v () => (s) { s = Log(h) }>
                                          p = Abs(a) },
                  else_branch = e () => (q) { q = Sin(h) }>
      y = Cos(z) }"""
    graph = to_ir(onnx.parser.parse_model(nested)).graph
    found = [node.op_type for node in nodes_within(graph)]
    assert found == ["Neg", "If", "If", "Exp", "Log", "Abs", "Sin", "Cos"]
    assert graph_names(graph) == set("xcyhzaprsq")
