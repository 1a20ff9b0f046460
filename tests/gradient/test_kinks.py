"""The documented derivative at each kink: by the public function, in a subgraph, and with both engines."""

import numpy as np
import onnx
import pytest

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.derivative import DerivativeOptions, onnx_derivative

#: A node that computes Y from A, values of A, and the documented derivatives of the sum of Y there.
KINKS = {
    "Relu": ("Y = Relu(A)", [0.0], [0.0]),
    "LeakyRelu": ("Y = LeakyRelu<alpha = 0.125>(A)", [0.0], [0.125]),
    "PRelu": ("Y = PRelu(A, slope)", [-1.0, 0.0, 1.0], [0.25, 0.25, 1.0]),
    "ThresholdedRelu": ("Y = ThresholdedRelu<alpha = 0.5>(A)", [0.5, 0.75], [0.0, 1.0]),
    "Elu": ("Y = Elu<alpha = 0.5>(A)", [0.0], [0.5]),
    "Celu": ("Y = Celu<alpha = 2.0>(A)", [0.0], [1.0]),
    "Selu": ("Y = Selu<alpha = 2.0, gamma = 1.5>(A)", [0.0], [3.0]),
    "HardSigmoid": ("Y = HardSigmoid<alpha = 0.25, beta = 0.5>(A)", [-2.0, 0.0, 2.0], [0.0, 0.25, 0.0]),
    "HardSwish": ("Y = HardSwish(A)", [-3.0, 0.0, 3.0], [0.0, 0.5, 1.0]),
    "Abs": ("Y = Abs(A)", [-2.0, 0.0], [-1.0, 0.0]),
    "Softsign": ("Y = Softsign(A)", [0.0], [1.0]),
    "Clip": ("Y = Clip(A, low, high)", [-2.0, -1.0, 0.0, 1.0, 2.0], [0.0, 1.0, 1.0, 1.0, 0.0]),
    "Max": ("Y = Max(A, low)", [-1.0, 0.0], [0.5, 1.0]),
    "Min": ("Y = Min(A, high)", [0.0, 1.0], [1.0, 0.5]),
    "ReduceMax": ("Y = ReduceMax(A)", [1.0, 3.0, 3.0], [0.0, 0.5, 0.5]),
    "ReduceMin": ("Y = ReduceMin(A)", [1.0, 1.0, 3.0], [0.5, 0.5, 0.0]),
    "ReduceL1": ("Y = ReduceL1(A)", [0.0, -2.0], [0.0, -1.0]),
    "ReduceL2": ("Y = ReduceL2(A)", [0.0, 0.0], [0.0, 0.0]),
    "ReduceProd": ("Y = ReduceProd(A)", [0.0, 2.0, 3.0], [6.0, 0.0, 0.0]),
    "LpNormalization": ("Y = LpNormalization<axis = 0>(A)", [0.0, 0.0], [1.0, 1.0]),
    "LpNormalization of order 1": ("Y = LpNormalization<axis = 0, p = 1>(A)", [0.0, 0.0], [1.0, 1.0]),
    "GlobalMaxPool": ("Y = GlobalMaxPool(A)", [[[1.0, 3.0, 3.0]]], [[[0.0, 0.5, 0.5]]]),
    "MaxPool": ("Y = MaxPool<kernel_shape = [2]>(A)", [[[3.0, 3.0]]], [[[1.0, 0.0]]]),
    "Pow of zero": ("Y = Pow(A, three)", [0.0], [0.0]),
    "Pow to zero": ("Y = Pow(A, zero)", [0.0, 2.0], [0.0, 0.0]),
}

#: Ways to compute it: directly, and inside of a subgraph.
GRAPHS = {
    "plain": "{node}",
    "If": """Y = If (yes) <then_branch = then () => (float Y) {{ {node} }},
                          else_branch = else () => (float B) {{ B = Neg(A) }}>""",
    "Loop": """Y = Loop (one, yes) <body = body (int64 i, bool go) => (bool on, float Y) {{
                   on = Identity(go) {node} }}>""",
    "Scan": """rows = Unsqueeze(A, axes)
               Y = Scan <num_scan_inputs = 1, body = body (float[{shape}] A) => (float Y) {{
                    {node} }}> (rows)""",
}


def derivative(node, graph, at, engine):
    """Return the derivatives of the sum of Y, computed by the runtime in float32."""
    shape = ", ".join(map(str, at.shape))
    body = GRAPHS[graph].format(node=node, shape=shape)
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g (float[{shape}] A) => (float Y)
        <float slope = {{0.25}}, float low = {{-1}}, float high = {{1}}, float three = {{3}},
        float zero = {{0}}, int64 one = {{1}}, bool yes = {{1}}, int64[1] axes = {{0}}> {{ {body} }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for entry in model.graph.node:
        for attribute in entry.attribute:
            for value in attribute.g.output:
                if value.name in ("Y", "B"):
                    value.type.tensor_type.ClearField("shape")
    options = DerivativeOptions.KeepOutputs | DerivativeOptions.FillGrad
    return onnx_derivative(model, weights=[], inputs=["A"], options=options, engine=engine)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", KINKS)
def test_the_portable_engine_takes_the_documented_value(name, graph, execute):
    node, at, expected = KINKS[name]
    at = np.array(at, np.float32)
    found = execute(derivative(node, graph, at, "portable"), {"A": at})["A_grad"]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-30)


@pytest.mark.native
@pytest.mark.parametrize("name", [name for name in KINKS if name != "Pow to zero"])
def test_the_native_engine_takes_the_same_value(name, execute):
    node, at, expected = KINKS[name]
    at = np.array(at, np.float32)
    found = execute(derivative(node, "plain", at, "onnxruntime-training"), {"A": at})["A_grad"]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-30)


@pytest.mark.native
def test_the_native_engine_refuses_an_operator_with_another_value():
    node, at, _ = KINKS["Pow to zero"]
    with pytest.raises(NotTrainableError, match="Pow with an exponent of 0"):
        derivative(node, "plain", np.array(at, np.float32), "onnxruntime-training")
