"""Rows of computed features are those of the results for all samples."""

import numpy as np
import onnx

from onnxsgd.engine.predict import InferenceGraph
from onnxsgd.graph.model import to_ir
from onnxsgd.runtime.device import HOST
from onnxsgd.training.frozen_features import FrozenFeature

_MODEL = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["" : 18]> agraph (float[N, 3] x, float[N, 2] z) => (float[N, 3, 2] y)
    <int64[1] last = {2}, int64[1] middle = {1}>
    { a = Unsqueeze (x, last)  b = Unsqueeze (z, middle)  y = Mul (a, b) }"""
)


def test_rows_are_computed():
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(9, 3)).astype(np.float32), rng.normal(size=(9, 2)).astype(np.float32)
    graph = InferenceGraph(to_ir(onnx.shape_inference.infer_shapes(_MODEL)), "y", ())
    feature = FrozenFeature(graph, {"x": x, "z": z}, None, HOST)
    expected = x[:, :, None] * z[:, None, :]
    assert len(feature) == 9
    assert feature.shape == expected.shape
    assert feature.dtype == np.float32
    np.testing.assert_array_equal(feature[2:5], expected[2:5])
    np.testing.assert_array_equal(feature[np.array([7, 0, 7])], expected[[7, 0, 7]])
