"""The loop over batches inside the runtime."""

from dataclasses import dataclass

import numpy as np
import pytest
from engine.step.mlp_step import make_spec, numbers, runners

from onnxsgd.engine.step import scan_epoch
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.losses import Loss, SquaredError
from onnxsgd.optimizers import SGD, Adam


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": SGD(0.9, True), "l1": True, "average": True},
        {"optimizer": Adam(), "loss": SquaredError()},
    ],
    ids=["sgd", "nesterov-l1-average", "adam"],
)
def test_the_loop_gives_the_very_numbers_of_single_steps(model, weights, data, options):
    spec = make_spec(**options)
    _, buffers, step, loop = runners(model, spec, weights, data)
    table, rates = numbers(spec, data.n_batches)
    plan = data.plan(np.arange(53))
    if spec.optimizer.takes_scaled_gradient:
        plan = plan.descending(rates)
    start = buffers.snapshot()
    one, many = np.zeros(data.n_batches), np.zeros(data.n_batches)
    step.run(plan, table, one)
    by_steps = buffers.snapshot()
    buffers.load(start)
    loop.run(plan, table, many)
    assert loop.n_done == step.n_done == 7
    np.testing.assert_allclose(many, one, rtol=1e-6)
    for key, array in buffers.snapshot().items():
        np.testing.assert_array_equal(array, by_steps[key])
        assert not np.array_equal(array, start[key])


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
    spec = make_spec()
    _, buffers, step, loop = runners(model, spec, weights, data)
    table, rates = numbers(spec, data.n_batches)
    plan = data.plan(np.arange(53)).descending(rates)
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
