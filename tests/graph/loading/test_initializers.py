"""get_train_initializer: the returned initializers and their arrays."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxsgd.exceptions import GraphError, ParameterTypeError
from onnxsgd.graph.loading.initializers import get_train_initializer


@pytest.fixture
def model():
    found = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[N] X) => (float[N] Y) { Y = Neg(X) }'
    )
    for name, dtype in (
        ("z", np.float32),
        ("i", np.int64),
        ("a", np.float64),
        ("h", np.float16),
        ("b", bool),
    ):
        found.graph.initializer.append(numpy_helper.from_array(np.arange(3).astype(dtype), name))
    return found


def test_real_initializers_in_the_order_of_the_graph(model):
    found = get_train_initializer(model)
    assert list(found) == ["z", "a", "h"]
    for name, dtype in (("z", np.float32), ("a", np.float64), ("h", np.float16)):
        array, tensor = found[name]
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, [0, 1, 2])
        assert tensor in model.graph.initializer
        assert tensor.name == name


def test_a_graph_without_initializers(model):
    del model.graph.initializer[:]
    assert get_train_initializer(model) == {}


def test_data_in_a_file_that_was_not_loaded_is_refused(model, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0)
    with pytest.raises(GraphError, match="'z' is stored in another file"):
        get_train_initializer(onnx.load(path, load_external_data=False))
    assert list(get_train_initializer(onnx.load(path))) == ["z", "a", "h"]


def test_other_objects_are_refused():
    with pytest.raises(ParameterTypeError, match="onnx.ModelProto, not str"):
        get_train_initializer("model.onnx")
