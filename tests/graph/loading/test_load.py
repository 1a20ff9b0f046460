"""Models are loaded from files, bytes and messages, or refused in one sentence."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from onnxsgd.exceptions import GraphError, ParameterTypeError, UnsupportedError
from onnxsgd.graph.loading.load import load_model

TEXT = """<ir_version: 8, opset_import: ["": 18]>
    g (float[N, 300] x) => (float[N, 1] y) { y = MatMul(x, w) }"""


@pytest.fixture(name="model")
def _model():
    model = onnx.parser.parse_model(TEXT)
    weights = np.arange(300, dtype=np.float32).reshape(300, 1)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def save_outside(model, folder, location="weights.bin"):
    """Save `model` with its weights in another file; return its path."""
    path = folder / "model.onnx"
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    onnx.save_model(copy, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    stored = onnx.load(path, load_external_data=False)
    for entry in stored.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    path.write_bytes(stored.SerializeToString())
    return path


def weights_of(model):
    return onnx.numpy_helper.to_array(model.graph.initializer[0])


@pytest.mark.parametrize("form", ["message", "bytes", "bytearray", "str", "path", "external"])
def test_forms(form, model, tmp_path):
    """Each form of the same model gives the same model."""
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    content = model.SerializeToString()
    sources = {
        "message": model,
        "bytes": content,
        "bytearray": bytearray(content),
        "str": str(path),
        "path": path,
    }
    source = save_outside(model, tmp_path) if form == "external" else sources[form]
    loaded = load_model(source)
    np.testing.assert_array_equal(weights_of(loaded), weights_of(model))
    assert loaded is not model


def test_weights_below_the_folder(model, tmp_path, monkeypatch):
    """A subfolder is fine, and so is a path relative to the working directory."""
    (tmp_path / "sub").mkdir()
    save_outside(model, tmp_path, "sub/weights.bin")
    (tmp_path / "weights.bin").rename(tmp_path / "sub" / "weights.bin")
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(weights_of(load_model("model.onnx")), weights_of(model))


@pytest.mark.parametrize(
    "location",
    ["../weights.bin", "/etc/hostname", "sub/../../weights.bin", "link.bin", "folder/secret", ""],
)
def test_weights_elsewhere_are_refused(location, model, tmp_path):
    """An untrusted model must not read other files of the user, by a link or otherwise."""
    folder, outside = tmp_path / "model", tmp_path / "weights.bin"
    folder.mkdir()
    outside.write_bytes(bytes(1200))
    (tmp_path / "secret").write_bytes(bytes(1200))
    os.symlink(outside, folder / "link.bin")
    os.symlink(tmp_path, folder / "folder")
    with pytest.raises(GraphError, match="folder of the model"):
        load_model(save_outside(model, folder, location))


def test_missing_weights(model, tmp_path):
    """The file beside the model is gone."""
    path = save_outside(model, tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(GraphError, match="beside"):
        load_model(path)


def test_weights_in_other_files_need_a_path(model, tmp_path):
    """Bytes have no folder."""
    content = save_outside(model, tmp_path).read_bytes()
    with pytest.raises(GraphError, match="give the path"):
        load_model(content)
    with pytest.raises(GraphError, match="give the path"):
        load_model(onnx.load_from_string(content))


def test_the_message_is_not_changed(model):
    """Loading converts versions and drops inputs in a copy."""
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [300, 1]))
    before = model.SerializeToString()
    loaded = load_model(model)
    assert model.SerializeToString() == before
    assert [value.name for value in loaded.graph.input] == ["x"]


@pytest.mark.parametrize("name", ["rows_", "data_", "result_", "weight_", "graph_", "MatMul", "node_"])
def test_text_that_is_no_utf_8_is_refused(name):
    """Names of tensors, sizes, nodes and graphs, too: protobuf raises on reading them, or returns bytes."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> graph_ (float[rows_, 3] data_) => (float[rows_, 1] result_)
        <float[3, 1] weight_ = {1, 2, 3}> { [node_] result_ = MatMul(data_, weight_) }"""
    )
    content = model.SerializeToString()
    assert name.encode() in content
    broken = onnx.ModelProto()
    broken.ParseFromString(content.replace(name.encode(), b"\xba" * len(name)))
    for source in (broken, broken.SerializeToString()):
        with pytest.raises(GraphError, match="not UTF-8"):
            load_model(source)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (b"", GraphError, "no nodes"),
        (b"no model", GraphError, "cannot be parsed"),
        ("no/such/file.onnx", GraphError, "No such file"),
        (".", GraphError, "cannot be read"),
        (3, ParameterTypeError, "not int"),
        (None, ParameterTypeError, "not NoneType"),
    ],
)
def test_other_objects(source, error, message):
    """One sentence for every argument."""
    with pytest.raises(error, match=message):
        load_model(source)


def test_invalid_models():
    """The checker's reason is passed on."""
    model = onnx.parser.parse_model(TEXT)
    with pytest.raises(GraphError, match="not valid ONNX"):
        load_model(model)


def test_valid_unsupported_models(model):
    """Training graphs and sparse weights: refused by name."""
    trained = onnx.ModelProto()
    trained.CopyFrom(model)
    trained.training_info.add().algorithm.name = "t"
    with pytest.raises(UnsupportedError, match="training_info"):
        load_model(trained)
    values = onnx.helper.make_tensor("s", onnx.TensorProto.FLOAT, [1], [1.0])
    indices = onnx.helper.make_tensor("i", onnx.TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [4]))
    with pytest.raises(UnsupportedError, match="sparse initializer, 's'"):
        load_model(model)


def test_an_old_file_need_not_list_its_weights_as_inputs():
    """Before IR version 4 it had to; some files do not, and the runtime reads them."""
    path = Path(onnxruntime.__file__).parent / "datasets" / "mul_1.onnx"
    loaded = load_model(path)
    assert [value.name for value in loaded.graph.input] == ["X"]
    assert [tensor.name for tensor in loaded.graph.initializer] == ["W"]


def test_pipes_and_devices_are_not_read(tmp_path):
    """They may never end."""
    pipe = tmp_path / "model.onnx"
    os.mkfifo(pipe)
    for path in (pipe, "/dev/zero"):
        with pytest.raises(GraphError, match="no regular file"):
            load_model(path)


def test_a_file_beyond_the_limit_of_protobuf_is_refused_unread(tmp_path):
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(GraphError, match="1,099,511,627,776 bytes"):
        load_model(path)


def test_a_pipe_as_external_data_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "weights.bin")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[N, 3] x) => (float[N, 1] y) { y = MatMul(x, w) }'
    )
    tensor = model.graph.initializer.add(name="w", data_type=1, dims=[3, 1], data_location=1)
    tensor.external_data.add(key="location", value="weights.bin")
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(GraphError, match=r"'weights.bin', which is no regular file"):
        load_model(tmp_path / "model.onnx")


@pytest.mark.parametrize(("limit", "is_refused"), [(4_194_304, False), (4_194_305, True)])
def test_a_constant_range_is_limited(limit, is_refused):
    """Inference that follows shapes would write down each number."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (int64[N, 3] x) => (int64 y)'
        f"<int64 a = {{0}}, int64 b = {{{limit}}}, int64 c = {{1}}>"
        "{ r = Range(a, b, c)  s = ReduceSum<keepdims = 0>(r)  t = ReduceMax<keepdims=0>(x) y = Add(s, t) }"
    )
    if is_refused:
        with pytest.raises(GraphError, match="Range .* makes 4,194,305 numbers: up to 4,194,304"):
            load_model(model)
    else:
        load_model(model)
