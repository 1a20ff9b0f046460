"""Shapes that the inference of onnx leaves open."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxsgd.graph.model import to_ir
from onnxsgd.graph.open_shapes import _SHAPES as SHAPES
from onnxsgd.graph.shape_inference import ShapeInferencePass
from onnxsgd.graph.sizes import fix_sizes

#: Operators of which the standard's inference leaves the shape open: the node and its input.
OPEN = {
    ("ai.onnx.ml", "Binarizer"): ("Y = ai.onnx.ml.Binarizer(X)", "float"),
    ("ai.onnx.ml", "Imputer"): ("Y = ai.onnx.ml.Imputer<imputed_value_floats = [1.0, 2.0, 3.0]>(X)", "float"),
    ("ai.onnx.ml", "LabelEncoder"): (
        "Y = ai.onnx.ml.LabelEncoder<keys_floats = [0.0], values_int64s = [7]>(X)",
        "float",
    ),
    ("ai.onnx.ml", "Normalizer"): ("Y = ai.onnx.ml.Normalizer(X)", "float"),
    ("ai.onnx.ml", "Scaler"): ("Y = ai.onnx.ml.Scaler<offset = [1.0], scale = [2.0]>(X)", "float"),
    # the sizes of the named axes are computed
    ("", "Resize"): (
        "s = Shape<start = 1>(X)  h = Add(s, s)  Y = Resize<axes = [1]>(X, , , h)",
        "float",
    ),
    ("", "Slice"): (
        "s = Shape<start = 1>(X)  h = Sub(s, s)  a = Constant<value = int64[1] {1}>()  Y = Slice(X, h, s, a)",
        "float",
    ),
    ("", "StringNormalizer"): (
        'Y = StringNormalizer<case_change_action = "LOWER", locale = "C">(X)',
        "string",
    ),
    # the runtime in use may have no Tokenizer: this one is compared with its documentation
    ("com.microsoft", "Tokenizer"): (
        'Y = com.microsoft.Tokenizer<mark = 0, mincharnum = 1, pad_value = "", separators = [" "]>(X)',
        "string",
    ),
}


def test_every_open_shape_has_a_case():
    assert set(SHAPES) == set(OPEN)


@pytest.mark.parametrize("key", OPEN, ids=lambda key: key[1])
def test_open_shapes_are_those_of_the_runtime(key, run):
    body, kind = OPEN[key]
    shape = [1, 3] if key[1] == "StringNormalizer" else [4, 3]
    dims = "1, 3" if key[1] == "StringNormalizer" else "N, 3"
    text = f"""<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3, "com.microsoft": 1]>
        g ({kind}[{dims}] X) => ({"int64" if key[1] == "LabelEncoder" else kind} Y) {{ {body} }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    fixed = fix_sizes(to_ir(proto), shape[0])
    X = np.full(shape, "a b", object) if kind == "string" else np.ones(shape, np.float32)
    expected = [4, 3, 2] if key[1] == "Tokenizer" else run(to_ir(proto), {"X": X})["Y"].shape
    found = fixed.graph.outputs[0].shape
    assert len(found) == len(expected)
    # the number of tokens depends on the texts
    pairs = list(zip(found, expected, strict=True))
    assert all(a == b or not isinstance(a, int) or key[1] == "Tokenizer" for a, b in pairs)
    assert found[0] == expected[0]


@pytest.mark.parametrize(
    ("operator", "kind", "expected"),
    [
        ("Scaler<offset = [1.0], scale = [2.0]>", "double", "FLOAT"),
        ("Normalizer", "int64", "FLOAT"),
        ("Imputer<imputed_value_int64s = [7], replaced_value_int64 = 0>", "int64", "INT64"),
    ],
)
def test_types_behind_operators_of_ml(operator, kind, expected):
    text = f"""<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]>
        g ({kind}[N, 3] X) => (float[N, 3] Y) {{ H = ai.onnx.ml.{operator}(X)  R = Identity(H)
                                                 Y = Cast<to = 1>(R) }}"""
    model = to_ir(onnx.parser.parse_model(text))
    ShapeInferencePass(strict_mode=False)(model)
    behind = next(node for node in model.graph if node.op_type == "Identity").outputs[0]
    assert behind.dtype == ir.DataType[expected]
    assert [str(size) for size in behind.shape] == ["N", "3"]


@pytest.mark.parametrize("operator", ["StringNormalizer", "Slice", "Resize"])
@pytest.mark.parametrize("sizes", ["[?]", "", "[N]"])
def test_inference_ends_on_shapes_of_unknown_or_no_sizes(operator, sizes):
    """Also of graphs that are not valid."""
    kind = "string" if operator == "StringNormalizer" else "float"
    body, _ = OPEN["", operator]
    text = f"""<ir_version: 8, opset_import: ["": 18]> g ({kind}{sizes.replace("[?]", "[N]")} X) => ({kind} Y)
        {{ {body.replace("Shape<start = 1>", "Shape")} }}"""
    proto = onnx.parser.parse_model(text)
    if sizes == "[?]":
        proto.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = to_ir(proto)
    ShapeInferencePass(strict_mode=False)(model)
    assert model.graph.outputs[0].shape is None or len(model.graph.outputs[0].shape) <= 1
