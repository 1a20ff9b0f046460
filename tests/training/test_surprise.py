"""The surprise of right models is zero on average, and that of others is the divergence from them."""

import numpy as np
import pytest
from scipy.special import expit, softmax

from onnxsgd.losses import CrossEntropy, Hinge, LogLoss, SquaredError
from onnxsgd.training.surprise import find_surprise

RNG = np.random.default_rng(0)
N = 200_000


def log_loss(target, raw):
    return -(target * np.log(expit(raw)) + (1 - target) * np.log(expit(-raw))).sum(axis=1)


def cross_entropy(target, raw):
    return -(target * np.log(softmax(raw, axis=1))).sum(axis=1)


def squared_error(target, raw):
    return 0.5 * np.square(target - raw).sum(axis=1)


def test_of_independent_classes():
    """Labels drawn from p, with predictions q, have the mean sum of (p - q) log((1 - q) / q)."""
    raw = RNG.normal(0.0, 2.0, (N, 2))
    right, weight = RNG.random((N, 2)) < expit(raw), np.ones(N)
    surprise = find_surprise(LogLoss(), log_loss, right.astype(float), weight)
    assert abs(surprise(raw).mean()) < 0.01
    # scores of twice the size are too sure
    p, q = expit(raw), expit(2 * raw)
    expected = ((p - q) * -2 * raw).sum(axis=1).mean()
    np.testing.assert_allclose(surprise(2 * raw).mean(), expected, atol=0.02)
    assert expected > 0.2


def test_of_classes_that_exclude_each_other():
    """Rows without a class, which the loss ignores, have none."""
    raw = RNG.normal(0.0, 2.0, (N, 3))
    labels = (softmax(raw, axis=1).cumsum(axis=1) < RNG.random((N, 1))).sum(axis=1)
    target = np.eye(3)[labels]
    target[:10] = 0
    surprise = find_surprise(CrossEntropy(), cross_entropy, target, np.ones(N))(raw)
    assert abs(surprise.mean()) < 0.01 < surprise[10:].std()
    np.testing.assert_array_equal(surprise[:10], 0)


def test_of_squared_errors():
    """A right model has the errors after a scale and a shift for each column, by weighted least squares."""
    raw, weight = RNG.normal(size=(50, 2)), RNG.uniform(0.5, 2.0, 50)
    target = raw * [2.0, -1.0] + [3.0, 0.0] + RNG.normal(size=(50, 2))
    fitted = np.empty_like(target)
    for column in range(2):
        slope, intercept = np.polyfit(raw[:, column], target[:, column], 1, w=np.sqrt(weight))
        fitted[:, column] = slope * raw[:, column] + intercept
    surprise = find_surprise(SquaredError(), squared_error, target, weight)(raw)
    want = squared_error(target, raw) - squared_error(target, fitted)
    np.testing.assert_allclose(surprise, want, rtol=1e-10)


@pytest.mark.parametrize(
    ("loss", "target"), [(Hinge(), np.ones((4, 1))), (SquaredError(), np.ones((4, 2, 3)))]
)
def test_others_have_none(loss, target):
    assert find_surprise(loss, squared_error, target, np.ones(4)) is None
