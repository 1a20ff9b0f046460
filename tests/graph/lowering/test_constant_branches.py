"""An If with a constant condition becomes its branch, with the same results and no clash of names."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd import OnnxSGDRegressor, onnx_derivative
from onnxsgd.graph.lowering.lower import lower_for_training

NETWORK = Path(__file__).parents[2] / "networks" / "data" / "bag_dynamo.npz"
X = np.array([[0.5, -1.0], [2.0, 3.0], [-0.25, 4.0]], np.float32)
LOOP = """z = Loop<body = b(int64 i, bool d, float[N, 2] s) => (bool e, float[N, 2] r)
    { e = Identity(d)  r = Mul(s, w) }>(trips, go, x)"""


def branch(then, other="z = Neg(x)", condition="yes", result="y"):
    return f"""{result} = If<then_branch = a() => (float[N, 2] z) {{ {then} }},
        else_branch = c() => (float[N, 2] z) {{ {other} }}>({condition})"""


def graph(body):
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> g (float[N, 2] x, bool open) => (float[N, 2] y)
        <float[2] w = {{2, 3}}, bool yes = {{1}}, bool no = {{0}}, bool go = {{1}}, int64 trips = {{2}}>
        {{ {body} }}"""
    )


GRAPHS = {
    "then": branch("z = Mul(x, w)"),
    "else": branch("z = Exp(x)", "z = Mul(x, w)", "no"),
    "captured": branch("z = Identity(x)") + " y2 = Mul(y, w)",
    "nested": branch(branch("z = Mul(x, w)", result="z")),
    "loop in two": branch(branch(LOOP, result="z")),
    "siblings": branch("h = Mul(x, w)  z = Exp(h)", result="u")
    + branch("h = Mul(u, w)  z = Tanh(h)", result="y").replace("Neg(x)", "Neg(u)"),
    "in an open one": branch(branch("z = Mul(x, w)", result="z"), condition="open"),
    "in a loop": f"""y = Loop<body = b(int64 i, bool d, float[N, 2] s) => (bool e, float[N, 2] r)
        {{ e = Identity(d)  {branch("z = Mul(s, w)", result="r")} }}>(trips, go, x)""",
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("is_open", [True, False])
def test_the_branch_computes_the_same(name, is_open):
    model = graph(GRAPHS[name])
    lowered = ir.to_proto(lower_for_training(ir.from_proto(model)))
    onnx.checker.check_model(lowered, full_check=True)
    feeds = {"x": X, "open": np.array(is_open)}
    expected = ReferenceEvaluator(model).run(None, feeds)[0]
    found = ReferenceEvaluator(lowered).run(None, feeds)[0]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", GRAPHS)
def test_only_open_conditions_stay(name):
    lowered = lower_for_training(ir.from_proto(graph(GRAPHS[name])))
    assert sum(node.op_type == "If" for node in lowered.graph.all_nodes()) == (name == "in an open one")


def test_a_loop_below_two_conditions_is_trained():
    model = graph(GRAPHS["loop in two"])
    del model.graph.input[1]
    y = X * np.array([9, 4], np.float32)
    fitted = OnnxSGDRegressor(model, trainable=["w"], eta0=0.01, learning_rate="constant").fit(X, y)
    np.testing.assert_allclose(np.abs(fitted.get_weights()["w"]), [3, 2], atol=0.05)
    onnx.checker.check_model(onnx_derivative(model))


def test_sessions_below_a_constant_condition_end_no_interpreter():
    """Both supported runtimes crash when they load this network inside an If."""
    code = f"""
import numpy as np, onnx
from onnxsgd import OrtGradientForwardBackward
model = onnx.load_from_string(np.load({str(NETWORK)!r})["model"].tobytes())
for _ in range(2):
    body = onnx.GraphProto(name="inner", node=model.graph.node, output=model.graph.output)
    names = [value.name for value in body.output]
    del model.graph.node[:]
    model.graph.node.append(onnx.helper.make_node("If", ["yes"], names, then_branch=body, else_branch=body))
model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "yes"))
OrtGradientForwardBackward(model, engine="portable").new_instance()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
