"""Names that a caller chooses for new tensors."""

import onnx.parser
import pytest

from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.graph.model import to_ir
from onnxsgd.objective.names import claim_names

TEXT = """<ir_version: 8, opset_import: ["": 18]> g (float[N, 2] x, bool c) => (float[N, 2] y)
    <float[2] w = {1, 2}> {
      label = Mul(x, w)
      y = If (c) <then_branch = t () => (float[N, 2] loss) { loss = Neg(label) },
                  else_branch = e () => (float[N, 2] q) { q = Identity(label) }> }"""


@pytest.fixture
def graph():
    return to_ir(onnx.parser.parse_model(TEXT)).graph


def test_inner_tensors_make_room(graph):
    """Exporters name intermediate results as they like: a user's "label" must not fail on one."""
    names = claim_names(graph, {"label_name": "label", "loss_name": "loss"})
    inner = [value.name for node in graph.all_nodes() for value in node.outputs]
    assert inner == ["label_1", "y", "loss_1", "q"] or set(inner) == {"label_1", "y", "loss_1", "q"}
    assert graph[0].outputs[0] in graph[1].attributes["then_branch"].as_graph()[0].inputs
    assert {"label", "loss", *inner, "x", "c", "w"} <= names


@pytest.mark.parametrize("name", ["x", "y", "w"])
def test_names_that_users_see_stay(graph, name):
    with pytest.raises(ParameterError, match=f"label_name='{name}' is not accepted.*must be a new name"):
        claim_names(graph, {"label_name": name})


def test_one_name_for_two_tensors_is_refused(graph):
    with pytest.raises(ParameterError, match="loss_name='a' is not accepted: label_name has the same value"):
        claim_names(graph, {"label_name": "a", "loss_name": "a"})


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_text(graph, name):
    with pytest.raises(ParameterTypeError, match="must be a string, not empty"):
        claim_names(graph, {"label_name": name})
