"""Losses over the classes: widths, probabilities, exports, refusals; the focal losses."""

import numpy as np
import onnxruntime
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from onnxsgd import OnnxSGDClassifier, losses
from onnxsgd.exceptions import GraphError, ParameterError


def scaled(load):
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X), y


IRIS, CANCER = scaled(load_iris), scaled(load_breast_cancer)


def crammer_singer(estimator, X, y):
    """The mean loss."""
    scores = X @ estimator.coef_.T + estimator.intercept_
    right = scores[np.arange(len(y)), y]
    return ((scores + 1 - np.eye(scores.shape[1])[y]).max(axis=1) - right).mean()


def test_multiclass_hinge_is_that_of_crammer_and_singer():
    X, y = IRIS
    solved = LinearSVC(multi_class="crammer_singer", C=1e3, max_iter=100_000, random_state=0).fit(X, y)
    learned = OnnxSGDClassifier(loss="multiclass_hinge", alpha=1e-5, n_iter_no_change=50, random_state=0).fit(
        X, y
    )
    best = crammer_singer(solved, X, y)
    assert 0.01 < best < 0.05
    assert crammer_singer(learned, X, y) < best + 0.01
    assert not hasattr(learned, "predict_proba")


@pytest.mark.parametrize("loss", ["multiclass_hinge", losses.CrossEntropy(), losses.MultinomialFocal()])
def test_two_classes_have_a_score_each(loss):
    X, y = CANCER
    learner = OnnxSGDClassifier(loss=loss, random_state=0).fit(X, y)
    assert learner.coef_.shape == (2, 30)
    assert learner.decision_function(X).shape == (len(y),)
    assert learner.score(X, y) > 0.97
    session = onnxruntime.InferenceSession(learner.to_onnx().SerializeToString())
    label, second = session.run(None, {"X": X.astype(np.float32)})
    np.testing.assert_array_equal(label, learner.predict(X.astype(np.float32)))
    assert second.shape == (len(y), 2)
    if hasattr(learner, "predict_proba"):
        np.testing.assert_allclose(second, learner.predict_proba(X), atol=1e-5)
        np.testing.assert_allclose(second.sum(axis=1), 1, atol=1e-5)


def test_cross_entropy_of_two_classes_is_log_loss():
    X, y = CANCER
    X = StandardScaler().fit_transform(X)
    settings = {"n_iter_no_change": 50, "tol": 1e-5, "random_state": 1}
    joint = OnnxSGDClassifier(loss=losses.CrossEntropy(), alpha=0.1, **settings).fit(X, y)
    # two columns w and -w have half the penalty of one column 2 w
    single = OnnxSGDClassifier(alpha=0.05, **settings).fit(X, y)
    np.testing.assert_allclose(joint.predict_proba(X), single.predict_proba(X), atol=0.02)


@pytest.mark.parametrize("focal", [losses.Focal(gamma=0), "focal"])
def test_focal_loss_is_log_loss_with_weights(focal):
    X, y = CANCER
    settings = {"learning_rate": "constant", "eta0": 0.1, "random_state": 0, "max_iter": 5, "tol": None}
    plain, weighted = (OnnxSGDClassifier(loss=loss, **settings).fit(X, y) for loss in ("log_loss", focal))
    is_same = np.allclose(plain.coef_, weighted.coef_, rtol=1e-4, atol=1e-6)
    assert is_same == (focal != "focal")
    if focal == "focal":
        # easy samples have hardly any weight: margins stay smaller
        assert np.abs(weighted.decision_function(X)).mean() < np.abs(plain.decision_function(X)).mean()


def test_focal_loss_by_name_follows_the_model():
    X, y = IRIS
    network = MLPClassifier((8,), early_stopping=True, random_state=0).fit(X, y)
    named = OnnxSGDClassifier(network, loss="focal", random_state=0).fit(X, y)
    assert named._make_loss() == losses.MultinomialFocal()
    np.testing.assert_allclose(named.predict_proba(X).sum(axis=1), 1, atol=1e-6)
    assert OnnxSGDClassifier(loss="focal", random_state=0).fit(X, y)._make_loss() == losses.Focal()


def test_several_labels_have_no_joint_loss():
    X, y = IRIS
    labels = np.column_stack([y > 0, y > 1]).astype(int)
    OnnxSGDClassifier(loss="focal", max_iter=2, tol=None).fit(X, labels)
    with pytest.raises(ParameterError, match="y gives several labels.*'multiclass_hinge'"):
        OnnxSGDClassifier(loss="multiclass_hinge").fit(X, labels)


def test_a_score_for_two_classes_has_no_joint_loss():
    X, y = CANCER
    model = LogisticRegression().fit(X, y)
    with pytest.raises(GraphError, match="one score for two classes"):
        OnnxSGDClassifier(model, loss=losses.CrossEntropy()).fit(X, y)


def test_a_stream_of_one_score_cannot_take_a_joint_loss():
    X, y = CANCER
    stream = OnnxSGDClassifier().partial_fit(X[:100], y[:100], classes=[0, 1])
    before = stream.coef_.copy()
    stream.set_params(loss="multiclass_hinge")
    with pytest.raises(GraphError, match="one score for two classes"):
        stream.partial_fit(X[100:200], y[100:200])
    with pytest.raises(GraphError, match="one score for two classes"):
        stream.set_params(loss=losses.CrossEntropy()).predict_proba(X[:5])
    with pytest.raises(GraphError, match="one score for two classes"):
        stream.to_onnx()
    stream.set_params(loss="focal").partial_fit(X[100:200], y[100:200])
    assert not np.array_equal(stream.coef_, before)
