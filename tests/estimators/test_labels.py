"""Labels: accepted types, and the round trip through ONNX."""

import numpy as np
import onnxruntime
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline

from onnxsgd import OnnxSGDClassifier
from onnxsgd.estimators.labels import _ELEMENTWISE as ELEMENTWISE
from onnxsgd.exceptions import ParameterError, UnsupportedError

X = np.random.RandomState(0).randn(60, 3).astype(np.float32)
CLASS = (X[:, 0] > 0).astype(int)


def classifier(model=None, **more):
    return OnnxSGDClassifier(model, **{"max_iter": 3, "tol": None, "random_state": 0} | more)


#: By loss of several labels of a sample: the probability of a score.
PROBABILITIES = {
    "log_loss": ("sigmoid", lambda z: 1 / (1 + np.exp(-z))),
    "modified_huber": ("modified_huber", lambda z: np.interp(z, [-1, 1], [0, 1])),
}


def test_every_probability_of_several_labels_has_a_case():
    assert set(ELEMENTWISE) == {kind for kind, _ in PROBABILITIES.values()}


@pytest.mark.parametrize("loss", PROBABILITIES)
def test_probabilities_of_several_labels(loss):
    model = classifier(loss=loss, eta0=1.0, learning_rate="constant").fit(X, X > 0)
    scores = model.decision_function(X).astype(float)
    assert scores.min() < -1
    assert scores.max() > 1
    np.testing.assert_allclose(model.predict_proba(X), PROBABILITIES[loss][1](scores), rtol=1e-5, atol=1e-7)


def labels_of(onx):
    session = onnxruntime.InferenceSession(onx.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run([session.get_outputs()[0].name], {session.get_inputs()[0].name: X})[0]


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        (np.array([3, 8], np.uint64), np.int64),
        (np.array([2**63 + 5, 2**64 - 1], np.uint64), np.uint64),
        (np.array([1, 2**63], np.uint64), np.uint64),
    ],
    ids=str,
)
def test_unsigned_labels_survive_onnx(labels, dtype):
    model = classifier().fit(X, labels[CLASS])
    onx = model.to_onnx()
    assert labels_of(onx).dtype == dtype
    np.testing.assert_array_equal(labels_of(onx), model.predict(X))
    assert model.predict(X).dtype == np.uint64
    again = classifier(onx).fit(X, labels[CLASS])
    assert again.classes_.tolist() == labels.tolist()
    np.testing.assert_array_equal(labels_of(again.to_onnx()), again.predict(X))


def test_labels_that_skl2onnx_does_not_hold_are_refused():
    y = np.array([0, 2**63], np.uint64)[CLASS]
    with pytest.raises(UnsupportedError, match=r"labels up to 9223372036854775808.*below 2\*\*63"):
        classifier(LogisticRegression().fit(X, y)).fit(X, y)
    from skl2onnx import to_onnx

    with pytest.raises(UnsupportedError, match="do not fit into int64"):
        to_onnx(make_pipeline(classifier()).fit(X, y), X[:1])


@pytest.mark.parametrize("model", [None, LogisticRegression(), MLPClassifier()], ids=str)
@pytest.mark.parametrize("label", [0, "no"])
def test_one_class_is_named(model, label):
    y = np.full(len(X), label)
    with pytest.raises(ParameterError, match=f"greater than one; got 1 class: .{label!r}..*classes="):
        classifier(model).fit(X, y)
    with pytest.raises(ParameterError, match="got 1 class"):
        classifier(model, classes=[label]).fit(X, y)


def test_one_class_suffices_where_the_others_are_known():
    y = np.zeros(len(X), int)
    assert classifier(classes=[0, 1]).fit(X, y).classes_.tolist() == [0, 1]
    fitted = LogisticRegression().fit(X, CLASS)
    assert classifier(fitted).fit(X, y).classes_.tolist() == [0, 1]
    assert classifier().partial_fit(X, y, classes=[0, 1]).classes_.tolist() == [0, 1]


@pytest.mark.parametrize("later", [["a", "b"], [0, 5], [0.0, 3.0]], ids=str)
def test_unknown_labels_of_a_later_part_are_refused(later):
    model = classifier().partial_fit(X, CLASS, classes=[0, 1])
    with pytest.raises(ParameterError, match="not among the classes"):
        model.partial_fit(X[:2], later)


@pytest.mark.parametrize("model", [None, LogisticRegression(), "graph"], ids=str)
@pytest.mark.parametrize("rows", [X.shape[0], 1])
def test_the_first_part_needs_all_labels_unless_the_model_has_them(model, rows):
    """As in scikit-learn: before any training, also where this part has several."""
    is_graph = model == "graph"
    if is_graph:
        model = _without_labels(OnnxSGDClassifier(max_iter=1, tol=None).fit(X, CLASS).to_onnx())
    fresh = classifier(model)
    with pytest.raises(ValueError, match=r"^classes must be passed on the first call to partial_fit"):
        fresh.partial_fit(X[:rows], CLASS[:rows])
    assert not hasattr(fresh, "t_")
    if rows > 1:
        assert fresh.partial_fit(X, CLASS, classes=[1, 0]).classes_.tolist() == [0, 1] or is_graph
        assert classifier(model, classes=[0, 1]).partial_fit(X, CLASS).classes_.tolist() == [0, 1]


def _without_labels(proto):
    """Return a graph of probabilities alone."""
    del proto.graph.output[0]
    return proto


def test_labels_that_contradict_are_refused():
    fitted = LogisticRegression().fit(X, CLASS)
    for model in (fitted, classifier().fit(X, CLASS).to_onnx()):
        with pytest.raises(ParameterError, match=r"classes=\['a', 'b'\] contradicts the model.*\[0, 1\]"):
            classifier(model).partial_fit(X, CLASS, classes=["a", "b"])
        with pytest.raises(ParameterError, match="contradicts the model"):
            classifier(model, classes=[0, 1, 2]).fit(X, CLASS)
        # in any order
        assert classifier(model).partial_fit(X, CLASS, classes=[1, 0]).classes_.tolist() == [0, 1]
        # a new layer has the labels of the new task
        new = classifier(model, head="linear", classes=["a", "b"])
        assert new.fit(X, np.where(CLASS, "a", "b")).classes_.tolist() == ["a", "b"]
    with pytest.raises(ParameterError, match="contradicts the parameter classes"):
        classifier(classes=[0, 1]).partial_fit(X, CLASS, classes=[0, 1, 2])


def test_balanced_weights_need_all_labels():
    """The error has the expression, whose weights are those that ``fit`` takes."""
    from sklearn.utils.class_weight import compute_class_weight

    model = classifier(class_weight="balanced")
    balanced = model.fit(X, CLASS).coef_
    with pytest.raises(ParameterError, match="balanced.*dict.*compute_class_weight"):
        model.partial_fit(X, CLASS, classes=[0, 1])
    classes = np.array([0, 1])
    weights = dict(zip(classes, compute_class_weight("balanced", classes=classes, y=CLASS), strict=True))
    np.testing.assert_array_equal(model.set_params(class_weight=weights).fit(X, CLASS).coef_, balanced)
