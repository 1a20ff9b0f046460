"""The weights follow scikit-learn's SGDRegressor and SGDClassifier step by step."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

EPOCHS = 3
#: Three epochs in float32 against float64; the largest weight is the scale.
TOLERANCE = 1e-4

REGRESSION = ["squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive"]
CLASSIFICATION = [
    "log_loss", "hinge", "squared_hinge", "modified_huber", "perceptron", "squared_error", "huber",
]  # fmt: skip
SCHEDULES = {
    "constant": {"eta0": 0.005},
    "optimal": {"alpha": 1.0},
    "invscaling": {"eta0": 0.01, "power_t": 0.25},
    "adaptive": {"eta0": 0.005, "n_iter_no_change": 1, "tol": 10.0},
}
PENALTIES = ["l2", "l1", "elasticnet", None]


def scaled(load, n_samples):
    X, y = load(return_X_y=True)
    rows = np.random.RandomState(0).permutation(len(X))[:n_samples]
    return StandardScaler().fit_transform(X[rows]), y[rows]


@pytest.fixture(scope="module")
def regression():
    X, y = scaled(load_diabetes, 200)
    return X, (y - y.mean()) / y.std()


@pytest.fixture(scope="module")
def binary():
    return scaled(load_breast_cancer, 200)


@pytest.fixture(scope="module")
def multiclass():
    return scaled(load_iris, 120)


def assert_follows(ours, reference, X, y, sample_weight=None, tolerance=TOLERANCE):
    with warnings.catch_warnings():
        # both stop after three epochs, on purpose
        warnings.simplefilter("ignore")
        reference.fit(X, y, sample_weight=sample_weight)
        ours.set_params(batch_size=1).fit(X, y, sample_weight=sample_weight)
    scale = max(np.abs(reference.coef_).max(), 1e-3)
    np.testing.assert_allclose(ours.coef_, reference.coef_, rtol=0, atol=tolerance * scale)
    scale = max(np.abs(reference.intercept_).max(), scale)
    np.testing.assert_allclose(ours.intercept_, reference.intercept_, rtol=0, atol=tolerance * scale)


def common(schedule="invscaling", penalty="l2", **more):
    settings = dict(
        max_iter=EPOCHS, tol=None, shuffle=False, penalty=penalty, learning_rate=schedule, alpha=1e-3,
        l1_ratio=0.4,
    )  # fmt: skip
    return settings | SCHEDULES[schedule] | more


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("loss", REGRESSION)
def test_regressor_follows_every_loss_and_schedule(regression, loss, schedule):
    settings = common(schedule, loss=loss)
    assert_follows(OnnxSGDRegressor(**settings), SGDRegressor(**settings), *regression)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("loss", REGRESSION)
def test_regressor_follows_every_penalty(regression, loss, penalty):
    settings = common(loss=loss, penalty=penalty, alpha=0.05)
    assert_follows(OnnxSGDRegressor(**settings), SGDRegressor(**settings), *regression)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("loss", CLASSIFICATION)
def test_classifier_follows_every_loss_and_schedule(binary, loss, schedule):
    settings = common(schedule, loss=loss)
    assert_follows(OnnxSGDClassifier(**settings), SGDClassifier(**settings), *binary)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("loss", CLASSIFICATION)
def test_classifier_follows_every_penalty(binary, loss, penalty):
    settings = common(loss=loss, penalty=penalty, alpha=0.02)
    assert_follows(OnnxSGDClassifier(**settings), SGDClassifier(**settings), *binary)


@pytest.mark.parametrize("loss", CLASSIFICATION)
def test_multiclass_is_one_against_the_rest(multiclass, loss):
    settings = common(loss=loss)
    assert_follows(OnnxSGDClassifier(**settings), SGDClassifier(**settings), *multiclass)


@pytest.mark.parametrize("loss", CLASSIFICATION)
@pytest.mark.parametrize("class_weight", [{0: 0.5, 1: 3.0}, "balanced"])
def test_class_weight_means_the_same(binary, loss, class_weight):
    settings = common(loss=loss, class_weight=class_weight)
    assert_follows(OnnxSGDClassifier(**settings), SGDClassifier(**settings), *binary)


def test_sample_weight_means_the_same(regression):
    weight = np.random.RandomState(1).uniform(0.1, 2.0, len(regression[0]))
    settings = common()
    assert_follows(OnnxSGDRegressor(**settings), SGDRegressor(**settings), *regression, sample_weight=weight)


@pytest.mark.parametrize("average", [True, 50])
def test_averaging_means_the_same(regression, average):
    settings = common(average=average)
    assert_follows(OnnxSGDRegressor(**settings), SGDRegressor(**settings), *regression)


def test_l1_gives_exact_zeros_where_scikit_learn_does(regression):
    settings = common(penalty="l1", alpha=0.1, max_iter=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = SGDRegressor(**settings).fit(*regression)
        ours = OnnxSGDRegressor(batch_size=1, **settings).fit(*regression)
    assert 0 < (reference.coef_ == 0).sum() < reference.coef_.size
    np.testing.assert_array_equal(ours.coef_ == 0, reference.coef_ == 0)


def test_training_stops_at_the_same_epoch(regression):
    settings = common("constant", tol=1e-3, max_iter=200, n_iter_no_change=3)
    ours = OnnxSGDRegressor(batch_size=1, **settings).fit(*regression)
    reference = SGDRegressor(**settings).fit(*regression)
    assert abs(ours.n_iter_ - reference.n_iter_) <= 1
