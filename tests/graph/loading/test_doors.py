"""Each public function that takes a model refuses a malformed one in one sentence."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxsgd
from onnxsgd import OnnxSGDRegressor, OrtGradientForwardBackward
from onnxsgd.exceptions import GraphError, OnnxSGDError
from onnxsgd.graph.loading import computed_sizes, constant_sizes, loop_trips, size_limits
from onnxsgd.graph.loading.load import load_model
from onnxsgd.testing import check_gradients

DOORS = {
    "add_loss_output": onnxsgd.add_loss_output,
    "onnx_derivative": onnxsgd.onnx_derivative,
    "get_train_initializer": onnxsgd.get_train_initializer,
    "random_feed": onnxsgd.random_feed,
    "OrtGradientForwardBackward": OrtGradientForwardBackward,
    "describe_trainable": onnxsgd.describe_trainable,
    "plot_graph": onnxsgd.plot_graph,
    "check_gradients": check_gradients,
    "estimator": lambda model: OnnxSGDRegressor(model).partial_fit(np.ones((4, 3)), np.ones(4)),
    "bytes": lambda model: load_model(model.SerializeToString()),
}

#: Larger than any memory; 3 times it is no number of 64 bits.
HUGE = 2**62


def parsed(body, header='<ir_version: 8, opset_import: ["": 18, "own": 1]>'):
    return onnx.parser.parse_model(f"{header} g {body}")


def linear():
    model = parsed("(float[N, 3] x) => (float[N, 1] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 1), np.float32), "w"))
    return model


def declared(sizes):
    model = linear()
    model.graph.initializer[0].dims[:] = sizes
    return model


def typed(number):
    model = linear()
    model.graph.initializer[0].data_type = number
    return model


def constant_outside(make):
    """Return a model in which `make` places a tensor stored in a file of the user."""
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[3, 1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=os.path.basename(__file__))
    return make(tensor)


def in_initializer(tensor):
    model = linear()
    model.graph.initializer[0].CopyFrom(tensor)
    return model


def in_attribute(tensor):
    model = parsed("(float[N, 3] x) => (float[N, 1] y) { y = MatMul(x, w) }")
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["w"], value=tensor))
    return model


def in_subgraph(tensor):
    model = in_attribute(tensor)
    branch = onnx.helper.make_graph(
        list(model.graph.node), "branch", [], [onnx.helper.make_tensor_value_info("y", 1, ["N", 1])]
    )
    condition = onnx.numpy_helper.from_array(np.array(True), "c")
    del model.graph.node[:]
    model.graph.initializer.append(condition)
    node = onnx.helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    model.graph.node.append(node)
    return model


def in_function(tensor):
    model = in_attribute(tensor)
    opset = [onnx.helper.make_opsetid("", 18)]
    model.functions.append(onnx.helper.make_function("own", "F", ["x"], ["y"], list(model.graph.node), opset))
    del model.graph.node[:]
    model.graph.node.append(onnx.helper.make_node("F", ["x"], ["y"], domain="own"))
    return model


def nested(depth):
    model = linear()
    graph = model.graph
    for _ in range(depth):
        node = graph.node.add(op_type="If")
        attribute = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
        graph = attribute.g
    return model


def doubling(levels):
    """Return a model of functions that each call the one before twice."""
    own, standard = onnx.helper.make_opsetid("own", 1), onnx.helper.make_opsetid("", 18)
    model = parsed("(float[N, 3] x) => (float[N, 3] y) { y = Neg(x) }")
    model.opset_import.append(own)
    for level in range(levels):
        name, domain = (f"F{level - 1}", "own") if level else ("Neg", "")
        nodes = [onnx.helper.make_node(name, *ends, domain=domain) for ends in (("a", "b"), ("b", "c"))]
        function = onnx.helper.make_function("own", f"F{level}", ["a"], ["c"], nodes, [standard, own])
        model.functions.append(function)
    model.graph.node[0].op_type, model.graph.node[0].domain = f"F{levels - 1}", "own"
    return model


def looped(condition, first=1, trips="n"):
    """Return a Loop of 2^62 trips, the first condition, and that of each further trip."""
    return parsed(
        f"""(float[N, 3] x) => (float[N, 3] y) <int64 n = {{{HUGE}}}, bool c = {{{first}}}>
        {{ y = Loop({trips}, c, x) <body = b (int64 i, bool d, float[N, 3] s) => (bool e, float[N, 3] r)
        {{ h = Not(d) e = {condition} r = Tanh(s) }}> }}"""
    )


REFUSED = {
    "endless loop, constant": (
        lambda: looped("Constant<value = bool {1}>()"),
        "makes 4,611,686,018,427,387,904 trips",
    ),
    "endless loop": (lambda: looped("Identity(d)"), "makes 4,611,686,018,427,387,904 trips"),
    "loop without trips": (lambda: looped("Identity(d)", trips=""), "never ends"),
    "negative size": (lambda: declared([-3, -1]), r"shape \[-3, -1\]"),
    "huge size": (lambda: declared([HUGE, 3]), "elements are accepted"),
    "product of 64 bits": (lambda: declared([2**32, 2**32]), "elements are accepted"),
    "less data": (lambda: declared([4, 1]), "holds 12 bytes of data: its shape .4, 1. needs 16"),
    "no type": (lambda: typed(99), "elements of type 99"),
    "many axes": (lambda: declared([1] * 100), "100 axes"),
    "huge input": (lambda: parsed(f"(float[{HUGE}, 3] x) => (float[N, 3] y) {{ y = Neg(x) }}"), "'x' has"),
    "huge constant": (
        lambda: parsed(
            f"(float[N, 3] x) => (float[M] y) <int64[1] s = {{{HUGE}}}> {{ y = ConstantOfShape(s) }}"
        ),
        "'y' has the shape",
    ),
    "huge range": (
        lambda: parsed(
            f"(float[N, 3] x) => (float[M] y) <int64 a = {{0}}, int64 b = {{{HUGE}}}, int64 c = {{1}}>"
            "{ r = Range(a, b, c)  y = Cast<to = 1>(r) }"
        ),
        "has the shape",
    ),
    "deep": (lambda: nested(1000), "Subgraphs are nested 9 deep"),
    "no nodes": (onnx.ModelProto, "no nodes"),
    "cycle": (
        lambda: parsed("(float[N, 3] x) => (float[N, 3] y) { y = Add(x, z)  z = Neg(y) }"),
        "not valid ONNX.*topological",
    ),
    "functions that double": (lambda: doubling(60), "stand for more than 200000 nodes"),
    "function that calls itself": (
        lambda: onnx.parser.parse_model(
            '<ir_version: -1, opset_import: ["" : 18, "own" : 1]> '
            "g (float[N, 3] x) => (float[N, 3] y) { y = own.Dense(x) } "
            '<domain: "own", opset_import: ["" : 18, "own" : 1]> Dense (a) => (b) { b = own.Dense(a) }'
        ),
        "functions of the model call themselves: Dense -> Dense",
    ),
    "shapes that do not meet": (
        lambda: parsed("(float[N, 3] x) => (float[N, 3] y) <float[4] w = {1, 2, 3, 4}> { y = Add(x, w) }"),
        "not consistent.*Add",
    ),
    "types that do not meet": (
        lambda: parsed("(float[N, 3] x, int64[3] i) => (float[N, 3] y) { y = Add(x, i) }"),
        "not consistent.*Add",
    ),
    "labels of unknown type": (
        lambda: onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 3, "own" : 1]> '
            "g (float[N, 3] x) => (float[N, 3] y) { h = own.Unknown(x) "
            "y = ai.onnx.ml.LabelEncoder<keys_floats = [1.0], values_floats = [2.0]>(h) }"
        ),
        "LabelEncoder .* reads 'h', whose element type is unknown",
    ),
    "scales in a table": (
        lambda: onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 3] x) => (float[N, 3] y) '
            "<float[1, 2] f = {1, 1}> { y = Resize(x, , f) }"
        ),
        "'f', of 2 axes: it must have 1",
    ),
    "sequences of any shape": (
        lambda: onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 18]> g (float[] x) => (float[1, N, 1] y) '
            "<float[1, 1, 1] w = {1}, float[1, 1, 1] r = {1}> { y = RNN<hidden_size = 1>(x, w, r) }"
        ),
        "RNN .* reads the input 'x', whose shape is not declared: declare one of 3 axes",
    ),
    "a table of lengths": (
        lambda: onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 18]> g (float[T, N, 1] x, int32[N, 1] n) => '
            "(float[1, N, 1] y) <float[1, 1, 1] w = {1}, float[1, 1, 1] r = {1}>"
            "{ y = RNN<hidden_size = 1>(x, w, r, , n) }"
        ),
        "'n', of 2 axes: it must have 1",
    ),
    "no such axis": (
        lambda: parsed(
            "(float[N, 3] x) => (float[N, 3] y) <float[3] g = {1, 2, 3}>"
            f"{{ y = LayerNormalization<axis = {HUGE}>(x, g) }}"
        ),
        "its input has 2 axes",
    ),
    "no trip count": (
        lambda: parsed(
            "(float[N, 3] x) => (float[N, 3] y) <int64[3, 0] trips = {}, bool go = {1}>"
            "{ y = Loop<body = b(int64 i, bool c, float[N, 3] s) => (bool d, float[N, 3] r)"
            "  { d = Identity(c)  r = Tanh(s) }>(trips, go, x) }"
        ),
        "'trips', of 0 elements",
    ),
    "namesake of a standard operator": (
        lambda: parsed("(float[N, 3] x) => (float[N, 1] y) { y = own.Relu(x) }"),
        "Relu of the domain 'own'",
    ),
    "kernel of another rank in an old file": (
        lambda: parsed(
            "(float[N, 1, 4, 4] x) => (float[N, 1, 4, 4] y) <float[1] k = {1.0}> "
            "{ y = ConvTranspose<kernel_shape = [1, 1]>(x, k) }",
            '<ir_version: 1, opset_import: ["": 18]>',
        ),
        "must have at least 3 dimensions",
    ),
    "initializer outside": (lambda: constant_outside(in_initializer), "another file"),
    "attribute outside": (lambda: constant_outside(in_attribute), "another file"),
    "subgraph outside": (lambda: constant_outside(in_subgraph), "another file"),
    "function outside": (lambda: constant_outside(in_function), "another file"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", REFUSED)
def test_malformed_models_are_refused(case, door):
    """By each function, before any allocation, inference or reading of files; the model is not changed."""
    make, message = REFUSED[case]
    model = make()
    before = model.SerializeToString()
    with pytest.raises(
        OnnxSGDError, match="cannot be parsed" if (case, door) == ("deep", "bytes") else message
    ) as caught:
        DOORS[door](model)
    assert len(str(caught.value)) < 500
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    ("condition", "first"),
    [
        ("Identity(h)", 1),
        ("Identity(d)", 0),
        ("Constant<value = bool {0}>()", 1),
        ("Constant<value = bool {1}>()", 0),
    ],
    ids=["computed", "never entered", "one trip", "never entered, constant"],
)
def test_a_loop_that_may_end_is_accepted(condition, first):
    """Exporters write a loop with a condition as one of very many trips."""
    load_model(looped(condition, first))


@pytest.mark.parametrize("door", DOORS)
def test_sound_models_are_accepted(door):
    """Also a graph whose declared results are missing, or wrong as those of converters."""
    model = linear()
    model.graph.value_info.add(name="y").type.tensor_type.elem_type = 1
    DOORS[door](model)


def test_a_file_with_insane_sizes_reads_no_other_file(tmp_path):
    """Sizes are checked first."""
    model = constant_outside(in_initializer)
    model.graph.initializer[0].dims[:] = [HUGE]
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(GraphError, match="elements are accepted"):
        load_model(path)


def test_functions_that_stand_for_few_nodes_are_accepted():
    """Four levels of two calls: sixteen nodes, as the inliner counts them."""
    assert len(load_model(doubling(4)).graph.node) == 16


PAGES = ["SECURITY.md", "docs/guide/limits.rst"]


@pytest.mark.parametrize("name", PAGES)
def test_the_limits_are_those_of_the_pages(name):
    page = " ".join((Path(__file__).parents[3] / name).read_text(encoding="utf-8").split())
    entries = size_limits._MOST_ENTRIES
    powers = {
        "elements": size_limits.LARGEST_TENSOR,
        "constant trips": loop_trips.MOST_TRIPS,
        "numbers": constant_sizes.MOST_NUMBERS,
        "computed elements": constant_sizes.MOST_CONSTANT,
        "elements from data": computed_sizes.MOST_COMPUTED,
        "trips from data": computed_sizes.MOST_COMPUTED_TRIPS,
    }
    for text in (
        f"up to {size_limits._MOST_NODES:,} nodes",
        f"nested up to {size_limits._DEEPEST} deep",
        f"{size_limits._MOST_AXES} axes",
        f"{entries['initializer']:,} initializers",
        f"{entries['input']:,} inputs",
        f"{size_limits._MOST_OPERANDS:,} operands",
        f"{constant_sizes.SHARE_OF_STORED} for each stored element",
        *(f"2^{number.bit_length() - 1} {unit}" for unit, number in powers.items()),
    ):
        assert text in page, text
    # one number for each group of lists, as the pages say
    assert len(set(entries.values())) == 2
