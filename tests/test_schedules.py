"""Rates against their formulas."""

import math
from pathlib import Path

import numpy as np
import pytest
from numpy_training import SCHEDULES as PLAIN

from onnxsgd import schedules
from onnxsgd.exceptions import ParameterError, ParameterTypeError

#: Of each row of SCHEDULES: its rates between plateaus, in shares of the first; None: it stops at a plateau.
PLATEAUS = {
    "constant": None,
    "optimal": None,
    "invscaling": None,
    "adaptive": [1, 1 / 5, 1 / 25],
    "step": None,
    "exponential": None,
    "polynomial": None,
    "cosine": None,
    "cosine_restarts": None,
    "one_cycle": None,
    # it has plateaus of its own, and goes on until its rate is the least one
    "reduce_on_plateau": [1, 1],
    "auto": None,
}

with np.load(Path(__file__).parent / "data" / "schedules.npz") as _file:
    TORCH = dict(_file)
ETA0 = float(TORCH["eta0"])
N = 70
#: Schedules with the numbers of those of torch in ``data/make_schedule_reference.py``.
LIKE_TORCH = {
    "step": schedules.Step(ETA0, 0.4, every=15),
    "exponential": schedules.Exponential(ETA0, 0.97, every=1),
    "polynomial": schedules.Polynomial(ETA0, 0.9, n_updates=60),
    "cosine": schedules.Cosine(ETA0, 0.001),
    "cosine_restarts": schedules.CosineRestarts(ETA0, 0.02),
    "cosine_equal_restarts": schedules.CosineRestarts(ETA0, n_cycles=5, growth=1),
    "one_cycle": schedules.OneCycle(ETA0, 0.2, start_factor=0.1, end_factor=0.002),
    "one_cycle_default": schedules.OneCycle(ETA0),
    "warm_up_cosine": schedules.WarmUp(schedules.Cosine(ETA0, 0.001), 12),
    "warm_up_step": schedules.WarmUp(schedules.Step(ETA0, 0.4, every=15), 12),
    "warm_up_constant": schedules.WarmUp(schedules.Constant(ETA0), 12),
}
#: Those that last as long as a fit.
PLANNED = {"step", "exponential", "polynomial", "cosine", "cosine_restarts", "one_cycle"}


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


@pytest.mark.parametrize("name", LIKE_TORCH)
def test_rates_are_those_of_torch(name):
    """In one vector, from any update on, and one at a time."""
    schedule = LIKE_TORCH[name].for_updates(N)
    # torch multiplies the rate of the update before, and rounds 70 times
    np.testing.assert_allclose(schedule.rates(1, ETA0, N), TORCH[name], rtol=1e-9, atol=1e-16)
    np.testing.assert_allclose(schedule.rates(41, ETA0, 20), TORCH[name][40:60], rtol=1e-9, atol=1e-16)
    single = [schedule.rate(t, ETA0) for t in range(1, N + 1)]
    np.testing.assert_allclose(single, schedule.rates(1, ETA0, N), rtol=1e-15)


@pytest.mark.parametrize(
    ("name", "patience", "threshold"), [("plateau", 2, 0.05), ("plateau_impatient", 0, 0.0)]
)
def test_reductions_are_those_of_torch(name, patience, threshold):
    schedule = schedules.ReduceOnPlateau(ETA0, 0.5, patience, threshold, eta_min=0.004)
    eta, memory, rates = schedule.initial, (), []
    for loss in TORCH["losses"]:
        eta, memory = schedule.after_epoch(loss, eta, memory)
        rates.append(eta)
        assert (schedule.rates(5, eta, 3) == eta).all()
    np.testing.assert_allclose(rates, TORCH[name], rtol=1e-14)
    assert len(set(rates)) > 5
    assert schedule.after_plateau(eta) is None, "training may end at the least rate"


def test_a_share_of_a_negative_score_is_a_gain_too():
    """R2 can be negative: a share of its amount is the gain that counts."""
    schedule = schedules.ReduceOnPlateau(1.0, patience=0, threshold=0.1)
    eta, memory = schedule.after_epoch(2.0, 1.0, ())
    assert schedule.after_epoch(1.85, eta, memory)[0] == 0.1
    assert schedule.after_epoch(1.75, eta, memory)[0] == 1.0
    eta, memory = schedule.after_epoch(-2.0, 1.0, ())
    assert schedule.after_epoch(-2.15, eta, memory)[0] == 0.1
    assert schedule.after_epoch(-2.25, eta, memory)[0] == 1.0


def test_a_least_rate_above_the_first_one_leaves_it():
    assert schedules.ReduceOnPlateau(1e-9, patience=0).after_epoch(1.0, 1e-9, (0.5, 0))[0] == 1e-9


@pytest.mark.parametrize("name", sorted(PLANNED))
def test_a_schedule_stays_at_its_end(name):
    schedule = schedules.make_schedule(name, 0.3, 0.7, 0.02).for_updates(20)
    assert schedule.last_update == 20
    assert schedule.for_updates(1000) == schedule, "a known length is kept"
    after = schedule.rates(21, 0.3, 500)
    assert (after == after[0]).all()
    assert 0 <= after[0] <= schedule.rate(20, 0.3) < 0.3 / 19


@pytest.mark.parametrize("name", sorted(PLANNED))
def test_a_schedule_without_a_length_says_so(name):
    schedule = schedules.make_schedule(name, 0.3, 0.7, 0.02)
    assert schedule.last_update is None
    assert schedule.initial == pytest.approx(schedule.for_updates(9).rate(1, 0.3), rel=1e-12)
    for call in (lambda: schedule.for_updates(None), lambda: schedule.rate(1, 0.3)):
        with pytest.raises(ParameterError, match=r"eta0=0\.3.*needs a number of updates: give n_updates"):
            call()


@pytest.mark.parametrize("cls", [schedules.Step, schedules.Exponential])
def test_named_updates_between_factors_need_no_length(cls):
    schedule = cls(1.0, 0.5, every=4)
    assert schedule.for_updates(None) == schedule.for_updates(30) == schedule
    assert schedule.last_update is None
    assert schedule.rate(4001, 0.0) == 0.5**1000
    ended = cls(1.0, 0.5, every=4, n_updates=9)
    assert ended.last_update == 9
    assert ended.rate(9, 0.0) == ended.rate(10**6, 0.0) == 0.25


@pytest.mark.parametrize("name", sorted(PLANNED))
@pytest.mark.parametrize("n_updates", [1, 2, 3, 5])
def test_few_updates_have_finite_rates(name, n_updates):
    schedule = schedules.make_schedule(name, 0.3, 0.7, 0.02).for_updates(n_updates)
    rates = schedule.rates(1, 0.3, n_updates + 3)
    assert np.isfinite(rates).all()
    assert (rates >= 0).all()
    assert rates.max() <= 0.3 * (1 + 1e-15)
    assert rates[0] == pytest.approx(schedule.initial, rel=1e-12)


@pytest.mark.parametrize("n_batches", [1, 6])
@pytest.mark.parametrize("name", LIKE_TORCH)
def test_rates_by_epoch_are_those_of_torch_stepped_after_each_epoch(name, n_batches):
    schedule = schedules.ByEpoch(LIKE_TORCH[name]).for_epochs(n_batches).for_updates(N * n_batches)
    expected = np.repeat(TORCH[name], n_batches)
    np.testing.assert_allclose(schedule.rates(1, ETA0, N * n_batches), expected, rtol=1e-9, atol=1e-16)
    for start, count in [(1, 1), (6, 2), (40, 11), (N * n_batches, 1)]:
        part = schedule.rates(start, ETA0, count)
        np.testing.assert_allclose(part, expected[start - 1 : start - 1 + count], rtol=1e-9, atol=1e-16)
        assert schedule.rate(start, schedule.initial) == pytest.approx(part[0], rel=1e-14, abs=1e-16)
    last = LIKE_TORCH[name].for_updates(N).last_update
    assert schedule.last_update == (None if last is None else last * n_batches)


def test_a_warm_up_takes_a_tenth_of_a_fit_and_leaves_the_rest():
    schedule = schedules.WarmUp(schedules.Polynomial(1.0), start_factor=0.2).for_updates(50)
    assert schedule.n_warm_up == schedule.n_updates == 5
    assert schedule.schedule.n_updates == 45
    assert schedule.last_update == 50
    expected = [0.2, 0.36, 0.52, 0.68, 0.84, 1.0, 44 / 45, 43 / 45]
    np.testing.assert_allclose(schedule.rates(1, 1.0, 8), expected, rtol=1e-14)
    np.testing.assert_allclose(schedule.rates(4, 1.0, 5), expected[3:], rtol=1e-14)
    assert schedules.WarmUp(schedules.Constant(1.0)).for_updates(3).n_updates == 1


def test_a_warm_up_keeps_the_rate_that_plateaus_lowered():
    schedule = schedules.WarmUp(schedules.Adaptive(1.0), 4, start_factor=0.2)
    rates = schedule.rates(1, schedule.initial, 6)
    np.testing.assert_allclose(rates, [0.2, 0.4, 0.6, 0.8, 1, 1], rtol=1e-14)
    eta = schedule.after_plateau(rates[-1])
    np.testing.assert_allclose(schedule.rates(7, eta, 3), [0.2, 0.2, 0.2], rtol=1e-14)
    # the first update behind the rise begins at the rate of the other, not at the last one of the rise
    np.testing.assert_allclose(schedule.rates(5, rates[3], 2), [1, 1], rtol=1e-14)


def test_names_in_other_schedules_have_the_numbers_of_the_estimator():
    inside = schedules.ByEpoch(schedules.WarmUp("invscaling", 3))
    made = schedules.make_schedule(inside, 0.4, 0.7, 0.02)
    assert made == schedules.ByEpoch(schedules.WarmUp(schedules.InvScaling(0.4, 0.7), 3))
    assert inside == schedules.ByEpoch(schedules.WarmUp("invscaling", 3)), "the user's object is unchanged"


def test_a_function_by_epoch_gets_whole_numbers():
    seen = []
    made = schedules.make_schedule(
        schedules.ByEpoch(lambda epoch: seen.append(epoch) or 1 / epoch, 4), 1, 1, 1
    )
    np.testing.assert_array_equal(made.rates(3, 1.0, 8), [1, 1, 0.5, 0.5, 0.5, 0.5, 1 / 3, 1 / 3])
    assert seen == [1, 2, 3]
    assert all(type(epoch) is int for epoch in seen)
    assert not made.has_formula


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: schedules.WarmUp(3),
            "schedule=3 is not accepted: it must be a name, a Schedule or a callable",
        ),
        (lambda: schedules.WarmUp("cosine", 0), "n_updates=0.*whole number >= 1"),
        (lambda: schedules.WarmUp("cosine", start_factor=1), "start_factor=1 .*> 0 and < 1"),
        (lambda: schedules.ByEpoch("cosine", 1.5), "n_updates=1.5.*whole number >= 1"),
        (lambda: schedules.WarmUp("cosine").initial, r"WarmUp\(schedule='cosine'.* has no rates yet"),
        (lambda: schedules.WarmUp(schedules.Constant()).for_updates(None), "needs a number of updates"),
        (lambda: schedules.WarmUp(schedules.Constant()).rate(1, 0.1), "needs a number of updates"),
        (
            lambda: schedules.WarmUp(schedules.Cosine(), 5).for_updates(None),
            "Cosine.*needs a number of updates",
        ),
        (
            lambda: schedules.ByEpoch(schedules.Constant()).for_epochs(None),
            "needs the number of updates of an",
        ),
        (
            lambda: schedules.WarmUp(schedules.Cosine(), 8).for_updates(8),
            "n_updates=8.*none of the 8.*1 to 7",
        ),
        (lambda: schedules.make_schedule(schedules.WarmUp("auto"), 1, 1, 1), "'auto' finds its rates itself"),
        (lambda: schedules.make_schedule(schedules.ByEpoch("cosin"), 1, 1, 1), "'cosin'.*'cosine'"),
    ],
)
def test_schedules_around_others_refuse(call, message):
    with pytest.raises((ParameterError, ParameterTypeError), match=message):
        call()


def test_schedules_around_schedules_around_others():
    """Two rises follow each other; a rise in epochs is many updates long; epochs of epochs are epochs."""
    rise = schedules.WarmUp(schedules.WarmUp(schedules.Polynomial(1.0), 3), 2)
    assert rise.for_epochs(6).for_updates(30).n_warm_up == 5
    by_epoch = schedules.ByEpoch(rise).for_epochs(6).for_updates(31)
    assert (by_epoch.n_warm_up, by_epoch.last_update) == (30, 36)
    twice = schedules.ByEpoch(schedules.ByEpoch(schedules.Polynomial(1.0))).for_epochs(6).for_updates(31)
    once = schedules.ByEpoch(schedules.Polynomial(1.0)).for_epochs(6).for_updates(31)
    np.testing.assert_array_equal(twice.rates(1, 1.0, 40), once.rates(1, 1.0, 40))
    assert once.schedule.n_updates == 6, "a part of an epoch is one"


def test_an_inner_schedule_adapts_to_batches():
    class Root(schedules.Constant):
        def for_batches(self, rates, batch_size):
            return rates * math.sqrt(batch_size)

    for around in (schedules.WarmUp(Root(), 3), schedules.ByEpoch(Root(), 3)):
        assert around.for_batches(np.ones(2), 9).tolist() == [3, 3]


def test_a_long_warm_up_of_a_schedule_without_a_length():
    """A first fit may be shorter than the rise, which partial_fit continues."""
    schedule = schedules.WarmUp(schedules.Constant(1.0), 8).for_updates(3)
    assert schedule.rates(1, 1.0, 9)[-1] == 1


def test_cycles_are_whole_updates_and_fill_the_fit():
    """Also where the cycles are more than the updates, and grow beyond any number."""
    for n_updates, n_cycles, growth in [(100, 3, 2.0), (17, 4, 1.5), (5, 9, 1.0), (1000, 2000, 3.0)]:
        schedule = schedules.CosineRestarts(1.0, 0, n_cycles, growth, n_updates=n_updates)
        rates = schedule.rates(1, 1.0, n_updates)
        rises = np.flatnonzero(np.diff(rates) > 0) + 1
        assert rates[rises].tolist() == [1.0] * len(rises)
        assert len(rises) < n_cycles
        assert schedule.rate(n_updates + 1, 1.0) == 0
    assert len(rises) > 3


def test_rates_of_many_updates_take_no_loop():
    """A million rates in one call: calls of Python for each would be counted."""
    calls = []

    class Counted(schedules.Cosine):
        def rate(self, t, eta):
            calls.append(t)
            return super().rate(t, eta)

    assert len(Counted(0.1, n_updates=10**6).rates(1, 0.1, 10**6)) == 10**6
    assert len(calls) == 1


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
    with pytest.raises(ValueError, match="'invscale'.*Did you mean 'invscaling'"):
        schedules.make_schedule("invscale", 0.1, 0.5, 0.1)
    with pytest.raises(ValueError, match=r"'quick'.*invscaling.*callable\.$"):
        schedules.make_schedule("quick", 0.1, 0.5, 0.1)
    with pytest.raises(TypeError, match="3"):
        schedules.make_schedule(3, 0.1, 0.5, 0.1)
    with pytest.raises(TypeError, match=r"a class\. Give an object, Cosine\(\.\.\.\)"):
        schedules.make_schedule(schedules.Cosine, 0.1, 0.5, 0.1)
    with pytest.raises(ValueError, match="alpha must be > 0"):
        schedules.Optimal(0.0)
    with pytest.raises(ValueError, match="eta0=0"):
        schedules.Constant(0)
    with pytest.raises(ValueError, match="divisor=1"):
        schedules.Adaptive(0.1, divisor=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.Step(0.1, factor=1.0), "factor=1.0.*a finite number > 0 and < 1"),
        (lambda: schedules.Step(0.1, every=0), "every=0.*a whole number >= 1"),
        (lambda: schedules.Exponential(0.1, every=2.5), "every=2.5.*a whole number >= 1"),
        (lambda: schedules.Exponential(math.nan), "eta0=nan.*> 0"),
        (lambda: schedules.Polynomial(0.1, power=0), "power=0.*> 0"),
        (lambda: schedules.Polynomial(0.1, eta_min=0.2), "eta_min=0.2.*>= 0 and <= 0.1"),
        (lambda: schedules.Cosine(math.inf), "eta0=inf.*finite"),
        (lambda: schedules.Cosine(0.1, -1e-9), "eta_min=-1e-09.*>= 0"),
        (lambda: schedules.Cosine("0.1"), "eta0='0.1'.*number"),
        (lambda: schedules.Cosine(n_updates=-3), "n_updates=-3.*>= 1"),
        (lambda: schedules.CosineRestarts(n_cycles=0), "n_cycles=0"),
        (lambda: schedules.CosineRestarts(n_cycles=10**30), "n_cycles=1000.* from 1 to 10,000"),
        (lambda: schedules.Step(every=10**400), "every=1000.* whole number >= 1 and < 2.63"),
        (lambda: schedules.CosineRestarts(growth=0.5), "growth=0.5.*>= 1"),
        (lambda: schedules.ReduceOnPlateau(factor=1.5), "factor=1.5.*> 0 and < 1"),
        (lambda: schedules.ReduceOnPlateau(patience=-1), "patience=-1.*a whole number >= 0"),
        (lambda: schedules.ReduceOnPlateau(threshold=-0.1), "threshold=-0.1.*>= 0"),
        (lambda: schedules.Adaptive(eta_min=-1.0), "eta_min=-1.0.*>= 0"),
        (lambda: schedules.OneCycle(rise=1.0), "rise=1.0.*< 1"),
        (lambda: schedules.OneCycle(start_factor=0), "start_factor=0"),
        (lambda: schedules.OneCycle(end_factor=-1.0), "end_factor=-1.0.*>= 0"),
    ],
)
def test_numbers_outside_their_range_are_refused(make, message):
    with pytest.raises((ParameterError, ParameterTypeError), match=message):
        make()


def test_an_error_of_a_callable_is_its_own():
    def fail(t):
        raise ValueError("no file of rates")

    with pytest.raises(ValueError, match="^no file of rates$"):
        schedules.make_schedule(fail, 0.1, 0.5, 0.1).rate(1, 0.1)


@pytest.mark.parametrize("wrong", [lambda: 0.1, lambda t, eta: 0.1, lambda *, t: 0.1])
def test_a_callable_of_other_arguments_is_refused(wrong):
    with pytest.raises(ParameterTypeError, match="is not accepted .*a function takes one argument"):
        schedules.make_schedule(wrong, 0.1, 0.5, 0.1)


@pytest.mark.parametrize("usual", [lambda t, scale=0.1: scale / t, math.sqrt, np.float64, max])
def test_callables_whose_arguments_fit_or_are_unknown_are_taken(usual):
    assert schedules.make_schedule(usual, 0.1, 0.5, 0.1).function is usual


def test_a_callable_that_returns_no_number_is_refused():
    with pytest.raises(TypeError, match="returned no number"):
        schedules.make_schedule(lambda t: "fast", 0.1, 0.5, 0.1).rate(1, 0.1)
