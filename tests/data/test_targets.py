"""Targets and weights: encoded for a loss, or refused with the value."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils.class_weight import compute_sample_weight

from onnxsgd import OnnxSGDClassifier
from onnxsgd.data import targets
from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.losses import CrossEntropy, Hinge, LogLoss

CLASSES = np.array(["b", "a", "c"])
Y = np.array(["a", "c", "b", "a"])


@pytest.mark.parametrize(("loss", "low"), [(CrossEntropy(), 0), (Hinge(), -1)])
def test_columns_follow_the_order_of_the_classes(loss, low):
    """A graph may hold its classes in any order: column k is class k."""
    encoded = targets.encode_labels(Y, CLASSES, 3, loss)
    expected = LabelBinarizer(neg_label=low).fit(["a", "b", "c"]).transform(Y)[:, [1, 0, 2]]
    np.testing.assert_array_equal(encoded, expected)


@pytest.mark.parametrize(("loss", "low"), [(LogLoss(), 0.0), (Hinge(), -1.0)])
def test_one_output_is_that_of_the_second_class(loss, low):
    encoded = targets.encode_labels(np.array([7, 3, 7]), np.array([7, 3]), 1, loss)
    np.testing.assert_array_equal(encoded, [[low], [1.0], [low]])


@pytest.mark.parametrize(
    ("y", "classes", "unknown"),
    [
        (np.array(["a", "z"]), CLASSES, r"\['z'\]"),
        (np.array([1, 9, 9]), np.array([3, 1]), r"\[9\]"),
        (np.array([1, 2]), np.array(["1", "2"]), r"\[1, 2\]"),
    ],
)
def test_unknown_labels_are_named(y, classes, unknown):
    with pytest.raises(ParameterError, match=f"y_val contains the labels {unknown}"):
        targets.check_known_labels(y, classes, "y_val")


@pytest.mark.parametrize("class_weight", ["balanced", {"a": 2.0, "b": 0.5, "c": 3.0}])
def test_weights_of_classes_are_those_of_scikit_learn(class_weight):
    found = targets.class_weights(class_weight, CLASSES, Y)
    np.testing.assert_allclose(found, compute_sample_weight(class_weight, Y), rtol=1e-15)


def test_a_batch_may_lack_a_class():
    """partial_fit balances the classes that are present; scikit-learn refuses."""
    y = np.array(["a", "a", "c"])
    found = targets.class_weights("balanced", CLASSES, y)
    np.testing.assert_allclose(found, compute_sample_weight("balanced", y), rtol=1e-15)


def test_weights_of_several_labels_are_multiplied():
    table = np.array([[1, 0], [1, 1], [0, 0], [1, 0]])
    found = targets.class_weights("balanced", np.arange(2), table)
    np.testing.assert_allclose(found, compute_sample_weight("balanced", table), rtol=1e-15)
    with pytest.raises(ParameterError, match="must be 'balanced' or None"):
        targets.class_weights({0: 2.0}, np.arange(2), table)


@pytest.mark.parametrize("dtype", [int, np.uint8, bool, np.float32])
def test_labels_are_balanced_column_by_column(dtype):
    table = (np.random.default_rng(0).random((20_000, 5)) < [0.1, 0.5, 0.99, 1.0, 0.0]).astype(dtype)
    found = targets.class_weights("balanced", np.arange(5), table)
    np.testing.assert_allclose(found, compute_sample_weight("balanced", table), rtol=1e-14)
    expected = [targets.balanced_weights(column.astype(int)) for column in table.T]
    for weights, of_column in zip(targets.balanced_indicators(table), expected, strict=True):
        assert weights == pytest.approx(of_column)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([1.0, -0.5], "contains -0.5: weights must be >= 0"),
        # newer versions of scikit-learn refuse it themselves
        ([0, 0], "0 for all|at least one non-zero"),
        ([1e308, 1e308], "not finite"),
    ],
)
def test_weights_of_samples_that_cannot_be_averaged_are_refused(weight, message):
    with np.errstate(over="ignore"), pytest.raises(ValueError, match=message):
        targets.check_sample_weight(weight, np.ones(2))


def test_missing_weights_are_one():
    np.testing.assert_array_equal(targets.check_sample_weight(None, np.ones(3)), np.ones(3))


@pytest.mark.parametrize("form", [np.array, sparse.csr_matrix, lambda y: np.array(y, bool)])
def test_several_labels_are_a_table_of_zeros_and_ones(form):
    table = targets.check_labels(form([[1, 0], [1, 1]]))
    np.testing.assert_array_equal(table, [[1, 0], [1, 1]])
    np.testing.assert_array_equal(targets.encode_indicators(table, Hinge()), [[1, -1], [1, 1]])
    np.testing.assert_array_equal(targets.encode_indicators(table, LogLoss()), [[1, 0], [1, 1]])


@pytest.mark.parametrize("shape", [(2,), (2, 3), (2, 3, 4), (2, 3, 4, 5)])
def test_targets_keep_their_axes(shape):
    given = np.arange(np.prod(shape)).reshape(shape)
    for y in (given, given.astype(np.float32), given.tolist()):
        target = targets.check_real_target(y)
        assert target.dtype == np.float64
        np.testing.assert_array_equal(target, given)
    with pytest.raises(ValueError, match="NaN"):
        targets.check_real_target(np.where(given == 1, np.nan, given))


@pytest.mark.parametrize(
    "y", [["1.5", "high"], np.array([["2"], ["high"]], dtype=object), np.array(["high"]), pd.Series(["high"])]
)
def test_text_is_no_real_target(y):
    with pytest.raises(ParameterError, match=r"y holds 'high', which is no number.*OnnxSGDClassifier"):
        targets.check_real_target(y)


def test_numbers_as_text_are_a_real_target():
    np.testing.assert_array_equal(targets.check_real_target(["1.5", "2"]), [1.5, 2.0])


def test_one_sample_has_no_r2():
    with pytest.raises(ParameterError, match="y_val has 1 sample, which R.2 cannot score"):
        targets.check_scorable_by_r2(np.ones(1), "y_val")


def test_plain_arrays_are_returned_as_they_are_and_others_as_by_scikit_learn():
    y = np.linspace(0, 1, 8)
    assert targets.check_real_target(y) is y
    np.testing.assert_array_equal(targets.check_real_target(y[::2]), y[::2])
    with pytest.raises(ValueError, match="contains NaN"):
        targets.check_real_target(np.array([1.0, np.nan]))
    labels = np.arange(40) % 3
    assert targets.check_labels(labels) is labels
    np.testing.assert_array_equal(targets.check_labels(labels[::2]), labels[::2])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_column_of_a_table_takes_the_short_check(dtype, monkeypatch):
    """scikit-learn's takes as long as some updates."""
    table = np.arange(12, dtype=dtype).reshape(4, 3)
    monkeypatch.setattr(targets, "check_array", None)
    np.testing.assert_array_equal(targets.check_real_target(table[:, -1]), [2.0, 5.0, 8.0, 11.0])


def test_labels_that_look_like_a_regression_target_warn_as_in_scikit_learn():
    with pytest.warns(UserWarning, match="unique classes is greater than 50%"):
        targets.check_labels(np.arange(40))


@pytest.mark.parametrize(
    "labels",
    [
        np.arange(-128, 128, dtype=np.int8),
        np.array([2**64 - 1, 2**64 - 3], np.uint64),
        np.array([-(2**63), 2**63 - 1]),
        np.array([-(2**63), 2 - 2**63]),
        np.array([7, -3, 7, 4, 5]),
        np.array([7, -3, 10**9]),
        np.array([200, 7], np.uint8),
        np.array([True, False]),
        np.array([2.5, -1.0]),
    ],
    ids=lambda labels: f"{labels.dtype}-{len(labels)}",
)
def test_labels_of_any_range_are_found(labels):
    """A few of them, and many, which are counted where they are whole numbers near one another."""
    for y in (labels, np.random.default_rng(0).permutation(np.repeat(labels, 300))):
        present = targets.present_labels(y)
        assert present.dtype == labels.dtype
        np.testing.assert_array_equal(present, sorted(set(labels.tolist())))
        for classes in (present, present[::-1]):
            found = targets.label_columns(y, classes)
            np.testing.assert_array_equal(classes[found], y)


def test_a_table_of_classes_that_is_kept_is_that_of_their_type_and_order():
    """Those of several estimators in turn."""
    wide, narrow = np.array([1, 0]), np.array([1, 2, 0, 3], np.int32)
    for classes in (wide, wide[::-1], narrow, narrow[::-1], wide):
        for y in (classes, np.repeat(classes, 50)):
            np.testing.assert_array_equal(classes[targets.label_columns(y, classes)], y)


@pytest.mark.parametrize(
    "classes", [{}, {0, 1}, {0: 1}, "ab", 2, [[0, 1]], [0, [1]], [None, 0], iter([0, 1]), [0, 1, np.nan]]
)
def test_lists_of_classes_that_are_none_are_refused(classes):
    with pytest.raises((ParameterError, ParameterTypeError), match="^classes"):
        targets.check_classes(classes)


def test_classes_of_a_new_layer_may_be_named_twice():
    """As in scikit-learn, where `y` itself names them."""
    y = np.array([2, 0, 1] * 4)
    learner = OnnxSGDClassifier(max_iter=1, tol=None, classes=y).fit(np.eye(12), y)
    np.testing.assert_array_equal(learner.classes_, [0, 1, 2])


@pytest.mark.parametrize("unknown", [4, -9, 10**12, 2**63 - 1, -(2**63)])
def test_an_unknown_number_among_many_labels_is_named(unknown):
    y = np.repeat([3, 7, 5], 100)
    y[50] = unknown
    with pytest.raises(ParameterError, match=rf"\[{unknown}\], which are not among"):
        targets.label_columns(y, np.array([7, 3, 5]))


def test_the_labels_that_occur_belong_to_the_caller():
    """They are kept for further checks of the same labels."""
    y = np.array([3, 1, 3, 2])
    targets.present_labels(y)[:] = 7
    np.testing.assert_array_equal(targets.present_labels(y), [1, 2, 3])
    np.testing.assert_array_equal(targets.present_labels(y.astype(np.int16)), [1, 2, 3])
    assert targets.present_labels(y.astype(np.int16)).dtype == np.int16
