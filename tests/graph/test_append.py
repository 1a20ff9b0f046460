"""Formulas appended to a graph, under names that are free."""

import numpy as np
import onnx.parser
import pytest

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.append import appending, graft
from onnxsgd.graph.model import FROZEN, graph_names, real_initializers, to_ir

TEXT = """<ir_version: 8, opset_import: ["": {opset}]> g (float[N, 2] x) => (float[N, 2] y)
    <float[2] Mul = {{1, 2}}, float val_0 = {{7}}> {{ val_1 = Add(x, val_0) y = Mul(val_1, Mul) }}"""

X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


@pytest.fixture
def model():
    return to_ir(onnx.parser.parse_model(TEXT.format(opset=18)))


def test_nodes_are_appended_under_free_names(model, run):
    """Names of the builder, such as val_0, may be those of the user's tensors."""
    graph = model.graph
    with appending(graph) as op:
        result = op.Add(op.Mul(graph.outputs[0], 2.0), graph.inputs[0])
        result.name = "y"
    graph.outputs.append(result)
    result.type, result.shape = graph.outputs[0].type, graph.outputs[0].shape
    names = [value.name for node in graph for value in node.outputs] + list(graph.initializers)
    assert len(set(names)) == len(names)
    found = run(model, {"x": X})
    y = (X + 7) * [1, 2]
    np.testing.assert_array_equal(found["y"], y)
    np.testing.assert_array_equal(found[result.name], 2 * y + X)


def test_numbers_of_a_formula_are_no_weights(model):
    """The 2 of a formula would be trained otherwise."""
    with appending(model.graph) as op:
        op.Mul(model.graph.inputs[0], 2.5)
    marked = [value.name for value in real_initializers(model.graph) if FROZEN in value.metadata_props]
    assert len(marked) == 1
    assert float(model.graph.initializers[marked[0]].const_value.numpy()) == 2.5


def test_constants_of_users_keep_their_names(model, run):
    """The builder names a number after its value, and does not check the graph."""
    other = model.clone()
    with appending(other.graph) as op:
        op.Mul(other.graph.inputs[0], 2.5)
    (name,) = set(other.graph.initializers) - set(model.graph.initializers)
    model.graph.initializers["val_0"].name = name
    graph = model.graph
    with appending(graph) as op:
        result = op.Mul(graph.inputs[0], 2.5)
        result.name = "scaled"
    result.type, result.shape = graph.outputs[0].type, graph.outputs[0].shape
    graph.outputs.append(result)
    found = run(model, {"x": X})
    np.testing.assert_array_equal(found["y"], (X + 7) * [1, 2])
    np.testing.assert_array_equal(found["scaled"], 2.5 * X)


def test_a_graft_adds_no_initializers(model, run):
    graph = model.graph
    names, initializers = graph_names(graph), list(graph.initializers)
    result = graft(graph, names, "Mul", lambda op: op.Sub(op.Mul(graph.outputs[0], 3.0), 1.0))
    assert list(graph.initializers) == initializers
    assert result.name in names
    assert result.name.startswith("Mul_")
    result.type, result.shape = graph.outputs[0].type, graph.outputs[0].shape
    graph.outputs[:] = [result]
    np.testing.assert_array_equal(run(model, {"x": X})[result.name], 3 * (X + 7) * [1, 2] - 1)


def test_an_operator_of_a_newer_opset_is_refused():
    graph = to_ir(onnx.parser.parse_model(TEXT.format(opset=13))).graph
    with pytest.raises(GraphError, match="Opset 13 has no operator Mish; onnx.version_converter"):
        graft(graph, graph_names(graph), "loss", lambda op: op.Mish(graph.outputs[0]))


@pytest.mark.parametrize("exponent", [1.3, 2, 2.0])
@pytest.mark.parametrize("by_graft", [False, True])
def test_exponents_are_as_precise_as_their_base(by_graft, exponent, run):
    """onnxscript rounds them to float32; two Pow of one exponent share it."""
    text = TEXT.format(opset=18).replace("float[", "double[").replace("float ", "double ")
    model = to_ir(onnx.parser.parse_model(text))
    graph = model.graph

    def build(op):
        return op.Add(op.Pow(graph.inputs[0], exponent), op.Pow(graph.outputs[0], exponent))

    if by_graft:
        result = graft(graph, graph_names(graph), "own", build)
    else:
        with appending(graph) as op:
            result = build(op)
            result.name = "powers"
    result.type, result.shape = graph.outputs[0].type, graph.outputs[0].shape
    graph.outputs.append(result)
    x = X.astype(np.float64)
    want = x**exponent + ((x + 7) * [1, 2]) ** exponent
    np.testing.assert_allclose(run(model, {"x": x})[result.name], want, rtol=1e-14)
