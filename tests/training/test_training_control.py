"""Start, continuation and end of training, and callbacks."""

import os
import pickle
import signal
import threading
import warnings

import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, Perceptron, Ridge, SGDClassifier, SGDRegressor
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import ShuffleSplit
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, schedules
from onnxsgd.exceptions import ParameterError
from onnxsgd.losses import CrossEntropy


def regressor(**more):
    return OnnxSGDRegressor(**{"max_iter": 5, "tol": None, "random_state": 0} | more)


def classifier(**more):
    return OnnxSGDClassifier(
        **{"max_iter": 5, "tol": None, "learning_rate": "invscaling", "eta0": 0.1, "random_state": 0} | more
    )


#: Settings for which both libraries compute the same.
SAME = dict(shuffle=False, learning_rate="constant", eta0=0.002, random_state=0)


def agree(ours, theirs):
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-4, atol=1e-6)


def test_warm_start_is_that_of_sgd_regressor(diabetes):
    X, y = diabetes
    ours = regressor(batch_size=1, warm_start=True, max_iter=2, **SAME)
    theirs = SGDRegressor(warm_start=True, max_iter=2, tol=None, **SAME)
    for _ in range(3):
        agree(ours.fit(X, y), theirs.fit(X, y))
    # The schedule restarts, as there.
    assert ours.t_ == 2 * len(X) == theirs.t_ - 1


def test_warm_start_continues_with_other_settings(diabetes):
    X, y = diabetes
    model = regressor(warm_start=True).fit(X, y)
    before = model.coef_.copy()
    model.set_params(max_iter=1, learning_rate="invscaling", eta0=1e-12, optimizer="adam").fit(X, y)
    np.testing.assert_allclose(model.coef_, before, atol=1e-7)
    with pytest.raises(ValueError, match="expecting 10 features"):
        model.fit(X[:, :3], y)
    with pytest.raises(ValueError, match=r"y has shape \(442, 2\); in the first call"):
        model.fit(X, np.c_[y, y])


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": "invscaling", "momentum": 0.9},
        {"learning_rate": "optimal", "alpha": 1.0},
        {"learning_rate": "invscaling", "optimizer": "adam", "penalty": "l1"},
        {"learning_rate": "invscaling", "optimizer": "adamw", "average": 20},
        {"learning_rate": schedules.InvScaling(0.1, 0.5), "average": True},
    ],
    ids=str,
)
def test_k_epochs_of_fit_are_k_calls_of_partial_fit(diabetes, settings, shuffle):
    X, y = diabetes
    whole = regressor(shuffle=shuffle, **settings).fit(X, y)
    parts = regressor(shuffle=shuffle, **settings)
    for _ in range(5):
        parts.partial_fit(X, y)
    np.testing.assert_array_equal(parts.coef_, whole.coef_)
    assert (parts.t_, parts.n_iter_) == (whole.t_, whole.n_iter_) == (5 * 14, 5)
    np.testing.assert_array_equal(parts.loss_curve_, whole.loss_curve_)


def test_partial_fit_continues_a_fit(diabetes):
    X, y = diabetes
    model = regressor(max_iter=4, learning_rate="invscaling", optimizer="adam").fit(X, y).partial_fit(X, y)
    np.testing.assert_array_equal(
        model.coef_, regressor(max_iter=5, learning_rate="invscaling", optimizer="adam").fit(X, y).coef_
    )


def test_partial_fit_is_that_of_sgd_classifier(cancer):
    X, y = cancer
    ours = classifier(batch_size=1, **SAME)
    theirs = SGDClassifier(loss="log_loss", **SAME)
    for rows in np.array_split(np.arange(len(X)), 5):
        ours.partial_fit(X[rows], y[rows], classes=[0, 1])
        theirs.partial_fit(X[rows], y[rows], classes=[0, 1])
    agree(ours, theirs)


def test_a_batch_of_one_class_trains_a_model_that_knows_more(cancer):
    X, y = cancer
    model = classifier(batch_size=1).fit(X, y)
    fresh = OnnxSGDClassifier(model.to_onnx(), random_state=0)
    assert fresh.partial_fit(X[y == 1], y[y == 1]).classes_.tolist() == [0, 1]


@pytest.mark.parametrize("average", [True, 500])
def test_average_is_that_of_sgd_regressor(diabetes, average):
    X, y = diabetes
    ours = regressor(batch_size=1, average=average, max_iter=3, **SAME).fit(X, y)
    agree(ours, SGDRegressor(average=average, max_iter=3, tol=None, **SAME).fit(X, y))
    raw = regressor(batch_size=1, max_iter=3, **SAME).fit(X, y)
    assert np.abs(ours.coef_ - raw.coef_).max() > 1e-3


@pytest.mark.parametrize(
    "settings", [{}, {"tol": 1e-2}, {"tol": 1e-5}, {"n_iter_no_change": 1}, {"n_iter_no_change": 10}], ids=str
)
@pytest.mark.parametrize("learning_rate", ["constant", "adaptive"])
def test_training_stops_where_that_of_sgd_regressor_does(diabetes, settings, learning_rate):
    X, y = diabetes
    settings = {**SAME, "learning_rate": learning_rate, "tol": 1e-3, **settings}
    # SGDRegressor takes the loss without the penalty.
    ours = regressor(batch_size=1, max_iter=1000, penalty=None, **settings).fit(X, y)
    theirs = SGDRegressor(max_iter=1000, penalty=None, **settings).fit(X, y)
    assert ours.n_iter_ == theirs.n_iter_
    agree(ours, theirs)


def test_no_convergence_warns_in_the_words_of_scikit_learn(diabetes):
    X, y = diabetes
    with pytest.warns(ConvergenceWarning) as theirs:
        SGDRegressor(max_iter=1).fit(X, y)
    with pytest.warns(ConvergenceWarning) as ours:
        OnnxSGDRegressor(max_iter=1).fit(X, y)
    assert str(ours[0].message) == str(theirs[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OnnxSGDRegressor(max_iter=1, tol=None).fit(X, y)
        OnnxSGDRegressor(max_iter=1).partial_fit(X, y)


def test_early_stopping_trains_on_the_rest_and_keeps_the_best(diabetes):
    X, y = diabetes
    model = regressor(
        early_stopping=True,
        validation_fraction=0.25,
        learning_rate="invscaling",
        eta0=0.2,
        batch_size=4,
        max_iter=30,
    )
    model.set_params(learning_rate="constant").fit(X, y)
    assert model.t_ == 30 * np.ceil(0.75 * len(X) / 4)
    assert len(model.validation_scores_) == 30
    best = int(np.argmax(model.validation_scores_))
    assert best < 29
    # Without validation data, the same rows and as many epochs give the same weights.
    model.set_params(max_iter=best + 1)
    np.testing.assert_array_equal(model.coef_, model.fit(X, y).coef_)


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_early_stopping_scores_the_data_it_is_given(diabetes, cancer, kind):
    X, y = (diabetes if kind == "regressor" else cancer)[:2]
    make, metric = (regressor, r2_score) if kind == "regressor" else (classifier, accuracy_score)
    fit, held = slice(0, 300), slice(300, None)
    model = make(early_stopping=True, max_iter=1000, tol=1e-3, learning_rate="invscaling")
    model.fit(X[fit], y[fit], X_val=X[held], y_val=y[held])
    assert model.t_ == model.n_iter_ * np.ceil(300 / 32)
    assert max(model.validation_scores_) == pytest.approx(metric(y[held], model.predict(X[held])), rel=1e-6)
    scores = np.array(model.validation_scores_)
    improved = scores[1:] >= np.maximum.accumulate(scores)[:-1] + 1e-3
    assert not improved[-5:].any()
    assert improved[-6]


def test_auto_returns_the_weights_of_the_best_score(diabetes):
    """Their states belong to them: the number of updates is theirs."""
    X, y = diabetes[:2]
    model = regressor(early_stopping=True, max_iter=1000, tol=1e-3)
    model.fit(X[:300], y[:300], X_val=X[300:], y_val=y[300:])
    assert model.t_ == 10 * (1 + np.argmax(model.validation_scores_))
    best = pytest.approx(r2_score(y[300:], model.predict(X[300:])), rel=1e-6)
    assert max(model.validation_scores_) == best


def test_learning_rates_of_named_schedules(diabetes):
    """That of the last update of each epoch."""
    X, y = diabetes[:2]
    t = 14.0 * np.arange(1, 6)
    constant = regressor(learning_rate="constant", eta0=0.002).fit(X, y)
    np.testing.assert_array_equal(constant.learning_rates_, np.full(5, 0.002))
    falling = regressor(learning_rate="invscaling", eta0=0.02, power_t=0.5).fit(X, y)
    np.testing.assert_allclose(falling.learning_rates_, 0.02 / np.sqrt(t), rtol=1e-12)
    falling.partial_fit(X, y)
    assert falling.learning_rates_[5:] == pytest.approx([0.02 / np.sqrt(6 * 14)], rel=1e-12)


def test_learning_rates_of_auto(diabetes):
    """The root of the share of 32 rows, growth by half, and a decay from update to update."""
    X, y = diabetes[:2]
    model = regressor(max_iter=300, batch_size=8, tol=1e-3).fit(X, y)
    rates = model.learning_rates_
    assert len(rates) == len(model.loss_curve_) == model.n_iter_
    assert rates[0] == pytest.approx(0.05 / 2)
    highest = rates.argmax()
    growth = rates[1 : highest + 1] / rates[:highest]
    assert np.logical_or(np.isclose(growth, 1.0), np.isclose(growth, 1.5)).all()
    assert (growth > 1.0).any()
    length = int(np.sum(rates[highest:] < rates[highest]))
    assert length >= 5
    # the last of the 56 updates of each epoch
    left = (1 - (np.arange(length) + 55 / 56) / length) ** 1.5
    np.testing.assert_allclose(rates[-length:], rates[highest] * left)
    # steered from good weights
    assert model.partial_fit(X, y).learning_rates_[-1] < 0.05 / 2 / 4


def test_validation_data_without_early_stopping_are_scored_only(diabetes):
    X, y = diabetes
    watched = regressor().fit(X[:300], y[:300], X_val=X[300:], y_val=y[300:])
    alone = regressor().fit(X[:300], y[:300])
    np.testing.assert_array_equal(watched.coef_, alone.coef_)
    assert watched.validation_scores_[-1] == pytest.approx(watched.score(X[300:], y[300:]), rel=1e-6)
    assert alone.validation_scores_ is None


def test_averaged_weights_are_scored(diabetes):
    X, y = diabetes
    model = regressor(average=True).fit(X, y, X_val=X, y_val=y)
    assert model.validation_scores_[-1] == pytest.approx(model.score(X, y), rel=1e-6)


def test_weights_of_samples_count_in_the_validation_score(diabetes):
    """Held-out rows of weight zero are dropped."""
    X, y = diabetes
    weight = (np.arange(len(y)) % 2).astype(float)
    settings = dict(early_stopping=True, batch_size=10, validation_fraction=0.3)
    weighted = regressor(**settings).fit(X, y, sample_weight=weight)
    without = regressor(**settings).fit(X[1::2], y[1::2])
    np.testing.assert_array_equal(weighted.validation_scores_, without.validation_scores_)


def test_invalid_validation_data_are_refused(diabetes, cancer):
    X, y = diabetes
    with pytest.raises(ValueError, match="go together"):
        regressor().fit(X, y, X_val=X)
    with pytest.raises(ValueError, match="expecting 10 features"):
        regressor().fit(X, y, X_val=X[:, :2], y_val=y)
    with pytest.raises(ValueError, match=r"X_val has 442 samples and y_val has 441"):
        regressor().fit(X, y, X_val=X, y_val=y[1:])
    with pytest.raises(ValueError, match="validation_fraction=0.01"):
        classifier(early_stopping=True, validation_fraction=0.01).fit(cancer[0][:60], cancer[1][:60])
    assert not hasattr(regressor(early_stopping=True), "partial_fit")


def test_validation_data_go_through_a_pipeline(diabetes):
    X, y = load_diabetes(return_X_y=True)[0] * 1000, diabetes[1]
    with sklearn.config_context(enable_metadata_routing=True):
        last = regressor(early_stopping=True).set_fit_request(X_val=True, y_val=True)
        pipeline = make_pipeline(StandardScaler(), last, transform_input=["X_val"])
        pipeline.fit(X[:300], y[:300], X_val=X[300:], y_val=y[300:])
    scaler = StandardScaler().fit(X[:300])
    by_hand = regressor(early_stopping=True).fit(
        scaler.transform(X[:300]), y[:300], X_val=scaler.transform(X[300:]), y_val=y[300:]
    )
    assert pipeline[-1].validation_scores_ == by_hand.validation_scores_
    np.testing.assert_array_equal(pipeline[-1].coef_, by_hand.coef_)


@pytest.fixture
def _interruptible():
    """Make Ctrl-C raise, also where tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize("early_stopping", [False, True])
def test_ctrl_c_keeps_the_trained_weights(diabetes, early_stopping):
    X, y = diabetes
    model = regressor(max_iter=300_000, early_stopping=early_stopping, learning_rate="invscaling", eta0=0.05)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.warns(UserWarning, match="interrupted by user"):
            model.fit(X, y)
    finally:
        timer.cancel()
    assert 0 < model.n_iter_ < 300_000
    assert model.score(X, y) > 0.4
    assert len(model.loss_curve_) in (model.n_iter_, model.n_iter_ - 1)
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict(X), model.predict(X))
    if not early_stopping:
        before = model.t_
        assert model.set_params(max_iter=1).partial_fit(X, y).t_ == before + 14


def test_without_shuffling_the_training_rows_keep_their_order(diabetes):
    """Held-out rows are drawn; the rest is trained on in its original order."""
    X, y = diabetes
    settings = dict(shuffle=False, batch_size=1, max_iter=1)
    stopping = regressor(early_stopping=True, validation_fraction=0.3, **settings).fit(X, y)
    generator = np.random.RandomState(np.random.RandomState(0).randint(np.iinfo(np.int32).max))
    rows = np.sort(next(ShuffleSplit(1, test_size=0.3, random_state=generator).split(y))[0])
    np.testing.assert_array_equal(stopping.coef_, regressor(**settings).fit(X[rows], y[rows]).coef_)


@pytest.mark.parametrize(
    ("y_val", "message"),
    [
        ([1.0], "y_val has 1 sample, which R\\^2 cannot score"),
        ([1.0, np.nan], "NaN"),
        ([1.0, np.inf], "infinity"),
    ],
    ids=str,
)
@pytest.mark.parametrize("early_stopping", [False, True])
def test_validation_targets_that_r2_cannot_score_are_refused(diabetes, y_val, message, early_stopping):
    X, y = diabetes
    model = regressor(early_stopping=early_stopping)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y, X_val=X[: len(y_val)], y_val=y_val)
    assert not hasattr(model, "t_")


@pytest.mark.parametrize("n_samples", [1, 3, 8])
def test_a_held_out_share_that_r2_cannot_score_is_refused(diabetes, n_samples):
    X, y = diabetes
    with pytest.raises(ParameterError, match=f"validation_fraction=0.1 of {n_samples} samples"):
        regressor(early_stopping=True).fit(X[:n_samples], y[:n_samples])


@pytest.mark.parametrize("y_val", [[0, 7, 1], ["a", "b", "a"]], ids=str)
def test_unknown_labels_of_validation_data_are_refused(cancer, y_val):
    X, y = cancer
    with pytest.raises(ParameterError, match="y_val contains the labels .* not among the classes"):
        classifier().fit(X, y, X_val=X[:3], y_val=y_val)
    # one class can be scored
    assert len(classifier().fit(X, y, X_val=X[:3], y_val=[0, 0, 0]).validation_scores_) == 5


def test_a_named_rate_that_is_too_large_is_reported(diabetes):
    """The weights stay finite, while the objective grows by factors."""
    X, y = diabetes[:2]
    model = OnnxSGDRegressor(learning_rate="constant", eta0=0.06, max_iter=8, tol=None, random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"The objective rose from .* Lower the learning rate"):
        model.fit(np.c_[3.0 * X / X.std(axis=0)], y)
    assert model.loss_curve_[-1] > 1.02 * model.loss_curve_[0]


@pytest.mark.parametrize("call", ["fit", "partial_fit"])
def test_weights_of_any_order_in_memory(call):
    """Coefficients of several targets are a transposed view in scikit-learn's models."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 20))
    Y = X @ rng.normal(size=(20, 2))
    trained = []
    for order in ("C", "F"):
        model = LinearRegression().fit(X[:30], Y[:30])
        model.coef_ = np.array(0.3 * model.coef_, order=order)
        learner = OnnxSGDRegressor(model, dtype="float64", batch_size=64, random_state=0)
        trained.append(getattr(learner, call)(X, Y))
    np.testing.assert_allclose(trained[0].coef_, trained[1].coef_, rtol=1e-12)
    assert trained[1].score(X, Y) > 0.8


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_the_best_weights_of_early_stopping_come_with_their_count_of_updates(optimizer):
    """The correction of Adam's moments depends on it: training continues as after that epoch."""
    X, y = load_diabetes(return_X_y=True)
    X, y = StandardScaler().fit_transform(X), (y - y.mean()) / y.std()
    given = {"X_val": X[300:], "y_val": y[300:]}
    settings = {
        "optimizer": optimizer, "learning_rate": "constant", "eta0": 0.3, "shuffle": False,
        "dtype": "float64",
    }  # fmt: skip
    model = regressor(early_stopping=True, max_iter=30, n_iter_no_change=29, tol=1e-3, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X[:300], y[:300], **given)
    best = int(np.argmax(model.validation_scores_)) + 1
    assert best < model.n_iter_
    assert model.t_ == model.n_iter_ * 10
    model.set_params(early_stopping=False).partial_fit(X[:300], y[:300])
    same = regressor(max_iter=best, **settings).fit(X[:300], y[:300]).partial_fit(X[:300], y[:300])
    np.testing.assert_allclose(model.coef_, same.coef_, rtol=1e-10)


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1), (3, 2)])
def test_targets_of_another_width_are_refused_once(first, second, diabetes):
    X, y = diabetes

    def table(width):
        return y if width == 1 else np.stack([y] * width, axis=1)

    model = regressor(warm_start=True).fit(X, table(first))
    message = r"y has shape .*; in the first call it had shape \('n_samples',.*take a new estimator"
    for call in (model.fit, model.partial_fit):
        with pytest.raises(ParameterError, match=message):
            call(X, table(second))
    with pytest.raises(ParameterError, match="validation data"):
        regressor().fit(X, table(first), X_val=X, y_val=table(second))


@pytest.mark.parametrize("seed", [0, None, np.random.RandomState(3)], ids=str)
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("kind", ["regression", "labels"])
def test_a_model_inside_is_fitted_without_the_rows_held_out(kind, is_weighted, seed, monkeypatch, diabetes):
    """It would know the targets of the rows that judge it."""
    X, y = diabetes
    make, inner = (OnnxSGDRegressor, Ridge) if kind == "regression" else (OnnxSGDClassifier, SGDClassifier)
    y = y if kind == "regression" else np.where(y > y.mean(), "high", "low")
    seen, fit = [], inner.fit
    monkeypatch.setattr(
        inner, "fit", lambda self, X, *more, **named: seen.append(X) or fit(self, X, *more, **named)
    )
    weight = np.arange(len(X)) % 3.0 if is_weighted else None
    kept, hold_out = [], make._hold_out
    monkeypatch.setattr(
        make, "_hold_out", lambda self, samples: kept.append(hold_out(self, samples)) or kept[0]
    )
    found = make(inner(), early_stopping=True, validation_fraction=0.25, max_iter=3, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.fit(X, y, weight)
    training, (validation,) = kept[0]
    n_counted = len(X) if weight is None else np.count_nonzero(weight)
    assert len(validation.target) == np.ceil(n_counted / 4)
    np.testing.assert_array_equal(seen[0].astype(np.float32), training.features["X"])
    # with validation data all rows count
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.fit(X, y, weight, X_val=X, y_val=y)
    assert len(seen[1]) == n_counted


def test_noise_is_not_learned_by_heart_before_it_is_judged():
    """The network inside has weights enough to fit all rows."""
    rng = np.random.RandomState(0)
    X, y = rng.normal(size=(200, 5)), rng.normal(size=200)
    network = MLPRegressor(hidden_layer_sizes=(100,), solver="lbfgs", max_iter=1000, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = OnnxSGDRegressor(network, early_stopping=True, random_state=0).fit(X, y)
    assert max(found.validation_scores_) < 0.3


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dia", "bsr", "lil"])
def test_rows_of_sparse_data_are_held_out_in_any_form(form):
    X = sparse.random(90, 4, density=0.5, format=form, random_state=0)
    y = (np.asarray(X.sum(axis=1)).ravel() > 1).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = OnnxSGDClassifier(Perceptron(), early_stopping=True, random_state=0).fit(
            X, y, np.arange(90) % 3
        )
    assert found.score(X, y) > 0.8


@pytest.mark.parametrize("seed", range(4))
def test_a_model_inside_knows_classes_whose_rows_are_held_out(seed):
    X = np.random.RandomState(0).normal(size=(60, 2))
    y = np.where(X[:, 0] > 0, 1, 0)
    y[:2] = 7
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = OnnxSGDClassifier(
            SGDClassifier(), early_stopping=True, validation_fraction=0.9, random_state=seed
        ).fit(X, y)
        assert found.classes_.tolist() == [0, 1, 7]
        shares = np.eye(3)[np.r_[2, np.arange(59) % 2]]
        learner = OnnxSGDClassifier(
            SGDClassifier(), loss=CrossEntropy(soft=True), early_stopping=True, validation_fraction=0.9,
            random_state=seed,
        )  # fmt: skip
        assert len(learner.fit(X, shares).classes_) == 3


def test_a_generator_loses_as_many_draws_whether_rows_are_held_out_or_not():
    X = np.random.RandomState(0).normal(size=(60, 2))
    generators = [np.random.RandomState(3), np.random.RandomState(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for generator, stops in zip(generators, [True, False], strict=True):
            OnnxSGDRegressor(Ridge(), early_stopping=stops, random_state=generator).fit(X, X[:, 0])
    assert generators[0].randint(1000) == generators[1].randint(1000)
