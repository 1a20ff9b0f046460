"""Each named optimizer, schedule and penalty trains a line as plain numpy does, update by update."""

import itertools
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy_training import OPTIMIZERS, PENALTIES, SCHEDULES, fit_line

from onnxsgd import OnnxSGDRegressor
from onnxsgd.exceptions import ParameterError
from onnxsgd.schedules import Schedule

RNG = np.random.default_rng(0)
X = RNG.normal(size=(22, 5))
Y = X @ [1.0, -2.0, 0.0, 0.5, 0.02] + 0.3 + 0.1 * RNG.normal(size=22)
NUMBERS = {"eta0": 0.05, "power_t": 0.4, "alpha": 0.07, "l1_ratio": 0.35}


def compare(optimizer, schedule, penalty, **sgd):
    """Compare weights in float64 after three epochs, whose last batch is short."""
    estimator = OnnxSGDRegressor(
        optimizer=optimizer, learning_rate=schedule, penalty=penalty, batch_size=4, max_iter=3, tol=None,
        shuffle=False, dtype="float64", **NUMBERS, **sgd,
    ).fit(X, Y)  # fmt: skip
    coef, intercept = fit_line(X, Y, 3, 4, optimizer, schedule, penalty, **NUMBERS, **sgd)
    assert estimator.t_ == 18
    assert np.abs(coef).max() > 0.1
    # sums in another order
    np.testing.assert_allclose(estimator.coef_, coef, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(estimator.intercept_, [intercept], rtol=1e-10)


@pytest.mark.parametrize(("optimizer", "penalty"), [*itertools.product(OPTIMIZERS, PENALTIES)])
def test_optimizer_under_penalty(optimizer, penalty):
    compare(optimizer, "invscaling", penalty)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_momentum_under_penalty(penalty, nesterov):
    compare("sgd", "constant", penalty, momentum=0.8, nesterov=nesterov)


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "auto"])
def test_schedule(schedule):
    # Bottou's first rates are large, for which Adam's bounded steps are better suited than those of SGD
    compare("adam", schedule, "l2")


@dataclass(frozen=True)
class Linear(Schedule):
    """A rate that falls to zero at the last update."""

    n_updates: int | None = None
    initial = 0.2

    def for_updates(self, n_updates):
        if n_updates is None:
            raise ParameterError("the number of updates is unknown: call fit.")
        return replace(self, n_updates=n_updates)

    def rate(self, t, eta):
        return self.initial * np.maximum(0.0, 1 - t / self.n_updates)


def test_a_schedule_knows_the_number_of_updates():
    """22 rows in batches of 4 are 6 updates an epoch, 18 in three; a saved estimator remembers them."""
    estimator = OnnxSGDRegressor(learning_rate=Linear(), batch_size=4, max_iter=3, tol=None)
    estimator = pickle.loads(pickle.dumps(estimator.fit(X[:, :1], Y)))
    assert estimator._state.n_updates == 18
    assert estimator._state.eta == 0
    before = estimator.coef_
    estimator.partial_fit(X[:, :1], Y)
    assert (estimator.coef_ == before).all()


def test_a_schedule_without_the_number_of_updates_leaves_the_estimator_alone():
    estimator = OnnxSGDRegressor(learning_rate=Linear())
    with pytest.raises(ParameterError, match="call fit"):
        estimator.partial_fit(X, Y)
    assert not hasattr(estimator, "coef_")
    assert not hasattr(estimator, "n_iter_")
