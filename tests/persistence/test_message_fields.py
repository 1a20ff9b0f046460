"""Fields of serialized messages."""

import onnx
import pytest

from onnxsgd.persistence.message_fields import INSIDE, OPERATOR, column_of, content_of, fields_of, parts_of

#: The messages of onnx by our names.
MESSAGES = {
    "model": onnx.ModelProto,
    "graph": onnx.GraphProto,
    "node": onnx.NodeProto,
    "attribute": onnx.AttributeProto,
    "tensor": onnx.TensorProto,
    "value": onnx.ValueInfoProto,
    "type": onnx.TypeProto,
    "tensor type": onnx.TypeProto.Tensor,
    "shape": onnx.TensorShapeProto,
    "dimension": onnx.TensorShapeProto.Dimension,
    "operators": onnx.OperatorSetIdProto,
    "entry": onnx.StringStringEntryProto,
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_inside_are_those_of_onnx(name):
    fields = MESSAGES[name].DESCRIPTOR.fields_by_number
    for number, inside in INSIDE[name].items():
        assert fields[number].message_type.full_name == MESSAGES[inside].DESCRIPTOR.full_name


def test_contents_of_fields():
    node = onnx.NodeProto(op_type="Add", name="n", input=["a"]).SerializeToString()
    assert [(content_of("node", tag), value) for tag, value in fields_of(node)] == [
        ("text", b"a"), ("text", b"n"), ("operator", b"Add"),
    ]  # fmt: skip
    tensor = onnx.TensorProto(dims=[3], data_type=1, float_data=[1.0], raw_data=b"abc").SerializeToString()
    assert [content_of("tensor", tag) for tag, _ in fields_of(tensor)] == [*["integer"] * 2, *["numbers"] * 2]
    attribute = onnx.AttributeProto(f=1.0).SerializeToString()
    assert [(content_of("attribute", tag), value) for tag, value in fields_of(attribute)] == [
        ("word", b"\x00\x00\x80\x3f")
    ]
    assert content_of("attribute", 6 << 3 | 2) == "message"
    assert content_of("tensor", OPERATOR) == "numbers"


def test_columns_are_apart():
    columns = {column_of(name, tag) for name in INSIDE for tag in range(100)}
    assert len(columns) == 100 * len(INSIDE)


def test_inputs_of_nodes_are_alike_by_their_number():
    assert parts_of("node", [10, 10, 10, 10, 10, 34, 10]) == [
        *((10, number, "text") for number in (0, 1, 2, 3, 3)), (34, 0, "operator"), (10, 0, "text"),
    ]  # fmt: skip
