"""Each BatchNormalization gets running statistics of its own."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from onnxsgd.graph.batch_normalization import batch_normalizations, momentum_of
from onnxsgd.graph.lowering.running_statistics import with_own_statistics
from onnxsgd.graph.model import to_ir, to_proto

X = np.random.RandomState(0).normal(size=(6, 2)).astype(np.float32)


def read(body):
    text = f"""
    <ir_version: 9, opset_import: ["": 17]> g (float[N, 2] X) => (float[N, 2] Y)
    <float[2] a.weight = {{1, 2}}, float[2] a.bias = {{0.5, 0}}, float[2] m = {{3, 4}}, float[2] v = {{1, 9}}>
    {{ {body} }}"""
    # the parser takes no names with points
    proto = parser.parse_model(text.replace("a.", "a__"))
    for tensor in proto.graph.initializer:
        tensor.name = tensor.name.replace("__", ".")
    for node in proto.graph.node:
        node.input[:] = [name.replace("__", ".") for name in node.input]
        node.output[:] = [name.replace("__", ".") for name in node.output]
    return to_ir(proto)


def run(model):
    proto = to_proto(model)
    onnx.checker.check_model(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"X": X})[0]


#: Bodies, with the statistics of each layer afterwards.
CASES = {
    "own": ("Y = BatchNormalization(X, a.weight, a.bias, m, v)", [("m", "v")]),
    "scale": (
        "Y = BatchNormalization(X, a.weight, a.bias, a.bias, a.weight)",
        [("a.running_mean", "a.running_var")],
    ),
    "two layers": (
        "H = BatchNormalization(X, a.weight, a.bias, m, v) Y = BatchNormalization(H, a.weight, a.bias, m, v)",
        [("a.running_mean", "a.running_var"), ("m", "v")],
    ),
    "identity": (
        "mean = Identity(a.bias) twice = Identity(a.weight) a.running_var = Identity(twice) "
        "Y = BatchNormalization(X, a.weight, a.bias, mean, a.running_var)",
        [("a.running_mean", "a.running_var")],
    ),
    "one for both": (
        "Y = BatchNormalization(X, a.weight, a.bias, v, v)",
        [("a.running_mean", "v")],
    ),
    "computed": (
        "w = Exp(v) Y = BatchNormalization(X, a.weight, a.bias, m, w)",
        [("m", "w")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_shared_statistics_are_copied(case):
    body, expected = CASES[case]
    model = read(body)
    before, text = run(model), to_proto(model).SerializeToString()
    result = with_own_statistics(model)
    found = [tuple(v.name for v in node.inputs[3:]) for node in batch_normalizations(result.graph)]
    assert found == expected
    np.testing.assert_array_equal(run(result), before)
    assert to_proto(model).SerializeToString() == text
    assert (result is model) == (case in ("own", "computed"))
    assert not any(node.op_type == "Identity" for node in result.graph)


@pytest.mark.parametrize(
    ("text", "expected"), [("", 0.9), ("<momentum = 0.99>", 0.99), ("<momentum = 0.0>", 0.0)]
)
def test_a_momentum_is_the_decimal_number(text, expected):
    (node,) = batch_normalizations(read(f"Y = BatchNormalization{text}(X, a.weight, a.bias, m, v)").graph)
    assert momentum_of(node) == expected
