"""The weights follow scikit-learn's MLPRegressor and MLPClassifier step by step."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

EPOCHS, BATCH, RATE = 4, 32, 0.05
MOMENTA = [
    {"momentum": 0.0, "nesterovs_momentum": False},
    {"momentum": 0.9, "nesterovs_momentum": False},
    {"momentum": 0.9, "nesterovs_momentum": True},
]


def mlp(cls, activation="relu", **more):
    return cls(
        hidden_layer_sizes=(12, 7), activation=activation, solver="sgd", batch_size=BATCH, shuffle=False,
        learning_rate="constant", learning_rate_init=RATE, alpha=0.0, random_state=0, **more,
    )  # fmt: skip


def trained_further(reference, X, y, epochs):
    """Continue scikit-learn's training from its own weights, with fresh momentum."""
    weights = [array.copy() for array in reference.coefs_ + reference.intercepts_]
    other = mlp(type(reference), reference.activation, max_iter=1, momentum=reference.momentum,
                nesterovs_momentum=reference.nesterovs_momentum)  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.fit(X, y)
        for present, wanted in zip(other.coefs_ + other.intercepts_, weights, strict=True):
            present[...] = wanted
        for velocity in other._optimizer.velocities:
            velocity[...] = 0
        for _ in range(epochs):
            other.partial_fit(X, y)
    return other


def check(ours_class, reference_class, X, y, activation, momentum):
    X = X.astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = mlp(reference_class, activation, max_iter=2, **momentum).fit(X, y)
        reference = trained_further(start, X, y, EPOCHS)
        ours = ours_class(
            FrozenEstimator(start), penalty=None, learning_rate="constant", eta0=RATE,
            momentum=momentum["momentum"], nesterov=momentum["nesterovs_momentum"], batch_size=BATCH,
            shuffle=False, max_iter=EPOCHS, tol=None,
        ).fit(X, y)  # fmt: skip
    trained = ours.get_weights()
    wanted = [*reference.coefs_, *reference.intercepts_]
    assert sum(array.size for array in trained.values()) == sum(array.size for array in wanted)
    for expected in wanted:
        found = [a for a in trained.values() if a.size == expected.size]
        distance = min(np.abs(a.reshape(expected.shape) - expected).max() for a in found)
        assert distance <= 1e-4 * max(np.abs(expected).max(), 0.1)
    moved = max(np.abs(a - b).max() for a, b in zip(reference.coefs_, start.coefs_, strict=True))
    assert moved > 1e-2


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic", "identity"])
def test_regressor(activation, momentum):
    X, y = load_diabetes(return_X_y=True)
    check(
        OnnxSGDRegressor, MLPRegressor, StandardScaler().fit_transform(X), (y - y.mean()) / y.std(),
        activation, momentum,
    )  # fmt: skip


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("load", [load_breast_cancer, load_iris], ids=["binary", "multiclass"])
def test_classifier(load, momentum):
    X, y = load(return_X_y=True)
    check(OnnxSGDClassifier, MLPClassifier, StandardScaler().fit_transform(X), y, "relu", momentum)


def test_l2_penalty_is_the_one_of_the_mlp_divided_by_the_batch():
    X, y = load_diabetes(return_X_y=True)
    X, y = StandardScaler().fit_transform(X)[:320].astype(np.float32), (y[:320] - y.mean()) / y.std()
    alpha = 3.2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = mlp(MLPRegressor, max_iter=1, momentum=0.0, nesterovs_momentum=False).fit(X, y)
        reference = trained_further(start.set_params(alpha=alpha), X, y, 0)
        reference.set_params(alpha=alpha)
        for _ in range(EPOCHS):
            reference.partial_fit(X, y)
        ours = OnnxSGDRegressor(
            FrozenEstimator(start), penalty="l2", alpha=alpha / BATCH, learning_rate="constant", eta0=RATE,
            batch_size=BATCH, shuffle=False, max_iter=EPOCHS, tol=None,
        ).fit(X, y)  # fmt: skip
    norm = sum(float((a**2).sum()) for a in reference.coefs_)
    ours_norm = sum(float((a**2).sum()) for a in ours.get_weights().values() if a.shape[0] > 1)
    assert norm < 0.9 * sum(float((a**2).sum()) for a in start.coefs_)
    assert ours_norm == pytest.approx(norm, rel=1e-4)
