"""Intercepts in one table with the weight keep the numbers of a loop."""

import numpy as np
import onnx
import pytest
from engine.step.mlp_step import (
    LAYERS,
    NOT_PLAIN,
    PLAIN,
    carried,
    compare_with_single_steps,
    make_spec,
    network,
    numbers,
    runners,
)
from onnx import parser

from onnxsgd.engine.step import batches, constant_units, scan_epoch
from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.idle_runners import CompiledOnUse
from onnxsgd.engine.step.joined_intercepts import join_intercepts
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.graph.model import to_ir


@pytest.fixture(autouse=True)
def _no_constant_units(monkeypatch):
    monkeypatch.setattr(constant_units, "_MOST_ROWS", 0)


def _shapes(made, spec):
    return carried(build_step(made[0], spec), spec)


@pytest.mark.parametrize("n_inputs", [1, 5, 31])
@pytest.mark.parametrize(
    ("batch_size", "n_hidden"),
    [(8, 20), (32, 20), (1, 20), (8, 4)],
    ids=["rows", "transposed", "single", "narrow"],
)
def test_updates_are_those_of_single_steps(batch_size, n_hidden, n_inputs):
    """Of samples in rows, of transposed tables, of a transposed weight; the last batch is short."""
    spec = make_spec(**{"batch_size": batch_size, **PLAIN})
    shapes = compare_with_single_steps(network(n_hidden, 3, n_inputs=n_inputs), spec, 4 * batch_size + 1)
    assert {(n_inputs + 1, n_hidden), (n_hidden, n_inputs + 1)} & set(shapes)
    assert (1, n_hidden) not in shapes
    assert len(shapes) == 3


#: Updates of another form, and weights that are not all trained.
_OTHERS = {
    **NOT_PLAIN,
    "a frozen intercept": {**PLAIN, "weights": ("W1", "W2", "b2")},
    "a frozen weight": {**PLAIN, "weights": ("b1", "W2", "b2")},
}


@pytest.mark.parametrize("options", _OTHERS.values(), ids=_OTHERS)
def test_other_updates_stay(options):
    spec = make_spec(**options)
    made = network(20, 3)
    shapes = _shapes(made, spec)
    assert all(6 not in shape for shape in shapes)
    assert len(shapes) == len(build_step(made[0], spec).tensors)


@pytest.mark.parametrize("n_inputs", [16, 32, 33])
def test_inputs_whose_columns_are_in_use_or_many_stay(n_inputs):
    shapes = _shapes(network(20, 3, n_inputs=n_inputs), make_spec(**PLAIN))
    assert (n_inputs, 20) in shapes or (20, n_inputs) in shapes


@pytest.mark.parametrize(("batch_size", "n_hidden"), [(64, 31), (65, 31), (65, 32)])
def test_few_units_stay_in_large_batches(batch_size, n_hidden):
    shapes = _shapes(network(n_hidden, 3), make_spec(**{"batch_size": batch_size, **PLAIN}))
    assert (len(shapes) == 4) is ((batch_size, n_hidden) == (65, 31))


@pytest.mark.parametrize(
    "lines",
    [
        "a = Gemm(X, W1, b1) h = Relu(a) s = ReduceMean<keepdims=1>(X) t = Add(h, s) Y = Gemm(t, W2, b2)",
        "a = Gemm(X, W1, b1) h = Relu(a) t = Add(h, b1) Y = Gemm(t, W2, b2)",
        "a = Gemm<alpha=0.5>(X, W1, b1) h = Relu(a) Y = Gemm(h, W2, b2)",
        "a = Gemm<beta=0.5>(X, W1, b1) h = Relu(a) Y = Gemm(h, W2, b2)",
        "c = Relu(X) a = Gemm(c, W1, b1) h = Relu(a) Y = Gemm(h, W2, b2)",
    ],
    ids=[
        "inputs read twice",
        "intercepts read twice",
        "a factor",
        "a factor of intercepts",
        "computed inputs",
    ],
)
def test_other_layers_stay(lines):
    start, _ = LAYERS.split("{")
    made = network(20, 3, text=f"{start}{{ {lines} }}")
    shapes = compare_with_single_steps(made, make_spec(**PLAIN), 53)
    assert all(6 not in shape for shape in shapes)


_UPDATE = """
<ir_version: 9, opset_import: ["" : 18]> step (float[20,4] w, float[1,4] b, float[8,20] x, float[8,4] g)
    => (float[20,4] new_w, float[1,4] new_b, float[8,4] y)
<float[1,8] ones = {1, 1, 1, 1, 1, 1, 1, 1}, float[1,8] twos = {2, 2, 2, 2, 2, 2, 2, 2}>
{ z = Gemm(x, w, b) y = Relu(z) h = Neg(g) new_w = Gemm<transA=1>(x, g, w) new_b = Gemm(ones, g, b) }
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("Gemm(ones, g, b)", "Gemm(twos, g, b)"),
        ("Gemm(ones, g, b)", "Gemm(ones, h, b)"),
        ("Gemm(ones, g, b)", "Gemm<alpha=2.0>(ones, g, b)"),
        ("y = Relu(z)", "y = Add(z, b)"),
        ("Gemm(ones, g, b)", "Gemm(ones, g, b) u = ReduceSum<keepdims=0>(w)"),
        ("y = Relu(z)", "u = ReduceSum<keepdims=0>(new_b) y = Add(z, u)"),
    ],
    ids=[
        "joined",
        "weighted",
        "another gradient",
        "a factor",
        "intercepts read",
        "a weight read",
        "the update read",
    ],
)
def test_each_condition(old, new):
    model = parser.parse_model(_UPDATE.replace(old, new) if old else _UPDATE)
    graph = to_ir(onnx.shape_inference.infer_shapes(model)).graph
    inputs = list(graph.inputs)
    found = join_intercepts(graph, list(zip(inputs, graph.outputs, strict=False))[:2])
    assert bool(found) is (old == "")
    assert len(graph.inputs) == len(inputs) - bool(found)


@pytest.mark.parametrize("is_small", [True, False])
def test_blocks_have_room_for_the_rows_without_ones(is_small, monkeypatch):
    """Those of large data are gathered, and then copied beside the ones."""
    monkeypatch.setattr(batches, "_SMALL_TABLE", 80 * 5 * 4 if is_small else 80 * 5 * 4 - 1)
    spec, (model, weights) = make_spec(**PLAIN), network(20, 3)
    y = np.zeros((80, 3), np.float32)
    data = Batches({"X": np.zeros((80, 5), np.float32)}, y, np.ones(80), 8, is_mean=True)
    apart = 0 if is_small else 5
    of_a_batch = 8 * 4 * (5 + apart + 3 + 3)
    monkeypatch.setattr(scan_epoch, "_BLOCK_BYTES", 4 * of_a_batch)
    step, buffers, _, _ = runners(model, spec, weights, data)
    loops = CompiledOnUse(lambda: step, spec, 1)
    loop = scan_epoch.EpochRunner(loops, step, buffers, data)
    loop.run(data.plan(np.arange(80)), numbers(spec, 10)[0], np.zeros(10))
    # the ones, and both weights of the samples, are beside them
    assert loop.nbytes == 4 * 8 * 4 * (6 + apart + 3 + 2)


def test_large_data_take_the_same_updates_between_small_ones(monkeypatch):
    """One runner takes data of any size, one after the other."""
    spec, (model, weights) = make_spec(**PLAIN), network(20, 3)
    rng = np.random.default_rng(2)
    y = np.eye(3, dtype=np.float32)[rng.integers(0, 3, 80)]
    X = rng.normal(size=(80, 5)).astype(np.float32)
    _, buffers, _, loop = runners(model, spec, weights, Batches({"X": X}, y, np.ones(80), 8, is_mean=True))
    start, found = buffers.snapshot(), []
    for most in (0, X.nbytes, 0, X.nbytes):
        monkeypatch.setattr(batches, "_SMALL_TABLE", most)
        loop.batches = data = Batches({"X": X}, y, np.ones(80), 8, is_mean=True)
        assert (data.with_ones("X") is None) is (most == 0)
        buffers.load(start)
        table, rates = numbers(spec, 10)
        loop.run(data.plan(np.arange(79, -1, -1)).descending(rates), table, np.zeros(10))
        found.append(buffers.snapshot())
    for others in found[1:]:
        for key, array in others.items():
            np.testing.assert_array_equal(array, found[0][key])
            assert not np.array_equal(array, start[key])
