"""A graph is written as what another one lacks, and read with that one."""

import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.parser import parse_model

from onnxsgd.exceptions import ParameterError
from onnxsgd.graph.model import subgraphs
from onnxsgd.persistence.graph_differences import give_known, take_known

RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=(3, 4)).astype(np.float32)


def base():
    """Return a graph with constants, a loop, marks, and a tensor in another field."""
    graph = parse_model("""<ir_version: 8, opset_import: ["" : 18]>
    net (float[N, 3] X, bool go) => (float[N, 4] Y)
    {
        two = Constant <value = float {2}> ()
        P = MatMul(X, W)
        names = Constant <value_strings = ["a"]> ()
        Q = Mul(P, two)
        n = Constant <value = int64 {3}> ()
        R = Loop(n, go, Q) <body = step (int64 i, bool c, float[M, 4] s) => (bool d, float[M, 4] t) {
            one = Constant <value = float {1}> ()
            d = Identity(c)
            u = Add(s, one)
            t = Neg(u)
        }>
        Y = Add(R, b)
    }""").graph
    graph.initializer.append(numpy_helper.from_array(NUMBERS, "W"))
    graph.initializer.append(helper.make_tensor("b", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0]))
    graph.initializer.append(numpy_helper.from_array(np.array(["x", "y"], object), "words"))
    graph.value_info.append(helper.make_tensor_value_info("P", TensorProto.FLOAT, ["N", 4]))
    entry = graph.metadata_props.add()
    entry.key, entry.value = "author", "nobody"
    return graph


def without_domains(graph):
    """Return a graph as onnx_ir writes it: the parser gives each node an empty domain."""
    for node in graph.node:
        node.ClearField("domain")
        for body in subgraphs([node]):
            without_domains(body)
    return graph


def changed():
    """Return the graph with constants as initializers, another order, a new node, and a changed loop."""
    graph = without_domains(base())
    kept = [node for node in graph.node if node.op_type != "Constant"]
    loop = next(node for node in kept if node.op_type == "Loop")
    loop.attribute[0].g.node[-1].op_type = "Abs"
    del graph.node[:]
    graph.node.extend([*kept, helper.make_node("Sigmoid", ["Y"], ["Z"])])
    graph.output.append(helper.make_tensor_value_info("Z", TensorProto.FLOAT, ["N", 4]))
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    tensors["b"] = numpy_helper.from_array(np.float32([1, 2, 3, 4]), "b")
    tensors["two"] = numpy_helper.from_array(np.float32(2), "two")
    tensors["n"] = numpy_helper.from_array(np.int64(3), "n")
    tensors["new"] = numpy_helper.from_array(NUMBERS + 1, "new")
    del graph.initializer[:]
    graph.initializer.extend(tensors[name] for name in ("b", "W", "new", "two", "n", "words"))
    return graph


def test_differences_give_the_graph_back():
    difference, expected = changed(), changed()
    take_known(difference, base())
    read = onnx.GraphProto.FromString(difference.SerializeToString())
    give_known(read, base())
    assert read == expected


def test_only_changes_are_written():
    difference = changed()
    take_known(difference, base())
    assert [(node.op_type, node.name) for node in difference.node] == [
        ("", ""), ("", "3"), ("Loop", ""), ("", ""), ("Sigmoid", ""),
    ]  # fmt: skip
    (body,) = (attribute.g for attribute in difference.node[2].attribute)
    assert [node.op_type for node in body.node] == ["", "", "", "Abs"]
    written = [(tensor.name, tensor.data_type) for tensor in difference.initializer]
    assert written == [("1", 0), ("0", 0), ("new", 1), ("3", 0), ("", 0), ("2", 0)]
    assert [entry.name for entry in difference.output] == ["", "Z"]
    assert [entry.name for entry in difference.value_info] == [""]
    assert [entry.key for entry in difference.metadata_props] == [""]
    assert difference.ByteSize() < 400 < changed().ByteSize()


def test_trained_tensors_have_no_numbers():
    expected = changed()
    for tensor in expected.initializer:
        if tensor.name in ("W", "new"):
            tensor.ClearField("raw_data")
    difference = onnx.GraphProto.FromString(expected.SerializeToString())
    take_known(difference, base(), {"W", "new"})
    assert not difference.initializer[1].dims
    give_known(difference, base(), {"W", "new"})
    assert difference == expected


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_numbers_of_another_type_are_converted(kind):
    mine, other = base(), base()
    other.initializer[0].CopyFrom(helper.make_tensor("W", kind, [3, 4], NUMBERS.ravel().tolist()))
    array = numpy_helper.to_array(other.initializer[0]).astype(np.float32)
    mine.initializer[0].CopyFrom(numpy_helper.from_array(array, "W"))
    mine.initializer[1].CopyFrom(numpy_helper.from_array(np.float32([1, 2, 3, 4]), "b"))
    difference = onnx.GraphProto.FromString(mine.SerializeToString())
    take_known(difference, other)
    assert list(difference.initializer[0].dims) == [TensorProto.FLOAT]
    give_known(difference, other)
    assert difference == mine


def test_other_tensors_are_written_in_full():
    for change in (
        {"data_type": TensorProto.INT32, "dims": [3, 4], "raw_data": NUMBERS.astype(np.int32).tobytes()},
        {"data_type": TensorProto.FLOAT, "dims": [4, 3], "raw_data": NUMBERS.tobytes()},
        {"data_type": TensorProto.FLOAT, "dims": [3, 4], "raw_data": (NUMBERS + 1).tobytes()},
    ):
        mine = base()
        mine.initializer[0].CopyFrom(TensorProto(name="W", **change))
        difference = onnx.GraphProto.FromString(mine.SerializeToString())
        take_known(difference, base())
        assert difference.initializer[0] == mine.initializer[0]
    other = base()
    other.initializer[0].data_location = TensorProto.EXTERNAL
    difference = base()
    take_known(difference, other)
    assert difference.initializer[0] == base().initializer[0]


@pytest.mark.parametrize(
    ("entry", "place", "reference"),
    [
        ("node", "name", "7"),
        ("node", "name", "1"),
        ("initializer", "name", "5"),
        ("value_info", "doc_string", ""),
    ],
)
def test_what_the_model_lacks_is_refused(entry, place, reference):
    """Beyond its entries, or one that was used: each stands for itself once."""
    difference = changed()
    take_known(difference, base())
    getattr(difference, entry).add(**{place: reference})
    with pytest.raises(ParameterError, match="model has no unused entry .*give the model that it was saved"):
        give_known(difference, base())


def test_numbers_that_cannot_be_converted_are_refused():
    difference = base()
    take_known(difference, base())
    difference.initializer[0].dims.append(TensorProto.STRING)
    with pytest.raises(ParameterError, match="model has no numbers in 'W', which the saved estimator"):
        give_known(difference, base())


def test_bodies_of_a_node_are_used_once():
    """A file of a few bytes would otherwise stand for any number of large bodies."""
    difference = changed()
    take_known(difference, base())
    difference.node.append(difference.node[2])
    with pytest.raises(ParameterError, match="model has no unused entry 0"):
        give_known(difference, base())


def test_loops_without_a_first_output_are_told_apart():
    """The first of two changed: the second, whose first output is unused too, stays the same."""
    graph = parse_model("""<ir_version: 8, opset_import: ["" : 18]>
    net (float[4] X, bool go, int64 n) => (float[n, 4] Y)
    {
        , P = Loop(n, go, X) <body = one (int64 i, bool c, float[4] s) => (bool d, float[4] t, float[4] u)
            { d = Identity(c) t = Neg(s) u = Abs(s) }>
        , Q = Loop(n, go, X) <body = two (int64 i, bool c, float[4] s) => (bool d, float[4] t, float[4] u)
            { d = Identity(c) t = Neg(s) u = Exp(s) }>
        Y = Add(P, Q)
    }""").graph
    for changed_loops in ([0], [1], [0, 1], []):
        mine = onnx.GraphProto.FromString(graph.SerializeToString())
        mine.node.insert(0, mine.node.pop(1))
        for loop in changed_loops:
            mine.node[loop].attribute[0].g.node[1].op_type = "Sqrt"
        difference = onnx.GraphProto.FromString(mine.SerializeToString())
        take_known(difference, graph)
        give_known(difference, graph)
        assert difference == mine


def _constants_backwards(n_nodes):
    """Return a difference of references to constants, the last one first, and the graph that has them."""
    known = [helper.make_node("Constant", [], [f"c{at}"], value=numpy_helper.from_array(NUMBERS))
             for at in range(n_nodes)]  # fmt: skip
    references = [onnx.NodeProto(name=str(at)) for at in reversed(range(n_nodes))]
    return onnx.GraphProto(node=references), onnx.GraphProto(node=known)


def _bodies_of_nothing(n_nodes):
    """Return a difference of nodes with bodies, and a graph without any of them."""
    mine, known = onnx.GraphProto(), onnx.GraphProto()
    for at in range(n_nodes):
        mine.node.add(op_type="If", output=["y"]).attribute.add(name="then_branch").g.SetInParent()
        known.node.add(op_type="Neg", input=["x"], output=[f"y{at}"])
    return mine, known


@pytest.mark.parametrize("forged", [_constants_backwards, _bodies_of_nothing])
def test_the_time_grows_with_the_nodes(forged):
    """It grew with their square: a forged file of 400 KB took a minute."""
    difference, known = forged(6000)
    start = time.process_time()
    give_known(difference, known)
    assert time.process_time() - start < 3


def test_entries_without_a_name_are_no_references():
    """Metadata under an empty key was read as a reference: pickles of such models could not be read."""
    graph = base()
    graph.metadata_props.add(key="", value="5")
    graph.value_info.add(name="")
    for other in (onnx.GraphProto(), base(), graph):
        difference = onnx.GraphProto.FromString(graph.SerializeToString())
        take_known(difference, other)
        give_known(difference, other)
        assert difference == graph


def test_tensors_stay_in_their_fields():
    """Those of a file that lists numbers one by one; in bytes where that is how the graph has them."""
    for tensor in (helper.make_tensor("b", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0]),
                   numpy_helper.from_array(np.float32([1, 2, 3, 4]), "b")):  # fmt: skip
        mine = base()
        mine.initializer[1].CopyFrom(tensor)
        difference = onnx.GraphProto.FromString(mine.SerializeToString())
        take_known(difference, base())
        assert [entry.data_type for entry in difference.initializer] == [0, 0, 0]
        give_known(difference, base())
        assert difference == mine
