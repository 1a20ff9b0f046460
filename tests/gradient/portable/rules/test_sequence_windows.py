"""Gradients of convolutions of sequences that move by several places, as products over windows."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd.gradient.derivative import onnx_derivative
from onnxsgd.gradient.portable.rules import sequence_windows

RNG = np.random.default_rng(0)

#: Sequences [N, C, L], weights [M, C, k], strides, pads.
WRITTEN = {
    "a rest": ((2, 16, 10), (17, 16, 3), 2, (0, 0)),
    "no rest": ((2, 16, 9), (16, 16, 3), 2, (0, 0)),
    "windows side by side": ((3, 16, 9), (16, 16, 2), 2, (0, 0)),
    "windows side by side, no rest": ((3, 16, 12), (16, 16, 4), 4, (0, 0)),
    "padding": ((2, 16, 9), (16, 16, 3), 2, (1, 1)),
    "padding before": ((2, 16, 9), (16, 16, 4), 3, (5, 0)),
    "padding after": ((2, 16, 9), (16, 16, 4), 3, (0, 6)),
    "many taps": ((2, 16, 30), (18, 16, 11), 3, (2, 4)),
    "one sequence": ((1, 16, 9), (16, 16, 3), 2, (1, 0)),
    "one place": ((2, 16, 3), (16, 16, 3), 2, (0, 0)),
}
OTHERS = {
    "few channels": ((2, 15, 9), (16, 15, 3), 2, (0, 0)),
    "few results": ((2, 16, 9), (15, 16, 3), 2, (0, 0)),
    "gaps": ((2, 16, 9), (16, 16, 2), 3, (0, 0)),
    "many channels": ((1, 193, 5), (16, 193, 3), 2, (0, 0)),
}


def derivative(case):
    """Return the gradients of a convolution with respect to the sequences and to the weight."""
    x, weight, stride, pads = case
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g (float{list(x)} X, float{list(weight)} W)
        => (float[A, B, C] Y) {{ Y = Conv<strides = [{stride}], pads = {list(pads)}>(X, W) }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx_derivative(model, inputs=["X", "W"], engine="portable")


def expected(x, weight, slope, stride, pads):
    """Return both gradients, tap by tap, in float64."""
    wide = np.pad(x, [(0, 0), (0, 0), pads])
    into_x, into_w = np.zeros(wide.shape), np.zeros(weight.shape)
    for tap in range(weight.shape[2]):
        places = slice(tap, tap + (slope.shape[2] - 1) * stride + 1, stride)
        into_w[:, :, tap] = np.einsum("nmp,ncp->mc", slope, wide[:, :, places])
        into_x[:, :, places] += np.einsum("nmp,mc->ncp", slope, weight[:, :, tap])
    return into_x[:, :, pads[0] : pads[0] + x.shape[2]], into_w


@pytest.mark.parametrize("name", [*WRITTEN, *OTHERS])
def test_the_gradients_are_those_of_the_definition(name):
    case = {**WRITTEN, **OTHERS}[name]
    x, weight, stride, pads = case
    model = derivative(case)
    operators = {node.op_type for node in model.graph.node}
    assert ("ConvTranspose" not in operators) == (name in WRITTEN)
    out = (x[2] + sum(pads) - weight[2]) // stride + 1
    slope = RNG.normal(size=(x[0], weight[0], out))
    arrays = RNG.normal(size=x), RNG.normal(size=weight)
    seed = next(value.name for value in model.graph.input if value.name not in ("X", "W"))
    feeds = dict(zip(("X", "W", seed), (*arrays, slope), strict=True))
    found = ReferenceEvaluator(model).run(
        None, {key: array.astype(np.float32) for key, array in feeds.items()}
    )
    for gradient, wanted in zip(found[-2:], expected(*arrays, slope, stride, pads), strict=True):
        np.testing.assert_allclose(gradient, wanted, rtol=0, atol=2e-4)


@pytest.mark.parametrize(("name", "value"), [("_LEAST", 17), ("_MOST", 15)])
def test_the_number_of_channels(monkeypatch, name, value):
    monkeypatch.setattr(sequence_windows, name, value)
    assert "ConvTranspose" in {node.op_type for node in derivative(WRITTEN["a rest"]).graph.node}
