"""Epochs: runs of neighbours in random order, and the early end of an epoch that diverges."""

import numpy as np
import pytest

from onnxsgd import OnnxSGDRegressor
from onnxsgd.engine.step.single_step import StepRunner
from onnxsgd.schedules import Auto
from onnxsgd.training import epochs
from onnxsgd.training.epochs import Numbers, _shifted


@pytest.mark.parametrize(("n", "size"), [(1, 8), (7, 8), (8, 8), (50, 8), (64, 16)])
def test_neighbours_are_drawn_together(n, size):
    """But for the last numbers, and those around the first one, in another way each time."""
    random_state = np.random.RandomState(0)
    orders = [_shifted(n, size, random_state) for _ in range(20)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(n))
        runs = order[: n // size * size].reshape(-1, size)
        assert (np.diff(runs, axis=1) % n == 1 % n).all()
    assert n == 1 or len({tuple(order) for order in orders}) > 1


def test_a_long_epoch_that_diverges_ends_early(monkeypatch):
    """At a rate far too large, epochs of 256 updates end after parts of 16 until the rate is small enough."""
    X = np.random.RandomState(0).normal(size=(2048, 3)).astype(np.float32)
    y = X @ np.array([1.0, -2.0, 0.5], np.float32)
    counts, run = [], StepRunner.run

    def counting(self, plan, scalars, losses):
        run(self, plan, scalars, losses)
        counts.append(self.n_done)

    monkeypatch.setattr(StepRunner, "run", counting)
    monkeypatch.setattr("onnxsgd.training.program._MANY_STEPS", 10**9)
    monkeypatch.setattr(epochs, "_PART", 16)
    model = OnnxSGDRegressor(
        learning_rate=Auto(eta0=500.0), batch_size=8, max_iter=15, tol=None, random_state=0
    )
    model.fit(X, y)
    undone = np.isinf(model.loss_curve_)
    assert undone[0]
    assert not undone[-1]
    assert len(undone) == model.n_iter_ == 15
    assert sum(counts) <= 256 * (~undone).sum() + 32 * undone.sum()
    np.testing.assert_allclose(model.learning_rates_[0], 500.0 / 2)
    assert model.score(X, y) > 0.999


def test_observed_epochs_have_the_rates_of_epochs_made_together():
    """A decay in windows of several epochs: single epochs, as an observer needs, change nothing."""
    X = np.random.RandomState(0).normal(size=(100, 3))
    y = X @ [1.0, -2.0, 0.5] + 0.1 * np.random.RandomState(1).normal(size=100)
    together, single = (OnnxSGDRegressor(random_state=0, verbose=verbose).fit(X, y) for verbose in (0, 1))
    np.testing.assert_allclose(together.learning_rates_, single.learning_rates_, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(together.coef_, single.coef_, rtol=1e-6)
    assert (np.diff(together.learning_rates_[-12:]) < 0).all()


def test_batches_after_a_skipped_update_have_the_numbers_of_the_one_before():
    """Two batches an update; the second column, which marks the last one, is that of the batch itself."""
    rates, updates = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0, 0, 1, 1, 2, 2, 3])
    table = np.column_stack([rates[updates], [0, 1, 0, 1, 0, 1, 1]])
    numbers = Numbers(table, rates, rates, {}, {}, updates, own=(1,))
    np.testing.assert_array_equal(numbers.of_part(slice(3, 7)), table[3:])
    numbers.n_skipped = 1
    np.testing.assert_array_equal(
        numbers.of_part(slice(3, 7)), [[0.1, 1.0], [0.2, 0.0], [0.2, 1.0], [0.3, 1.0]]
    )
    np.testing.assert_array_equal(numbers.last_rates(1), [0.3])
