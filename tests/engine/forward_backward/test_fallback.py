"""engine="auto": the training agent where it is proven, the portable engine where it is not, or fails."""

import logging

import numpy as np
import onnx
import pytest

from onnxsgd.engine.forward_backward import executors, training_graphs
from onnxsgd.engine.forward_backward.forward_backward import OrtGradientForwardBackward
from onnxsgd.exceptions import EngineError, NotTrainableError

pytestmark = pytest.mark.native

X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
W = np.array([[1.0], [-1.0]], np.float32)
SEED = np.array([[1.0], [2.0], [3.0]], np.float32)


@pytest.fixture
def linear():
    return onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[N, 2] X) => (float[N, 1] Y) '
        "<float[2, 1] W = {1, -1}> { Y = MatMul(X, W) }"
    )


def check(function):
    """Compare one training step of ``Y = X W`` with the product of matrices."""
    np.testing.assert_allclose(function.forward([X, W], training=True)[0].numpy(), X @ W)
    of_x, of_w = (gradient.numpy() for gradient in function.backward([SEED]))
    np.testing.assert_allclose(of_x, SEED @ W.T)
    np.testing.assert_allclose(of_w, X.T @ SEED)


def fail(*_):
    raise EngineError("it broke")


def test_the_agent_runs_proven_operators(linear):
    built = OrtGradientForwardBackward(linear)
    function = built.new_instance()
    check(function)
    check(function)
    assert built.engine_ == "onnxruntime-training"
    assert built.cls_type_._training_agent is not None


@pytest.mark.parametrize("method", ["forward", "backward"])
def test_a_first_run_that_fails_is_repeated_by_the_portable_engine(method, linear, monkeypatch, caplog):
    built = OrtGradientForwardBackward(linear)
    function = built.new_instance()
    monkeypatch.setattr(executors.AgentExecutor, method, fail)
    with caplog.at_level(logging.INFO, "onnxsgd"):
        check(function)
        check(function)
    assert built.engine_ == "portable"
    assert built.cls_type_._training_agent is None
    assert built.cls_type_._backward_onnx is not None
    assert [record.message for record in caplog.records if "it broke" in record.message]
    check(built.new_instance())


def test_pending_forwards_survive_a_failure_of_the_first_backward(linear, monkeypatch):
    function = OrtGradientForwardBackward(linear).new_instance()
    monkeypatch.setattr(executors.AgentExecutor, "backward", fail)
    for scale in (1, 2):
        function.forward([scale * X, W], training=True)
    for scale in (2, 1):
        np.testing.assert_allclose(function.backward([SEED])[1].numpy(), scale * X.T @ SEED)


def test_after_a_run_that_succeeded_errors_are_errors(linear, monkeypatch):
    built = OrtGradientForwardBackward(linear)
    function = built.new_instance()
    check(function)
    monkeypatch.setattr(executors.AgentExecutor, "forward", fail)
    with pytest.raises(EngineError, match="it broke"):
        function.forward([X, W], training=True)
    assert built.engine_ == "onnxruntime-training"


def test_a_gradient_that_fails_to_build_is_built_by_the_portable_engine(linear, monkeypatch, caplog):
    monkeypatch.setattr(training_graphs, "differentiate_with_native", fail)
    with caplog.at_level(logging.INFO, "onnxsgd"):
        built = OrtGradientForwardBackward(linear)
    assert built.engine_ == "portable"
    assert "it broke" in caplog.text
    check(built.new_instance())
    with pytest.raises(EngineError, match="it broke"):
        OrtGradientForwardBackward(linear, engine="onnxruntime-training")


#: Nodes that gave wrong numbers or crashed the interpreter: types of input and output, node, form in the log.
UNPROVEN = [
    (
        "float[N, 2, 4, 4]",
        "float",
        "Y = AveragePool<kernel_shape = [2, 2]>(S)",
        "AveragePool FLOAT batch of rank 4",
    ),
    (
        "float[1, 1, 4, 4, 4]",
        "float",
        "Y = AveragePool<kernel_shape=[2, 2, 2]>(S)",
        "AveragePool FLOAT fixed of rank 5",
    ),
    ("float[2, 2, 8]", "float", "Y = Conv<group = 2>(S, K)", "Conv FLOAT fixed group of rank 3"),
    (
        "float[N, 2, H, V]",
        "float",
        "Y = MaxPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(S)",
        "MaxPool FLOAT open ceil_mode of rank 4",
    ),
    ("float[M, 4] Q, float[N, 4]", "float", "Y = Add(S, Q)", "Add FLOAT batch unmatched of rank 2"),
    (
        "float16[1, 2, 4, 4]",
        "float16",
        "Y = MaxPool<kernel_shape = [2, 2]>(S)",
        "MaxPool FLOAT16 fixed of rank 4",
    ),
]


@pytest.mark.parametrize(("kind", "real", "node", "form"), UNPROVEN)
def test_unproven_operators_are_left_to_the_portable_engine(kind, real, node, form, caplog):
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g ({kind} X) => ({real} Y)
        <{real} w = {{2}}, float[2, 1, 1] K = {{1, 2}}> {{ S = Mul(X, w) {node} }}"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with caplog.at_level(logging.INFO, "onnxsgd"):
        assert OrtGradientForwardBackward(model, weights_to_train=["w"]).engine_ == "portable"
    assert form in caplog.text
    with pytest.raises(NotTrainableError, match=form):
        OrtGradientForwardBackward(model, weights_to_train=["w"], engine="onnxruntime-training")
