"""The control of the rate: decisions on given losses."""

import math

import numpy as np
import pytest

from onnxsgd.training.descent import Descent, Verdict


def control(start=1.0, tol=1e-3, patience=2, n_windows=1000, **more):
    return Descent(
        **{"start": start, "unit": start, "tol": tol, "patience": patience, "n_updates": 10_000, "most": 16.0}
        | more,
        n_windows=n_windows,
    )


def factors(descent, losses):
    """Return the mean factor of each window until the end."""
    used = []
    for loss in losses:
        used.append(descent.factors(np.arange(2.0)).mean())
        descent.judge(loss)
        if descent.has_ended:
            break
    return used


def decay(length):
    """Return the mean factor of each window of a decay."""
    ends = (1 - np.arange(length + 1) / length) ** 1.5
    return (ends[1:] + ends[:-1]) / 2


@pytest.mark.parametrize("n_windows", [1, 2, 3])
def test_the_last_of_few_windows_is_a_decay(n_windows):
    descent = control(n_windows=n_windows, decays_in_window=True)
    used = factors(descent, [0.9, 0.8, 0.7])
    assert used == [*[1.0] * (n_windows - 1), *decay(1)]
    assert descent.has_ended
    assert not descent.has_converged
    constant = factors(control(n_windows=n_windows), [0.9, 0.8, 0.7])
    assert constant == ([1.0] * n_windows if n_windows < 3 else used)


def test_a_falling_loss_keeps_the_rate():
    descent = control()
    for number in range(1, 50):
        assert descent.judge(0.95**number) is Verdict.BETTER
        assert descent.factor == 1.0
    assert not descent.has_ended


def test_large_gains_of_short_windows_raise_the_rate():
    """By half for a gain of 1 % in 16 updates, up to 16 times."""
    descent = control(n_updates=16)
    for number in range(1, 10):
        descent.judge(0.989**number)
        assert descent.factor == pytest.approx(min(1.5**number, 16.0))
    descent.judge(0.989**9 * 0.991)
    assert descent.factor == 16.0


@pytest.mark.parametrize(("slope", "waits"), [(0.01, True), (0.0, False)])
def test_the_decay_waits_while_noise_hides_a_trend(slope, waits):
    """Every fourth window has the lowest loss; means over three fall by 0.03, or stay."""
    losses = [0.9 - slope * number + 0.02 * (number % 4 > 0) for number in range(1, 41)]
    usual, patient = control(patience=2), control(patience=2, trend=10.0)
    for loss in losses[:12]:
        usual.judge(loss)
        patient.judge(loss)
    assert usual.is_decaying
    assert patient.is_decaying != waits
    # the loss comes to rest
    for _ in range(8):
        patient.judge(losses[11])
    assert patient.is_decaying


@pytest.mark.parametrize(
    ("losses", "decays"),
    [([1.2, 1.1, 1.02, 1.01], False), ([1.2, 1.1995], True), ([0.9, 1.0, 0.95], True)],
    ids=["falls", "stays", "was better"],
)
def test_first_windows_that_fall_to_the_start_are_no_idle_ones(losses, decays):
    """As from a median, which a window at the first rate leaves."""
    descent = control(start=1.0, patience=2)
    for loss in losses:
        assert not descent.is_decaying
        descent.judge(loss)
    assert descent.is_decaying == decays


def test_gains_of_less_than_a_share_of_the_loss_keep_the_rate():
    descent = control(n_updates=16)
    for number in range(1, 10):
        descent.judge(0.991**number)
        assert descent.factor == 1.0


def test_a_decay_does_not_grow():
    descent = control(n_updates=16, n_windows=6)
    used = factors(descent, [0.8**number for number in range(1, 7)])
    # the mean of the two windows that are made together while the rate grows
    assert used == pytest.approx([1, 1.25 * 1.5, 1.25 * 1.5**2, 1.5**3, *(1.5**4 * decay(2))])


def test_a_rate_that_was_cut_does_not_grow():
    descent = control(n_updates=16)
    descent.judge(0.9)
    assert descent.factor == 1.5
    assert descent.judge(9.0) is Verdict.UNDONE
    assert descent.factor == 1.5 / 4
    descent.judge(0.8)
    assert descent.factor == 1.5 / 4


@pytest.mark.parametrize(
    ("loss", "expected"), [(2.0, [0.25, 0.375, 0.5625, 0.84375, 1.0, 1.0]), (math.inf, [0.25] * 6)]
)
def test_a_first_rate_that_overshot_grows_up_to_itself(loss, expected):
    """The first updates are the ones that overshoot, unless they diverge."""
    descent = control(n_updates=16)
    assert descent.judge(loss) is Verdict.UNDONE
    assert not descent.is_moving
    used = [descent.factor]
    for number in range(1, 6):
        descent.judge(0.9**number)
        used.append(descent.factor)
    assert used == expected


@pytest.mark.parametrize(
    ("options", "decays"), [({}, True), ({"is_cut_last": False}, False), ({"tol": None}, False)]
)
def test_the_cut_of_a_rate_that_grew_begins_the_decay(options, decays):
    descent = control(n_updates=16, **{"is_cut_last": True} | options)
    descent.judge(0.9)
    assert descent.judge(2.0) is Verdict.UNDONE
    assert descent.factor == 1.5 / 4
    assert descent.is_decaying == descent.has_converged == decays
    assert not descent.has_ended


def test_the_cut_of_the_first_rate_begins_no_decay():
    descent = control(n_updates=16, is_cut_last=True)
    assert descent.judge(2.0) is Verdict.UNDONE
    assert descent.judge(0.9) is Verdict.BETTER
    assert not descent.is_decaying


def test_windows_of_growing_rates_have_the_rates_that_those_before_lead_to():
    descent = control(n_updates=16, most=3.0)
    assert not descent.is_moving
    descent.judge(0.8)
    assert descent.is_moving
    windows = np.array([0.0, 0.5, 1.0, 1.5, 2.0])
    np.testing.assert_allclose(descent.factors(windows), [1.5, 1.5, 2.25, 2.25, 3.0])
    descent.judge(0.6, is_last=False)
    descent.judge(0.599, is_last=False)
    descent.judge(0.598)
    assert not descent.is_moving
    np.testing.assert_array_equal(descent.factors(windows), 2.25)


def test_a_decay_begins_after_windows_that_were_made_together():
    descent = control(n_updates=16)
    descent.judge(0.8)
    for is_last in (False, False, True):
        assert not descent.is_decaying
        descent.judge(0.8, is_last=is_last)
    assert descent.has_converged
    assert descent.n_ahead == 6


def test_short_windows_that_hardly_gain_are_made_together():
    """As many as begin the decay; two while the rate grows, single ones if many updates make a window."""
    descent = control(n_updates=16)
    ahead = []
    for loss in (0.5, 0.3, 0.2999, 0.2990, 0.29895, 0.2989):
        descent.judge(loss)
        ahead.append(descent.n_ahead)
    assert ahead == [2, 2, 1, 2, 1, 6]
    for n_updates, n_ahead in ((32, 2), (33, 1)):
        descent = control(n_updates=n_updates)
        descent.judge(0.998)
        assert descent.n_ahead == n_ahead


def test_windows_that_are_all_worse_than_the_best_cut_a_rate_that_may_be_too_large():
    """A loss that rises slowly is never undone, and a decay from such a rate ends far from the minimum."""
    for may_rise in (False, True):
        descent = control(may_rise=may_rise, patience=2)
        descent.judge(0.5)
        assert descent.judge(0.505) is Verdict.KEPT
        assert descent.judge(0.51) is (Verdict.UNDONE if may_rise else Verdict.KEPT)
        assert descent.is_decaying == (not may_rise)
    assert descent.factor == 0.25
    # one of them is next to the best
    descent.judge(0.4)
    descent.judge(0.4001)
    assert descent.judge(0.45) is Verdict.KEPT
    assert descent.is_decaying


def test_windows_of_which_the_last_one_is_the_first_without_gain_are_not_undone():
    descent = control(may_rise=True, patience=2)
    for loss in (0.5, 0.51, 0.45):
        descent.judge(loss)
    assert descent.judge(0.46) is Verdict.KEPT
    assert not descent.is_decaying


def test_decisions_after_each_window():
    """Whatever the losses are, but for a decay, which needs no decision."""
    descent, ahead = control(n_updates=16, looks_ahead=False), []
    for loss in (0.5, 0.3, 0.2999, 0.2990, 0.29895, 0.2989):
        descent.judge(loss)
        ahead.append(descent.n_ahead)
    assert ahead == [1, 1, 1, 1, 1, 6]


def test_the_first_windows_are_made_together_on_a_guess():
    """Their rates are those that single ones lead to if the first one gains much."""
    alone, together = control(n_updates=16), control(n_updates=16, guesses=True)
    assert together.is_guess
    assert together.n_ahead == 3
    np.testing.assert_array_equal(together.factors(np.arange(3.0)), [1.0, 1.5, 2.25])
    for loss in (0.8, 0.6, 0.58):
        alone.judge(loss)
        together.judge(loss)
    assert together.factor == alone.factor == 1.5**3
    assert not together.is_guess
    assert together.n_ahead == alone.n_ahead == 2


def test_windows_after_one_that_gained_very_much_are_made_on_a_guess():
    """Ten times the gain that raises the rate; four windows, of which the first two must gain much too."""
    descent = control(n_updates=16, guesses=True, sure=10.0)
    descent.judge(0.895)
    assert descent.is_guess
    assert descent.n_ahead == 4
    np.testing.assert_array_equal(descent.factors(np.arange(4.0)), 1.5 ** np.arange(1, 5))
    assert descent.bears_out([0.88, 0.87, 0.86, 0.85])
    for losses in ([0.88, 0.879, 0.86, 0.85], [0.895, 0.87, 0.86, 0.85], [0.88, 0.87, 0.88, 0.85]):
        assert not descent.bears_out(losses)
    assert descent.factor == 1.5
    # the largest rate would end the growth before the next decision
    assert control(n_updates=16, guesses=True, sure=10.0, most=2.0).is_guess
    low = control(n_updates=16, guesses=True, sure=10.0, most=3.3)
    low.judge(0.895)
    assert (low.is_guess, low.n_ahead) == (False, 2)


def test_a_guess_is_wrong_unless_the_first_window_gains_much():
    descent = control(n_updates=16, guesses=True)
    assert descent.bears_out([0.9, 0.8, 0.7])
    assert descent.bears_out([0.9, 0.8, 0.89])
    for losses in ([0.995, 0.8, 0.7], [1.1, 0.8, 0.7], [0.9, 0.8, 0.95], [math.inf], [0.9, 0.8, math.nan]):
        assert not descent.bears_out(losses)


@pytest.mark.parametrize(
    "more",
    [
        {"n_updates": 22},
        {"n_windows": 4},
        {"most": 1.0},
        {"tol": None},
        {"start": math.inf},
        {"guesses": False},
        {"looks_ahead": False},
    ],
)
def test_there_is_no_guess_where_a_decision_may_differ(more):
    descent = control(**{"n_updates": 21, "guesses": True} | more)
    assert not descent.is_guess
    assert descent.n_ahead == 1


def test_two_windows_without_gain_begin_a_decay():
    used = factors(control(), [0.5, 0.5, 0.5] + 20 * [0.4999])
    assert used == pytest.approx([1, 1, 1, *decay(6)])


def test_the_rate_falls_within_the_windows_of_the_decay():
    """Its end is zero: at a rate left over, the noise of a long window would remain."""
    descent, ends = control(), []
    for loss in [0.5, 0.5, 0.5] + 6 * [0.4999]:
        ends += list(descent.factors(np.arange(2.0)))
        descent.judge(loss)
    assert ends == pytest.approx([1] * 7 + [(part / 6) ** 1.5 for part in (5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0)])
    assert descent.has_ended


def test_a_long_descent_decays_for_a_third_of_its_length():
    descent = control()
    used = factors(descent, [0.99**number for number in range(1, 41)] + 60 * [0.669])
    assert len(used) == 42 + 14
    assert descent.has_converged


def test_training_continues_at_a_lower_rate_if_the_decay_gained():
    """A plateau of noise: the loss falls with the rate, by a fifth in the last window of the decay."""
    noisy, falling = [0.5, 0.5, 0.5], [0.47, 0.45, 0.41, 0.37, 0.33, 0.26]
    used = factors(control(), [*noisy, *falling, *(20 * [0.2599])])
    assert used == pytest.approx([1, 1, 1, *decay(6), *(2 * [0.25]), *used[11:]])
    assert used[11:] == pytest.approx(0.25 * decay(6))


def test_gains_are_shares_of_the_loss_but_not_of_tiny_ones():
    """Below a twentieth of the unit, gains are compared with that twentieth."""
    falling = [1.0 * 0.9995**number for number in range(30)]
    assert len(factors(control(start=1.0), falling)) == 2 + 6
    tiny = [1e-4 * 0.9**number for number in range(30)]
    assert len(factors(control(start=1.0), [1e-4, *tiny])) == 3 + 6


@pytest.mark.parametrize("loss", [1.3, math.inf, math.nan])
def test_a_growing_loss_is_undone_and_cuts_the_rate(loss):
    descent = control()
    assert descent.judge(loss) is Verdict.UNDONE
    assert descent.factor == 0.25
    assert descent.judge(0.9) is Verdict.BETTER
    assert descent.factor == 0.25
    assert descent.judge(0.91) is Verdict.KEPT
    assert descent.best == 0.9


def test_training_stops_when_no_rate_is_small_enough():
    descent = control()
    used = factors(descent, 100 * [math.inf])
    assert used == [0.25**number for number in range(13)]
    assert descent.has_converged


def test_a_start_at_zero_loss_is_kept():
    descent = control(start=0.0)
    assert descent.judge(1e-9) is Verdict.UNDONE
    assert descent.judge(0.0) is Verdict.KEPT


def test_a_constant_loss_of_zero_converges():
    descent = control(start=math.inf, unit=0.0)
    assert len(factors(descent, 100 * [0.0])) == 3 + 6
    assert descent.has_converged


def test_a_start_without_meaning_is_replaced_by_the_first_window():
    """The objective of a perceptron without weights is 0, the least of all."""
    descent = control(start=math.inf, unit=0.0)
    assert descent.judge(0.4) is Verdict.BETTER
    assert descent.unit == 0.4
    assert descent.judge(0.51) is Verdict.UNDONE
    assert control(start=math.inf, unit=0.0).judge(math.inf) is Verdict.UNDONE


def test_gains_of_a_bad_start_are_shares_of_a_constants_loss():
    """A start 1,000 times worse than a constant: steady gains of the constant's loss are gains."""
    descent = control(start=1000.0, unit=1.0)
    used = factors(descent, [1000.0 - 0.01 * number for number in range(1, 100)])
    assert used == 99 * [1.0]


def test_training_begins_with_a_share_of_the_rate():
    descent = control(share=0.2)
    assert descent.factor == 0.2
    descent.judge(9.0)
    assert descent.factor == 0.05


@pytest.mark.parametrize("n_windows", [1, 2, 3, 4, 10, 99])
@pytest.mark.parametrize("tol", [None, 1e-3])
def test_the_decay_fits_into_the_number_of_windows(n_windows, tol):
    descent = control(tol=tol, n_windows=n_windows)
    used = factors(descent, [0.9**number for number in range(1, 200)])
    assert len(used) == n_windows
    assert used == sorted(used, reverse=True)
    assert n_windows < 3 or used[-1] < 0.6
    assert used[0] == 1.0 or n_windows < 2
    assert not descent.has_converged


def test_without_a_tolerance_a_flat_loss_goes_on():
    assert len(factors(control(tol=None, n_windows=30), 100 * [0.5])) == 30


def test_training_ends_with_the_window_that_reaches_a_level():
    descent = control(level=0.5, n_updates=4, tol=1e-3)
    for loss in (0.8, 0.6, 0.51):
        assert descent.judge(loss) is Verdict.BETTER
        # a decision after each window
        assert descent.n_ahead == 1
        assert not descent.has_ended
    assert descent.judge(0.5) is Verdict.BETTER
    assert descent.has_ended
    assert descent.has_converged
    assert descent.is_at_level


def test_another_criterion_begins_the_decay():
    descent = control()
    descent.judge(0.9)
    descent.begin_decay()
    assert len(factors(descent, [0.9 * 0.9**number for number in range(100)])) == 6


def test_haste_begins_the_decay_while_the_loss_still_falls():
    """Gains of half a percent do not count; training does not go on without the decay."""
    losses = 0.995 ** np.arange(1, 60)
    assert not control(start=1.0).factor < 1
    n_windows = [len(factors(control(haste=haste), losses)) for haste in (1.0, 10.0)]
    assert n_windows[0] == 59 > n_windows[1]


@pytest.mark.parametrize("shift", [-50.0, 0.0, 1e4])
def test_a_loss_without_a_least_value_is_judged_by_its_unit(shift):
    """The same decisions wherever its zero is; a quarter of the unit above the best is undone."""
    descent = control(start=shift, unit=0.5, is_open=True, n_updates=16)
    assert descent.highest == pytest.approx(shift + 0.1255)
    assert descent.least_gain == pytest.approx(5e-4)
    assert descent.judge(shift - 0.3) is Verdict.BETTER
    assert descent.factor == 1.5
    assert descent.judge(shift - 0.2) is Verdict.KEPT
    assert descent.judge(shift - 0.1) is Verdict.UNDONE
    assert descent.best == pytest.approx(shift - 0.3)
