"""Diagrams: boxes, their text, and edges, also of subgraphs, constants and many inputs."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxsgd.drawing.diagram import make_diagram, shorten
from onnxsgd.drawing.marks import MarkedGraph, Part, Role, mark_tensors
from onnxsgd.graph.model import to_ir

LINE = """line (float[N, 4] x) => (float[N, 3] y)
    <float[4, 3] coef = {1,2,3,4,5,6,7,8,9,10,11,12}, float[3] shift = {1, 2, 3}, float half = {0.5}>
    { a = MatMul(x, coef)  b = Add(a, shift)  y = Mul(b, half) }"""


def diagram_of(graph, trained=(), max_nodes=60):
    return make_diagram(MarkedGraph(graph, "title", roles=mark_tensors(graph, trained)), max_nodes)


def texts(box):
    return [(line.text, line.kind) for line in box.lines]


def test_tensors_are_lines_of_the_node_that_reads_them(graph):
    diagram = diagram_of(graph(LINE), ["coef"])
    assert [(box.kind, box.title) for box in diagram.boxes] == [
        ("input", "x"), ("model", "MatMul"), ("model", "Add"), ("model", "Mul"), ("output", "y"),
    ]  # fmt: skip
    assert diagram.edges == ((0, 1), (1, 2), (2, 3), (3, 4))
    assert texts(diagram.boxes[0]) == [("float32  N x 4", "plain")]
    assert texts(diagram.boxes[1]) == [("coef  4 x 3", "trained")]
    assert texts(diagram.boxes[2]) == [("shift  3", "frozen")]
    assert texts(diagram.boxes[3]) == [("0.5", "constant"), ("→ N x 3", "plain")]


def test_constant_nodes_are_lines_too(graph):
    diagram = diagram_of(
        graph("""g (float[2] x) => (float[2] y)
        { two = Constant <value: tensor = float[2] {1, 2}> ()  y = Add(x, two) }""")
    )
    assert [box.title for box in diagram.boxes] == ["x", "Add", "y"]
    assert texts(diagram.boxes[1])[0] == ("two  2", "frozen")


def test_values_that_a_subgraph_captures_are_edges(graph):
    diagram = diagram_of(
        graph("""g (float[2] x, bool c) => (float[2] y) {
            e = Exp(x)
            y = If (c) <
                then_branch = t () => (float[2] p) { p = Neg(e) },
                else_branch = f () => (float[2] q) { r = Abs(e)  q = Neg(r) }>
        }""")
    )
    places = {box.title: place for place, box in enumerate(diagram.boxes)}
    assert (places["Exp"], places["If"]) in diagram.edges
    assert ("body: Neg", "plain") in texts(diagram.boxes[places["If"]])
    assert ("body: Abs, Neg", "plain") in texts(diagram.boxes[places["If"]])


def test_many_inputs_and_outputs_are_one_box():
    names = [f"column {number}" for number in range(30)]
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 1]) for name in names]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 30])
    node = helper.make_node("Concat", names, ["y"], axis=1)
    model = helper.make_model(helper.make_graph([node], "g", inputs, [output]))
    diagram = diagram_of(to_ir(model).graph)
    assert [box.title for box in diagram.boxes] == ["30 inputs", "Concat", "y"]
    assert "column 29: float32  N x 1" in diagram.boxes[0].note


@pytest.mark.parametrize("limit", [8, 12, 20, 40])
def test_boxes_stay_within_the_limit_and_lead_down(limit):
    nodes, value = [], "x"
    weight = numpy_helper.from_array(np.ones((3, 3), np.float32), "layers.0.weight")
    for number in range(100):
        nodes.append(
            helper.make_node(["MatMul", "Add"][number % 2], [value, "layers.0.weight"], [f"v{number}"])
        )
        value = f"v{number}"
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3, 3]) for name in ("x", value)]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight]))
    diagram = diagram_of(to_ir(model).graph, ["layers.0.weight"], limit)
    assert len(diagram.boxes) <= limit
    assert diagram.n_folded + sum(box.n_nodes == 1 for box in diagram.boxes) == 100
    assert all(source < target for source, target in diagram.edges)
    block = next(box for box in diagram.boxes if box.n_nodes > 1)
    assert ("1 tensor, 9 numbers", "trained") in texts(block)


def test_parts_whose_nodes_take_turns_fold_into_few_blocks():
    """The forward pass and its gradient alternate in the file; no block has nodes of both."""
    names = [f"{row}{number}" for number in range(40) for row in "ab"]
    nodes = [
        helper.make_node("Relu" if name[0] == "a" else "Neg", [f"{name[0]}{int(name[1:]) - 1}"], [name])
        for name in names
    ]
    nodes[0].input[0] = nodes[1].input[0] = "x"
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3]) for n in ("x", "a39", "b39")]
    graph = to_ir(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]))).graph
    parts = {node: Part.GRADIENT for node in graph if node.op_type == "Neg"}
    diagram = make_diagram(MarkedGraph(graph, "title", parts), 8)
    assert len(diagram.boxes) <= 8
    kinds = [box.kind for box in diagram.boxes if box.n_nodes]
    assert kinds == sorted(kinds, key=[*Part].index)
    assert sum(box.n_nodes for box in diagram.boxes if box.kind == "gradient") == 40


def test_results_are_named_in_the_box_that_makes_them(graph):
    read = graph(LINE)
    results = {read.outputs[0]: ("gradient of x",)}
    diagram = make_diagram(MarkedGraph(read, "title", results=results), 60)
    assert diagram.boxes[-1].title == "Mul"
    assert ("gradient of x", "result") in texts(diagram.boxes[-1])


def test_inputs_with_a_role_have_no_box(graph):
    read = graph("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }")
    diagram = make_diagram(MarkedGraph(read, "t", roles={read.inputs[1]: Role.STATE}), 60)
    assert [box.title for box in diagram.boxes] == ["x", "Add", "y"]
    assert ("w  2", "state") in texts(diagram.boxes[1])


def test_long_names_lose_their_middle():
    assert shorten("short", 10) == "short"
    short = shorten("encoder.layers.0.attention.weight", 20)
    assert len(short) == 20
    assert short.startswith("encoder")
    assert short.endswith(".weight")
