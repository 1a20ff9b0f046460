"""Kernels of which a loop over batches carries the met taps."""

import numpy as np
import onnx
import pytest
from engine.step.mlp_step import carried, make_spec, numbers, read_network, run_both, runners, sizes_of

from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.scan_epoch import build_epoch
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.optimizers import SGD
from onnxsgd.runtime.sessions import make_session

_SHAPES = {"V": (16, 2, 3, 3), "W": (16, 16, 3, 3), "U": (3, 16)}
_NETWORK = """
<ir_version: 9, opset_import: ["" : 18]>
g (float[N,2,2,2] X) => (float[N,3] Y) {
    a = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(X, V)
    b = Relu(a)
    c = Conv<pads = [1, 1, 1, 1]>(b, W)
    d = Relu(c)
    e = Flatten(d)
    Y = Gemm<transB=1>(e, U)
}
"""


@pytest.fixture
def weights():
    rng = np.random.RandomState(0)
    return {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in _SHAPES.items()}


@pytest.fixture
def model(weights):
    return read_network(_NETWORK, weights)


def _spec(**options):
    plain = {"weights": tuple(_SHAPES), "penalised": frozenset(), "l2": False}
    return make_spec(**plain | options)


def _carried(model, spec):
    """Return the shapes of the tensors that the loop carries, by weight."""
    return dict(zip(_SHAPES, carried(build_step(model, spec), spec), strict=False))


@pytest.mark.parametrize("batch_size", [8, 32], ids=["few terms", "many terms"])
def test_the_loop_carries_the_met_taps_and_returns_whole_kernels(model, weights, batch_size):
    """Four taps of the first kernel meet images of 2 x 2, the centre of the second meets those of 1 x 1."""
    spec = _spec(batch_size=batch_size)
    assert _carried(model, spec) == {"V": (16, 2 * 4), "W": (16, 16), "U": (3, 16)}
    _check_loop(model, spec, weights)


def test_kernels_of_single_channels(weights):
    """The table has the rows of the kernel, and is not reshaped."""
    weights = {**weights, "W": weights["W"][:, :1]}
    model = read_network(
        _NETWORK.replace("Conv<pads = [1, 1, 1, 1]>", "Conv<pads = [1, 1, 1, 1], group = 16>"), weights
    )
    assert _carried(model, _spec()) == {"V": (16, 2 * 4), "W": (16, 1), "U": (3, 16)}
    _check_loop(model, _spec(), weights)


def _check_loop(model, spec, weights):
    """Compare the loop with single steps, and the taps that no image meets with those at the start."""
    rng = np.random.RandomState(1)
    X, y = (
        rng.normal(size=(90, 2, 2, 2)).astype(np.float32),
        np.eye(3, dtype=np.float32)[rng.randint(0, 3, 90)],
    )
    data = Batches({"X": X}, y, np.ones(90), spec.batch_size, True)
    _, buffers, step, loop = runners(model, spec, weights, data)
    table, rates = numbers(spec, data.n_batches)
    plan = data.plan(np.arange(90)).descending(rates)
    _, (one, by_steps), (many, found) = run_both(buffers, (step, loop), plan, table)
    np.testing.assert_allclose(many, one, rtol=1e-6)
    met = {"V": np.s_[:, :, 1:, 1:], "W": np.s_[:, :, 1:2, 1:2]}
    for (name, _), array in found.items():
        np.testing.assert_allclose(array, by_steps[name, WEIGHT], rtol=0, atol=1e-6)
        if name in met:
            moved = np.zeros(array.shape, bool)
            moved[met[name]] = True
            np.testing.assert_array_equal(array[~moved], weights[name][~moved])
            assert (array[moved] != weights[name][moved]).mean() > 0.5


@pytest.mark.parametrize(
    "options",
    [{"l2": True, "penalised": frozenset({"V", "W"})}, {"optimizer": SGD(0.9)}, {"average": True}],
    ids=["penalty", "momentum", "average"],
)
def test_weights_that_are_read_as_a_whole_stay_whole(model, options):
    """A penalty moves all taps; states have the shape of their weight."""
    shapes = _carried(model, _spec(**options)).values()
    assert _SHAPES["W"] in shapes
    assert (16, 16) not in shapes


def test_kernels_whose_taps_are_all_met_stay_whole(weights):
    text = _NETWORK.replace("float[N,2,2,2]", "float[N,2,14,14]")
    model = read_network(text.replace("e = Flatten(d)", "p = GlobalAveragePool(d) e = Flatten(p)"), weights)
    assert _carried(model, _spec()) == _SHAPES


def test_numbers_of_several_rows_stay_where_they_are(weights):
    """A product with columns of the identity that regroups the numbers of several rows picks no taps."""
    weights = {"V": np.ones((6, 2), np.float32), "W": np.ones((2, 2), np.float32), "U": weights["U"][:, :3]}
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[N,3] X) => (float[N,3] Y)
    <int64[2] s = {3, 4}, float[4, 3] e = {1,0,0, 0,1,0, 0,0,1, 0,0,0}>
    { r = Reshape(V, s) p = MatMul(r, e) h = MatMul(X, p) Y = Gemm<transB=1>(h, U) }"""
    spec = _spec(weights=("V", "U"))
    epoch = onnx.load_from_string(build_epoch(build_step(read_network(text, weights), spec), spec.loss))
    assert [sizes_of(value) for value in epoch.graph.input[:2]] == [(6, 2), (3, 3)]
    make_session(epoch.SerializeToString(), 1)
