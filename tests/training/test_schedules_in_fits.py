"""Schedules in fits: their end, ``partial_fit``, warm starts, saved estimators, searches."""

import itertools
import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, schedules
from onnxsgd.exceptions import ParameterError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = X @ [1.0, -2.0, 0.5, 0.0] + 0.3 + 0.5 * RNG.normal(size=60)
#: 60 rows in batches of 16: the updates of an epoch.
N_BATCHES = 4


def regressor(learning_rate, **more):
    settings = {"batch_size": 16, "max_iter": 20, "shuffle": False, "random_state": 0}
    # objects have rates of their own
    settings["eta0"] = 0.1 if isinstance(learning_rate, str) else None
    return OnnxSGDRegressor(learning_rate=learning_rate, **settings | more)


def falling(t):
    return 0.1 / t


@pytest.mark.parametrize(
    "name", ["step", "exponential", "polynomial", "cosine", "cosine_restarts", "one_cycle"]
)
def test_a_schedule_is_not_cut_before_its_end(name):
    """With the default `tol`, which ends a constant rate early: no warning, as nothing is left to gain."""
    model = regressor(name, max_iter=60).fit(X, Y)
    assert model.n_iter_ == 60
    assert model.learning_rates_[-1] < 0.1 / 59
    assert regressor("constant", max_iter=60).fit(X, Y).n_iter_ < 30


def test_epochs_behind_the_end_are_counted_as_a_plateau():
    """Eight epochs of a schedule, whose last loss is the best; then five at rate 0 are no gain."""
    rate = schedules.Cosine(0.1, n_updates=8 * N_BATCHES)
    model = regressor(rate, max_iter=100).fit(X, Y)
    assert model.n_iter_ == 8 + 5
    assert (model.learning_rates_[8:] == 0).all()
    assert regressor(rate, max_iter=100, n_iter_no_change=2).fit(X, Y).n_iter_ == 8 + 2
    assert regressor(rate, max_iter=100, tol=None).fit(X, Y).n_iter_ == 100


def test_a_fit_shorter_than_its_schedule_has_not_converged():
    with pytest.warns(ConvergenceWarning, match="Maximum number of iteration"):
        regressor(schedules.Cosine(0.1, n_updates=1000)).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regressor(schedules.Cosine(0.1, n_updates=20 * N_BATCHES)).fit(X, Y)


def test_the_score_may_end_a_schedule():
    """Early stopping is a choice, the default of `tol` is none; the best weights are kept."""
    model = regressor("polynomial", max_iter=500, early_stopping=True)
    model.fit(X, Y, X_val=X[:9], y_val=Y[:9])
    assert model.n_iter_ < 100
    assert max(model.validation_scores_) == pytest.approx(model.score(X[:9], Y[:9]), rel=1e-6)


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.Step(0.1, 0.5, every=7),
        schedules.CosineRestarts(0.1, n_updates=30),
        schedules.OneCycle(0.1, n_updates=24),
        schedules.WarmUp(schedules.InvScaling(0.1), 10),
        schedules.ByEpoch(schedules.Step(0.1, 0.5, every=2), N_BATCHES),
        schedules.WarmUp(falling, 5),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
@pytest.mark.parametrize("kind", ["dense", "sparse", "network"])
def test_partial_fit_continues_a_schedule(schedule, kind):
    """Six calls, over a file in the middle, make the updates of a fit of six epochs."""
    data = sp.csr_array(X) if kind == "sparse" else X
    model = None
    if kind == "network":
        model = MLPRegressor(hidden_layer_sizes=(3,), solver="lbfgs", tol=0.1, random_state=0).fit(X, Y)
    whole = regressor(schedule, model=model, max_iter=6, tol=None).fit(data, Y)
    parts = regressor(schedule, model=model)
    for _ in range(3):
        parts.partial_fit(data, Y)
    parts = pickle.loads(pickle.dumps(parts))
    for _ in range(3):
        parts.partial_fit(data, Y)
    assert parts.t_ == whole.t_ == 24
    np.testing.assert_array_equal(parts.learning_rates_, whole.learning_rates_)
    for name, weight in whole.get_weights().items():
        np.testing.assert_allclose(parts.get_weights()[name], weight, rtol=1e-6)


def test_partial_fit_after_a_fit_has_the_length_of_the_fit():
    model = regressor(schedules.Cosine(0.1, 0.01), tol=None).fit(X, Y)
    model.set_params(max_iter=3).partial_fit(X, Y)
    assert model.learning_rates_[-1] == 0.01


def test_epochs_of_a_fit_are_those_of_its_batches():
    """Also of later calls with fewer rows, and of a saved estimator."""
    rate = schedules.ByEpoch(schedules.Step(0.1, 0.5, every=2))
    model = regressor(rate, max_iter=5, tol=None).fit(X, Y)
    np.testing.assert_allclose(model.learning_rates_, [0.1, 0.1, 0.05, 0.05, 0.025], rtol=1e-14)
    model = pickle.loads(pickle.dumps(model)).partial_fit(X[:32], Y[:32])
    model.partial_fit(X[:32], Y[:32]).partial_fit(X[:32], Y[:32])
    np.testing.assert_allclose(model.learning_rates_[5:], [0.025, 0.025, 0.0125], rtol=1e-14)


def test_epochs_and_lengths_count_updates_of_several_batches():
    """Two batches for an update: half as many updates in an epoch, and in the fit."""
    settings = {"max_iter": 5, "gradient_accumulation_steps": 2}
    rate = schedules.ByEpoch(schedules.Step(0.1, 0.5, every=1))
    model = regressor(rate, tol=None, **settings).fit(X, Y)
    assert model.t_ == 5 * N_BATCHES / 2
    np.testing.assert_allclose(model.learning_rates_, 0.1 / 2 ** np.arange(5), rtol=1e-14)
    falling = regressor("polynomial", **settings).fit(X, Y)
    assert falling.learning_rates_[-1] == pytest.approx(0.1 / 10, rel=1e-12)


class Batches:
    """The rows in batches of 16, an iterable of known length."""

    def __len__(self):
        return N_BATCHES

    def __iter__(self):
        for start in range(0, 60, 16):
            yield X[start : start + 16], Y[start : start + 16]


@pytest.mark.parametrize(
    "rate",
    [
        schedules.CosineRestarts(0.1),
        schedules.WarmUp(schedules.OneCycle(0.1)),
        schedules.ByEpoch(schedules.Step(0.1, 0.5, every=3)),
        schedules.ReduceOnPlateau(0.1, 0.5, patience=1, threshold=0.2),
    ],
    ids=lambda rate: type(rate).__name__,
)
def test_batches_of_an_iterable_have_the_rates_of_the_rows(rate):
    """Each epoch counts once for plateaus, not each batch."""
    whole = regressor(rate, tol=None).fit(X, Y)
    parts = regressor(rate, tol=None, batch_size=None).fit(Batches())
    np.testing.assert_array_equal(parts.learning_rates_, whole.learning_rates_)
    assert len(set(parts.learning_rates_)) > 4
    np.testing.assert_allclose(parts.coef_, whole.coef_, rtol=1e-5)


def test_an_iterable_of_unknown_length_says_so():
    with pytest.raises(ParameterError, match="with steps_per_epoch, on a generator of batches"):
        regressor("cosine", batch_size=None).fit(iter(Batches()))
    endless = itertools.chain.from_iterable(itertools.repeat(Batches()))
    model = regressor("cosine", batch_size=None, steps_per_epoch=3).fit(endless)
    assert model.t_ == 60
    assert model.learning_rates_[-1] < 1e-3


def test_a_stream_without_epochs_is_refused():
    model = regressor(schedules.ByEpoch("constant"))
    with pytest.raises(ParameterError, match="needs the number of updates of an epoch: give n_updates"):
        model.partial_fit(X, Y)
    assert not hasattr(model, "coef_")


@pytest.mark.filterwarnings("ignore:Training did not lower:sklearn.exceptions.ConvergenceWarning")
def test_a_plateau_does_not_count_in_a_warm_up():
    """The loss of a target of noise does not fall: training ends five epochs after the rise."""
    noise = RNG.normal(size=60)
    model = regressor(schedules.WarmUp("constant", 20 * N_BATCHES), max_iter=100, eta0=1e-9).fit(X, noise)
    # the first epoch behind the rise is the best one so far
    assert model.n_iter_ == 20 + 1 + 5
    assert regressor("constant", max_iter=100, eta0=1e-9).fit(X, noise).n_iter_ == 1 + 5
    scored = regressor(schedules.WarmUp("constant", 20 * N_BATCHES), max_iter=100, early_stopping=True)
    assert 20 + 5 < scored.fit(X, noise).n_iter_ < 100


def test_the_best_weights_of_a_warm_up_are_returned():
    """Validation scores of a warm-up count, though it is no plateau."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(100, 4))
        y = (X[:, 0] + rng.normal(size=100) > 0).astype(int)
        model = OnnxSGDClassifier(
            learning_rate=schedules.WarmUp("constant"),
            eta0=0.01,
            early_stopping=True,
            max_iter=20,
            random_state=0,
        ).fit(X[:70], y[:70], X_val=X[70:], y_val=y[70:])
        assert model.score(X[70:], y[70:]) == max(model.validation_scores_)


def reduced(losses, eta, factor, patience, threshold):
    """Return the rates of a rule that looks at all losses so far, after each of them."""
    rates, since = [], 0
    for number in range(len(losses)):
        rates.append(eta)
        bests = [losses[0]]
        for loss in losses[1 : number + 1]:
            bests.append(loss if loss < bests[-1] * (1 - threshold) else bests[-1])
        is_best = number == 0 or bests[-1] < bests[-2]
        since = 0 if is_best else since + 1
        if since > patience:
            eta, since = eta * factor, 0
    return rates


def test_a_rate_is_reduced_after_each_plateau_of_the_loss():
    """With numbers of its own, also where `tol` asks for all epochs; over files, calls and a warm-up."""
    schedule = schedules.ReduceOnPlateau(0.3, 0.5, patience=2, threshold=0.01, eta_min=0.0)
    model = regressor(schedule, max_iter=40, tol=None).fit(X, Y)
    expected = reduced(model.loss_curve_, 0.3, 0.5, 2, 0.01)
    np.testing.assert_allclose(model.learning_rates_, expected, rtol=1e-14)
    assert expected[-1] < 0.3 / 100
    parts = regressor(schedule)
    for _ in range(40):
        parts = pickle.loads(pickle.dumps(parts.partial_fit(X, Y)))
    np.testing.assert_array_equal(parts.learning_rates_, model.learning_rates_)
    np.testing.assert_allclose(parts.coef_, model.coef_, rtol=1e-6)
    warm = regressor(schedules.WarmUp(schedule, 10 * N_BATCHES), max_iter=40, tol=None).fit(X, Y)
    expected = reduced(warm.loss_curve_[10:], 0.3, 0.5, 2, 0.01)
    np.testing.assert_allclose(warm.learning_rates_[10:], expected, rtol=1e-13)


def test_another_schedule_forgets_the_losses():
    model = regressor(schedules.ReduceOnPlateau(1e-9, patience=1, threshold=0.5, eta_min=0.0))
    for _ in range(3):
        model.partial_fit(X, Y)
    assert model.partial_fit(X, Y).learning_rates_[-1] == pytest.approx(1e-10)
    model.set_params(learning_rate__patience=2)
    for _ in range(4):
        model.partial_fit(X, Y)
    np.testing.assert_allclose(model.learning_rates_[4:], [1e-9] * 4, rtol=1e-14)
    assert model.partial_fit(X, Y).learning_rates_[-1] == pytest.approx(1e-10)


@pytest.mark.filterwarnings("ignore:Training did not lower:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("patience", [0, 3, 4, 12])
def test_training_ends_at_a_plateau_of_the_least_rate(patience):
    """Plateaus of the rate may be shorter or longer than those of `n_iter_no_change`."""
    schedule = schedules.ReduceOnPlateau(1e-9, 0.1, patience, threshold=0.1, eta_min=1e-11)
    model = regressor(schedule, max_iter=200, tol=1e-3).fit(X, Y)
    assert model.learning_rates_[-1] == pytest.approx(1e-11)
    assert model.n_iter_ == 1 + 2 * (patience + 1) + 5
    assert np.isclose(model.learning_rates_, 1e-11, atol=0).sum() == 5


def test_the_score_reduces_the_rate_with_early_stopping():
    schedule = schedules.ReduceOnPlateau(0.3, 0.5, patience=1, threshold=0.0, eta_min=0.0)
    model = regressor(schedule, max_iter=30, tol=None, early_stopping=True)
    model.fit(X[:40], Y[:40], X_val=X[40:], y_val=Y[40:])
    scores = np.array(model.validation_scores_)
    np.testing.assert_allclose(model.learning_rates_, reduced(list(-scores), 0.3, 0.5, 1, 0.0), rtol=1e-14)
    assert not np.allclose(model.learning_rates_, reduced(model.loss_curve_, 0.3, 0.5, 1, 0.0))


def test_a_warm_up_of_a_whole_fit_is_refused():
    with pytest.raises(ParameterError, match=r"n_updates=80.*none of the 80 updates"):
        regressor(schedules.WarmUp("cosine", 80)).fit(X, Y)
    model = regressor("constant").fit(X, Y)
    kept, counts = model.coef_, (model.t_, model.n_iter_)
    model.set_params(learning_rate=schedules.WarmUp("cosine", 80))
    with pytest.raises(ParameterError, match=r"none of the 80 updates"):
        model.fit(X, -Y)
    # the earlier fit is kept
    np.testing.assert_array_equal(model.coef_, kept)
    assert (model.t_, model.n_iter_) == counts


def test_a_stream_without_a_length_is_refused():
    model = regressor("cosine")
    with pytest.raises(ParameterError, match=r"Cosine\(eta0=0.1.*needs a number of updates: give n_updates"):
        model.partial_fit(X, Y)
    assert not hasattr(model, "coef_")
    with pytest.raises(ParameterError, match="needs a number of updates"):
        OnnxSGDRegressor(
            MLPRegressor(hidden_layer_sizes=(3,), solver="lbfgs", tol=0.1, random_state=0).fit(X, Y > 0),
            learning_rate="cosine",
        ).export_training_step("unused.onnx")


def test_a_stream_at_rate_0_is_refused_before_anything_changes():
    model = regressor("cosine").fit(X, Y)
    before = pickle.dumps(model)
    with pytest.raises(ParameterError, match="ended at rate 0 with update 80.*Give eta_min"):
        model.partial_fit(X, Y)
    assert pickle.dumps(model) == before
    model.set_params(learning_rate=schedules.Cosine(0.1, n_updates=100), eta0=None).partial_fit(X, Y)
    assert model.t_ == 84


@pytest.mark.parametrize("warm_start", [False, True])
def test_a_fit_begins_a_schedule_anew(warm_start):
    model = regressor("cosine", warm_start=warm_start).fit(X, Y)
    first = model.learning_rates_
    np.testing.assert_array_equal(model.fit(X, Y).learning_rates_, first)
    # twice as many epochs, half as steep
    longer = model.set_params(max_iter=40).fit(X, Y).learning_rates_
    assert longer[19] == pytest.approx(0.05, rel=0.05)


@pytest.mark.filterwarnings("ignore:Training lowered:sklearn.exceptions.ConvergenceWarning")
def test_a_search_over_the_numbers_of_a_schedule():
    model = regressor(schedules.CosineRestarts(0.1))
    grid = {"learning_rate__n_cycles": [1, 2], "learning_rate__eta0": [1e-6, 0.1]}
    search = GridSearchCV(model, grid, cv=3).fit(X, Y)
    assert search.best_params_["learning_rate__eta0"] == 0.1
    assert model.learning_rate == schedules.CosineRestarts(0.1)
    warm = regressor(schedules.WarmUp(schedules.Cosine(0.1)))
    grid = {"learning_rate__schedule__eta0": [1e-6, 0.1], "learning_rate__start_factor": [0.1, 0.5]}
    assert GridSearchCV(warm, grid, cv=3).fit(X, Y).best_params_["learning_rate__schedule__eta0"] == 0.1
    names = GridSearchCV(model, {"learning_rate": ["one_cycle", "step"], "eta0": [0.1]}, cv=3).fit(X, Y)
    assert names.best_score_ > 0.8
    assert clone(model).learning_rate == model.learning_rate


def test_float64_and_sample_weights_follow_plain_numpy():
    """Weights of samples and the rate at each update, of one row each."""
    weight = np.linspace(0.0, 2.0, 60)
    model = regressor("one_cycle", batch_size=1, max_iter=2, tol=None, dtype="float64", penalty=None)
    model.fit(X, Y, sample_weight=weight)
    rows = np.flatnonzero(weight)
    rates = schedules.OneCycle(0.1, n_updates=2 * len(rows)).rates(1, 0.0, 2 * len(rows))
    w, b = np.zeros(4), 0.0
    for rate, row in zip(rates, np.tile(rows, 2), strict=True):
        slope = rate * weight[row] * (X[row] @ w + b - Y[row])
        w, b = w - slope * X[row], b - slope
    np.testing.assert_allclose(model.coef_, w, rtol=1e-10)
    np.testing.assert_allclose(model.intercept_, b, rtol=1e-10)
