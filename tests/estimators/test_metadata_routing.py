"""Routing of sample weights and validation data through meta-estimators."""

import numpy as np
import pytest
import sklearn
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

TWO = KFold(2)


@pytest.fixture(autouse=True)
def _routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    weight = np.random.RandomState(0).rand(len(y))
    return StandardScaler().fit_transform(X).astype(np.float32), (y - y.mean()) / y.std(), weight


def regressor(**more):
    return OnnxSGDRegressor(**{"max_iter": 5, "tol": None, "random_state": 0} | more)


@pytest.mark.parametrize("cls", [OnnxSGDRegressor, OnnxSGDClassifier])
def test_requests_cover_the_parameters_of_methods(cls):
    routing = cls().get_metadata_routing()
    assert set(routing.fit.requests) == {"sample_weight", "X_val", "y_val", "resume"}
    taken = {"sample_weight", "classes"} if cls is OnnxSGDClassifier else {"sample_weight"}
    assert set(routing.partial_fit.requests) == taken
    assert set(routing.score.requests) == {"sample_weight"}
    assert not any(routing.fit.requests.values())


def test_weights_are_not_passed_on_without_a_request(diabetes):
    X, y, weight = diabetes
    with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
        make_pipeline(StandardScaler(), regressor()).fit(X, y, sample_weight=weight)


@pytest.mark.parametrize("requested", [True, False, "importance"])
def test_weights_go_through_a_pipeline_as_requested(diabetes, requested):
    X, y, weight = diabetes
    last = regressor().set_fit_request(sample_weight=requested)
    scaler = StandardScaler().set_fit_request(sample_weight=False)
    names = {True: ["sample_weight"], False: [], "importance": ["importance"]}
    given = dict.fromkeys(names[requested], weight)
    fitted = make_pipeline(scaler, last).fit(X, y, **given)
    alone = regressor().fit(X, y, sample_weight=None if requested is False else weight)
    np.testing.assert_allclose(fitted[-1].coef_, alone.coef_, rtol=1e-4, atol=1e-6)


def test_weights_are_split_with_the_folds(diabetes):
    X, y, weight = diabetes
    model = regressor().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
    found = cross_validate(model, X, y, cv=TWO, params={"sample_weight": weight})
    search = GridSearchCV(model, {"alpha": [1e-4]}, cv=TWO).fit(X, y, sample_weight=weight)
    for fold, (train, test) in enumerate(TWO.split(X)):
        alone = regressor().fit(X[train], y[train], sample_weight=weight[train])
        score = r2_score(y[test], alone.predict(X[test]), sample_weight=weight[test])
        assert found["test_score"][fold] == pytest.approx(score, rel=1e-6)
        assert search.cv_results_[f"split{fold}_test_score"][0] == pytest.approx(score, rel=1e-6)


def test_validation_data_are_given_to_every_candidate(diabetes):
    X, y, weight = diabetes
    model = regressor(early_stopping=True, max_iter=50)
    model.set_fit_request(X_val=True, y_val=True, sample_weight=True)
    held = {"X_val": X[300:], "y_val": y[300:]}
    fitted = make_pipeline(model).fit(X[:300], y[:300], sample_weight=weight[:300], **held)
    alone = regressor(early_stopping=True, max_iter=50)
    alone.fit(X[:300], y[:300], sample_weight=weight[:300], **held)
    np.testing.assert_array_equal(fitted[-1].coef_, alone.coef_)
    assert fitted[-1].validation_scores_ == alone.validation_scores_


def test_classes_and_weights_go_through_partial_fit():
    X, y = load_iris(return_X_y=True)
    model = OnnxSGDClassifier(random_state=0).set_partial_fit_request(classes=True, sample_weight=True)
    weight = np.linspace(0.5, 1.5, len(y))
    rest = OneVsRestClassifier(model)
    rest.partial_fit(X, y, classes=[0, 1, 2], sample_weight=weight)
    for label, one in enumerate(rest.estimators_):
        alone = OnnxSGDClassifier(random_state=0).partial_fit(
            X, (y == label).astype(int), classes=[0, 1], sample_weight=weight
        )
        np.testing.assert_array_equal(one.coef_, alone.coef_)


def test_weights_reach_an_inner_model_that_asks_for_them(diabetes):
    X, y, weight = diabetes
    settings = dict(max_iter=1, learning_rate="invscaling", eta0=1e-9, penalty=None)
    asks = Ridge().set_fit_request(sample_weight=True)
    declines = Ridge().set_fit_request(sample_weight=False)
    for inner, expected in ((asks, Ridge().fit(X, y, weight)), (declines, Ridge().fit(X, y))):
        model = regressor(model=inner, **settings).fit(X, y, sample_weight=weight)
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-5, atol=1e-6)
    scaled = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), asks)
    model = regressor(model=scaled, **settings).fit(X, y, sample_weight=weight)
    expected = make_pipeline(StandardScaler(), Ridge())
    with sklearn.config_context(enable_metadata_routing=False):
        expected.fit(X, y, ridge__sample_weight=weight)
    np.testing.assert_allclose(model.predict(X), expected.predict(X), rtol=1e-4, atol=1e-5)


def test_an_inner_model_that_takes_no_weights_is_fitted_without():
    X, y = load_iris(return_X_y=True)
    weight = np.linspace(0.5, 1.5, len(y))
    inner = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), LogisticRegression())
    inner[-1].set_fit_request(sample_weight=False)
    model = OnnxSGDClassifier(
        inner, max_iter=1, tol=None, learning_rate="invscaling", eta0=1e-9, penalty=None
    )
    model.fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(
        model.predict_proba(X), clone_fit(inner, X, y).predict_proba(X), rtol=1e-4, atol=1e-5
    )


@pytest.mark.filterwarnings("ignore:Training did not lower")
def test_an_inner_model_without_a_request_is_an_error(diabetes):
    X, y, weight = diabetes
    model = (
        regressor(model=Ridge()).set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
    )
    with pytest.raises(UnsetMetadataPassedError, match=r"sample_weight.*Ridge\.fit"):
        model.fit(X, y, sample_weight=weight)
    with pytest.raises(UnsetMetadataPassedError, match=r"sample_weight.*Ridge\.fit"):
        GridSearchCV(model, {"alpha": [1e-4]}, cv=2, error_score="raise").fit(X, y, sample_weight=weight)
    # A fitted model is not fitted again.
    regressor(model=Ridge().fit(X, y)).fit(X, y, sample_weight=weight)


def clone_fit(model, X, y):
    return sklearn.base.clone(model).fit(X, y)
