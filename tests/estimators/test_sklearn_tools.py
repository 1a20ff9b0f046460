"""The tools of scikit-learn over both estimators: same results as over its own."""

import subprocess
import sys

import joblib
import numpy as np
import onnx
import pytest
from scipy.special import expit
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingRegressor, StackingClassifier, VotingClassifier
from sklearn.experimental import enable_halving_search_cv  # noqa: F401 (makes the next import possible)
from sklearn.feature_selection import RFE, SelectFromModel
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import PartialDependenceDisplay, partial_dependence, permutation_importance
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import brier_score_loss
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    StratifiedKFold,
    cross_val_score,
    cross_validate,
    learning_curve,
    validation_curve,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.runtime.cache import cache
from onnxsgd.runtime.sessions import resolve_threads

FIVE = KFold(5, shuffle=True, random_state=0)

#: A model inside that converges after a few epochs.
QUICK = MLPClassifier((8,), tol=10.0, n_iter_no_change=2, random_state=0)


def regressor(**more):
    return OnnxSGDRegressor(**{"max_iter": 10, "tol": None, "random_state": 0} | more)


def classifier(**more):
    return OnnxSGDClassifier(
        **{"max_iter": 10, "tol": None, "learning_rate": "invscaling", "eta0": 0.1, "random_state": 0} | more
    )


# Cloning, and models inside.


def test_clone_gives_an_estimator_that_fits_like_the_first(iris):
    fitted = classifier(model=QUICK, learning_rate="invscaling", optimizer="adam").fit(*iris)
    again = clone(fitted).fit(*iris)
    np.testing.assert_array_equal(again.predict_proba(iris[0]), fitted.predict_proba(iris[0]))


def test_nothing_leaks_from_the_test_fold_through_a_fitted_model(diabetes):
    """`clone` un-fits the inner model, so that it is fitted on the training fold."""
    X, y = diabetes[0], np.random.RandomState(0).randn(442)
    wide = np.c_[X, np.random.RandomState(1).randn(442, 300)]
    knows_all = Ridge(alpha=1e-3).fit(wide, y)
    assert knows_all.score(wide, y) > 0.6
    settings = dict(max_iter=1, learning_rate="invscaling", eta0=1e-6)
    with_fitted = cross_val_score(regressor(model=knows_all, **settings), wide, y, cv=FIVE)
    with_unfitted = cross_val_score(regressor(model=Ridge(alpha=1e-3), **settings), wide, y, cv=FIVE)
    np.testing.assert_array_equal(with_fitted, with_unfitted)
    assert with_fitted.max() < 0


@pytest.mark.parametrize("form", ["frozen", "ModelProto", "bytes", "path"])
def test_frozen_estimators_and_graphs_keep_their_weights(diabetes, tmp_path, form):
    X, y = diabetes
    fitted = Ridge().fit(X, y)
    proto = (
        regressor(model=fitted, max_iter=1, learning_rate="invscaling", eta0=1e-12, penalty=None)
        .fit(X, y)
        .to_onnx()
    )
    onnx.save(proto, tmp_path / "ridge.onnx")
    forms = {
        "frozen": FrozenEstimator(fitted),
        "ModelProto": proto,
        "bytes": proto.SerializeToString(),
        "path": tmp_path / "ridge.onnx",
    }
    model = regressor(model=forms[form], max_iter=1, learning_rate="invscaling", eta0=1e-9, penalty=None)
    found = cross_validate(model, X, y, cv=FIVE, return_estimator=True)
    for estimator in found["estimator"]:
        np.testing.assert_allclose(estimator.predict(X), fitted.predict(X), rtol=1e-4, atol=1e-5)


def test_parameters_of_the_inner_model_are_reached_by_name(diabetes):
    X, y = diabetes
    model = regressor(
        model=make_pipeline(StandardScaler(), Ridge()),
        max_iter=1,
        learning_rate="invscaling",
        eta0=1e-9,
        penalty=None,
    )
    assert "model__ridge__alpha" in model.get_params()
    model.set_params(model__ridge__alpha=1e5).fit(X, y)
    expected = make_pipeline(StandardScaler(), Ridge(alpha=1e5)).fit(X, y).predict(X)
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-4, atol=1e-6)


def test_a_search_over_the_inner_model_picks_the_best(diabetes):
    X, y = diabetes
    model = regressor(model=Ridge(), max_iter=1, learning_rate="invscaling", eta0=1e-9)
    search = GridSearchCV(model, {"model__alpha": [1.0, 1e4, 1e6]}, cv=FIVE).fit(X, y)
    plain = GridSearchCV(Ridge(), {"alpha": [1.0, 1e4, 1e6]}, cv=FIVE).fit(X, y)
    assert search.best_params_["model__alpha"] == plain.best_params_["alpha"]
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"], atol=1e-6
    )


# Searches and curves.


def test_grid_search_scores_are_those_of_a_loop(iris):
    X, y = iris
    grid = {"alpha": [1e-4, 1e-2], "loss": ["log_loss", "hinge"]}
    search = GridSearchCV(classifier(), grid, cv=StratifiedKFold(3)).fit(X, y)
    for params, mean in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
        scores = [
            classifier(**params).fit(X[train], y[train]).score(X[test], y[test])
            for train, test in StratifiedKFold(3).split(X, y)
        ]
        assert mean == pytest.approx(np.mean(scores))
    np.testing.assert_array_equal(
        search.best_estimator_.predict(X), classifier(**search.best_params_).fit(X, y).predict(X)
    )


@pytest.mark.parametrize("resource", ["n_samples", "max_iter"])
def test_halving_search_spends_its_resource(cancer, resource):
    least, most = (50, 400) if resource == "n_samples" else (2, 16)
    grid = {"eta0": [1e-6, 1e-4, 1e-2, 0.1]}
    search = HalvingGridSearchCV(
        classifier(), grid, resource=resource, min_resources=least, max_resources=most, factor=2, cv=3,
        random_state=0,
    ).fit(*cancer)  # fmt: skip
    assert search.n_candidates_ == [4, 2, 1]
    assert search.best_params_["eta0"] >= 1e-2
    assert search.best_score_ > 0.9


def test_learning_and_validation_curves(diabetes):
    X, y = diabetes
    sizes, train, test = learning_curve(regressor(), X, y, train_sizes=[50, 300], cv=FIVE)
    assert sizes.tolist() == [50, 300]
    assert test.mean(axis=1)[1] > test.mean(axis=1)[0]
    assert np.all(train.mean(axis=1) > test.mean(axis=1) - 0.05)
    _, test = validation_curve(regressor(), X, y, param_name="alpha", param_range=[1e-4, 10.0], cv=FIVE)
    assert test.mean(axis=1)[0] > 0.4 > test.mean(axis=1)[1]


# Estimators over estimators.


def test_bagging_averages_fits_on_samples_with_replacement(diabetes):
    X, y = diabetes
    bag = BaggingRegressor(regressor(), n_estimators=4, random_state=0).fit(X, y)
    single = [estimator.predict(X) for estimator in bag.estimators_]
    np.testing.assert_allclose(bag.predict(X), np.mean(single, axis=0), rtol=1e-6)
    assert np.std(single, axis=0).mean() > 1e-3
    assert bag.score(X, y) > 0.35


def test_stacking_and_voting_take_probabilities(iris):
    X, y = iris
    members = [("onnx", classifier()), ("logistic", LogisticRegression())]
    stack = StackingClassifier(members, cv=3).fit(X, y)
    assert stack.transform(X).shape == (150, 6)
    assert stack.score(X, y) > 0.9
    vote = VotingClassifier(members, voting="soft").fit(X, y)
    mean = np.mean([member.predict_proba(X) for member in vote.estimators_], axis=0)
    np.testing.assert_allclose(vote.predict_proba(X), mean, rtol=1e-6)


def test_multi_output_regressor_fits_each_column_alone(diabetes):
    X, y = diabetes
    Y = np.c_[y, X[:, 0] - y]
    both = MultiOutputRegressor(regressor()).fit(X, Y)
    for column in range(2):
        alone = regressor().fit(X, Y[:, column])
        np.testing.assert_array_equal(both.predict(X)[:, column], alone.predict(X))


def test_one_vs_rest_fits_each_class_alone(iris):
    X, y = iris
    rest = OneVsRestClassifier(classifier()).fit(X, y)
    raw = np.c_[[classifier().fit(X, (y == label).astype(int)).decision_function(X) for label in range(3)]].T
    np.testing.assert_array_equal(rest.predict(X), raw.argmax(axis=1))
    expected = expit(raw.astype(np.float64))
    np.testing.assert_allclose(
        rest.predict_proba(X), expected / expected.sum(axis=1, keepdims=True), rtol=1e-5
    )


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_calibration_works_on_scores_and_on_probabilities(cancer, loss):
    X, y = cancer
    model = CalibratedClassifierCV(classifier(loss=loss), cv=3).fit(X[::2], y[::2])
    probability = model.predict_proba(X[1::2])
    np.testing.assert_allclose(probability.sum(axis=1), 1, rtol=1e-6)
    assert brier_score_loss(y[1::2], probability[:, 1]) < 0.05


def test_a_frozen_estimator_of_ours_is_calibrated_as_it_is(cancer):
    X, y = cancer
    fitted = classifier(loss="hinge").fit(X[:200], y[:200])
    model = CalibratedClassifierCV(FrozenEstimator(fitted)).fit(X[200:400], y[200:400])
    order = np.argsort(fitted.decision_function(X[400:]))
    assert np.all(np.diff(model.predict_proba(X[400:])[order, 1]) >= 0)


def test_features_are_selected_by_coefficients(cancer):
    X, y = cancer
    model = classifier(penalty="l1", alpha=0.02, max_iter=50).fit(X, y)
    chosen = SelectFromModel(model, prefit=True, threshold=1e-10).get_support()
    np.testing.assert_array_equal(chosen, model.coef_[0] != 0)
    assert 0 < chosen.sum() < 30
    ranked = RFE(classifier(), n_features_to_select=5, step=10).fit(X, y)
    assert ranked.support_.sum() == 5
    assert classifier().fit(X[:, ranked.support_], y).score(X[:, ranked.support_], y) > 0.9


def test_permutation_importance_finds_the_columns_that_matter():
    random = np.random.RandomState(0)
    X = random.randn(300, 4).astype(np.float32)
    y = 3 * X[:, 1] - X[:, 3]
    model = regressor(learning_rate="invscaling", eta0=0.1, max_iter=30).fit(X, y)
    importance = permutation_importance(model, X, y, n_repeats=20, random_state=0)
    # R² falls by twice the share of the variance that a column explains.
    share = X.var(axis=0) * np.array([0, 9, 0, 1]) / y.var()
    np.testing.assert_allclose(importance.importances_mean, 2 * share, atol=0.1)


def test_partial_dependence_of_a_linear_model_is_its_coefficient(diabetes):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    X, y = diabetes
    model = regressor().fit(X, y)
    found = partial_dependence(model, X, [2], grid_resolution=5)
    slope = np.diff(found["average"][0]) / np.diff(found["grid_values"][0])
    np.testing.assert_allclose(slope, model.coef_[2], rtol=1e-3)
    display = PartialDependenceDisplay.from_estimator(model, X, [2, (2, 3)], grid_resolution=5)
    assert len(display.axes_.ravel()) == 2
    matplotlib.pyplot.close("all")


# Many at once.


@pytest.mark.parametrize(
    "backend", ["threading", "loky", pytest.param("multiprocessing", marks=pytest.mark.slow)]
)
def test_parallel_and_sequential_searches_give_the_same(iris, backend):
    model = classifier(model=QUICK)
    grid = {"alpha": [1e-4, 1e-1], "eta0": [0.01, 0.1]}
    sequential = GridSearchCV(model, grid, cv=3, scoring="neg_log_loss").fit(*iris)
    with joblib.parallel_config(backend):
        parallel = GridSearchCV(model, grid, cv=3, scoring="neg_log_loss", n_jobs=-1).fit(*iris)
    for fold in range(3):
        key = f"split{fold}_test_score"
        np.testing.assert_array_equal(parallel.cv_results_[key], sequential.cv_results_[key])


def test_estimators_fitted_in_threads_do_not_disturb_each_other(iris):
    X, y = iris
    alone = [classifier(random_state=seed).fit(X, y).coef_ for seed in range(8)]
    together = joblib.Parallel(4, backend="threading")(
        joblib.delayed(classifier(random_state=seed).fit)(X, y) for seed in range(8)
    )
    np.testing.assert_array_equal([model.coef_ for model in together], alone)


def test_workers_are_not_oversubscribed(monkeypatch):
    """By default, the threads of all workers together are no more than the cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(joblib, "cpu_count", lambda *args, **kwargs: 4)
    large = 10**9
    assert resolve_threads(None, large) == 4
    assert resolve_threads(None, 1000) == 1
    assert resolve_threads(3, 1000) == 3
    in_threads = joblib.Parallel(2, backend="threading")(
        joblib.delayed(resolve_threads)(None, large) for _ in range(2)
    )
    assert in_threads == [1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert resolve_threads(None, large) == 2


def test_workers_of_the_default_backend_share_the_cores():
    in_processes = joblib.Parallel(2, backend="loky")(
        joblib.delayed(resolve_threads)(None, 10**9) for _ in range(2)
    )
    assert sum(in_processes) <= max(2, joblib.cpu_count())


def test_a_fork_after_training_does_not_hang():
    """The child of a fork cannot use the sessions of its parent, and makes new ones."""
    code = (
        "import numpy as np, multiprocessing as mp\n"
        "from onnxsgd import OnnxSGDRegressor\n"
        "X = np.random.RandomState(0).randn(2000, 500); y = X[:, :200]\n"
        "model = OnnxSGDRegressor(max_iter=1, tol=None, batch_size=1000, n_threads=2, random_state=0)\n"
        "here = model.fit(X, y).coef_\n"
        "with mp.get_context('fork').Pool(1) as pool:\n"
        "    there = pool.apply_async(model.fit, (X, y)).get(timeout=60).coef_\n"
        "print(np.array_equal(here, there))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "True", done.stderr


# Compilation.


@pytest.mark.parametrize("model", [None, QUICK], ids=["linear", "mlp"])
def test_numeric_hyper_parameters_need_no_new_session(cancer, model):
    X, y = cancer[0][:500], cancer[1][:500]  # folds of equal size
    search = GridSearchCV(
        classifier(
            model=model, learning_rate="invscaling", optimizer="sgd", momentum=0.5, penalty="elasticnet"
        ),
        {
            "alpha": [1e-5, 1e-3],
            "l1_ratio": [0.1, 0.5],
            "eta0": [0.01, 0.1],
            "momentum": [0.5, 0.9],
            "power_t": [0.25, 0.5],
        },
        cv=StratifiedKFold(2),
        refit=False,
    )
    cache.clear()
    classifier(model=model, learning_rate="invscaling", momentum=0.5, penalty="elasticnet").fit(
        X[:250], y[:250]
    ).predict(X)
    for_one = cache.n_built
    assert for_one > 0
    search.fit(X, y)
    assert len(search.cv_results_["params"]) == 32
    assert cache.n_built == for_one


@pytest.mark.filterwarnings("ignore:Training (did not lower|lowered):sklearn.exceptions.ConvergenceWarning")
def test_a_search_over_rates_names_the_schedule(iris):
    """A grid of rates has no meaning where training finds the rate; the error has the grid that has one."""
    X, y = iris
    model = OnnxSGDClassifier(max_iter=5, tol=None, random_state=0)
    with pytest.raises(
        ValueError, match=r"(?s)eta0=0.1 has no effect.*list of grids.*'constant'\], 'eta0': \["
    ):
        GridSearchCV(model, {"eta0": [0.1, 0.2]}, cv=2).fit(X, y)
    grid = [{"learning_rate": ["auto"]}, {"learning_rate": ["constant"], "eta0": [1e-9, 0.1]}]
    search = GridSearchCV(model, grid, cv=StratifiedKFold(2), error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 3
    assert search.best_params_.get("eta0", 1) > 0.01
