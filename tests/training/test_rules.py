"""Rules on a problem of one number: the state after each epoch, and the weights that are returned."""

import math
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from onnxsgd import OnnxSGDClassifier
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.exceptions import ConvergenceError
from onnxsgd.optimizers import LOG_FACTOR
from onnxsgd.schedules import Auto
from onnxsgd.training.fit_kind import FitKind
from onnxsgd.training.rules import DescentRule, StreamRule
from onnxsgd.training.start import Start
from onnxsgd.training.state import FitState
from onnxsgd.training.stopping import Stopping

KEY = ("w", WEIGHT)


class Problem:
    """The objective w^2, of which a test chooses the path."""

    def __init__(
        self, start=1.0, n_batches=32, score=None, begins=True, share=1.0, is_model=True,
        is_linear=True, put_back=None, is_regression=False, is_other=False, is_sparse=False,
        level=-math.inf, length=math.inf, n_rows=1000, has_margins=False,
        n_hinges=0, has_scale=True, most_share=1.0, has_rare_classes=False, **stopping
    ):  # fmt: skip
        self.state = FitState({KEY: np.array(start)}, eta=0.05, random_state=np.random.RandomState(0))
        self.loaded = []
        stopping = Stopping(**{"max_iter": 100, "tol": 1e-3, "n_iter_no_change": 2, **stopping})
        self.rule = DescentRule(
            stopping,
            self.state,
            FitKind(
                n_batches,
                n_rows,
                is_sparse,
                is_linear,
                is_other=is_other,
                is_regression=is_regression,
                has_margins=has_margins,
                n_hinges=n_hinges,
                has_scale=has_scale,
                most_share=most_share,
                tells_rare_classes=lambda: has_rare_classes,
            ),
            lambda state: Start(self.objective, self.objective, share, is_model, level, length),
            lambda: self.objective,
            self.loaded.append,
            score,
            put_back,
        )
        if begins:
            self.rule.begin()

    @property
    def objective(self):
        return float(self.state.tensors[KEY]) ** 2

    def move(self, to, loss=None, score=None):
        self.state.tensors = {KEY: np.array(to)}
        self.state.t += 32
        return self.rule.after_epochs([to**2 if loss is None else loss], score)


@pytest.mark.parametrize("is_linear", [False, True])
@pytest.mark.parametrize("is_exponential", [False, True])
def test_losses_of_exponentials_may_rise_at_too_large_a_rate(is_linear, is_exponential):
    kind = FitKind(16, 500, is_linear=is_linear, is_regression=True, is_exponential=is_exponential)
    settings = kind.settings(Stopping(max_iter=100, tol=1e-3))
    assert settings["may_rise"] == (is_linear and is_exponential)


@pytest.mark.parametrize(
    ("given", "n_epochs"),
    [
        ({"n_hinges": 10}, 1),
        ({"n_hinges": 1}, 1),
        ({"n_hinges": 10, "n_batches": 15}, 2),
        ({"n_hinges": 10, "is_sparse": False}, 2),
        ({}, 2),
    ],
)
def test_hinges_on_sparse_data_have_a_decision_after_each_long_window(given, n_epochs):
    problem = Problem(**{"n_batches": 16, "n_rows": 5000, "is_sparse": True, "is_linear": True} | given)
    problem.move(0.5)
    assert problem.rule.n_epochs == n_epochs


def test_weights_before_a_bad_window_are_restored():
    problem = Problem(n_batches=40)
    problem.move(0.5)
    problem.move(3.0)
    assert problem.state.tensors[KEY] == 0.5
    assert problem.state.t == 32
    assert problem.state.eta == 0.05 * 1.5 / 4
    assert [tensors[KEY] for tensors in problem.loaded] == [1.0, 0.5]


def test_a_window_that_ended_worse_than_its_mean_is_no_measure():
    """Its weights are restored, and judged by their objective."""
    problem = Problem(n_batches=40)
    problem.move(0.9, loss=0.1)
    problem.move(3.0)
    assert problem.state.tensors[KEY] == 0.9
    problem.move(0.8)
    assert problem.state.tensors[KEY] == 0.8
    assert problem.state.eta == 0.05 * 1.5 / 4


def test_the_start_decides_the_first_rate():
    assert Problem(share=0.1).state.eta == pytest.approx(0.005)


def test_a_window_that_diverges_at_its_end_is_undone():
    """Its mean loss is the best one so far."""
    problem = Problem(n_batches=8)
    path = [(0.8, 0.64), (0.7, 0.5), (0.6, 0.4), (0.5, 0.3), (0.2, 0.04), (0.95, 0.9)]
    for weight, loss in path:
        problem.move(weight, loss=loss)
    assert problem.state.tensors[KEY] == 0.7


@pytest.mark.parametrize("is_single", [True, False])
def test_windows_of_growing_rates_are_made_together(is_single):
    """Each has the rate that the one before leads to; the weights between them are not kept."""
    problem = Problem(n_batches=8)
    problem.rule.after_epochs([0.8, 0.7], None)
    assert problem.rule.n_epochs == 4
    losses, used = [0.6, 0.5, 0.4, 3.0], []
    problem.state.tensors = {KEY: np.array(0.1)}
    for part in ([loss] for loss in losses) if is_single else [losses]:
        used.append(problem.rule.rates(len(part)))
        problem.rule.after_epochs(part, None)
    rates = np.concatenate(used)
    np.testing.assert_allclose(rates, 0.05 * 1.5 ** np.repeat([1, 2], 16))
    assert problem.state.tensors[KEY] == 1.0
    assert problem.state.eta == pytest.approx(0.05 * 1.5**2 / 4)


def test_windows_made_on_a_wrong_guess_are_made_anew():
    """The state is that before them, but for random numbers; the decision then follows on the first one."""
    calls = []
    problem = Problem(n_batches=8, is_model=False, put_back=lambda: calls.append(None))
    assert problem.rule.n_epochs == 6
    problem.state.record(np.full(6, 0.999), np.full(6, 0.05))
    assert not problem.move(0.3, loss=0.999)
    assert problem.rule.n_taken_back == 0
    assert not problem.rule.after_epochs([0.999, 0.9, 0.9, 0.9, 0.9], None)
    assert problem.rule.n_taken_back == 6
    assert len(calls) == 1
    state = problem.state
    assert (state.tensors[KEY], state.t, state.loss_curve, state.learning_rates) == (1.0, 0, [], [])
    assert [tensors[KEY] for tensors in problem.loaded] == [1.0, 1.0]
    assert problem.rule.n_epochs == 2
    np.testing.assert_array_equal(problem.rule.rates(2), 0.05)
    problem.move(0.5, loss=0.9)
    assert problem.rule.n_taken_back == 0


def test_windows_made_on_a_right_guess_are_kept():
    problem = Problem(n_batches=8, is_model=False, put_back=lambda: pytest.fail("nothing is made anew"))
    np.testing.assert_allclose(problem.rule.rates(6), 0.05 * 1.5 ** np.repeat([0, 1, 2], 16))
    problem.rule.after_epochs([0.9, 0.8, 0.7, 0.7, 0.6, 0.6], None)
    assert problem.rule.n_taken_back == 0
    assert problem.state.eta == pytest.approx(0.05 * 1.5**3)


def test_the_copy_is_returned_if_it_is_better_than_the_last_weights():
    problem = Problem()
    problem.move(0.3, loss=0.5)
    problem.move(0.9, loss=0.55)
    problem.rule.end()
    assert problem.state.tensors[KEY] == 0.3


@pytest.mark.parametrize(
    ("is_linear", "last", "is_looked_at"), [(True, 0.45, False), (True, 0.55, True), (False, 0.45, True)]
)
def test_a_last_window_far_below_the_start_is_its_own_measure(is_linear, last, is_looked_at):
    """Of a linear model, at the end of a decay: the exact objective changes nothing then."""
    problem = Problem(is_linear=is_linear)
    while not problem.rule._descent.is_decaying:
        problem.move(0.9)
    n_epochs = problem.rule.n_epochs
    for loss in np.linspace(0.6, last, n_epochs):
        ends = problem.move(0.5, loss=loss)
    assert ends
    looks = []
    problem.rule._objective = lambda: looks.append(None) or 0.25
    problem.rule.end()
    assert bool(looks) == is_looked_at
    assert problem.state.tensors[KEY] == 0.5


def test_weights_before_the_end_of_a_decay_are_looked_at():
    """A callback may end a fit in a window whose last updates diverge, which its mean does not show."""
    problem = Problem()
    problem.move(0.9, loss=0.2)
    problem.state.tensors = {KEY: np.array(3.0)}
    problem.rule.end()
    assert problem.state.tensors[KEY] == 0.9


@pytest.mark.parametrize(
    ("is_regression", "n_iter_no_change", "goes_on"), [(False, 2, False), (False, 40, True), (True, 2, True)]
)
def test_small_classifiers_of_little_patience_end_with_their_first_decay(
    is_regression, n_iter_no_change, goes_on
):
    """Though its last window gains 300 times the gain that counts."""
    problem = Problem(n_batches=8, is_regression=is_regression, n_iter_no_change=n_iter_no_change)
    while not problem.rule._descent.is_decaying:
        problem.move(0.9)
    n_epochs = problem.rule.n_epochs
    for number in range(n_epochs):
        ends = problem.move(0.9, loss=0.81 if number < n_epochs - 2 else 0.5)
    assert ends == (not goes_on)


def test_the_score_of_a_constant_is_no_score_to_beat():
    """Zeros have the accuracy of the majority, which no first epoch of a balanced loss reaches."""
    problem = Problem(score=lambda weights: 0.97, on_score=True, is_model=False)
    problem.move(0.9, score=0.8)
    problem.move(0.8, score=0.7)
    problem.rule.end()
    assert problem.state.tensors[KEY] == 0.9


def test_divergence_is_undone():
    problem = Problem()
    problem.move(0.5)
    problem.move(1e12, loss=math.inf)
    assert problem.state.tensors[KEY] == 0.5


@pytest.mark.parametrize("loss", [0.9, 0.01])
@pytest.mark.parametrize("max_iter", [1, 2, 3, 100])
def test_worse_weights_than_the_first_are_never_returned(loss, max_iter):
    """The mean loss of each window may look better than the objective at its end."""
    problem = Problem(max_iter=max_iter)
    for _ in range(min(3, max_iter)):
        problem.move(1.5, loss=loss)
    with pytest.warns(ConvergenceWarning, match="did not lower the objective"):
        problem.rule.end()
    assert problem.state.tensors[KEY] == 1.0
    assert problem.state.t == 0


@pytest.mark.parametrize("is_other", [False, True])
def test_the_objective_after_a_whole_decay_is_the_mean_of_its_last_window(is_other):
    """Unless the losses are those of another function, or there is none below half the first objective."""
    problem = Problem(n_batches=32, is_other=is_other)
    for number in range(100):
        if problem.move(1.5, loss=0.01 - 1e-8 * number):
            break
    assert problem.rule._descent.ends_at_best
    assert problem.rule._objective_in_the_end() == (1.5**2 if is_other else problem.rule._descent.best)


def test_weights_worse_than_a_first_objective_of_zero_are_not_returned():
    problem = Problem(start=0.0)
    while not problem.move(0.5, loss=0.0):
        pass
    problem.rule.end()
    assert problem.state.tensors[KEY] == 0.0


@pytest.mark.parametrize("tol", [1e-3, 0.0, None])
def test_a_fit_that_returns_the_first_weights_says_so(tol):
    """Without a `tol` no gain is too small, but none is still none."""
    problem = Problem(tol=tol)
    problem.move(1.5, loss=2.0)
    with pytest.warns(ConvergenceWarning, match="did not lower the objective"):
        problem.rule.end()
    assert problem.state.tensors[KEY] == 1.0


def test_first_weights_without_a_loss_are_kept_without_a_word():
    problem = Problem(start=0.0)
    problem.move(0.0, loss=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem.rule.end()


def test_better_weights_are_returned_without_a_word():
    problem = Problem()
    problem.move(0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem.rule.end()
    assert problem.state.tensors[KEY] == 0.9


def test_a_rule_that_was_interrupted_before_it_began_changes_nothing():
    problem = Problem(begins=False)
    problem.rule.end()
    assert problem.state.tensors[KEY] == 1.0


def test_first_weights_without_an_objective_are_refused():
    with pytest.raises(ConvergenceError, match="objective of the first weights is inf"):
        Problem(start=math.inf)


def test_a_model_without_an_objective_is_refused_though_a_constant_has_one():
    problem = Problem(begins=False)
    problem.rule._find_start = lambda state: Start(math.inf, 1.0, 1.0)
    with pytest.raises(ConvergenceError, match="objective of the first weights is inf"):
        problem.rule.begin()


@pytest.mark.parametrize(
    ("is_linear", "is_regression", "length", "n_windows"),
    [(True, True, 3, 2), (True, False, 3, 1), (False, False, 4, 2)],
)
def test_a_window_has_a_few_updates_at_least(is_linear, is_regression, length, n_windows):
    """12 for a linear model, else 16."""
    problem = Problem(n_batches=5, is_linear=is_linear, is_regression=is_regression)
    assert problem.rule.n_epochs == length
    for _ in range(length - 1):
        problem.move(3.0)
    assert problem.state.tensors[KEY] == 3.0
    assert problem.rule.n_epochs == 1
    problem.move(3.0)
    assert problem.state.tensors[KEY] == 1.0
    assert problem.rule.n_epochs == n_windows * length


@pytest.mark.parametrize(
    ("n_batches", "is_linear", "is_regression", "n_idle"),
    [
        (31, True, True, 3), (31, True, False, 2), (32, True, True, 4), (32, True, False, 4),
        (31, False, False, 4), (4, True, True, 2), (4, True, False, 1),
    ],
)  # fmt: skip
def test_patience_is_a_share_of_n_iter_no_change(n_batches, is_linear, is_regression, n_idle):
    """A half; with few updates a third for linear regressors, and a fifth for linear classifiers.

    These wait for a window at least, the others for two.
    """
    problem = Problem(
        n_batches=n_batches, is_linear=is_linear, is_regression=is_regression, n_iter_no_change=8
    )
    n_windows = 0
    while not problem.rule._descent.is_decaying:
        for _ in range(problem.rule.n_epochs):
            problem.move(1.0)
        n_windows += 1
        assert n_windows < 10
    assert problem.rule._descent._n_done == n_idle


@pytest.mark.parametrize(
    ("is_regression", "has_rare_classes", "n_epochs"),
    [(True, False, 12), (False, False, 10), (False, True, 12)],
)
def test_a_linear_classifier_with_few_updates_has_a_shorter_decay(is_regression, has_rare_classes, n_epochs):
    problem = Problem(n_batches=8, is_regression=is_regression, has_rare_classes=has_rare_classes)
    while not problem.rule._descent.is_decaying:
        problem.move(0.9)
    assert problem.rule.n_epochs == n_epochs


@pytest.mark.parametrize(
    ("n_batches", "is_sparse", "is_regression", "most_idle"),
    [
        (12, False, False, 10), (12, False, True, 1), (32, False, False, 1),
        (12, True, False, 30), (12, True, True, 10), (32, True, False, 30),
    ],
)  # fmt: skip
@pytest.mark.parametrize("share", [0.4, 1.2])
def test_small_gains_begin_the_decay_sooner(n_batches, is_sparse, is_regression, most_idle, share):
    """Windows are idle that gain less than some times `tol`: more on sparse data, and with labels."""
    problem = Problem(n_batches=n_batches, is_sparse=is_sparse, is_regression=is_regression)
    objective = 1.0
    for _ in range(6):
        objective *= 1.0 - share * most_idle * 1e-3
        problem.move(math.sqrt(objective))
    assert problem.rule._descent.is_decaying == (share < 1)


@pytest.mark.parametrize(("n_batches", "n_updates"), [(8, 40), (16, 48), (39, 78), (40, 40), (94, 94)])
def test_a_level_is_reached_in_40_updates_or_in_a_window_at_least(n_batches, n_updates):
    """By steps of the rate in one direction."""
    problem = Problem(n_batches=n_batches, is_regression=True, level=0.5, length=0.3)
    assert problem.state.eta == pytest.approx(0.3 / n_updates)
    short = Problem(n_batches=n_batches, is_regression=True, level=0.5, length=0.3, max_iter=3, tol=1e-9)
    assert short.state.eta >= problem.state.eta


@pytest.mark.parametrize(
    ("kind", "n_rows", "most_idle", "gain", "continues"),
    [
        ("likelihood", 4095, 2, 0.12, False), ("likelihood", 4095, 2, 0.15, True),
        ("margins", 4095, 2, 0.06, False), ("margins", 4095, 2, 0.08, True),
        ("hinge", 4095, 2, 0.25, False), ("hinge", 4095, 2, 0.3, True),
        ("likelihood", 4096, 3, 0.08, False), ("likelihood", 4096, 3, 0.10, True),
        ("margins", 4096, 3, 0.08, False), ("margins", 4096, 3, 0.10, True),
        ("hinge", 4096, 3, 0.25, False), ("hinge", 4096, 3, 0.3, True),
        ("hinges", 4095, 2, 0.25, False), ("hinges", 4095, 2, 0.3, True),
        ("hinges", 4096, 3, 0.25, False), ("hinges", 4096, 3, 0.3, True),
        ("perceptron", 4095, 2, 0.25, False), ("perceptron", 4096, 3, 0.3, True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("n_batches", [8, 40])
def test_a_sparse_classifier_trains_on_after_a_decay_that_gains_much(
    n_batches, kind, n_rows, most_idle, gain, continues
):
    """In its last window 150 times `tol`, as a share of the loss there, 80 times a loss of margins.

    Of many rows 100 times; hinges 400 times. Windows without gain of many rows have half of the epochs of
    `n_iter_no_change`, in place of a fifth. The decay has four windows, six of other losses of margins.
    """
    problem = Problem(
        n_batches=n_batches, is_sparse=True, n_rows=n_rows, n_iter_no_change=5,
        has_margins=kind != "likelihood", has_scale=kind != "perceptron",
        n_hinges={"hinge": 1, "hinges": 3, "perceptron": 1}.get(kind, 0),
    )  # fmt: skip
    n_windows = 0
    while not problem.rule._descent.is_decaying:
        problem.move(1.0)
        n_windows += 1
    n_epochs = problem.rule.n_epochs
    assert (n_windows, n_epochs) == (most_idle, 6 if kind in ("margins", "perceptron") else 4)
    loss = 1.0
    for number in range(n_epochs):
        loss *= 1.0 - gain if number == n_epochs - 1 else 1.0
        has_ended = problem.move(math.sqrt(loss), loss=loss)
    assert has_ended == (not continues)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_more_patience_asks_for_smaller_gains(is_sparse):
    problem = Problem(n_batches=12, is_sparse=is_sparse, n_iter_no_change=20)
    objective = 1.0
    for _ in range(12):
        objective *= 1.0 - (12e-3 if is_sparse else 2e-3)
        problem.move(math.sqrt(objective))
    assert not problem.rule._descent.is_decaying


def test_a_classifier_waits_where_rows_keep_their_order():
    """The loss of rows sorted by class grows in some windows, and falls again."""
    X, y = (array[:400] for array in load_digits(return_X_y=True))
    order = np.argsort(y, kind="stable")
    model = OnnxSGDClassifier(shuffle=False).fit(X[order], y[order])
    assert model.score(X, y) > 0.99


def test_short_windows_of_a_classifier_are_made_two_by_two():
    """A call takes as long as 24 updates: so many are made at once where each window could be the last."""
    problem = Problem(n_batches=12)
    problem.move(0.9999)
    assert problem.rule._descent.is_decaying
    problem = Problem(n_batches=12)
    problem.move(0.8)
    while problem.rule._descent._may_grow:
        problem.move(float(problem.state.tensors[KEY]) * 0.997)
    assert problem.rule.n_epochs == 2


def test_gains_of_a_few_updates_raise_the_rate_of_a_linear_model():
    used = []
    for n_batches, is_linear in ((5, True), (200, True), (5, False)):
        problem = Problem(n_batches=n_batches, is_linear=is_linear)
        for _ in range(problem.rule.n_epochs):
            problem.move(0.97)
        used.append(problem.state.eta)
    assert used == pytest.approx([0.075, 0.05, 0.05])


@pytest.mark.parametrize("max_iter", [1, 2, 9, 10, 11, 20, 1000])
def test_all_epochs_are_made(max_iter):
    """The last window has the remainder, with a callback after each epoch or without."""
    for is_single in (False, True):
        problem = Problem(n_batches=10, max_iter=max_iter, tol=None)
        n_epochs, ends = 0, False
        while not ends:
            count = 1 if is_single else problem.rule.n_epochs
            n_epochs += count
            ends = problem.rule.after_epochs([0.9**n_epochs] * count, None)
        assert n_epochs == max_iter


def test_a_start_that_hardly_changes_is_reported():
    problem = Problem()
    problem.move(0.99999)
    with pytest.warns(ConvergenceWarning, match="only from 1 to 0.99998"):
        problem.rule.end()
    assert problem.state.tensors[KEY] == 0.99999


def test_few_epochs_have_three_windows():
    problem = Problem(n_batches=1, max_iter=9)
    assert problem.rule.n_epochs == 3
    used = []
    for number in range(9):
        used.append(problem.rule.rates(1).item())
        ends = problem.move(0.9**number)
    assert ends
    falling = 0.1125 * np.array([1, 2 / 3, 1 / 3]) ** 1.5
    np.testing.assert_allclose(used, [0.05] * 3 + [0.075] * 3 + [*falling])
    assert not problem.rule.has_converged


@pytest.mark.parametrize("is_single", [True, False])
def test_a_decay_is_judged_at_its_end(is_single):
    """With a callback after each epoch or without: a copy in between would depend on it."""
    problem, n_calls = Problem(), 0
    for weight in (0.9, 0.9, 0.9):
        problem.move(weight)
    length = problem.rule.n_epochs
    assert length == 6
    losses = [0.8, 0.7, 0.79, 0.78, 0.77, 0.76]
    problem.state.tensors = {KEY: np.array(0.5)}
    for part in ([loss] for loss in losses) if is_single else [losses]:
        n_calls += len(part)
        problem.state.tensors = {KEY: np.array(math.sqrt(part[-1]))}
        ends = problem.rule.after_epochs(part, None)
        assert ends == (n_calls == length)
    problem.rule.end()
    assert problem.state.tensors[KEY] == math.sqrt(0.76)


def test_a_decay_that_diverges_is_undone_at_once():
    problem = Problem()
    for weight in (0.9, 0.9, 0.9):
        problem.move(weight)
    rates = problem.rule.rates(6)
    problem.move(0.8)
    problem.move(1e9, loss=math.inf)
    assert problem.state.tensors[KEY] == 0.9
    np.testing.assert_allclose(problem.rule.rates(1), rates[32:64] / 4)


@pytest.mark.parametrize("is_single", [True, False])
@pytest.mark.parametrize(("last", "weight"), [(0.58, 0.3), (1.3, 0.9)])
def test_noise_at_the_beginning_of_a_decay_undoes_it_only_if_it_lasts(is_single, last, weight):
    problem = Problem(n_batches=32)
    for _ in range(3):
        problem.move(0.9)
    assert problem.rule.n_epochs == 6
    problem.state.tensors = {KEY: np.array(0.3)}
    losses = [1.5, 1.4, 0.7, 1.3, 0.6, last]
    for part in ([loss] for loss in losses) if is_single else [losses]:
        ends = problem.rule.after_epochs(part, None)
    assert ends == (last < 1)
    assert problem.state.tensors[KEY] == weight


def test_fewer_epochs_may_be_left_than_a_decay_has():
    """A window of the decay was undone, and its other epochs are spent."""
    problem = Problem(n_batches=8, max_iter=22, is_regression=True)
    for _ in range(6):
        problem.move(0.9)
    assert problem.rule.n_epochs == 12
    problem.rule.after_epochs([9.0] * 12, None)
    assert problem.rule.n_epochs == 4
    problem.rule.after_epochs([0.8] * 4, None)
    problem.rule.end()
    assert problem.state.tensors[KEY] == 0.9


def test_long_epochs_are_made_alone():
    problem = Problem(n_batches=1000)
    for weight in (0.9, 0.9, 0.9):
        problem.move(weight)
    assert problem.rule.n_epochs == 1


def scored(start_score, path):
    """Return the weight that is returned after a path of (weight, score)."""
    problem = Problem(score=lambda weights: start_score, on_score=True)
    for weight, score in path:
        problem.move(weight, score=score)
    problem.rule.end()
    return problem


def test_the_best_score_is_returned():
    assert scored(0.1, [(0.9, 0.5), (0.8, 0.7), (0.7, 0.6)]).state.tensors[KEY] == 0.8


def test_the_first_weights_are_returned_if_none_score_better():
    with pytest.warns(ConvergenceWarning, match="No weights scored better"):
        assert scored(0.9, [(0.9, 0.5), (0.8, 0.7)]).state.tensors[KEY] == 1.0


def test_a_score_without_gain_ends_training():
    with pytest.warns(ConvergenceWarning, match="No weights scored better"):
        problem = scored(0.5, [(0.9 * 0.9**number, 0.5) for number in range(2)])
    assert problem.rule.has_converged


@pytest.mark.parametrize(
    ("more", "least"),
    [({"is_regression": True}, 32), ({}, 128), ({"is_regression": True, "is_sparse": True}, 128),
     ({"is_regression": True, "most_share": 0.25}, 128), ({"is_linear": False}, None)],
)  # fmt: skip
@pytest.mark.parametrize("max_iter", [1, 2])
def test_the_last_of_one_or_two_epochs_is_a_decay_if_there_are_many_updates(more, least, max_iter):
    for n_batches in (15, 16, 31, 32, 63, 64, 127, 128, 1000):
        rule = Problem(n_batches=n_batches, max_iter=max_iter, **more).rule
        if max_iter == 2:
            assert not rule._descent.is_decaying
            rule.after_epochs([0.9], None)
        assert rule._descent.is_decaying == (least is not None and max_iter * n_batches >= least)


@pytest.mark.parametrize(
    ("more", "n_rows", "begins"),
    [({}, 1000, True), ({}, 5000, False), ({"has_margins": True}, 1000, False),
     ({"has_margins": True, "n_hinges": 1}, 1000, True), ({"n_hinges": 1}, 5000, True),
     ({"has_margins": True, "n_hinges": 3}, 1000, False), ({"n_hinges": 3}, 5000, False)],
)  # fmt: skip
def test_the_decay_of_sparse_classifiers_begins_where_a_rate_that_grew_is_cut(more, n_rows, begins):
    problem = Problem(is_sparse=True, n_rows=n_rows, **more)
    for loss in (0.5, 0.2):
        problem.move(math.sqrt(loss))
    problem.move(2.0)
    assert problem.rule._descent.is_decaying == begins


class Part:
    """A part of a stream whose objective is w^2, of which a test chooses the weight and the recorded loss."""

    def __init__(self, weight=1.0, curve=(1.0, 1.0, 1.0), has_scale=True):
        tensors = {KEY: np.array(weight), ("w", LOG_FACTOR): np.zeros(1)}
        self.state = FitState(tensors, eta=0.05, random_state=np.random.RandomState(0))
        self.state.loss_curve, self.state.learning_rates = list(curve), [0.05] * len(curve)
        self.gives_up, self.loaded = False, []
        self.rule = StreamRule(
            Stopping(max_iter=1, tol=None, in_parts=True), Auto(), self.state, load=self.loaded.append,
            loss=lambda state: float(state.tensors[KEY]) ** 2, penalty=lambda state: 0.05, unit=lambda: 1.0,
            has_scale=has_scale, give_up=self.give_up,
        )  # fmt: skip
        self.rule.begin()

    def give_up(self):
        self.gives_up = True

    def move(self, to, loss):
        """Make the part; return whether it is to be made anew."""
        self.state.tensors = self.state.tensors | {KEY: np.array(to)}
        self.state.t += 1
        self.state.record(np.array([loss]), np.array([self.state.eta]))
        self.rule.after_epochs([loss], None)
        return bool(self.rule.n_taken_back)

    @property
    def weight(self):
        return float(self.state.tensors[KEY])


def test_a_part_that_diverged_is_made_anew_at_a_smaller_rate():
    part = Part()
    assert part.rule.limit == math.inf
    assert part.move(1e3, 1e6)
    assert part.weight == 1.0
    assert part.state.t == 0
    assert part.state.loss_curve == [1.0, 1.0, 1.0]
    assert float(part.loaded[-1][KEY]) == 1.0
    assert part.state.eta == pytest.approx(0.005)
    assert part.move(1.0, math.nan)
    assert part.state.eta == pytest.approx(0.0005)
    assert not part.move(0.9, 0.9)
    assert part.weight == 0.9
    assert part.state.loss_curve == [1.0, 1.0, 1.0, 0.9]
    assert part.state.eta == 0.05
    # later parts begin at the rate that did not diverge, as far as the bound of the factor allows
    assert part.state.factor == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("curve", "to", "loss"),
    [
        # the loss is usual
        ((1.0, 1.0, 1.0), 3.0, 9.0),
        # the loss is unusual, but not larger than before
        ((1e-3, 1e-3), 0.9, 0.5),
        # the first part: the loss is little larger than before
        ((), 1.2, 1.3),
    ],
)
def test_a_part_that_did_not_diverge_is_kept(curve, to, loss):
    part = Part(curve=curve)
    assert not part.move(to, loss)
    assert part.weight == to
    assert part.state.factor == 1.0


def test_losses_without_a_scale_are_not_compared():
    part = Part(has_scale=False)
    assert not part.move(1e3, 1e6)
    assert part.move(1e3, math.inf)


def test_a_part_that_diverges_at_all_rates_changes_no_weight():
    part = Part()
    rates = []
    for _ in range(4):
        rates.append(part.state.eta)
        assert part.move(math.nan, math.nan)
    with pytest.warns(ConvergenceWarning, match="changes no weight.*name a learning_rate"):
        assert not part.move(math.nan, math.nan)
    assert part.weight == 1.0
    assert part.state.t == 0
    assert part.state.loss_curve == [1.0, 1.0, 1.0, 1.05]
    np.testing.assert_allclose(rates, 0.05 / 10.0 ** np.arange(4))


def test_a_part_whose_first_loss_is_not_finite_is_an_error():
    part = Part(weight=math.inf)
    with pytest.raises(ConvergenceError, match="is inf before any update"):
        part.move(1.0, math.inf)
    assert part.gives_up
