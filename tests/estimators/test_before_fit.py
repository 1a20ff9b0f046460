"""A fitted model inside predicts, is exported and shows its weights before the first fit."""

import copy
import pickle
from operator import attrgetter

import numpy as np
import onnx
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_multilabel_classification
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.exceptions import ParameterError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
SCORE = X @ [1.0, -2.0, 0.5, 0.0] + 0.1 * RNG.normal(size=60)
LABEL = np.array(["low", "mid", "high"])[np.digitize(SCORE, [-1.0, 1.0])]
NAMED = {"learning_rate": "constant", "eta0": 0.1, "shuffle": False, "random_state": 0}

QUICK = {"tol": 10.0, "n_iter_no_change": 2, "learning_rate_init": 0.1, "random_state": 0}
CLASSIFIERS = {
    "linear": LogisticRegression().fit(X, LABEL),
    "frozen": FrozenEstimator(LogisticRegression().fit(X, LABEL)),
    "two classes": LogisticRegression().fit(X, SCORE > 0),
    "pipeline": make_pipeline(StandardScaler(), MLPClassifier((5,), **QUICK)).fit(X, LABEL),
    "several labels": MLPClassifier((5,), **QUICK).fit(
        X, np.c_[SCORE > 0, X[:, 3] > 0, SCORE > 1].astype(int)
    ),
}
REGRESSORS = {
    "linear": Ridge().fit(X, SCORE),
    "pipeline": make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(5,), **QUICK)).fit(X, SCORE),
    "several outputs": Ridge().fit(X, np.c_[SCORE, -SCORE]),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_predicts_as_the_model_inside(name):
    inner = CLASSIFIERS[name]
    model = OnnxSGDClassifier(inner)
    # float32 in the graph, float64 in scikit-learn
    np.testing.assert_allclose(model.predict_proba(X), inner.predict_proba(X), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(model.predict(X), inner.predict(X))
    if hasattr(inner, "decision_function"):
        difference = model.decision_function(X) - inner.decision_function(X)
        # softmax does not determine a constant
        assert np.ptp(difference, axis=-1).max() < 1e-4
    np.testing.assert_array_equal(model.classes_, inner.classes_)
    assert model.n_features_in_ == 4
    assert model.score(X, inner.predict(X)) == 1
    assert not hasattr(model, "t_")


@pytest.mark.parametrize("name", REGRESSORS)
def test_a_regressor_predicts_as_the_model_inside(name):
    inner = REGRESSORS[name]
    model = OnnxSGDRegressor(inner)
    np.testing.assert_allclose(model.predict(X), inner.predict(X), rtol=1e-4, atol=1e-5)
    assert model.predict(X).shape == inner.predict(X).shape
    if isinstance(inner, Ridge):
        np.testing.assert_allclose(model.coef_, inner.coef_, rtol=1e-6)
        np.testing.assert_allclose(model.intercept_, np.ravel(inner.intercept_), rtol=1e-6)


@pytest.mark.parametrize("cls", [OnnxSGDRegressor, OnnxSGDClassifier])
@pytest.mark.parametrize("model", [None, Ridge(), make_pipeline(LogisticRegression())], ids=str)
def test_without_a_fitted_model_nothing_is_fitted(cls, model):
    fresh = cls(model)
    for call in (fresh.predict, fresh.set_weights, fresh.export_training_step):
        with pytest.raises(NotFittedError):
            call(X)
    for call in (fresh.get_weights, fresh.to_onnx):
        with pytest.raises(NotFittedError):
            call()
    for name in ("coef_", "intercept_", "classes_", "n_features_in_", "onnx_model_"):
        assert not hasattr(fresh, name)
    # a new layer has no weights to show
    with pytest.raises(NotFittedError):
        check_is_fitted(cls(REGRESSORS["linear"], head="linear"))


def test_scikit_learn_sees_a_fitted_estimator():
    model = OnnxSGDClassifier(CLASSIFIERS["linear"])
    check_is_fitted(model)
    with pytest.raises(NotFittedError):
        check_is_fitted(clone(model))
    frozen = clone(OnnxSGDClassifier(CLASSIFIERS["frozen"]))
    np.testing.assert_array_equal(frozen.predict(X), CLASSIFIERS["frozen"].predict(X))


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("rate", ["auto", "constant"])
def test_looking_changes_nothing_in_training(name, rate):
    """Test, then train: the same numbers as training alone."""
    inner = CLASSIFIERS[name]
    y = inner.predict(X)
    settings = {"learning_rate": rate, "eta0": None if rate == "auto" else 0.1, "random_state": 0}
    looked, blind = (OnnxSGDClassifier(inner, **settings) for _ in range(2))
    state = check_random_state(None).get_state()[1].copy()
    looked.predict(X[:10])
    looked.get_weights()
    looked.to_onnx()
    assert (check_random_state(None).get_state()[1] == state).all()
    for rows in (slice(0, 20), slice(20, 60)):
        looked.predict(X[rows])
        looked.partial_fit(X[rows], y[rows])
        blind.partial_fit(X[rows], y[rows])
    for (_, one), (_, two) in zip(looked.get_weights().items(), blind.get_weights().items(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_the_first_samples_decide_the_precision():
    """Weights shown before are those of a float32 graph; a column of seconds needs float64 from then on."""
    seconds = np.c_[X[:, :1], 1.7e9 + np.arange(60.0)]
    inner = Ridge().fit(seconds, SCORE)
    model = OnnxSGDRegressor(inner)
    assert model.get_weights()["coef"].dtype == np.float32
    np.testing.assert_allclose(model.predict(seconds), inner.predict(seconds), rtol=0, atol=1e-5)
    assert model.get_weights()["coef"].dtype == np.float64


@pytest.mark.parametrize("way", ["partial_fit", "warm fit", "fit"])
@pytest.mark.parametrize("saved", [False, True])
def test_weights_that_are_set_before_the_first_fit(way, saved):
    """They predict, and ``partial_fit`` and a warm fit start from them; a fit starts from the model."""
    inner = REGRESSORS["linear"]
    model = OnnxSGDRegressor(inner, max_iter=1, tol=None, penalty=None, batch_size=60, **NAMED)
    model.set_params(warm_start=way == "warm fit")
    assert model.set_weights({"coef": np.ones((4, 1))}) is model
    if saved:
        model = copy.copy(pickle.loads(pickle.dumps(model)))
    intercept = inner.intercept_
    np.testing.assert_allclose(model.predict(X), X.sum(axis=1) + intercept, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(model.coef_, np.ones(4))
    model.partial_fit(X, SCORE) if way == "partial_fit" else model.fit(X, SCORE)
    start = inner.coef_ if way == "fit" else np.ones(4)
    gradient = X.T @ (X @ start + intercept - SCORE) / 60
    np.testing.assert_allclose(model.coef_, start - 0.1 * gradient, rtol=1e-5, atol=1e-6)


def test_copies_do_not_share_weights_that_are_set():
    model = OnnxSGDRegressor(REGRESSORS["linear"])
    before = model.predict(X)
    other = copy.copy(model).set_weights({"coef": np.ones((4, 1))})
    np.testing.assert_array_equal(model.predict(X), before)
    assert np.abs(other.predict(X) - before).max() > 0.1


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_parameters_that_change_before_the_first_fit():
    """Others act at once; another graph replaces the first, unless its weights were set."""
    model = OnnxSGDClassifier(CLASSIFIERS["two classes"])
    before = model.predict_proba(X)
    model.set_params(loss="modified_huber")
    score = model.decision_function(X)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], (np.clip(score, -1, 1) + 1) / 2, atol=1e-6)
    assert np.abs(model.predict_proba(X) - before).max() > 0.01
    model.set_params(model=CLASSIFIERS["linear"], loss="log_loss")
    assert model.predict_proba(X).shape == (60, 3)
    model.set_weights({"intercept": np.zeros(3)}).set_params(model=CLASSIFIERS["two classes"])
    for call in (model.predict, lambda X: model.partial_fit(X, SCORE > 0)):
        with pytest.raises(ParameterError, match="^model of OnnxSGDClassifier changed"):
            call(X)
    model.set_params(max_iter=2, tol=None).fit(X, SCORE > 0)
    assert model.predict_proba(X).shape == (60, 2)


def _probabilities_alone(proto):
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    del proto.graph.output[0]
    return proto


def test_a_graph_without_labels():
    """Scores and probabilities need none; labels are refused until ``classes`` or a fit names them."""
    exported = OnnxSGDClassifier(CLASSIFIERS["linear"]).to_onnx()
    assert (OnnxSGDClassifier(exported).predict(X) == CLASSIFIERS["linear"].predict(X)).all()
    graph = _probabilities_alone(exported)
    model = OnnxSGDClassifier(graph)
    expected = CLASSIFIERS["linear"].predict_proba(X)
    np.testing.assert_allclose(model.predict_proba(X), expected, rtol=1e-4, atol=1e-6)
    assert model.decision_function(X).shape == (60, 3)
    for call in (model.predict, lambda X: model.score(X, LABEL)):
        with pytest.raises(ParameterError, match="holds no labels: name them with classes="):
            call(X)
    assert not hasattr(model, "classes_")
    labels = CLASSIFIERS["linear"].classes_
    np.testing.assert_array_equal(
        model.set_params(classes=labels).predict(X), CLASSIFIERS["linear"].predict(X)
    )
    np.testing.assert_array_equal(model.classes_, labels)
    with pytest.raises(ValueError, match="3 score.*2 classes"):
        OnnxSGDClassifier(graph, classes=["a", "b"]).predict(X)


def test_a_graph_of_several_labels():
    table = make_multilabel_classification(60, 4, n_classes=3, random_state=0)
    inner = MLPClassifier((5,), **QUICK).fit(*table)
    exported = OnnxSGDClassifier(inner).to_onnx()
    model = OnnxSGDClassifier(_probabilities_alone(exported))
    np.testing.assert_allclose(model.predict_proba(X), inner.predict_proba(X), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(model.predict(X), inner.predict(X))


def test_several_labels_without_probabilities():
    """One label for a sample, the class of the largest score, was predicted before the first fit."""
    table = make_multilabel_classification(60, 4, n_classes=3, random_state=0)
    inner = RidgeClassifier().fit(*table)
    model = OnnxSGDClassifier(inner, loss="hinge")
    np.testing.assert_array_equal(model.predict(table[0]), inner.predict(table[0]))


@pytest.mark.parametrize("form", ["proto", "bytes", "path"])
def test_a_graph_in_each_form(form, tmp_path):
    exported = OnnxSGDRegressor(REGRESSORS["pipeline"]).to_onnx()
    onnx.save(exported, tmp_path / "model.onnx")
    forms = {"proto": exported, "bytes": exported.SerializeToString(), "path": tmp_path / "model.onnx"}
    model = OnnxSGDRegressor(forms[form])
    weights = model.get_weights()
    assert len(weights) == 4
    np.testing.assert_allclose(model.predict(X), REGRESSORS["pipeline"].predict(X), rtol=1e-4, atol=1e-5)
    assert [output.name for output in model.to_onnx().graph.output] == ["variable"]


def test_the_training_step_before_the_first_fit(tmp_path):
    """That of a named rate; "auto" has none before it sees data."""
    model = OnnxSGDClassifier(CLASSIFIERS["pipeline"], **NAMED)
    assert model.export_training_step(tmp_path / "step.onnx").exists()
    with pytest.raises(ParameterError, match="'auto' takes the scale of the data from the first fit.*name a"):
        OnnxSGDClassifier(CLASSIFIERS["pipeline"]).export_training_step(tmp_path / "step.onnx")


def test_models_that_need_samples_to_be_read():
    """A vectorizer has no number of features: its graph is read with the first texts."""
    texts = ["a good day", "a bad day", "good", "bad bad"] * 5
    inner = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, [1, 0, 1, 0] * 5)
    model = OnnxSGDClassifier(inner)
    with pytest.raises(ParameterError, match="cannot be read without samples: call predict"):
        model.get_weights()
    assert not hasattr(model, "coef_")
    np.testing.assert_allclose(model.predict_proba(texts), inner.predict_proba(texts), rtol=1e-4)
    assert set(model.get_weights()) == {"coef", "intercept"}


def test_names_of_features_are_those_of_the_model_inside():
    frame = pd.DataFrame(X, columns=list("abcd"))
    inner = make_pipeline(StandardScaler(), Ridge()).fit(frame, SCORE)
    model = OnnxSGDRegressor(inner)
    np.testing.assert_allclose(model.predict(frame), inner.predict(frame), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[list("dcba")])
    with pytest.raises(ValueError, match="3 features"):
        OnnxSGDRegressor(REGRESSORS["linear"]).predict(X[:, :3])
    assert model.partial_fit(X, SCORE).predict(X).shape == (60,)


def test_a_converter_reads_an_estimator_before_its_first_fit():
    from skl2onnx import to_onnx

    model = OnnxSGDClassifier(CLASSIFIERS["pipeline"])
    proto = to_onnx(make_pipeline(model), X[:1].astype(np.float32))
    assert OnnxSGDClassifier(proto).predict(X).tolist() == CLASSIFIERS["pipeline"].predict(X).tolist()


@pytest.mark.parametrize(("name", "message"), [
    ("predict_proba", "no attribute 'predict_proba'"),
    ("loss_curve_", "no history before the first fit"),
    ("onnx_model_", "is not fitted yet"),
    ("coef_", "no attribute 'coef_'"),
])  # fmt: skip
def test_a_missing_attribute_tells_why(name, message):
    """Not only that there is none: ``__getattr__`` is asked after the errors of properties and methods."""
    with pytest.raises(AttributeError, match=message) as caught:
        attrgetter(name)(OnnxSGDClassifier(loss="hinge"))
    assert (caught.value.__cause__ is not None) == (name == "predict_proba")


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("is_scaled", [False, True])
def test_labels_that_a_converter_writes_in_a_row_are_those_of_samples(n_classes, is_scaled):
    """Integer labels of a quadratic discriminant analysis have two axes in the converted graph."""
    fitted = QuadraticDiscriminantAnalysis()
    fitted = (make_pipeline(StandardScaler(), fitted) if is_scaled else fitted).fit(
        X, np.digitize(SCORE, [0.0] if n_classes == 2 else [-1.0, 1.0])
    )
    model = OnnxSGDClassifier(fitted)
    np.testing.assert_array_equal(model.predict(X), fitted.predict(X))
    np.testing.assert_allclose(model.predict_proba(X), fitted.predict_proba(X), atol=1e-4)
    assert model.score(X, fitted.predict(X)) == 1


@pytest.mark.parametrize("fitted", [LinearSVC(), RidgeClassifier()], ids=str)
def test_coefficients_of_classifiers_of_two_classes_without_probabilities(fitted):
    """Their converters write both scores, and read one of them."""
    model = OnnxSGDClassifier(fitted.fit(X, SCORE > 0))
    np.testing.assert_allclose(model.decision_function(X), fitted.decision_function(X), atol=1e-5)
    model.fit(X, SCORE > 0)
    np.testing.assert_allclose(
        model.decision_function(X), X @ model.coef_[0] + model.intercept_[0], rtol=1e-4, atol=1e-4
    )


FRAME = pd.DataFrame(X, columns=["age", "income", "size", "flag"])


@pytest.mark.parametrize("method", ["fit", "partial_fit", "batches"])
@pytest.mark.parametrize(
    "names", [["income", "age", "size", "flag"], ["a", "b", "c", "d"]], ids=["order", "names"]
)
def test_frames_with_other_columns_than_the_models_are_refused(method, names):
    """As in scikit-learn's predict: coefficients would meet other columns."""
    model = make_pipeline(StandardScaler(), Ridge()).fit(FRAME, SCORE)
    other = FRAME[names] if set(names) == set(FRAME) else FRAME.set_axis(names, axis=1)
    learner = OnnxSGDRegressor(model)
    arguments = ([(other, SCORE)],) if method == "batches" else (other, SCORE)
    with pytest.raises(ValueError, match="The feature names should match those that were passed during fit"):
        getattr(learner, "fit" if method == "batches" else method)(*arguments)
    with pytest.raises(ValueError, match="The feature names should match"):
        learner.fit(other.astype(object), SCORE)
    learner.partial_fit(FRAME, SCORE)
    # a model that is fitted inside takes any, and arrays have no names
    OnnxSGDRegressor(clone(model)).partial_fit(other, SCORE)
    OnnxSGDRegressor(model).partial_fit(X, SCORE)


def test_frames_with_texts_are_read_by_name():
    mixed = FRAME.assign(town=np.where(SCORE > 0, "Aach", "Bonn"))
    columns = make_column_transformer((OneHotEncoder(), ["town"]), remainder="passthrough")
    model = make_pipeline(columns, Ridge()).fit(mixed, SCORE)
    found = OnnxSGDRegressor(model, learning_rate="constant", eta0=1e-9, max_iter=1, tol=None)
    turned = mixed[mixed.columns[::-1]]
    predictions = found.fit(turned, SCORE).predict(turned)
    np.testing.assert_allclose(predictions, model.predict(mixed), rtol=1e-4, atol=1e-5)
