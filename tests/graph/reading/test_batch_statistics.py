"""The running statistics that training updates."""

import pytest
from onnx import parser

from onnxsgd.exceptions import ParameterError, UnsupportedError
from onnxsgd.graph.model import to_ir
from onnxsgd.graph.reading.batch_statistics import find_statistics

LAYERS = "H = BatchNormalization(X, s, t, m1, v1) Y = BatchNormalization(H, s, t, m2, v2)"


def read(body):
    vectors = ", ".join(f"float[2] {name} = {{1, 2}}" for name in ("s", "t", "m1", "v1", "m2", "v2"))
    text = f"""
    <ir_version: 9, opset_import: ["": 17]> g (float[N, 2] X) => (float[N, 2] Y)
    <{vectors}, bool on = {{1}}> {{ {body} }}"""
    return to_ir(parser.parse_model(text))


@pytest.mark.parametrize(
    ("batch_norm", "training", "expected"),
    [
        ("train", (), ("m1", "v1", "m2", "v2")),
        ("train", ("H",), ("m1", "v1", "m2", "v2")),
        (None, ("Y",), ("m2", "v2")),
        (None, ("elsewhere",), ()),
        (None, (), ()),
        ("frozen", ("H", "Y"), ()),
    ],
)
def test_the_parameter_decides(batch_norm, training, expected):
    assert find_statistics(read(LAYERS), batch_norm, training) == expected


def test_none_to_train_is_refused():
    with pytest.raises(ParameterError, match="batch_norm='train' needs a BatchNormalization"):
        find_statistics(read("Y = Relu(X)"), "train", ())


REFUSED = {
    "it lies in a subgraph": """Y = If(on) <
        then_branch = t () => (float[N, 2] P) { P = BatchNormalization(X, s, t, m1, v1) },
        else_branch = e () => (float[N, 2] Q) { Q = Identity(X) }>""",
    "the first axis of its input": (
        "M = ReduceMean<axes = [0]>(X) Z = Add(X, M) Y = BatchNormalization(Z, s, t, m1, v1)"
    ),
    "its running statistics are no constants": "w = Exp(v1) Y = BatchNormalization(X, s, t, m1, w)",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_layers_are_refused_with_the_reason(reason):
    with pytest.raises(UnsupportedError, match=f"cannot train: {reason}.*batch_norm='frozen'"):
        find_statistics(read(REFUSED[reason]), "train", ())
