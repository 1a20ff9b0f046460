"""Variances wait until a network has learned the means: when, for how long, and with which result."""

import pickle
import warnings

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.neural_network import MLPRegressor

from onnxsgd import OnnxSGDRegressor, load
from onnxsgd.losses import GaussianNLL
from onnxsgd.training import rules
from onnxsgd.training.waiting_variances import WaitingVariances

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2500, 3))
Y = np.sin(3 * X[:, 0]) + 0.05 * RNG.normal(size=2500)
TRAIN, TEST = slice(1500), slice(1500, None)


def network(y=Y, max_iter=1):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mlp = MLPRegressor(hidden_layer_sizes=(40,), max_iter=max_iter, random_state=0)
        return mlp.fit(X[TRAIN], y[TRAIN])


def pair():
    """Return a graph with random means and random logarithms of variances."""
    return OnnxSGDRegressor(network(RNG.normal(size=(2500, 2)))).to_onnx()


def learner(model, **options):
    return OnnxSGDRegressor(model, **{"loss": "gaussian_nll", "random_state": 0} | options)


@pytest.fixture
def _at_once(monkeypatch):
    monkeypatch.setattr(WaitingVariances, "are_unknown", lambda self, state: False)


@pytest.fixture
def held(monkeypatch):
    """Return the numbers of updates after which variances were released."""
    found, release = [], WaitingVariances.release
    monkeypatch.setattr(
        WaitingVariances, "release", lambda self, state: (found.append(state.t), release(self, state))[1]
    )
    return found


@pytest.mark.parametrize("make", [network, pair], ids=["one output", "two outputs"])
def test_networks_learn_means_under_little_noise(make, held):
    model = learner(make()).fit(X[TRAIN], Y[TRAIN])
    mean, std = model.predict(X[TEST], return_std=True)
    assert r2_score(Y[TEST], mean) > 0.9
    assert norm.logpdf(Y[TEST], mean, std).mean() > 0.3
    assert len(held) == 1
    assert 0 < held[0] < model.t_


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("make", [network, pair], ids=["one output", "two outputs"])
def test_at_once_they_do_not(make):
    model = learner(make()).fit(X[TRAIN], Y[TRAIN])
    assert r2_score(Y[TEST], model.predict(X[TEST])) < 0.5


def test_several_targets_and_weights(held):
    weight = RNG.uniform(0.5, 2, size=len(X))
    both = np.stack([Y, 1000 + 100 * np.cos(2 * X[:, 1])], axis=1)
    model = learner(network(both), penalty=None).fit(X[TRAIN], both[TRAIN], sample_weight=weight[TRAIN])
    mean, std = model.predict(X[TEST], return_std=True)
    assert (r2_score(both[TEST], mean, multioutput="raw_values") > 0.9).all()
    assert std.shape == (1000, 2)
    assert len(held) == 1


def test_released_variances_are_those_of_the_residuals(monkeypatch):
    """Against numpy: right after the release, for weighted rows."""
    weight, found = RNG.uniform(0, 3, size=1500), []
    release = WaitingVariances.release

    def recorded(self, state):
        release(self, state)
        found.append(np.asarray(self.finder.raw_predictions(state.weights())).copy())
        assert {kind for _, kind in state.tensors} == {"weight"}

    monkeypatch.setattr(WaitingVariances, "release", recorded)
    learner(network(), dtype="float64").fit(X[TRAIN], Y[TRAIN], sample_weight=weight)
    means, logarithms = found[0].T
    expected = np.log(np.average((Y[TRAIN] - means) ** 2, weights=weight))
    np.testing.assert_allclose(logarithms, expected, rtol=1e-9)


@pytest.mark.parametrize("make", [network, pair], ids=["one output", "two outputs"])
def test_variances_that_wait_stay_as_they_are(make, monkeypatch):
    """The loss is then half the squared error over the first variance, and half its logarithm."""
    constants = []
    release = WaitingVariances.release

    def recorded(self, state):
        raw = np.asarray(self.finder.raw_predictions(state.weights()), np.float64)
        constants.append((raw[:, 1], np.mean((Y[TRAIN] - raw[:, 0]) ** 2)))
        release(self, state)

    monkeypatch.setattr(WaitingVariances, "release", recorded)
    model = learner(make(), penalty=None).fit(X[TRAIN], Y[TRAIN])
    logarithms, square = constants[0]
    assert (logarithms == logarithms[0]).all()
    last = (logarithms[0] + square * np.exp(-logarithms[0])) / 2
    curve = np.array(model.loss_curve_)
    # a mean over an epoch is not that of the weights at its end
    assert np.abs(curve - last).min() < 0.05


def test_models_that_know_means_and_variances_do_not_wait(held):
    known = learner(network()).fit(X[TRAIN], Y[TRAIN])
    held.clear()
    learner(known.to_onnx()).fit(X[TRAIN], Y[TRAIN])
    assert held == []


@pytest.mark.parametrize("options", [{"max_iter": 3}, {"learning_rate": "adaptive", "eta0": 1e-3}])
def test_short_fits_and_named_rates_do_not_wait(options, held):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        learner(network(), **options).fit(X[TRAIN], Y[TRAIN])
    assert held == []


@pytest.mark.parametrize("tol", [1e-4, None])
def test_variances_learn_within_max_iter(tol, held):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = learner(network(), max_iter=16, tol=tol).fit(X[TRAIN], Y[TRAIN])
    assert model.n_iter_ <= 16
    assert held[0] <= model.t_ // 2
    assert model.loss_curve_[-1] < model.loss_curve_[6] - 0.5


@pytest.mark.parametrize(
    "trainable", [["intercepts_0", "intercepts_1", "coefs_1"], ["coefs_0", "coefs_1"]], ids=str
)
def test_variances_wait_if_they_can_be_constants(trainable, held):
    """Not those without a trained intercept."""
    model = learner(pair(), trainable=trainable).fit(X[TRAIN], Y[TRAIN])
    assert len(held) == ("intercepts_1" in trainable)
    assert np.isfinite(model.predict(X[TEST], return_std=True)).all()


def test_frozen_coefficients_of_logarithms_do_not_wait(held):
    """They would be others than constants, whatever the intercepts are."""
    learner(pair(), trainable=["intercepts_1"]).fit(X[TRAIN], Y[TRAIN])
    assert held == []


def test_linear_models_do_not_wait(held):
    learner(None).fit(X[TRAIN], Y[TRAIN])
    assert held == []


class _Stopped(Exception):
    """Ends a fit."""


@pytest.mark.parametrize("early_stopping", [False, True])
def test_checkpoints_of_both_descents(early_stopping, tmp_path, held, monkeypatch):
    """A fit continues to the last bit: before the variances learn, right after, and later."""
    options = {"checkpoint_every": 1, "early_stopping": early_stopping}
    whole = learner(network(), checkpoint=tmp_path / "whole", **options).fit(X[:600], Y[:600])
    released, original = held[0] * whole.n_iter_ // whole.t_, rules.DescentRule.after_epochs
    for n_epochs in (released - 2, released, released + 3):

        def after(self, losses, score, n_epochs=n_epochs):
            if len(self._state.loss_curve) > n_epochs:
                raise _Stopped
            return original(self, losses, score)

        model = learner(network(), checkpoint=tmp_path / str(n_epochs), **options)
        with monkeypatch.context() as patch:
            patch.setattr(rules.DescentRule, "after_epochs", after)
            with pytest.raises(_Stopped):
                model.fit(X[:600], Y[:600])
        continued = learner(network(), checkpoint=tmp_path / str(n_epochs), **options)
        continued.fit(X[:600], Y[:600], resume=True)
        np.testing.assert_array_equal(continued.loss_curve_, whole.loss_curve_)
        for name, array in whole.get_weights().items():
            np.testing.assert_array_equal(continued.get_weights()[name], array)


@pytest.mark.parametrize("average", [False, True])
def test_an_interrupted_fit_has_variances_of_its_residuals(average, monkeypatch):
    """Before the means are learned: they are constants, but not those of the target."""
    original = rules.DescentRule.after_epochs

    def after(self, losses, score):
        if len(self._state.loss_curve) == 6:
            raise KeyboardInterrupt
        return original(self, losses, score)

    monkeypatch.setattr(rules.DescentRule, "after_epochs", after)
    model = learner(network(), dtype="float64", average=average)
    with pytest.warns(UserWarning, match="interrupted by user"):
        model.fit(X[TRAIN], Y[TRAIN])
    mean, std = model.predict(X[TRAIN], return_std=True)
    np.testing.assert_allclose(std, np.sqrt(np.mean((Y[TRAIN] - mean) ** 2)), rtol=1e-6)
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict(X[TEST]), model.predict(X[TEST]))


def test_early_stopping_returns_variances_that_have_learned(tmp_path):
    model = learner(network(), early_stopping=True).fit(X[TRAIN], Y[TRAIN])
    mean, std = model.predict(X[TEST], return_std=True)
    assert r2_score(Y[TEST], mean) > 0.9
    assert norm.logpdf(Y[TEST], mean, std).mean() > 0.3
    model.save(tmp_path / "saved")
    np.testing.assert_array_equal(load(tmp_path / "saved").predict(X[TEST]), mean)


def test_variances_learn_from_the_best_means_of_early_stopping(monkeypatch):
    """With all epochs to find better ones, although the score had converged."""
    original, seen = rules.DescentRule._end_waiting, []

    def end_waiting(self, variances):
        best = self._best.weights()
        original(self, variances)
        seen.append((best, self._best.weights(), self._state.weights(), self._plateau.count))

    monkeypatch.setattr(rules.DescentRule, "_end_waiting", end_waiting)
    learner(network(), early_stopping=True).fit(X[TRAIN], Y[TRAIN])
    ((best, released, present, count),) = seen
    assert count == 0
    for name, array in released.items():
        np.testing.assert_array_equal(array, present[name])
        # all but the intercept of the logarithms
        assert np.count_nonzero(array != best[name]) == (array.shape == (2,))


def test_means_are_known_by_weighted_residuals():
    """Of samples that count, not of those with a weight of zero."""

    class Finder:
        sample_weight = np.array([1.0, 1.0, 1.0, 0.0])
        target = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [900.0, 900.0]])

        def raw_predictions(self, weights):
            return np.array([[1.1, 0.0], [2.1, 0.1], [2.9, 0.2], [0.0, 0.0]])

    class State:
        def weights(self, average_from):
            return {}

    finder, losses = Finder(), lambda target, raw: np.abs(target - raw).sum(axis=1)
    known = WaitingVariances(finder, GaussianNLL(), lambda waits: None, losses)
    assert not known.are_unknown(State())
    assert known.least_loss(State()) == pytest.approx((1 + 1.9 + 2.8) / 3)
    finder.sample_weight = np.ones(4)
    assert known.are_unknown(State())
