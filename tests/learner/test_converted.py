"""Every scikit-learn estimator that is converted: predictions kept, gradients right, weights trained."""

import numpy as np
import onnxruntime
import pytest
from sklearn.base import is_classifier
from sklearn.frozen import FrozenEstimator

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.engine.predict import InferenceGraph
from onnxsgd.graph.model import to_proto
from onnxsgd.graph.reading.frozen_split import split_frozen
from onnxsgd.testing import check_gradients

#: float32 graphs against scikit-learn in float64.
TOLERANCE = 2e-5


def learner(case, **more):
    settings = dict(max_iter=1, tol=None, learning_rate="constant", penalty=None, random_state=0)
    if case.link == "modified_huber":
        settings["loss"] = "modified_huber"
    cls = OnnxSGDClassifier if is_classifier(case.fit()) else OnnxSGDRegressor
    return cls(FrozenEstimator(case.fit()), **settings | more)


def features_of(model, X):
    return model._learner.read(X, model._check_again(X))


def assert_close(ours, theirs, tolerance=TOLERANCE):
    theirs = np.asarray(theirs, dtype=np.float64)
    np.testing.assert_allclose(
        np.asarray(ours).reshape(theirs.shape), theirs, rtol=0, atol=tolerance * max(1, np.abs(theirs).max())
    )


def test_predictions_are_those_of_the_estimator(sklearn_case):
    X, y = sklearn_case.load()
    # a rate so small that the weights do not change, or only in the last bit
    model = learner(sklearn_case, eta0=1e-30).fit(X, y)
    theirs = sklearn_case.fit()
    if not is_classifier(theirs):
        assert_close(model.predict(X), theirs.predict(X))
        return
    assert np.mean(model.predict(X) == theirs.predict(X)) >= 0.99
    np.testing.assert_array_equal(model.classes_, theirs.classes_)
    if hasattr(theirs, "predict_proba") and sklearn_case.link != "identity":
        assert_close(model.predict_proba(X), theirs.predict_proba(X))


def test_gradients_agree_with_central_differences(sklearn_case):
    X, y = sklearn_case.load()
    model = learner(sklearn_case, eta0=1e-30).fit(X, y)
    score, weights = model._learner.score_model, model._learner.weights
    parts = split_frozen(score, weights)
    features = features_of(model, X[:4])
    # only the tail is differentiated; it reads the results of the frozen part
    features = {
        name: features[name] if name in features else InferenceGraph(score, name, ()).run(features, {}, 1)
        for name in parts.features
    }
    report = check_gradients(
        to_proto(parts.tail), weights=list(weights), inputs=[], feeds=features, rtol=1e-5, atol=1e-6,
        max_elements=8, dtype=np.float64,
    )  # fmt: skip
    assert report is not None


@pytest.mark.parametrize("engine", ["onnxruntime-training", "portable"])
def test_training_lowers_the_loss_and_the_file_agrees(sklearn_case, engine):
    X, y = sklearn_case.load()
    model = learner(sklearn_case, eta0=1e-30, batch_size=10_000, engine=engine, optimizer="adam").fit(X, y)
    # away from the optimum, where scikit-learn may have left the weights
    rng = np.random.RandomState(0)
    start = {name: a * rng.uniform(0.8, 1.2, a.shape) for name, a in model.get_weights().items()}
    largest = float(max(np.abs(array).max() for array in start.values()))
    model.set_weights(start).set_params(
        warm_start=True, learning_rate="invscaling", eta0=1e-3 * largest, max_iter=15
    ).fit(X, y)
    assert min(model.loss_curve_[1:]) < model.loss_curve_[0] * (1 - 1e-6) or model.loss_curve_[0] < 1e-3
    assert model.engine_ == engine
    session = onnxruntime.InferenceSession(
        model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    features = features_of(model, X)
    # the file has the columns that the model drops too
    features |= {
        value.name: X[[value.name]].to_numpy(object if "string" in value.type else np.float32)
        for value in session.get_inputs()
        if value.name not in features
    }
    outputs = session.run(None, features)
    if is_classifier(sklearn_case.fit()):
        assert np.mean(np.asarray(outputs[0]).ravel().astype(str) == model.predict(X).astype(str)) >= 0.99
        if hasattr(model, "predict_proba") and sklearn_case.link != "identity":
            assert_close(outputs[1], model.predict_proba(X), 1e-5)
    else:
        assert_close(outputs[0], model.predict(X), 1e-6)
