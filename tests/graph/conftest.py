"""Shared fixtures of the tests of graphs."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from onnxsgd.graph.model import to_proto


@pytest.fixture(name="run")
def _run():
    """Run a model in plain onnxruntime: a dict of outputs."""
    return run_model


def run_model(model, X):
    """Run a model on an array, a frame or a dict of inputs, without the runtime's optimizers."""
    proto = to_proto(model) if isinstance(model, ir.Model) else model
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, _feeds(proto, X)), strict=True))


def _feeds(proto: onnx.ModelProto, X) -> dict[str, np.ndarray]:
    if isinstance(X, dict):
        return X
    if len(proto.graph.input) == 1 and proto.graph.input[0].name not in getattr(X, "columns", ()):
        return {proto.graph.input[0].name: np.asarray(X, dtype=np.float32)}
    types = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    strings = onnx.TensorProto.STRING
    return {
        name: X[[name]].to_numpy(dtype=object if kind == strings else np.float32)
        for name, kind in types.items()
    }
