"""Callbacks of a fit, of scikit-learn and of users."""

import pickle
import re
import textwrap
import warnings
from copy import copy
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import onnxsgd
from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

try:
    from sklearn.callback import ProgressBar, ScoringMonitor
except ImportError:
    ProgressBar = ScoringMonitor = None

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "search.rst"

needs_callbacks = pytest.mark.skipif(ScoringMonitor is None, reason="scikit-learn has callbacks from 1.9 on")


def regressor(**more):
    return OnnxSGDRegressor(**{"max_iter": 5, "tol": None, "random_state": 0} | more)


def classifier(**more):
    named = {"learning_rate": "invscaling", "eta0": 0.1}
    return OnnxSGDClassifier(**{"max_iter": 5, "tol": None, "random_state": 0} | named | more)


@needs_callbacks
def test_a_scoring_monitor_sees_each_epoch(cancer):
    X, y = cancer
    monitor = ScoringMonitor(scoring="neg_log_loss")
    classifier().set_callbacks(monitor).fit(X, y)
    logged = [row["neg_log_loss"] for row in monitor.get_logs().data if row["task_name"] == "epoch"]
    expected = []
    model = classifier()
    for _ in range(5):
        probability = model.partial_fit(X, y, classes=[0, 1]).predict_proba(X)[np.arange(len(y)), y]
        expected.append(np.mean(np.log(probability)))
    np.testing.assert_allclose(logged, expected, rtol=1e-5)


@needs_callbacks
def test_a_scoring_monitor_is_given_the_weights_of_samples(diabetes):
    X, y = diabetes
    weight = np.linspace(0.1, 2, len(y))
    monitor = ScoringMonitor(scoring="r2")
    # "auto" may return earlier weights than the last ones
    model = regressor(learning_rate="invscaling").set_callbacks(monitor).fit(X, y, sample_weight=weight)
    logged = [row["r2"] for row in monitor.get_logs().data if row["task_name"] == "epoch"]
    assert logged[-1] == pytest.approx(model.score(X, y, sample_weight=weight), rel=1e-6)


@needs_callbacks
def test_checkpoints_are_written_beside_callbacks(diabetes, tmp_path):
    """During a fit scikit-learn keeps its callbacks in another attribute too."""
    X, y = diabetes
    monitor = ScoringMonitor(scoring="r2")
    model = regressor(learning_rate="invscaling", checkpoint=tmp_path / "kept")
    model.set_callbacks(monitor).fit(X, y)
    again = onnxsgd.load(tmp_path / "kept")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


@needs_callbacks
def test_a_progress_bar_shows_epochs(diabetes, capsys):
    pytest.importorskip("rich")
    regressor().set_callbacks(ProgressBar()).fit(*diabetes)
    shown = capsys.readouterr().out
    assert "OnnxSGDRegressor - fit" in shown
    assert "100%" in shown


class Recorder:
    """A callback that records its calls, and stops training after some epochs."""

    max_propagation_depth = None

    def __init__(self, epochs=10**9, fail=False):
        self.epochs, self.fail, self.calls, self.models = epochs, fail, [], []

    def setup(self, estimator, context):
        self.calls.append("setup")

    def on_fit_task_begin(self, estimator, context, *, X=None, y=None):
        self.calls.append(f"{context.task_name} begins")

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        self.calls.append(f"{context.task_name} ends")
        if context.task_name == "epoch":
            self.models.append(fitted_estimator)
            if self.fail:
                raise RuntimeError("no")
            return len(self.models) >= self.epochs
        return False

    def teardown(self, estimator, context):
        self.calls.append("teardown")


@needs_callbacks
def test_a_callback_is_called_in_order_and_may_stop(diabetes):
    X, y = diabetes
    recorder = Recorder(epochs=3)
    # the decay of "auto" depends on max_iter; plain SGD rounds otherwise in a loop, which few updates lack
    named = {"learning_rate": "invscaling", "optimizer": "adam", "random_state": 0}
    model = OnnxSGDRegressor(max_iter=100, **named).set_callbacks(recorder).fit(X, y)
    epochs = ["epoch begins", "epoch ends"] * 3
    assert recorder.calls == ["setup", "fit begins", *epochs, "fit ends", "teardown"]
    assert model.n_iter_ == 3
    # The callback's arguments are not changed later.
    for count, then in enumerate(recorder.models, 1):
        alone = regressor(max_iter=count, **named).fit(X, y)
        np.testing.assert_array_equal(then.predict(X), alone.predict(X))
        np.testing.assert_array_equal(then.coef_, alone.coef_)
        assert (then.n_iter_, then.t_) == (count, 14 * count)


@needs_callbacks
def test_a_callback_sees_each_epoch_of_auto(diabetes):
    """Windows of several epochs are made at once only if nothing observes them."""
    recorder = Recorder()
    model = regressor(max_iter=9).set_callbacks(recorder).fit(*diabetes)
    assert [then.n_iter_ for then in recorder.models] == [*range(1, 10)]
    assert [len(then.learning_rates_) for then in recorder.models] == [*range(1, 10)]
    np.testing.assert_array_equal(model.coef_, regressor(max_iter=9).fit(*diabetes).coef_)
    # before any epoch is undone
    stopped = OnnxSGDRegressor(max_iter=100, random_state=0).set_callbacks(Recorder(epochs=3)).fit(*diabetes)
    assert (stopped.n_iter_, stopped.t_) == (3, 3 * 14)


@needs_callbacks
def test_a_callback_that_fails_leaves_a_usable_estimator(diabetes):
    recorder = Recorder(fail=True)
    model = regressor().set_callbacks(recorder)
    with pytest.raises(RuntimeError, match="no"):
        model.fit(*diabetes)
    assert recorder.calls[-1] == "teardown"
    assert model.t_ == 14
    assert np.isfinite(model.predict(diabetes[0])).all()
    np.testing.assert_array_equal(
        model.set_callbacks().fit(*diabetes).coef_, regressor().fit(*diabetes).coef_
    )


@needs_callbacks
def test_callbacks_come_through_meta_estimators(diabetes):
    X, y = diabetes
    recorder = Recorder()
    make_pipeline(StandardScaler(), regressor()).set_callbacks(recorder).fit(X, y)
    assert recorder.calls.count("epoch ends") == 5
    recorder = Recorder()
    GridSearchCV(regressor(), {"alpha": [1e-4, 1e-2]}, cv=2).set_callbacks(recorder).fit(X, y)
    assert recorder.calls.count("epoch ends") == (2 * 2 + 1) * 5


@needs_callbacks
def test_an_estimator_with_callbacks_is_pickled(diabetes):
    monitor = ScoringMonitor(scoring="r2")
    model = regressor().set_callbacks(monitor).fit(*diabetes)
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict(diabetes[0]), model.predict(diabetes[0]))
    restored.fit(*diabetes)
    assert len(restored._skl_callbacks[0].get_logs(select="all")) == 2


class Copies(Recorder):
    """A callback that copies the estimator after each epoch."""

    def __init__(self):
        super().__init__()
        self.copies = []

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        super().on_fit_task_end(estimator, context, fitted_estimator=fitted_estimator)
        if context.task_name == "epoch":
            self.copies += [copy(estimator), pickle.loads(pickle.dumps(copy(estimator).set_callbacks()))]


@needs_callbacks
def test_copies_in_a_callback_have_the_state_of_their_epoch(diabetes):
    copies = Copies()
    regressor(early_stopping=True, learning_rate="constant").set_callbacks(copies).fit(*diabetes)
    assert len(copies.copies) == 10
    for number, duplicate in enumerate(copies.copies):
        fitted = copies.models[number // 2]
        n_epochs = number // 2 + 1
        assert (
            duplicate.n_iter_ == len(duplicate.loss_curve_) == len(duplicate.validation_scores_) == n_epochs
        )
        assert duplicate.t_ == fitted.t_
        np.testing.assert_array_equal(duplicate.coef_, fitted.coef_)


@needs_callbacks
def test_optuna_ends_fits_that_lag_behind():
    """The recipe of the guide."""
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    (recipe,) = re.findall(r"   (class Pruning:.*?)\n\n\n", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    scope = {"optuna": optuna}
    exec(textwrap.dedent(f"   {recipe}"), scope)
    X, y = load_digits(return_X_y=True)
    learners = {}

    def objective(trial):
        is_wrong = trial.suggest_categorical("wrong", [False, True])
        learners[is_wrong] = OnnxSGDClassifier(max_iter=6, tol=None, random_state=0)
        learners[is_wrong].set_callbacks(scope["Pruning"](trial))
        target = np.random.default_rng(0).permutation(y[:1200]) if is_wrong else y[:1200]
        learners[is_wrong].fit(X[:1200], target, X_val=X[1200:], y_val=y[1200:])
        return learners[is_wrong].validation_scores_[-1]

    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.GridSampler({"wrong": [False, True]}, seed=0),
        pruner=optuna.pruners.ThresholdPruner(lower=0.5, n_warmup_steps=2),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study.optimize(objective)
    states = {trial.params["wrong"]: trial.state.name for trial in study.trials}
    assert states == {False: "COMPLETE", True: "PRUNED"}
    # a fit that was ended keeps its epochs
    assert [learners[is_wrong].n_iter_ for is_wrong in (False, True)] == [6, 2]
