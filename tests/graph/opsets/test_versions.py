"""Versions are brought into the range that the oldest supported runtime reads."""

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.opsets.versions import bring_into_range

_KNOWS_24 = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < 24, reason="the installed onnx does not know opset 24"
)

_KNOWS_27 = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < 27, reason="the installed onnx does not know opset 27"
)


def parse(opset, body="a = Relu(x)  y = Softmax(a)", ir=8, more="", weights=""):
    text = f"""<ir_version: {ir}, opset_import: ["": {opset}{more}]>
        g (float[N, 3] x) => (float[N, 3] y) {weights} {{ {body} }}"""
    return onnx.parser.parse_model(text)


def versions(model):
    return {entry.domain: entry.version for entry in model.opset_import}


@pytest.mark.parametrize("opset", [9, 11, 12, 13, 17, 21, 22, 23, pytest.param(24, marks=_KNOWS_24)])
def test_opsets(opset, run):
    """Older ones are converted, newer ones declared to be 21, those in the range are kept."""
    model = bring_into_range(parse(opset))
    assert versions(model)[""] == (18 if opset < 13 else min(opset, 21))
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    expected = np.exp(np.maximum(x, 0))
    np.testing.assert_allclose(run(model, x)["y"], expected / expected.sum(1, keepdims=True), rtol=1e-6)


def test_changed_operators_keep_their_meaning(run):
    """ReduceSum took its axes from an attribute before opset 13, and Softmax flattened."""
    body = "a = Softmax <axis = 0> (x)  s = ReduceSum <axes = [1], keepdims = 1> (a)  y = Add(x, s)"
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    flat = np.exp(x) / np.exp(x).sum()
    expected = x + flat.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(run(bring_into_range(parse(11, body)), x)["y"], expected, rtol=1e-5)


@pytest.mark.parametrize(("ir", "expected"), [(3, 4), (4, 4), (8, 8), (10, 10), (11, 10), (13, 10)])
def test_ir_versions(ir, expected):
    """The runtime refuses a newer one than 10."""
    assert bring_into_range(parse(18, ir=ir)).ir_version == expected


def test_imports_are_merged():
    """Converters import a domain twice, or under its long name, or import no standard operators at all."""
    model = parse(18)
    model.opset_import.extend([onnx.helper.make_opsetid("ai.onnx", 18), onnx.helper.make_opsetid("own", 2)])
    assert versions(bring_into_range(model)) == {"": 18, "own": 2}
    assert [entry.domain for entry in bring_into_range(model).opset_import] == ["", "own"]
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    assert versions(bring_into_range(model)) == {"ai.onnx.ml": 3, "": 18}


@pytest.mark.parametrize(
    ("opset", "body", "message"),
    [
        pytest.param(
            24,
            "s = CastLike(x, w)  q = QuantizeLinear <precision = 1> (x, one)  y = DequantizeLinear(q, one)",
            "QuantizeLinear of opset 24",
            marks=_KNOWS_24,
        ),
        pytest.param(
            27, "r = Range(h, h, h)  y = Softmax(x)", "Range of opset 27, takes FLOAT16", marks=_KNOWS_27
        ),
    ],
)
def test_newer_operators_are_refused(opset, body, message):
    """Operators, attributes and types that opset 21 lacks cannot be declared to be of it."""
    weights = "<float[3] w = {1, 2, 3}, float one = {1}, float16 h = {1}>"
    with pytest.raises(UnsupportedError, match=message):
        bring_into_range(parse(opset, body, ir=11, weights=weights))


def test_refusals_of_the_converter():
    """An operator without an adapter: the converter's reason, and the required version."""
    with pytest.raises(UnsupportedError, match="at least 13"):
        bring_into_range(parse(8, "y = Upsample(x, w)", weights="<float[2] w = {1, 1}>"))


def test_the_model_is_not_changed():
    """Conversion works on a copy."""
    model = parse(11)
    before = model.SerializeToString()
    bring_into_range(model)
    assert model.SerializeToString() == before
