"""The loop over batches inside the runtime."""

from dataclasses import dataclass, replace

import numpy as np
import onnx
import pytest
from engine.step.mlp_step import make_spec, numbers, run_both, runners
from onnx import parser

from onnxsgd.engine.step import scan_epoch
from onnxsgd.engine.step.idle_runners import CompiledOnUse
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.graph.model import to_ir
from onnxsgd.losses import Loss, SquaredError
from onnxsgd.optimizers import SGD, Adam


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": SGD(0.9)},
        {"optimizer": SGD(0.9, True), "l1": True, "average": True},
        {"optimizer": Adam(), "loss": SquaredError()},
    ],
    ids=["momentum", "nesterov-l1-average", "adam"],
)
def test_the_loop_gives_the_very_numbers_of_single_steps(model, weights, data, options):
    spec = make_spec(**options)
    _, buffers, step, loop = runners(model, spec, weights, data)
    table, rates = numbers(spec, data.n_batches)
    plan = data.plan(np.arange(53))
    if spec.optimizer.takes_scaled_gradient:
        plan = plan.descending(rates)
    start, (one, by_steps), (many, found) = run_both(buffers, (step, loop), plan, table)
    assert loop.n_done == step.n_done == 7
    np.testing.assert_allclose(many, one, rtol=1e-6)
    for key, array in found.items():
        np.testing.assert_array_equal(array, by_steps[key])
        assert not np.array_equal(array, start[key])


def test_blocks_have_room_for_the_scores_of_their_batches(model, weights, data, monkeypatch):
    """Those of a language model take hundreds of times the memory of its data."""
    spec = make_spec()
    step, buffers, _, _ = runners(model, spec, weights, data)
    loops = CompiledOnUse(lambda: step, spec, 1)
    of_data, of_scores = 8 * 4 * (5 + 3), 8 * 4 * 3
    monkeypatch.setattr(scan_epoch, "_BLOCK_BYTES", 4 * (of_data + of_scores))
    sizes = []
    for n_outputs in (3, 3 + 5 + 3 + 3, 1000):
        loop = scan_epoch.EpochRunner(loops, replace(step, n_outputs=n_outputs), buffers, data)
        loop.run(data.plan(np.arange(53)), numbers(spec, data.n_batches)[0], np.zeros(data.n_batches))
        sizes.append(loop.nbytes)
    assert sizes == [4 * sizes[-1], 2 * sizes[-1], sizes[-1]]


@pytest.mark.parametrize(("share", "n_batches"), [(1.0, 7), (0.5, 4), (0.0, 1)])
def test_blocks_are_longer_with_large_weights(model, weights, data, monkeypatch, share, n_batches):
    """Each call reads and writes all weights: for a ResNet-18, as long as half an update."""
    spec = make_spec()
    step, buffers, _, _ = runners(model, spec, weights, data)
    loops = CompiledOnUse(lambda: step, spec, 1)
    of_a_batch = 8 * 4 * (5 + 3 + 3)
    monkeypatch.setattr(scan_epoch, "_BLOCK_BYTES", 0)
    monkeypatch.setattr(scan_epoch, "_SHARE_OF_WEIGHTS", share * 8 * of_a_batch / buffers.nbytes)
    loop = scan_epoch.EpochRunner(loops, step, buffers, data)
    calls = []
    monkeypatch.setattr(buffers, "flip", calls.append)
    loop.run(data.plan(np.arange(53)), numbers(spec, data.n_batches)[0], np.zeros(data.n_batches))
    assert calls[0] == n_batches
    assert sum(calls) == 7


_WITH_SUBGRAPHS = {
    "a gradient by time steps": """u = Unsqueeze(X, two) t = Transpose<perm = [1, 0, 2]>(u)
        v = Concat<axis = 0>(t, t) y, h = LSTM<hidden_size = 4>(v, W, R) s = Squeeze(h, zero)
        Y = MatMul(s, V)""",
    "branches with names of the loop": """a = MatMul(X, U) c = ReduceMax(a) d = Greater(c, one)
        h = If(d) <
            then_branch = t () => (float[N,4] "all/step/X") { "all/step/X" = Tanh(a) },
            else_branch = e () => (float[N,4] "step/a") { "step/a" = Relu(a) }
        > Y = MatMul(h, V)""",
    "results without names": """a = MatMul(X, U) u = Unsqueeze(a, zero)
        "", p = LSTM<hidden_size = 4>(u, P, R) "", q = LSTM<hidden_size = 4>(u, Q, R)
        i = ArgMax<axis = 2>(p) j = ArgMax<axis = 2>(q) k = Squeeze(i, zero) l = Squeeze(j, zero)
        b = GatherElements<axis = 1>(a, k) c = GatherElements<axis = 1>(a, l)
        s = Concat<axis = 1>(b, c) Y = MatMul(s, S)""",
}


@pytest.mark.parametrize("nodes", _WITH_SUBGRAPHS.values(), ids=_WITH_SUBGRAPHS)
def test_the_loop_takes_steps_with_subgraphs(nodes, data):
    rng, sizes = np.random.RandomState(0), {"U": (5, 4), "V": (4, 3), "S": (2, 3)}
    sizes |= {"W": (1, 16, 1), "P": (1, 16, 4), "Q": (1, 16, 4), "R": (1, 16, 4)}
    weights = {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in sizes.items()}
    numbers_of = {"zero": np.array([0]), "two": np.array([2]), "one": np.float32([1])}
    text = f'<ir_version: 9, opset_import: ["" : 18]> g (float[N,5] X) => (float[N,3] Y) {{ {nodes} }}'
    proto = parser.parse_model(text)
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name)
        for name, array in (weights | numbers_of).items()
        if name in used
    )
    trained = {name: weights[name] for name in ("U", "V", "W", "S") if name in used}
    spec = make_spec(weights=tuple(trained), penalised=frozenset(), l2=False)
    model = to_ir(onnx.shape_inference.infer_shapes(proto))
    _, buffers, step, loop = runners(model, spec, trained, data)
    table, rates = numbers(spec, data.n_batches)
    plan = data.plan(np.arange(53)).descending(rates)
    _, (one, by_steps), (many, found) = run_both(buffers, (step, loop), plan, table)
    np.testing.assert_allclose(many, one, rtol=1e-6)
    for (name, kind), array in found.items():
        np.testing.assert_array_equal(array, by_steps[name, kind])
        assert np.abs(array - trained[name]).max() > 1e-4


@dataclass(frozen=True)
class Offset(Loss):
    """Its gradient does not depend on the target."""

    def value(self, op, y_true, raw_prediction):
        return op.Sub(raw_prediction, y_true)

    def gradient(self, op, y_true, raw_prediction):
        return op.Add(op.Mul(raw_prediction, 0.0), 1.0)


def test_the_loop_takes_a_loss_whose_gradient_ignores_the_target(model, weights, data):
    _, _, step, loop = runners(model, make_spec(loss=Offset()), weights, data)
    table, rates = numbers(make_spec(), data.n_batches)
    plan = data.plan(np.arange(53)).descending(rates)
    one, many = np.zeros(data.n_batches), np.zeros(data.n_batches)
    loop.run(plan, table, many)
    step.buffers.load({(name, WEIGHT): array for name, array in weights.items()})
    step.run(plan, table, one)
    np.testing.assert_allclose(many, one, rtol=1e-6)


def test_a_loss_that_is_not_finite_ends_the_run(model, weights, data):
    spec = make_spec()
    _, _, step, loop = runners(model, spec, {**weights, "W1": np.full((5, 12), 1e38, np.float32)}, data)
    table, rates = numbers(spec, data.n_batches)
    plan = data.plan(np.arange(53)).descending(rates)
    for runner, n_done in [(step, 1), (loop, 3)]:
        runner.run(plan, table, np.zeros(data.n_batches))
        assert runner.n_done == n_done


def test_calls_of_all_sizes_share_their_arrays(model, weights, data, monkeypatch):
    """Parts of a stream have any length: their memory is that of the largest, and the numbers stay right."""
    monkeypatch.setattr(scan_epoch, "_MOST_SIZES", 2)
    spec = make_spec(optimizer=Adam())
    _, buffers, step, loop = runners(model, spec, weights, data)
    table, _ = numbers(spec, data.n_batches)
    plan = data.plan(np.arange(53))
    start, sizes = buffers.snapshot(), []
    for n_batches in (1, 2, 7, 5, 4, 1, 3):
        part, found = slice(0, n_batches), []
        for runner in (step, loop):
            buffers.load(start)
            losses = np.zeros(n_batches)
            runner.run(plan.part(part), table[part], losses)
            assert runner.n_done == n_batches
            found.append((losses, buffers.snapshot()))
        (one, by_steps), (many, by_loop) = found
        np.testing.assert_allclose(many, one, rtol=1e-6)
        for key, array in by_loop.items():
            np.testing.assert_array_equal(array, by_steps[key])
        sizes.append(loop.nbytes)
    of_batch = sizes[0]
    # 7 batches in calls of at most 3 are 3, 3 and 1; 5 are 3 and 2, a third size, which frees the others
    assert sizes == [of_batch * n for n in (1, 2, 3, 2, 2, 2, 3)]
