"""Kernels that a loop over batches carries with their taps before their channels."""

import numpy as np
import onnx
import pytest
from engine.step.mlp_step import loop_body, make_spec, numbers, read_network, run_both, runners, sizes_of

from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.scan_epoch import build_epoch
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.losses import SquaredError
from onnxsgd.optimizers import SGD, Adam

_SHAPES = {"V": (6, 2, 3, 3), "W": (6, 6, 3, 2), "U": (3, 6)}
_NETWORK = """
<ir_version: 9, opset_import: ["" : 18]>
g (float[N,2,3,4] X) => (float[N,3] Y) {
    a = Conv<pads = [1, 1, 1, 1]>(X, V)
    b = Tanh(a)
    c = Conv<pads = [1, 0, 1, 1]>(b, W)
    d = Tanh(c)
    p = GlobalAveragePool(d)
    e = Flatten(p)
    Y = Gemm<transB=1>(e, U)
}
"""
_TABLES = {(6, 18), (6, 36), (3, 6)}


def _weights(shapes):
    rng = np.random.RandomState(0)
    return {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}


def _spec(shapes, **options):
    plain = {"weights": tuple(shapes), "penalised": frozenset(), "l2": False}
    return make_spec(**plain | options)


def _carried(model, spec):
    """Return the nodes of the body, and the shapes of the tensors that the loop carries."""
    body, shapes = loop_body(build_step(model, spec), spec)
    return body.node, shapes


def _check_loop(model, spec, weights, image):
    """Compare the loop with single steps."""
    rng = np.random.RandomState(1)
    X, y = (
        rng.normal(size=(50, *image)).astype(np.float32),
        np.eye(3, dtype=np.float32)[rng.randint(0, 3, 50)],
    )
    data = Batches({"X": X}, y, np.ones(50), spec.batch_size, True)
    _, buffers, step, loop = runners(model, spec, weights, data)
    table, rates = numbers(spec, data.n_batches, rate=0.2)
    plan = data.plan(np.arange(50))
    if spec.optimizer.takes_scaled_gradient:
        plan = plan.descending(rates)
    start, (one, by_steps), (many, found) = run_both(buffers, (step, loop), plan, table)
    np.testing.assert_allclose(many, one, rtol=1e-5)
    for key, array in found.items():
        np.testing.assert_allclose(array, by_steps[key], rtol=0, atol=3e-6)
        assert (array != start[key]).mean() > 0.5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"l2": True, "penalised": frozenset({"V"})},
        {"optimizer": SGD(0.9, True), "l1": True, "penalised": frozenset({"W"}), "average": True},
        {"optimizer": Adam(), "loss": SquaredError()},
    ],
    ids=["plain", "penalty", "nesterov-l1-average", "adam"],
)
def test_the_loop_carries_weights_and_states_as_tables(options):
    """Its body moves no weight; the numbers are those of single steps."""
    weights = _weights(_SHAPES)
    model, spec = read_network(_NETWORK, weights), _spec(_SHAPES, **options)
    nodes, shapes = _carried(model, spec)
    assert set(shapes) == _TABLES
    moved = {name for node in nodes if node.op_type == "Transpose" for name in node.input}
    assert not any(name.startswith(("step/V", "step/W")) for name in moved)
    _check_loop(model, spec, weights, (2, 3, 4))


def test_the_product_of_the_gradient_adds_the_weight():
    nodes, _ = _carried(read_network(_NETWORK, _weights(_SHAPES)), _spec(_SHAPES))
    added = {node.input[2] for node in nodes if node.op_type == "Gemm" and len(node.input) == 3}
    assert added >= {"step/V_taps_first", "step/W_taps_first"}
    read = {name for node in nodes for name in node.input}
    results = {"step/V_new", "step/W_new", "step/U_new", "step/Y"}
    assert all(node.op_type == "Constant" or {*node.output} & (read | results) for node in nodes)


def test_series_and_a_weight_of_two_layers():
    shapes = {"V": (4, 4, 3), "U": (3, 4)}
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[N,4,5] X) => (float[N,3] Y) {
        a = Conv<pads = [1, 1]>(X, V) b = Tanh(a) c = Conv<pads = [1, 1]>(b, V) d = Tanh(c)
        p = GlobalAveragePool(d) e = Flatten(p) Y = Gemm<transB=1>(e, U) }"""
    model, spec, weights = read_network(text, _weights(shapes)), _spec(shapes), _weights(shapes)
    assert _carried(model, spec)[1] == [(4, 12), (3, 4)]
    _check_loop(model, spec, weights, (4, 5))


@pytest.mark.parametrize(
    ("shape", "layer"),
    [
        ((6, 6, 3, 2), "r = ReduceSumSquare(W) c = Mul(b, r)"),
        ((6, 6, 3, 2), "r = ReduceMax<keepdims = 0>(W) c0 = Conv<pads = [1, 0, 1, 1]>(b, W) c = Mul(c0, r)"),
        ((6, 6, 1, 1), "c = Conv(b, W)"),
    ],
    ids=["no layer", "read by more than layers", "one tap"],
)
def test_other_weights_stay_whole(shape, layer):
    shapes = {**_SHAPES, "W": shape}
    text = _NETWORK.replace("c = Conv<pads = [1, 0, 1, 1]>(b, W)", layer)
    model, spec = read_network(text, _weights(shapes)), _spec(shapes)
    assert _carried(model, spec)[1] == [(6, 18), shape, (3, 6)]
    _check_loop(model, spec, _weights(shapes), (2, 3, 4))


def test_weights_keep_their_order_outside_of_the_loop():
    """The session takes and returns them in their own shapes."""
    weights = _weights(_SHAPES)
    spec = _spec(_SHAPES)
    epoch = onnx.load_from_string(build_epoch(build_step(read_network(_NETWORK, weights), spec), spec.loss))
    for values in (epoch.graph.input, epoch.graph.output):
        assert [sizes_of(value) for value in values[:3]] == list(_SHAPES.values())
    assert ("V", WEIGHT) in build_step(read_network(_NETWORK, weights), spec).tensors
