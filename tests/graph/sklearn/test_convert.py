"""Conversion keeps scikit-learn's predictions, for every estimator in ``tests/sklearn_cases.py``."""

import numpy as np
import pandas as pd
import pytest
import scipy.special
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.impute import KNNImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC

from onnxsgd import OnnxSGDClassifier
from onnxsgd.exceptions import GraphError, UnsupportedError
from onnxsgd.graph.cut import cut_at
from onnxsgd.graph.loading.load import load_model
from onnxsgd.graph.model import to_ir
from onnxsgd.graph.reading.head import find_score
from onnxsgd.graph.reading.trainable import intercept_names, select_trainable
from onnxsgd.graph.sklearn.convert import convert_estimator, estimator_to_onnx
from onnxsgd.graph.sklearn.refused_steps import _OBJECTIONS


def test_conversion_keeps_predictions(sklearn_case, run):
    """Outputs and scores equal scikit-learn's to float32 rounding, relative to the largest of them."""
    estimator, (X, _) = sklearn_case.fit(), sklearn_case.load()
    scored = convert_estimator(estimator, X)
    outputs = run(scored.model, X)
    score = run(cut_at(scored.model, scored.score), X)[scored.score].astype(np.float64)
    assert scored.link == sklearn_case.link
    if not is_classifier(estimator):
        expected = estimator.predict(X)
        assert_close(score, expected.reshape(len(expected), -1))
        return
    np.testing.assert_array_equal(scored.classes, estimator.classes_)
    np.testing.assert_array_equal(outputs[scored.label_output], estimator.predict(X))
    if hasattr(estimator, "predict_proba"):
        assert_close(outputs[scored.proba_output], estimator.predict_proba(X))
        assert_close(PROBABILITIES[scored.link](score), estimator.predict_proba(X))
    else:
        assert scored.proba_output is None
    if hasattr(estimator, "decision_function") and scored.link != "log":
        expected = estimator.decision_function(X)
        assert_close(score, expected.reshape(len(expected), -1))


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def _sigmoid(z):
    return np.hstack([1 - scipy.special.expit(z), scipy.special.expit(z)])


def _by_row(p):
    return p / p.sum(axis=1, keepdims=True)


def _modified_huber(z):
    p = np.clip((z + 1) / 2, 0, 1)
    if p.shape[1] == 1:
        return np.hstack([1 - p, p])
    return _by_row(np.where(p.sum(axis=1, keepdims=True) == 0, 1, p))


PROBABILITIES = {
    "sigmoid": _sigmoid,
    "softmax": lambda z: scipy.special.softmax(z, axis=1),
    "log": lambda z: scipy.special.softmax(z, axis=1),
    "ovr": lambda z: _by_row(scipy.special.expit(z)),
    "modified_huber": _modified_huber,
}


def test_fitted_parameters_are_trained(sklearn_case):
    """All parameters fitted to the target are trained, and no others."""
    estimator, (X, _) = sklearn_case.fit(), sklearn_case.load()
    scored = convert_estimator(estimator, X)
    model = cut_at(scored.model, scored.score)
    names = select_trainable(model, scored.score, None, lambda node: None)
    sizes = {name: model.graph.initializers[name].const_value.size for name in names}
    assert sum(sizes.values()) == sklearn_case.n_parameters(estimator)
    intercepts = intercept_names(model, names)
    assert len(intercepts) * 2 == len(names)
    assert all("intercept" in name for name in intercepts)
    assert not any("intercept" in name for name in set(names) - intercepts)


@pytest.mark.parametrize(
    ("names", "inputs"),
    [
        (None, ["X"]),
        (["a", "b c"], ["X"]),
        (["a", "t"], ["a", "t"]),
    ],
)
def test_inputs(names, inputs):
    """All numbers are one input; columns of strings make every column an input, under its name."""

    X, y = np.array([[0.0, 1], [2, 3], [4, 4]]), np.array([1.0, 2, 3])
    model = Ridge()
    if names is not None:
        X = pd.DataFrame(X, columns=names)
        if "t" in names:
            X["t"] = ["u", "v", "u"]
            encode = make_column_transformer((OneHotEncoder(), ["t"]), remainder="passthrough")
            model = make_pipeline(encode, Ridge())
    scored = convert_estimator(model.fit(X, y), X)
    assert [value.name for value in scored.model.graph.inputs] == inputs


def test_constants_of_transformers_stay_frozen_in_a_file():
    """The matrix of a PCA looks like a layer; its mark as a constant must survive saving and loading."""

    proto = estimator_to_onnx(make_pipeline(PCA(2), LogisticRegression()).fit(*load_iris(return_X_y=True)))
    scored = find_score(to_ir(load_model(proto.SerializeToString())), "classification")
    names = select_trainable(cut_at(scored.model, scored.score), scored.score, None, lambda node: None)
    assert names == ["coef", "intercept"]


SCALED = make_pipeline(StandardScaler(), LogisticRegression())
SCALED_SVC = make_pipeline(StandardScaler(), SVC(kernel="linear"))


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (SVC(), "OneVsRestClassifier"),
        (OneVsOneClassifier(LogisticRegression()), "OneVsRestClassifier"),
        (VotingClassifier([("a", LogisticRegression())]), "voting='soft'"),
        (CalibratedClassifierCV(LogisticRegression(), method="isotonic", cv=2), "method='sigmoid'"),
        (CalibratedClassifierCV(QuadraticDiscriminantAnalysis(), cv=2), "calibrate a linear classifier"),
        (CalibratedClassifierCV(OneVsRestClassifier(SCALED), cv=2), "calibrate a linear classifier"),
        (VotingClassifier([("a", CalibratedClassifierCV(SCALED_SVC, cv=2))], voting="soft"), "scores of SVC"),
        (MultiOutputClassifier(LogisticRegression()), "one model for each"),
        (make_pipeline(Nystroem(n_components=3), LogisticRegression()), "Nystroem"),
    ],
)
def test_estimators_that_cannot_be_converted_are_refused(estimator, message):
    """One sentence that names the alternative, or the part without a converter."""
    X = np.random.default_rng(0).normal(size=(30, 4))
    y = np.arange(30) % 3
    y = np.column_stack([y, y]) if isinstance(estimator, MultiOutputClassifier) else y
    with pytest.raises(UnsupportedError, match=message):
        convert_estimator(estimator.fit(X, y), X)


@pytest.mark.parametrize("kind", [TunedThresholdClassifierCV, FixedThresholdClassifier])
def test_a_threshold_is_refused(kind):
    """A converter drops it, predictions were those of 0.5; of the other class there is none."""
    X, y = load_breast_cancer(return_X_y=True)
    model = kind(LogisticRegression(max_iter=5000)).fit(X, y)
    with pytest.raises(UnsupportedError, match="give its estimator_"):
        convert_estimator(model, X)


@pytest.mark.parametrize("nests", [False, True])
@pytest.mark.parametrize(
    "final",
    [
        LogisticRegression(), SGDClassifier(loss="log_loss", random_state=0), RidgeClassifier(),
        LinearSVC(random_state=0), LinearDiscriminantAnalysis(),
    ],
    ids=lambda final: type(final).__name__,
)  # fmt: skip
@pytest.mark.parametrize("load", [load_breast_cancer, load_wine])
def test_calibrated_pipelines_calibrate_scores(load, final, nests):
    """The converter calibrates the probabilities of a pipeline in place of its scores."""
    X, y = load(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), final)
    if nests:
        pipeline = make_pipeline(FunctionTransformer(), pipeline)
    X = StandardScaler().fit_transform(X)
    model = CalibratedClassifierCV(pipeline, cv=3).fit(X, y)
    found = OnnxSGDClassifier(model).predict_proba(X)
    np.testing.assert_allclose(found, model.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize(
    "estimator",
    [
        MLPClassifier((5,), max_iter=1, random_state=0),
        OneVsRestClassifier(LogisticRegression()),
        RidgeClassifier(),
    ],
)
@pytest.mark.parametrize("n_labels", [2, 3])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_several_labels_for_a_sample(estimator, n_labels, run):
    """One column for each label, each a separate score; two labels had four columns of probabilities."""
    X, y = load_iris(return_X_y=True)
    estimator.fit(X, np.column_stack([y == 1, y > 0, y == 0]).astype(int)[:, :n_labels])
    if isinstance(estimator, RidgeClassifier) and n_labels == 2:
        with pytest.raises(UnsupportedError, match="two labels of a sample has no converter"):
            convert_estimator(estimator, X)
        return
    scored = convert_estimator(estimator, X)
    outputs = run(scored.model, X)
    for value in scored.model.graph.outputs:
        assert value.shape[1] == n_labels
    score = run(cut_at(scored.model, scored.score), X)[scored.score]
    np.testing.assert_array_equal(outputs[scored.label_output], estimator.predict(X))
    if hasattr(estimator, "predict_proba"):
        assert scored.link == "sigmoid"
        assert_close(outputs[scored.proba_output], estimator.predict_proba(X))
        assert_close(scipy.special.expit(score), estimator.predict_proba(X))
    else:
        assert_close(score, estimator.decision_function(X))


@pytest.mark.parametrize(
    "estimator",
    [
        MLPClassifier((4,), max_iter=5), SGDClassifier(), SGDClassifier(loss="log_loss"), GaussianNB(),
        OneVsRestClassifier(LogisticRegression()), CalibratedClassifierCV(LogisticRegression(), cv=2),
        VotingClassifier([("a", LogisticRegression()), ("b", GaussianNB())], voting="soft"),
        BaggingClassifier(LogisticRegression()), StackingClassifier([("a", LogisticRegression())]),
        LinearSVC(), QuadraticDiscriminantAnalysis(reg_param=0.1),
        make_pipeline(StandardScaler(), MLPClassifier((3,))),
    ],
    ids=lambda estimator: type(estimator).__name__,
)  # fmt: skip
@pytest.mark.parametrize("labels", [[2**24 + 1, 2**24 + 3, -(2**25) - 1], [4006381333931, 4006381333948, 7]])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_integers_beyond_float32_and_int32_are_labels(estimator, labels, run):
    """Converters wrote them as int32, or passed them through float32: files returned other labels."""
    rng = np.random.default_rng(0)
    X, columns = rng.normal(size=(90, 3)).astype(np.float32), ["labels", "b"]
    for n_classes in (2, 3):
        y = np.array(labels)[rng.integers(0, n_classes, 90)]
        fitted = clone(estimator).fit(X, y)
        scored = convert_estimator(fitted, X)
        found = run(scored.model, X)[scored.label_output]
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, fitted.predict(X))
    # columns of a frame may have the name of the table of labels
    frame = pd.DataFrame(X[:, :2], columns=columns).assign(text=rng.choice(["u", "v"], 90))
    encoder = make_column_transformer((OneHotEncoder(), ["text"]), remainder="passthrough")
    assert convert_estimator(make_pipeline(encoder, clone(estimator)).fit(frame, y), frame).model


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("loss", ["log_loss", "modified_huber", "hinge"])
@pytest.mark.parametrize(
    "estimator",
    [SGDClassifier(), LinearSVC(), RidgeClassifier(), OneVsRestClassifier(LinearSVC())],
    ids=lambda estimator: type(estimator).__name__,
)
@pytest.mark.filterwarnings("ignore:Training did not lower:sklearn.exceptions.ConvergenceWarning")
def test_scores_of_margin_classifiers_are_no_probabilities(estimator, loss, n_classes, run):
    """A file of a loss with probabilities holds those of the estimator, other files name the scores so."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)).astype(np.float32)
    y = rng.integers(0, n_classes, 60)
    model = OnnxSGDClassifier(clone(estimator).fit(X, y), loss=loss, max_iter=2, tol=None).fit(X, y)
    outputs = run(to_ir(model.to_onnx()), X)
    if loss == "hinge":
        assert set(outputs) == {"label", "scores"}
        return
    np.testing.assert_allclose(outputs["probabilities"], model.predict_proba(X), atol=1e-6)
    np.testing.assert_array_equal(outputs["label"], model.predict(X))


def test_a_perceptron_for_counts_predicts_exponentials(run):
    pytest.importorskip("sklearn", minversion="1.7")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)).astype(np.float32)
    y = rng.poisson(np.exp(X[:, 0])).astype(float)
    network = MLPRegressor(hidden_layer_sizes=(4,), loss="poisson", solver="lbfgs", random_state=0)
    model = make_pipeline(StandardScaler(), network).fit(X, y)
    scored = convert_estimator(model, X, link="log")
    assert scored.link == "exp"
    (found,) = run(scored.model, X).values()
    np.testing.assert_allclose(found.ravel(), model.predict(X), rtol=1e-4)
    assert model[-1].out_activation_ == "exp"


def test_an_invalid_subgraph_of_a_converter_is_an_error_of_the_package(monkeypatch):
    monkeypatch.delitem(_OBJECTIONS, KNNImputer)
    X = np.random.default_rng(0).normal(size=(40, 3))
    model = make_pipeline(KNNImputer(), LogisticRegression()).fit(X, X[:, 0] > 0)
    with pytest.raises(GraphError, match="A subgraph of the model is not valid: .*'B'"):
        convert_estimator(model, X)


def test_an_estimator_that_is_not_fitted():
    """As everywhere in scikit-learn."""

    with pytest.raises(NotFittedError):
        convert_estimator(Ridge())


@pytest.mark.parametrize(
    "labels", [np.array([False, True]), np.array([-7, 3]), np.array([2**40, 2**41]), np.array(["no", "yes"])]
)
def test_classes_are_those_of_the_estimator(labels):
    """`classes` has the type of the labels; a graph holds only integers or strings."""

    X = np.random.default_rng(0).normal(size=(20, 3))
    scored = convert_estimator(LogisticRegression().fit(X, labels[(X[:, 0] > 0).astype(int)]))
    np.testing.assert_array_equal(scored.classes, labels)
    assert scored.classes.dtype == labels.dtype
