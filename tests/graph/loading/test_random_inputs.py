"""random_feed: shapes, types, and a run of the graph."""

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxsgd.exceptions import GraphError, ParameterError, UnsupportedError
from onnxsgd.graph.loading.random_inputs import _SESSION_TYPES, random_feed

GRAPH = """<ir_version: 9, opset_import: ["": 18]>
g (float[N, 4] X, double[N, M, 2] D, int64[3] I, bool[N] B, float S, float16[N, 4] H) => (float[N, 4] Y)
  <float[4] W = {1, 2, 3, 4}> { Y = Mul(X, W) }"""


def shapes(feed):
    return {name: (array.shape, array.dtype.name) for name, array in feed.items()}


EXPECTED = {
    "X": ((10, 4), "float32"),
    "D": ((10, 1, 2), "float64"),
    "I": ((3,), "int64"),
    "B": ((10,), "bool"),
    "S": ((), "float32"),
    "H": ((10, 4), "float16"),
}


def test_types_of_sessions_are_those_of_onnx():
    """The runtime writes "tensor(float)" for FLOAT; strings have the type of numpy's texts here."""
    integers = {f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
    expected = {
        f"tensor({name.lower()})": onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(name))
        for name in {"FLOAT16", "FLOAT", "DOUBLE", "BOOL", *integers}
    }
    assert {name: np.dtype(kind) for name, kind in _SESSION_TYPES.items()} == {
        **expected,
        "tensor(string)": np.dtype(str),
    }


def test_an_unknown_first_dimension_is_the_batch_and_others_are_one():
    model = onnx.parser.parse_model(GRAPH)
    assert shapes(random_feed(model.graph.input)) == EXPECTED
    assert shapes(random_feed(model)) == EXPECTED


def test_inputs_of_a_session_are_described_alike():
    model = onnx.parser.parse_model(GRAPH)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert shapes(random_feed(session.get_inputs())) == EXPECTED
    assert session.run(None, random_feed(session))[0].shape == (10, 4)


def test_only_an_unknown_first_size_is_the_batch():
    """Not the first unknown one in any position."""
    value = onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, [2, None, 3])
    assert random_feed([value])["X"].shape == (2, 1, 3)


def test_a_size_beyond_any_memory_is_refused():
    """Before any allocation."""
    value = onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, [2**40])
    with pytest.raises(GraphError, match="elements are accepted"):
        random_feed([value])


@pytest.mark.parametrize("size", [2**28, 2**31])
def test_an_array_beyond_common_memory_is_refused(size):
    """A declared size is within the limits of a tensor, and the batch is not."""
    value = onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, [None, size])
    with pytest.raises(ParameterError, match=rf"'X' would be drawn in the shape \[10, {size}\]"):
        random_feed([value])


def test_sizes_are_chosen():
    feed = random_feed(onnx.parser.parse_model(GRAPH).graph.input, batch=3, empty_dimension=5)
    assert (feed["X"].shape, feed["D"].shape) == ((3, 4), (3, 5, 2))


def test_an_initializer_that_is_an_input_is_left_out():
    model = onnx.parser.parse_model(GRAPH)
    model.graph.input.append(onnx.helper.make_tensor_value_info("W", onnx.TensorProto.FLOAT, [4]))
    assert "W" not in random_feed(model)


def test_an_input_of_unknown_rank_gets_one_dimension():
    value = onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, None)
    assert random_feed([value])["X"].shape == (10,)


def test_values_are_random_and_integers_can_be_indices():
    value = onnx.helper.make_tensor_value_info("I", onnx.TensorProto.INT32, [1000])
    first, second = random_feed([value])["I"], random_feed([value])["I"]
    assert set(np.unique(first)) == set(range(10))
    assert (first != second).any()
    real = onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, [10_000])
    array = random_feed([real])["X"]
    assert abs(array.mean()) < 0.1
    assert abs(array.std() - 1) < 0.1


def test_strings():
    value = onnx.helper.make_tensor_value_info("T", onnx.TensorProto.STRING, [None])
    array = random_feed([value])["T"]
    assert array.dtype == object
    assert all(isinstance(text, str) for text in array)


@pytest.mark.parametrize("options", [{"batch": -1}, {"empty_dimension": -1}])
def test_a_negative_size_is_refused(options):
    with pytest.raises(ParameterError, match="it must be >= 0"):
        random_feed([], **options)


def test_inputs_other_than_tensors_are_refused():
    value = onnx.helper.make_tensor_sequence_value_info("Q", onnx.TensorProto.FLOAT, None)
    with pytest.raises(UnsupportedError, match="'Q': it is no tensor"):
        random_feed([value])

    class NodeArg:
        name, type, shape = "Q", "seq(tensor(float))", None

    with pytest.raises(UnsupportedError, match=r"'Q' of type 'seq\(tensor\(float\)\)'"):
        random_feed([NodeArg])
