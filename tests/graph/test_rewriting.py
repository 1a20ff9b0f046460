"""Rewriting by a table: the place, the names and the outputs of a node are kept."""

import numpy as np
import onnx.parser
import pytest

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.model import FROZEN, to_ir
from onnxsgd.graph.nodes import first
from onnxsgd.graph.rewriting import extend, is_rewritten, rewrite

X = np.array([[0.5, -1.5, 2.0]], np.float32)


def parse(body, outputs="float[N, 3] y", opset=18):
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[N, 3] x) => ({outputs}) {{ {body} }}'
    return to_ir(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))


def double(w, node):
    return w.op.Mul(first(node), w.tensor("two", np.array(2, np.float32), frozen="a test"))


def operators(model):
    return [node.op_type for node in model.graph]


def test_a_node_is_replaced_in_its_place(run):
    model = parse("a = Neg(x) b = Softsign(a) y = Exp(b)")
    assert rewrite(model, {("", "Softsign"): double}) == 1
    assert operators(model) == ["Neg", "Mul", "Exp"]
    assert model.graph[1].outputs[0].name == "b"
    np.testing.assert_allclose(run(model, {"x": X})["y"], np.exp(-2 * X), rtol=1e-6)
    assert [value.metadata_props[FROZEN] for value in model.graph.initializers.values()] == ["a test"]


def test_nodes_that_a_rule_writes_are_rewritten_too():
    model = parse("y = Softsign(x)")
    table = {("", "Softsign"): double, ("", "Mul"): lambda w, node: w.op.Add(first(node), first(node))}
    assert rewrite(model, table) == 2
    assert operators(model) == ["Add"]


def test_a_replacement_by_the_operand_keeps_the_output(run):
    model = parse("y = Softsign(x)")
    rewrite(model, {("", "Softsign"): lambda w, node: first(node)})
    np.testing.assert_array_equal(run(model, {"x": X})["y"], X)


def test_a_rule_that_does_not_apply_changes_nothing():
    model = parse("y = Softsign(x)")
    assert rewrite(model, {("", "Softsign"): lambda w, node: None}) == 0
    assert operators(model) == ["Softsign"]


def test_the_question_changes_nothing():
    model = parse("a = Softsign(x) y = Neg(a)")
    table = {("", "Softsign"): double}
    assert [is_rewritten(table, node) for node in model.graph] == [True, False]
    assert operators(model) == ["Softsign", "Neg"]
    assert not model.graph.initializers


def test_only_the_nodes_asked_for_are_replaced():
    model = parse("a = Softsign(x) y = Softsign(a)")
    assert rewrite(model, {("", "Softsign"): double}, [model.graph[1]]) == 1
    assert operators(model) == ["Softsign", "Mul"]


def test_attributes_that_fit_nothing_are_an_error_with_the_place():
    def broken(w, node):
        return w.op.Mul(first(node), [1.0, 2.0][5])

    with pytest.raises(GraphError, match="The Softsign that computes 'y'.*do not fit together"):
        rewrite(parse("y = Softsign(x)"), {("", "Softsign"): broken})


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize("axes", [[1], None])
@pytest.mark.parametrize(("name", "expected"), [("ReduceMax", np.max), ("ReduceSum", np.sum)])
def test_reductions_are_written_for_the_opset(name, expected, opset, axes, run):
    """Axes became an input in opset 18, those of ReduceSum in 13."""
    model = parse("y = Identity(x)", opset=opset)
    x = model.graph.inputs[0]
    result = extend(model.graph, "r", lambda w: w.reduce(name, x, axes))
    result.type, result.shape = x.type, None
    model.graph.outputs[:] = [result]
    rows = np.vstack([X, 3 * X])
    found = run(model, {"x": rows})[result.name]
    np.testing.assert_allclose(found, expected(rows, axis=axes and tuple(axes), keepdims=True), rtol=1e-6)
