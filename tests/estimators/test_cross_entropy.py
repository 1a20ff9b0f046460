"""Options of the cross-entropy: smoothed labels, rows of probabilities, labels that count nothing."""

import pickle

import numpy as np
import onnxruntime
import pytest
from scipy.special import log_softmax, softmax
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier
from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.losses import CrossEntropy

X, LABELS = load_iris(return_X_y=True)
X = StandardScaler().fit_transform(X)
#: Probabilities of three classes in which each class is the largest somewhere.
SOFT = softmax(X @ np.random.default_rng(0).normal(size=(4, 3)), axis=1)
PLAIN = {"learning_rate": "constant", "eta0": 0.1, "penalty": None, "shuffle": False, "tol": None}
IGNORED = np.where(np.arange(150) % 4 == 1, -100, LABELS)


def descend(targets, weight, rate=0.1, epochs=10, batch=30):
    """Gradient descent in numpy: the weighted mean of the cross-entropy of each batch."""
    w, b, curve = np.zeros((4, 3)), np.zeros(3), []
    for _ in range(epochs):
        losses = []
        for start in range(0, len(targets), batch):
            rows = slice(start, start + batch)
            share = weight[rows, None] / weight[rows].sum()
            scores = X_OF[len(targets)][rows] @ w + b
            losses.append(-(share * targets[rows] * log_softmax(scores, axis=1)).sum() * weight[rows].sum())
            slope = share * (
                softmax(scores, axis=1) * targets[rows].sum(axis=1, keepdims=True) - targets[rows]
            )
            w, b = w - rate * X_OF[len(targets)][rows].T @ slope, b - rate * slope.sum(axis=0)
        curve.append(np.sum(losses) / weight.sum())
    return w, b, curve


X_OF = {150: X, int((IGNORED >= 0).sum()): X[IGNORED >= 0]}


def fit(loss, y, X_val=None, y_val=None, **more):
    settings = {**PLAIN, "max_iter": 10, "batch_size": 30, **more}
    return OnnxSGDClassifier(loss=loss, **settings).fit(X, y, X_val=X_val, y_val=y_val)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("loss", "y", "targets"),
    [
        (CrossEntropy(label_smoothing=0.2), LABELS, 0.8 * np.eye(3)[LABELS] + 0.2 / 3),
        (CrossEntropy(soft=True), SOFT, SOFT),
        (CrossEntropy(soft=True, label_smoothing=0.3), SOFT, 0.7 * SOFT + 0.1),
    ],
    ids=["smooth", "soft", "both"],
)
def test_descent_is_that_of_numpy(loss, y, targets, weighted):
    weight = np.linspace(0.5, 2, 150) if weighted else np.ones(150)
    w, b, curve = descend(targets, weight)
    learner = OnnxSGDClassifier(loss=loss, **PLAIN, max_iter=10, batch_size=30).fit(
        X, y, sample_weight=weight
    )
    np.testing.assert_allclose(learner.coef_.T, w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(learner.intercept_, b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(learner.loss_curve_, curve, rtol=1e-5)


def test_ignored_labels_count_nothing():
    counts = IGNORED >= 0
    w, _, curve = descend(np.eye(3)[LABELS[counts]], np.ones(counts.sum()))
    learner = fit(CrossEntropy(ignore_index=-100), IGNORED)
    np.testing.assert_allclose(learner.coef_.T, w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(learner.loss_curve_, curve, rtol=1e-5)
    assert learner.classes_.tolist() == [0, 1, 2]
    right = learner.predict(X) == LABELS
    assert learner.score(X, IGNORED) == right[counts].mean() != right.mean()
    weight = np.linspace(0, 1, 150)
    expected = np.average(right[counts], weights=weight[counts])
    assert learner.score(X, IGNORED, sample_weight=weight) == pytest.approx(expected)


def test_ignored_labels_may_be_strings_and_one_of_the_classes():
    names = np.array(["?", "b", "c"])[LABELS]
    learner = fit(CrossEntropy(ignore_index="?"), names, class_weight="balanced")
    assert learner.classes_.tolist() == ["b", "c"]
    known = fit(CrossEntropy(ignore_index="?"), names, classes=["?", "b", "c"])
    assert known.predict_proba(X[LABELS > 0])[:, 0].max() < 0.4
    assert known.score(X, names) == (known.predict(X[LABELS > 0]) == names[LABELS > 0]).mean() > 0.7


@pytest.mark.parametrize(
    ("ignored", "labels"), [("1", [0, 1, 2]), (1, ["a", "b", "c"]), (1, np.array(["a", "b", "c"], object))]
)
def test_an_ignored_label_of_another_type_is_refused(ignored, labels):
    """It would be trained as a class."""
    X, y = np.eye(6), np.tile(labels, 2)
    with pytest.raises(ParameterError, match=f"ignore_index={ignored!r} is no label of y: these are"):
        OnnxSGDClassifier(loss=CrossEntropy(ignore_index=ignored)).fit(X, y)


def test_part_of_a_stream_with_ignored_labels_alone_changes_nothing():
    learner = OnnxSGDClassifier(loss=CrossEntropy(ignore_index=-1, label_smoothing=0.1), **PLAIN)
    nothing = np.full(150, -1)
    learner.partial_fit(X, nothing, classes=[0, 1, 2])
    assert not any(array.any() for array in learner.get_weights().values())
    learner.partial_fit(X, LABELS)
    before = learner.get_weights()
    learner.partial_fit(X, nothing, sample_weight=np.linspace(0, 1, 150))
    assert len(learner.loss_curve_) == learner.n_iter_ == 1
    for name, array in learner.get_weights().items():
        np.testing.assert_array_equal(array, before[name])
    with pytest.raises(ParameterError, match="Nothing of y counts"):
        fit(CrossEntropy(ignore_index=-1), nothing, classes=[0, 1, 2])


def test_model_inside_is_fitted_without_ignored_labels_and_with_the_largest_probability():
    network = MLPClassifier((5,), early_stopping=True, random_state=0)
    learner = fit(CrossEntropy(ignore_index=-100), IGNORED, model=network)
    assert learner.classes_.tolist() == [0, 1, 2]
    assert learner.score(X, LABELS) > 0.75
    soft = fit(CrossEntropy(soft=True), SOFT, model=network, classes=[0, 1, 2])
    assert soft.score(X, SOFT) > 0.75


@pytest.mark.parametrize("rate", ["auto", "constant"])
def test_rows_of_probabilities_are_learned(rate):
    learner = fit(CrossEntropy(soft=True), SOFT, learning_rate=rate, eta0=None if rate == "auto" else 1.0,
                  max_iter=1000, classes=["z", "a", "m"], random_state=0)  # fmt: skip
    # columns are in the order of the classes, which are not sorted
    assert learner.classes_.tolist() == ["z", "a", "m"]
    np.testing.assert_allclose(learner.predict_proba(X), SOFT, atol=0.03)
    best = learner.classes_[SOFT.argmax(axis=1)]
    assert learner.score(X, SOFT) == learner.score(X, best) == (learner.predict(X) == best).mean()
    session = onnxruntime.InferenceSession(learner.to_onnx().SerializeToString())
    label, probabilities = session.run(None, {"X": X.astype(np.float32)})
    assert label.tolist() == learner.predict(X.astype(np.float32)).tolist()
    np.testing.assert_allclose(probabilities, learner.predict_proba(X), atol=1e-5)
    copied = pickle.loads(pickle.dumps(learner))
    np.testing.assert_array_equal(copied.predict(X), learner.predict(X))


def test_rows_of_certain_probabilities_are_labels():
    table = np.eye(3)[LABELS]
    for class_weight in ("balanced", {0: 1.0, 1: 3.0, 2: 0.5}):
        y, weights = LABELS[20:], {"class_weight": class_weight}
        hard = OnnxSGDClassifier(loss=CrossEntropy(), **PLAIN, **weights, max_iter=5).fit(X[20:], y)
        soft = OnnxSGDClassifier(loss=CrossEntropy(soft=True), **PLAIN, **weights, max_iter=5).fit(
            X[20:], table[20:]
        )
        np.testing.assert_array_equal(soft.coef_, hard.coef_)


def test_stream_of_probabilities():
    learner = OnnxSGDClassifier(loss=CrossEntropy(soft=True), random_state=0)
    for _ in range(30):
        learner.partial_fit(X, SOFT)
    assert learner.score(X, SOFT) > 0.95
    with pytest.raises(ParameterError, match=r"y has 2 columns of probabilities and there are 3 classes"):
        learner.partial_fit(X, np.full((150, 2), 0.5))


@pytest.mark.parametrize(
    ("loss", "y"), [(CrossEntropy(soft=True), SOFT), (CrossEntropy(ignore_index=-100), IGNORED)]
)
def test_early_stopping(loss, y):
    learner = OnnxSGDClassifier(loss=loss, early_stopping=True, random_state=0).fit(X, y)
    assert max(learner.validation_scores_) > 0.9
    given = OnnxSGDClassifier(loss=loss, early_stopping=True, random_state=0).fit(X, y, X_val=X, y_val=y)
    assert max(given.validation_scores_) == given.score(X, y) > 0.9


def test_search_over_the_smoothing():
    estimator = OnnxSGDClassifier(loss=CrossEntropy(), max_iter=5, tol=None, random_state=0)
    search = GridSearchCV(estimator, {"loss__label_smoothing": [0.0, 0.9]}, scoring="neg_log_loss", cv=3)
    search.fit(X, LABELS)
    assert search.best_params_ == {"loss__label_smoothing": 0.0}
    assert search.best_score_ > search.cv_results_["mean_test_score"].min() + 0.3
    soft = GridSearchCV(clone(estimator).set_params(loss=CrossEntropy(soft=True)), {"alpha": [1e-4, 10.0]})
    assert soft.fit(X, SOFT).best_params_ == {"alpha": 1e-4}


def test_tables_without_soft_are_several_labels():
    learner = OnnxSGDClassifier(random_state=0).fit(X, np.eye(3, dtype=int)[LABELS])
    assert learner.predict(X).shape == (150, 3)
    # the probability of each label alone
    assert np.ptp(learner.predict_proba(X).sum(axis=1)) > 0.1


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (SOFT * 1.01, r"Row 0 of y, .* sum to 1 in each row; these sum to 1.01"),
        (SOFT - [[0.5, -0.5, 0]], r"Row 0 of y, .* probabilities are >= 0"),
        (LABELS, r"y has shape \(150,\): with soft=True it must hold a row of probabilities"),
        (np.where(np.arange(3) == 1, np.nan, SOFT), "y contains NaN"),
    ],
)
def test_rows_that_are_no_probabilities_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        fit(CrossEntropy(soft=True), y)


def test_wrong_number_or_order_of_classes_is_refused():
    with pytest.raises(ParameterError, match=r"y has 3 columns of probabilities and there are 4 classes"):
        fit(CrossEntropy(soft=True), SOFT, classes=[1, 2, 3, 4])
    network = MLPClassifier((5,), early_stopping=True, random_state=0).fit(X, LABELS)
    with pytest.raises(ParameterError, match=r"classes=\[2, 1, 0\] has another order than the model"):
        fit(CrossEntropy(soft=True), SOFT, model=network, classes=[2, 1, 0])


def test_validation_data_without_a_label_that_counts_are_refused():
    with pytest.raises(ParameterError, match="y_val has no label but ignore_index=-100"):
        OnnxSGDClassifier(loss=CrossEntropy(ignore_index=-100)).fit(
            X, IGNORED, X_val=X[:2], y_val=[-100, -100]
        )


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"label_smoothing": 1.5}, ParameterError, "label_smoothing=1.5 .* from 0 to 1"),
        ({"label_smoothing": "a"}, ParameterTypeError, "label_smoothing='a'"),
        ({"soft": 1}, ParameterTypeError, "soft=1 .* True or False"),
        ({"ignore_index": 1.5}, ParameterTypeError, "ignore_index=1.5 .* an int or a str"),
        ({"ignore_index": True}, ParameterTypeError, "ignore_index=True"),
        ({"soft": True, "ignore_index": -1}, ParameterError, "sample_weight=0"),
    ],
)
def test_options_out_of_range_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        CrossEntropy(**given)
