"""The compiled step, the loop over batches, and the buffers between them."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from engine.step.mlp_step import make_spec, numbers, runners

from onnxsgd.engine.step import single_step as _single_step
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.graph.model import to_ir


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def by_hand(weights, data, plan, rate, l2):
    """The same updates in float64 numpy."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    losses = []
    for rows, weight in zip(plan.rows, plan.sample_weight, strict=True):
        X, y = data.features["X"][rows].astype(np.float64), data.target[rows].astype(np.float64)
        h = np.maximum(X @ w["W1"] + w["b1"], 0)
        p = softmax(h @ w["W2"] + w["b2"])
        losses.append(-(weight * y * np.log(p)).sum())
        d2 = (p - y) * weight
        d1 = (d2 @ w["W2"].T) * (h > 0)
        gradients = {"W1": X.T @ d1, "b1": d1.sum(axis=0), "W2": h.T @ d2, "b2": d2.sum(axis=0)}
        for name, gradient in gradients.items():
            decay = l2 * w[name] if name[0] == "W" else 0
            w[name] = w[name] - rate * (gradient + decay)
    return w, np.array(losses)


@pytest.mark.parametrize("n_bytes", [0, 1_000_000], ids=["one by one", "gathered at once"])
@pytest.mark.parametrize("engine", ["portable", "onnxruntime-training"])
def test_an_epoch_equals_the_same_updates_in_numpy(model, weights, data, engine, n_bytes, monkeypatch):
    monkeypatch.setattr(_single_step, "_GATHERED_BYTES", n_bytes)
    spec = make_spec(engine=engine)
    _, buffers, step, _ = runners(model, spec, weights, data)
    table, rates = numbers(spec, data.n_batches)
    plan = data.plan(np.random.RandomState(2).permutation(53)).descending(rates)
    losses = np.zeros(data.n_batches)
    step.run(plan, table, losses)
    wanted, wanted_losses = by_hand(weights, data, plan, 0.05, 0.01)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-5)
    for name, array in buffers.weights().items():
        np.testing.assert_allclose(array, wanted[name], rtol=1e-5, atol=1e-6)
        assert np.abs(array - weights[name]).max() > 1e-3


@pytest.mark.parametrize("engine", ["portable", "onnxruntime-training"])
def test_a_step_of_an_mlp_is_fused(model, engine):
    graph = onnx.load_from_string(build_step(model, make_spec(engine=engine)).model).graph
    operators = [node.op_type for node in graph.node]
    assert not {"ReluGrad", "Where", "Greater", "Shape", "Reshape", "Expand", "Cast"}.intersection(operators)
    assert operators.count("HardSigmoid") == 1
    updates = {node.output[0]: node.op_type for node in graph.node}
    assert updates["W1_new"] == updates["W2_new"] == "Gemm"
    assert {node.domain for node in graph.node} == {""}


def test_static_shapes_everywhere(model):
    step = to_ir(onnx.load_from_string(build_step(model, make_spec()).model))
    values = [*step.graph.inputs, *step.graph.outputs]
    assert all(value.shape is not None and value.shape.is_static() for value in values)
    assert isinstance(step, ir.Model)
