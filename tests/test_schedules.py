"""Rates against their formulas."""

import math

import numpy as np
import pytest
from numpy_training import SCHEDULES as PLAIN

from onnxsgd import schedules

#: Of each row of SCHEDULES: its rates between plateaus, in shares of the first; None: it stops at a plateau.
PLATEAUS = {
    "constant": None,
    "optimal": None,
    "invscaling": None,
    "adaptive": [1, 1 / 5, 1 / 25],
    "auto": None,
}


def test_every_schedule_has_a_case():
    assert set(schedules.SCHEDULES) == set(PLATEAUS) == set(PLAIN)


@pytest.mark.parametrize("name", PLATEAUS)
@pytest.mark.parametrize("start", [1, 90])
def test_rates_agree_with_numpy(name, start):
    """One at a time, and many in a vector; the first is the one that a fit starts with."""
    numbers = {"eta0": 0.3, "power_t": 0.7, "alpha": 0.02}
    schedule = schedules.make_schedule(name, **numbers).for_updates(200)
    expected = [PLAIN[name](t, **numbers, n_updates=200) for t in range(start, start + 40)]
    assert schedule.initial == pytest.approx(PLAIN[name](1, **numbers, n_updates=200), rel=1e-12)
    single = [schedule.rate(t, schedule.initial) for t in range(start, start + 40)]
    np.testing.assert_allclose(single, expected, rtol=1e-12)
    np.testing.assert_allclose(schedule.rates(start, schedule.initial, 40), expected, rtol=1e-12)


@pytest.mark.parametrize("name", PLATEAUS)
def test_rates_after_plateaus(name):
    schedule = schedules.make_schedule(name, 0.3, 0.7, 0.02)
    eta = schedule.initial
    if PLATEAUS[name] is None:
        assert schedule.after_plateau(eta) is None
        return
    for expected in PLATEAUS[name]:
        np.testing.assert_allclose(schedule.rates(7, eta, 4), [0.3 * expected] * 4, rtol=1e-12)
        eta = schedule.after_plateau(eta)


def test_constant_and_adaptive():
    assert schedules.Constant(0.3).rate(17, 0.3) == 0.3
    adaptive = schedules.Adaptive(1.0)
    assert adaptive.after_plateau(1.0) == pytest.approx(0.2, rel=1e-15)
    assert adaptive.rate(9, 0.2) == 0.2
    assert adaptive.after_plateau(1e-6) is None
    assert schedules.Constant(0.3).after_plateau(0.3) is None


def test_invscaling():
    assert schedules.InvScaling(0.5, 0.25).rate(16, math.nan) == pytest.approx(0.25, rel=1e-15)


def test_optimal_starts_at_the_typical_weight_and_falls_as_one_over_t():
    schedule = schedules.Optimal(1e-4)
    assert schedule.rate(1, math.nan) == pytest.approx(10.0, rel=1e-12)
    assert 1 / schedule.rate(1001, math.nan) - 1 / schedule.rate(1, math.nan) == pytest.approx(0.1, rel=1e-9)


def test_a_callable_is_a_schedule():
    schedule = schedules.make_schedule(lambda t: 1 / t, 0.1, 0.5, 0.1)
    assert schedule.initial == 1.0
    assert schedule.rate(4, math.nan) == 0.25


@pytest.mark.parametrize("bad", [-1.0, math.inf, math.nan])
def test_a_callable_must_return_a_rate(bad):
    with pytest.raises(ValueError, match="finite numbers >= 0"):
        schedules.make_schedule(lambda t: bad, 0.1, 0.5, 0.1).rate(3, 0.1)


def test_refusals_name_the_value():
    with pytest.raises(ValueError, match="'quick'.*invscaling"):
        schedules.make_schedule("quick", 0.1, 0.5, 0.1)
    with pytest.raises(TypeError, match="3"):
        schedules.make_schedule(3, 0.1, 0.5, 0.1)
    with pytest.raises(ValueError, match="alpha must be > 0"):
        schedules.Optimal(0.0)
    with pytest.raises(ValueError, match="eta0=0"):
        schedules.Constant(0)
    with pytest.raises(ValueError, match="divisor=1"):
        schedules.Adaptive(0.1, divisor=1)


def test_a_callable_that_returns_no_number_is_refused():
    with pytest.raises(TypeError, match="returned no number"):
        schedules.make_schedule(lambda t: "fast", 0.1, 0.5, 0.1).rate(1, 0.1)
