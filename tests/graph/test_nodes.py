"""Tests of graph/nodes.py: an accessor names the tensor or the node that lacks a fact.

Operators of other domains are no standard ones, with any name.
"""

import onnx
import onnx_ir as ir
import pytest

from onnxsgd.gradient.native.coverage import has_zero_gradient
from onnxsgd.gradient.portable.rules import table
from onnxsgd.gradient.portable.sweep import dependents
from onnxsgd.graph import nodes
from onnxsgd.graph.parameter_roles.origins import trace_origins
from onnxsgd.graph.parameter_roles.patterns import made_by
from onnxsgd.graph.reading.trainable import trace_gradients


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


@pytest.fixture(name="namesake", params=["com.microsoft", ""])
def _namesake(request):
    """Return Y = Floor(X), of a domain, in a model."""
    x, y = (ir.val(name, ir.DataType.FLOAT, [2]) for name in "XY")
    node = ir.Node(request.param, "Floor", [x], outputs=[y])
    opsets = {"": 18, "com.microsoft": 1}
    return ir.Model(ir.Graph([x], [y], nodes=[node], opset_imports=opsets, name="g"), ir_version=8)


def test_a_namesake_of_a_step_function_is_none(namesake):
    (node,) = namesake.graph
    is_standard = not node.domain
    assert nodes.standard_operator(node) == ("Floor" if is_standard else "")
    assert nodes.qualified_operator(node) == ("Floor" if is_standard else "com.microsoft.Floor")
    assert has_zero_gradient(node) is is_standard
    assert table.passes_gradient(node, 0) is not is_standard
    assert (node.outputs[0] in dependents([node], node.inputs)) is not is_standard
    assert (trace_gradients(namesake, "Y", lambda node: "no rule").nodes == ()) is is_standard
    assert (made_by(node.outputs[0], "Floor") is node) is is_standard


@pytest.mark.parametrize("domain", ["com.microsoft", ""])
def test_a_namesake_of_a_shape_carries_data(domain):
    x = ir.val("X", ir.DataType.FLOAT, [2])
    node = ir.node("Shape", [x], domain=domain)
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 18}, name="g")
    data = trace_origins(graph, lambda node, tuned: False).data
    assert (node.outputs[0] in data) is bool(domain)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Y = QuantizeLinear(X, s)", True),
        ("Q = QuantizeLinear(X, s) T = Transpose(Q) Y = Reshape(T, i)", True),
        ("Q, A, P = DynamicQuantizeLinear(X) Y = MatMulInteger(Q, W, P)", True),
        ("Q, A, Y = DynamicQuantizeLinear(X)", False),
        ("Y = Cast<to = 2>(X)", False),
        ("C = Cast<to = 2>(X) Y = MatMulInteger(C, W)", False),
        ("Y = Relu(X)", True),
    ],
)
def test_integers_that_represent_real_numbers(text, expected):
    held = "float s = {0.5}, uint8[2, 2] W = {1, 2, 3, 4}, int64[1] i = {-1}"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g (float[2, 2] X) => (Y) <{held}> {{ {text} }}'
    )
    graph = ir.from_proto(onnx.shape_inference.infer_shapes(model)).graph
    assert nodes.represents_reals(graph.outputs[0]) is expected
