"""Tensors stored beside a model: read from its folder, from no other place."""

import os

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.external_data_helper import uses_external_data

from onnxsgd.exceptions import GraphError
from onnxsgd.graph.loading.external_data import all_tensors, load_beside, refuse_external

W = np.arange(6, dtype=np.float32).reshape(3, 2)


def model_with(location):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[N, 3] x) => (float[N, 2] y) { y = MatMul(x, w) }'
    )
    tensor = model.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT, dims=[3, 2])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return model


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    for name in ("model/w.bin", "secret.bin"):
        (tmp_path / name).write_bytes(W.tobytes())
    os.symlink(tmp_path / "secret.bin", tmp_path / "model" / "link.bin")
    return tmp_path / "model"


def test_a_file_in_the_folder_is_read(folder):
    model = model_with("w.bin")
    load_beside(model, folder / "model.onnx")
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(model.graph.initializer[0]), W)
    refuse_external(model, "bytes")


@pytest.mark.parametrize("location", ["../secret.bin", "link.bin", "", "\0", "{root}/secret.bin"])
def test_no_file_outside_is_read(folder, location):
    """A model from elsewhere must not read the files of a user."""
    location = location.format(root=folder.parent)
    with pytest.raises(GraphError, match="weights are read only from files in the folder"):
        load_beside(model_with(location), folder / "model.onnx")


def test_a_missing_file_is_named(folder):
    with pytest.raises(GraphError, match=r"model\.onnx' cannot be read"):
        load_beside(model_with("nothing.bin"), folder / "model.onnx")


def test_a_long_name_is_refused_in_a_sentence(folder):
    with pytest.raises(GraphError, match="cannot be read") as caught:
        load_beside(model_with("x" * 5000), folder / "model.onnx")
    assert len(str(caught.value)) < 1000


def test_a_model_without_a_folder_is_refused():
    with pytest.raises(GraphError, match="'w' is stored in another file, whose folder is unknown for bytes"):
        refuse_external(model_with("w.bin"), "bytes")


def test_tensors_are_found_in_every_part():
    """An external tensor that is overlooked would be read without a check."""
    text = """<ir_version: 8, opset_import: ["": 18, "own": 1]> g (float[2] x, bool c) => (float[2] y)
        <float[2] a = {1, 2}> {
          k = Constant<value = float[2] {3, 4}>()
          m = own.f(x)
          y = If (c) <then_branch = t () => (float[2] p) <float[2] b = {5, 6}> { p = Add(m, b) },
                      else_branch = e () => (float[2] q) {
                          r = Constant<value = float[2] {7, 8}>() q = Add(r, k) }> }
        <domain: "own", opset_import: ["": 18]>
        f (z) => (o) { d = Constant<value = float[2] {9, 0}>() o = Add(z, d) }"""
    model = onnx.parser.parse_model(text)
    found = sorted(onnx.numpy_helper.to_array(tensor)[0] for tensor in all_tensors(model))
    assert found == [1, 3, 5, 7, 9]
    assert not any(uses_external_data(tensor) for tensor in all_tensors(model))
