"""Rates against their formulas."""

import math

import pytest

from onnxsgd import schedules


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
    with pytest.raises(ValueError, match="'cosine'.*invscaling"):
        schedules.make_schedule("cosine", 0.1, 0.5, 0.1)
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
