"""Serialized graphs by columns."""

import hashlib
from contextlib import suppress

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from onnx.parser import parse_model

from onnxsgd.persistence.compression import compressed
from onnxsgd.persistence.equal_words import words_of
from onnxsgd.persistence.graph_columns import from_columns, to_columns
from onnxsgd.persistence.known_values import KnownValues
from onnxsgd.persistence.message_fields import OPERATOR, column_of
from onnxsgd.persistence.varints import varints

NONE = KnownValues()


def model_of(n_layers=3):
    """Return a graph with all kinds of fields: attributes, bodies, shapes, metadata, tensors."""
    layers = "\n".join(f"v{k + 1} = Add(v{k}, b{k})" for k in range(n_layers))
    model = parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18, "ai.onnx.ml" : 3], producer_name: "us">
        g (float[N, 2] v0, bool c) => (float[N, 2] out, int64[N, 1] places)
        <float[1] one = {{1}}, int64[2] sizes = {{-1, 2}}, double half = {{0.5}}> {{
            {layers}
            out = If (c) <
                then_branch = then () => (float[N, 2] a) {{ a = Mul(v{n_layers}, one) }},
                else_branch = other () => (float[N, 2] b) {{ b = LeakyRelu <alpha = -0.25> (v{n_layers}) }}
            >
            texts = Constant <value_strings = ["red", "green", "C7", "red"]> ()
            places = ArgMax <axis = -1, keepdims = 1> (out)
        }}"""
    )
    for k in range(n_layers):
        bias = np.array([k, k / 3], np.float32)
        model.graph.initializer.append(numpy_helper.from_array(bias, f"b{k}"))
        model.graph.initializer[-1].metadata_props.add(key="frozen", value="constant of a scaler")
        model.graph.value_info.add(name=f"v{k + 1}").type.tensor_type.elem_type = 1
    bits = TensorProto(name="bits", data_type=TensorProto.INT8, dims=[3], raw_data=b"\x01\xff\x03")
    numbers = TensorProto(name="numbers", data_type=1, dims=[2], float_data=[1.5, -np.inf])
    model.graph.initializer.extend([bits, numbers])
    model.metadata_props.add(key="author", value="")
    return model


MODEL = model_of()
CONTENT = MODEL.SerializeToString()


def test_a_graph_returns_as_it_was():
    columns = to_columns(CONTENT, NONE)
    assert from_columns(columns, NONE, len(CONTENT)) == CONTENT
    with pytest.raises(ValueError, match="damaged"):
        from_columns(columns, NONE, len(CONTENT) - 1)


def test_so_does_one_without_numbers():
    for model in (onnx.ModelProto(), onnx.ModelProto(ir_version=10), parse_model_without_numbers()):
        content = model.SerializeToString()
        assert from_columns(to_columns(content, NONE), NONE, 10_000) == content


def parse_model_without_numbers():
    return parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[N] X) => (float[N] Y) { Y = Exp(X) }'
    )


def test_repeated_nodes_take_few_bytes():
    """Zlib alone needs some 15 bytes a node."""
    small, large = (model_of(n).SerializeToString() for n in (50, 250))
    sizes = [len(compressed(to_columns(content, NONE))) for content in (small, large)]
    # the numbers of the biases are new
    assert sizes[1] - sizes[0] < 200 * 5
    assert len(compressed(large)) - len(compressed(small)) > 200 * 15


def test_known_values_are_not_written():
    biases = np.array([[k, k / 3] for k in range(100)])
    known = KnownValues([biases, np.array(["red", "green"], object)])
    content = model_of(100).SerializeToString()
    columns = to_columns(content, known)
    assert b"green" not in columns
    assert len(compressed(columns)) < len(compressed(to_columns(content, NONE))) - 200
    assert from_columns(columns, known, len(content)) == content
    for other in (NONE, KnownValues([biases[:1]])):
        with pytest.raises(ValueError, match="damaged"):
            from_columns(columns, other, len(content))


def nested(depth):
    graph = onnx.GraphProto(name="innermost")
    for _ in range(depth):
        outer = onnx.GraphProto()
        outer.node.add(op_type="If").attribute.add(name="then_branch", type=5).g.CopyFrom(graph)
        graph = outer
    return onnx.ModelProto(graph=graph).SerializeToString()


def test_other_forms_of_a_model_are_left():
    """They are written as they are: bytes of no protobuf, longer numbers, texts with separators."""
    assert from_columns(to_columns(nested(10), NONE), NONE, 1000) == nested(10)
    for content in (
        b"\x80", b"\x3a\x7f\x00", b"\x0b\x0c", b"\x08\x80\x00", b"\x12\x01\x00", b"\x12\x01\x01", nested(25),
    ):  # fmt: skip
        assert to_columns(content, NONE) is None


def check_read(columns, most):
    """Check that columns are refused, or read within the limit."""
    with suppress(ValueError):
        assert len(from_columns(columns, NONE, most)) <= most
        return
    with pytest.raises(ValueError, match="damaged"):
        from_columns(columns, NONE, most)


COLUMNS = to_columns(CONTENT, NONE)


@given(
    st.lists(st.tuples(st.integers(0, len(COLUMNS) - 1), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(1, len(COLUMNS)),
)
def test_damaged_columns_are_refused(changes, size):
    """Or another model is read, which has a checksum beside it."""
    damaged = bytearray(COLUMNS)
    for place, byte in changes:
        damaged[place] = byte
    check_read(bytes(damaged[:size]), len(CONTENT))


@given(st.binary(max_size=60))
def test_so_are_other_bytes(content):
    check_read(content, 100)


def forged(kinds, fields, texts=(b"", b"")):
    """Return columns of these kinds, of fields by type and tag, and of patterns with choices."""
    parts = {1: texts[0], 2: texts[1], 4: varints(n for kind in kinds for n in (len(kind), *kind))}
    parts |= {9 + column_of(*where): column for where, column in fields.items()}
    return b"".join(varints([key, len(part)]) + part for key, part in parts.items())


GRAPH, NODE, TENSOR, ATTRIBUTE, BODY, TEXT = 58, 10, 42, 42, 50, 18


def forgeries():
    """Yield names, and columns that would take seconds or hundreds of megabytes."""
    yield "keys", b"".join(varints([key, 0]) for key in range(10, 300_000))
    yield "texts", forged([], {}, (b"\0", b"\0" + b"\1" * (1 << 20)))
    model = {("model", 0): b"\0", ("graph", 0): b"\1"}
    kinds = [(GRAPH,), (NODE,), (OPERATOR,) * 300_000]
    operators = {**model, ("node", 0): b"\2", ("node", OPERATOR): b"\0"}
    yield "operators", forged(kinds, operators, (b"\0", b"\0"))
    integers = {**model, ("tensor", 0): b"\2", ("tensor", 16): b"\x0e", ("integers", 0): bytes(600_000)}
    kinds = [(GRAPH,), (TENSOR,), (16, 74)]
    yield "integers", forged(kinds, {**integers, ("tensor", 74): varints([2 * 8 * 600_000])})
    kinds = [(GRAPH,), (TEXT, TEXT, NODE), (26, 26, ATTRIBUTE), (TEXT, TEXT, BODY)]
    nested = {
        ("model", 0): b"\0",
        ("graph", 0): b"\1" * 30,
        ("node", 0): b"\2" * 30,
        ("attribute", 0): b"\3" * 30,
    }
    # the first text is new, and the others the one that is there
    repeated = {
        ("graph", TEXT): b"\0" + b"\2" * 59,
        ("node", 26): b"\2" * 60,
        ("attribute", TEXT): b"\2" * 60,
    }
    yield "bodies", forged(kinds, {**nested, **repeated}, (b"x" * 900_000 + b"\0", b"\0"))


@pytest.mark.parametrize("columns", dict(forgeries()).values(), ids=dict(forgeries()))
def test_forged_columns_are_refused_at_once(columns):
    with pytest.raises(ValueError, match="more (than|bytes|fields)"):
        from_columns(columns, NONE, 1 << 22)


def test_a_graph_of_more_fields_than_are_read_at_once_is_left():
    graph = onnx.GraphProto()
    graph.node.extend([onnx.NodeProto(op_type="Add")] * 140_000)
    assert to_columns(onnx.ModelProto(graph=graph).SerializeToString(), NONE) is None


def test_the_form_of_format_3_stays_as_it_is():
    """Files of that format cannot be read in another one."""
    graph = onnx.GraphProto(name="g")
    for k in range(3):
        node = graph.node.add(
            op_type="Add", input=[f"v{k}", f"b{k}"], output=[f"v{k + 1}"], name=f"v{k + 1}/Add"
        )
        node.attribute.add(name="axis", type=2, i=-k)
        node.attribute.add(name="colors", type=8, strings=[b"red", b"blue"])
        graph.initializer.append(numpy_helper.from_array(np.array([k / 3, 7.0], np.float32), f"b{k}"))
        graph.initializer.append(numpy_helper.from_array(np.array([k, 7]), f"i{k}"))
    content = onnx.ModelProto(ir_version=10, graph=graph).SerializeToString()
    known = KnownValues([np.arange(4) / 3, np.array(["red"], object)])
    digest = hashlib.sha256(to_columns(content, known)).hexdigest()
    assert digest == "92d9899138fba922ab224abe479aaeaf80245c1df378a3745da17a8d7099f016"


def test_words_of_float64_are_known_too():
    array = np.random.default_rng(0).normal(size=40)
    known = KnownValues([array])
    graph = onnx.GraphProto(initializer=[numpy_helper.from_array(array, "w")])
    content = onnx.ModelProto(graph=graph).SerializeToString()
    assert len(to_columns(content, known)) < 200 < len(content)
    assert words_of([array]).size == 6 * array.size
