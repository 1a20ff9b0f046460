"""Outputs are read backwards to the raw prediction, in every form that exporters write."""

import onnx.parser
import pytest

from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import find_value, to_ir
from onnxsgd.graph.reading.output_chain import holds_probabilities, read_link

HEAD = """<ir_version: 8, opset_import: ["": 18]> g (float[N, 3] x) => (float[N, K] y)
    <float one = {1}, float two = {2}, float minus = {-1}, int64[1] columns = {1}> """

#: Nodes from the raw prediction z to the output y, its link, and its scores.
FORMS = [
    ("y = Softmax(z)", "softmax", ["z"], False),
    ("y = LogSoftmax(z)", "softmax", ["z"], False),
    ("e = Exp(z) s = ReduceSum(e, columns) y = Div(e, s)", "softmax", ["z"], False),
    ("y = Sigmoid(z)", "sigmoid", ["z"], False),
    ("p = Sigmoid(z) c = Cast<to = 1>(p) y = Identity(c)", "sigmoid", ["z"], False),
    ("n = Neg(z) e = Exp(n) d = Add(e, one) y = Div(one, d)", "sigmoid", ["z"], False),
    ("m = Clip(z, minus, one) a = Add(m, one) y = Div(a, two)", "modified_huber", ["z"], False),
    ("p = Sigmoid(z) q = Sub(one, p) y = Concat<axis = 1>(q, p)", "sigmoid", ["z"], False),
    ("n = Neg(z) y = Concat<axis = 1>(n, z)", "identity", ["z"], False),
    ("p = Sigmoid(z) s = ReduceSum(p, columns) y = Div(p, s)", "ovr", ["z"], False),
]


def graph_of(body):
    model = onnx.parser.parse_model(f"{HEAD} {{ z = Relu(x) {body} }}")
    return lower_for_training(to_ir(onnx.shape_inference.infer_shapes(model))).graph


@pytest.mark.parametrize(("body", "kind", "scores", "negated"), FORMS)
def test_links_are_read_in_every_form(body, kind, scores, negated):
    """Training on probabilities instead of raw predictions would have vanishing gradients."""
    graph = graph_of(body)
    link = read_link(graph.outputs[0])
    assert (link.kind, [value.name for value in link.scores], link.negated) == (kind, scores, negated)
    # not the logarithms of probabilities
    expected = kind not in ("identity", "modified_huber") and "Log" not in body
    assert holds_probabilities(graph.outputs[0]) is expected


@pytest.mark.parametrize("body", ["y = Neg(z)", "y = Tanh(z)", "y = Softmax<axis = 0>(z)", "y = Mul(z, two)"])
def test_other_functions_are_no_links(body):
    graph = graph_of(body)
    assert read_link(graph.outputs[0]) is None
    assert not holds_probabilities(graph.outputs[0]) or "Softmax" in body


def test_means_of_probabilities_are_probabilities():
    """A soft vote has no raw prediction, and must not be trained as if it were one."""
    graph = graph_of("a = Sigmoid(z) b = Softmax(z) y = Mean(a, b)")
    assert holds_probabilities(graph.outputs[0])
    assert not holds_probabilities(find_value(graph, "z"))
