"""The state between calls: slots of optimizers, rates of schedules and averages have owners."""

import math
import pickle

import numpy as np
import pytest
from numpy_training import OPTIMIZERS

from onnxsgd import OnnxSGDRegressor, schedules
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.optimizers import BlockAdam
from onnxsgd.training.state import fresh_state, is_far_above

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.3 + 0.1 * RNG.normal(size=16)


def line(**settings):
    """Return an estimator whose calls of ``partial_fit`` with X, Y make one update each."""
    given = {"learning_rate": "constant", "eta0": 0.05, "alpha": 0.1, "batch_size": 16} | settings
    return OnnxSGDRegressor(shuffle=False, dtype="float64", random_state=0, **given)


class Line:
    """The same line in plain numpy."""

    def __init__(self):
        self.w, self.b = np.zeros(3), 0.0

    def train(self, count, optimizer, eta=0.05, **sgd):
        """Make updates with new slots, which count them from 1."""
        move_w, move_b = OPTIMIZERS[optimizer](**sgd), OPTIMIZERS[optimizer](**sgd)
        for t in range(1, count + 1):
            residual = X @ self.w + self.b - Y
            self.w = move_w(self.w, X.T @ residual / len(X), t, eta, 0.1)
            self.b = move_b(self.b, residual.mean(), t, eta, 0.0)
            yield self.w


def calls(model, count):
    for _ in range(count):
        model.partial_fit(X, Y)
    return model


@pytest.mark.parametrize("first", ["sgd", "adam", "adamw", "block_adam"])
@pytest.mark.parametrize("second", ["sgd", "adam", "adamw", "block_adam"])
def test_another_optimizer_begins_with_its_own_slots(first, second):
    """Also after a pickle; the same optimizer again, later, begins anew."""
    settings = {"sgd": {"momentum": 0.8}}
    model, plain = line(), Line()
    for name in (first, second, first) if first != second else (first,):
        sgd = settings.get(name, {})
        model.set_params(optimizer=name, momentum=sgd.get("momentum", 0.0))
        model = pickle.loads(pickle.dumps(calls(model, 3)))
        *_, w = plain.train(3, name, **sgd)
        np.testing.assert_allclose(model.coef_, w, rtol=1e-12)


def test_new_numbers_of_an_optimizer_keep_its_slots():
    """Another momentum acts on the velocity of the first."""
    model = calls(line(momentum=0.9, penalty=None), 1)
    velocity = model.coef_.copy()
    gradient = X.T @ (X @ velocity + model.intercept_ - Y) / len(X)
    calls(model.set_params(momentum=0.5), 1)
    np.testing.assert_allclose(model.coef_, velocity + 0.5 * velocity - 0.05 * gradient, rtol=1e-12)


def test_standardised_coordinates_own_the_slots_too():
    """BlockAdam under "auto" has moments of standardised data, under a named rate those of raw data."""
    model = calls(line(learning_rate="auto", eta0=None), 3)
    # "auto" begins at the mean of the targets, where the gradient of the intercept is rounding noise
    model.set_weights({"intercept": [1.0]})
    model.set_params(learning_rate="constant", eta0=0.05, optimizer=BlockAdam())
    plain = Line()
    plain.w, plain.b = model.coef_.copy(), model.intercept_[0]
    calls(model, 2)
    *_, w = plain.train(2, "block_adam")
    np.testing.assert_allclose(model.coef_, w, rtol=1e-10)
    assert np.isfinite(
        calls(model.set_params(learning_rate="auto", eta0=None, optimizer=None), 1).coef_
    ).all()


def test_another_schedule_begins_with_its_own_rate():
    """A rate that plateaus lowered belongs to the schedule that lowered it, with its numbers."""
    model = line(learning_rate="adaptive", max_iter=40, tol=1e9, n_iter_no_change=1).fit(X, Y)
    assert model.learning_rates_[-1] < 0.01
    low = model._state.eta
    assert calls(model, 1).learning_rates_[-1] == low
    assert calls(model.set_params(eta0=0.2), 1).learning_rates_[-1] == 0.2
    assert calls(model.set_params(learning_rate="constant"), 1).learning_rates_[-1] == 0.2
    again = pickle.loads(pickle.dumps(model.set_params(learning_rate="adaptive", eta0=0.1)))
    assert calls(again, 1).learning_rates_[-1] == 0.1


class Halving(schedules.Schedule):
    """A rate that depends on the one before, of a class without a text of its own."""

    initial = 0.1
    has_formula = False

    def rate(self, t, eta):
        return eta / 2


@pytest.mark.parametrize("rate", [Halving(), schedules.WarmUp(Halving(), 2)], ids=["plain", "behind a rise"])
def test_a_saved_rate_belongs_to_an_equal_schedule(rate):
    model = calls(line(learning_rate=rate, eta0=None), 4)
    low = model._state.eta
    assert low < 0.1
    again = pickle.loads(pickle.dumps(model))
    assert calls(again, 1).learning_rates_[-1] == low / 2


def test_an_average_that_begins_anew_counts_from_there():
    """Between two averages a call without one: the second is the mean of the weights of its own updates."""
    model, plain = line(average=True), Line()
    early = [*plain.train(3, "sgd")]
    np.testing.assert_allclose(calls(model, 3).coef_, np.mean(early, axis=0), rtol=1e-12)
    calls(model.set_params(average=False), 1)
    [*plain.train(1, "sgd")]
    late = [*plain.train(4, "sgd")]
    np.testing.assert_allclose(
        calls(model.set_params(average=True), 4).coef_, np.mean(late, axis=0), rtol=1e-12
    )
    calls(model.set_params(average=False), 1)
    [*plain.train(3, "sgd")]
    # updates 12, 13 and 14, though the averages are kept from 10 on
    late = [*plain.train(3, "sgd")]
    np.testing.assert_allclose(
        calls(model.set_params(average=12), 5).coef_, np.mean(late, axis=0), rtol=1e-12
    )


def test_training_does_not_change_a_copy():
    state = fresh_state({"w": np.ones(2)}, 0.05, 0)
    state.moments = {"x": None}
    copy = state.copy()
    state.moments["x"], state.tensors, state.t = 1, {}, 5
    state.loss_curve.append(1.0)
    assert (copy.moments, len(copy.tensors), copy.t) == ({"x": None}, 1, 0)
    assert copy.loss_curve == [1.0], "records are those of all parts"


def test_a_stream_begins_anew_after_a_loss_ten_times_those_before():
    state = fresh_state({"w": np.ones(2)}, 0.05, 0)
    state.tensors["w", "first_moment"] = np.ones(2)
    state.t, state.moments = 40, {"x": None}
    state.loss_curve = [9.0, 0.3, 0.1, 0.2, 0.1, 0.3, 0.1, 0.2, 0.1]
    assert not state.has_jumped
    state.loss_curve.append(2.9)
    assert not state.has_jumped
    state.loss_curve[-1] = 3.1
    assert state.has_jumped
    assert state.is_jump(3.1)
    assert not state.is_jump(2.9)
    state.loss_curve = state.loss_curve[-4:]
    assert not state.has_jumped, "too few calls to tell"
    state.forget()
    assert [kind for _, kind in state.tensors] == [WEIGHT]
    assert (state.slots_from, state.forgotten_at, state.moments) == (40, 40, {})


@pytest.mark.parametrize(
    ("loss", "curve", "penalty", "expected"),
    [
        (1.0, [], 0.0, True),
        (1.0, [0.2], 0.0, False),
        (3.0, [0.2], 0.0, True),
        (3.0, [0.5, 0.2], 0.0, False),
        # the last eight count
        (3.0, [0.5, *[0.2] * 8], 0.0, True),
        # most of the objective is the penalty
        (3.0, [100.2, 100.1], 100.0, True),
        # the weights have grown far beyond those before
        (3.0, [0.5], 100.0, True),
        (math.nan, [0.5], 0.0, True),
        (-11.0, [-12.0, -11.5], 0.0, False),
    ],
)
def test_a_loss_far_above_those_before(loss, curve, penalty, expected):
    assert is_far_above(loss, curve, penalty) == expected
