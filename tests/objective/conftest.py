"""Graphs and sessions for the tests of the objective."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

#: By rank of the output: the nodes from a [N, 3] product to it.
_OUTPUTS = {
    1: ("N", "flat = Squeeze(Z, axes) Y = Identity(flat)", 1),
    2: ("N, 3", "Y = Identity(Z)", 3),
    3: ("N, 3, 2", "rows = Unsqueeze(Z, axes) Y = Concat<axis = 2>(rows, rows)", 3),
}


def _linear(rank=2, opset=17, dtype=np.float32):
    shape, body, width = _OUTPUTS[rank]
    axis = {1: 1, 2: 0, 3: 2}[rank]
    type_name = {np.float16: "float16", np.float32: "float", np.float64: "double"}[dtype]
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        linear ({type_name}[N, 4] X) => ({type_name}[{shape}] Y)
        <int64[1] axes = {{{axis}}}> {{ Z = Gemm(X, W, b) {body} }}"""
    )
    rng = np.random.default_rng(7)
    weights = {"W": rng.normal(size=(4, width)), "b": rng.normal(size=width)}
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(dtype), name))
    return model


@pytest.fixture(scope="session")
def linear():
    """Make a linear graph: ``linear(rank of the output, opset, dtype)``."""
    return _linear


def _run(model, feeds):
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@pytest.fixture(scope="session")
def run():
    """Check a model in full, and run it: ``run(model, feeds)``, a dict of outputs."""
    return _run
