"""Axes of scores, found by shapes; weights of elements."""

import numpy as np
import pytest

from onnxsgd.data.dense_targets import ElementAxes, check_dense_labels, element_weights, find_axes
from onnxsgd.exceptions import GraphError, ParameterError

CLASSES = np.array(["b", "a", "c"])


@pytest.mark.parametrize(
    ("sizes", "target", "preferred", "axis"),
    [
        ((4, 5, 6), (5, 6), None, 0),
        ((5, 6, 4), (5, 6), None, 2),
        ((4, 5), (5,), None, 0),
        ((5, 4), (5,), None, 1),
        ((5, 6), (5, 6), None, None),
        ((1, 5, 6), (5, 6), None, 0),
        ((4, 4), (4,), 0, 0),
        ((4, 4), (4,), 1, 1),
        # the graph decides only where the shapes leave both open
        ((5, 4), (5,), 0, 1),
    ],
)
def test_axis_of_the_classes(sizes, target, preferred, axis):
    axes = find_axes(sizes, target, preferred)
    assert axes == ElementAxes(sizes, axis)
    assert axes.elements == target
    raw = np.arange(2 * np.prod(sizes)).reshape(2, *sizes)
    expected = raw[..., None] if axis is None else np.moveaxis(raw, axis + 1, -1)
    np.testing.assert_array_equal(axes.rows(raw), expected.reshape(-1, axes.n_scores))


@pytest.mark.parametrize(
    ("sizes", "target", "message"),
    [
        ((4, 5), (), r"\(n_samples, 4, 5\) and y has \(n_samples,\): y must have the axes"),
        ((4, 5, 6), (4, 6), r"\(n_samples, 4, 5, 6\) and y has \(n_samples, 4, 6\): y must"),
        ((4, 4), (4,), "the axis of the classes may be 1 or 2"),
    ],
)
def test_shapes_that_do_not_tell_are_refused(sizes, target, message):
    with pytest.raises(GraphError, match=message):
        find_axes(sizes, target, None)


def test_weights_of_elements():
    y = np.array([["a", "?", "c"], ["b", "b", "?"]])
    index, weight = element_weights(y, CLASSES, {"a": 2.0, "c": 0.5}, "?")
    np.testing.assert_array_equal(index, [[1, 0, 2], [0, 0, 0]])
    np.testing.assert_array_equal(weight, [[2, 0, 0.5], [1, 1, 0]])
    _, balanced = element_weights(y, CLASSES, "balanced", "?")
    np.testing.assert_allclose(balanced, [[4 / 3, 0, 4 / 3], [2 / 3, 2 / 3, 0]])
    _, nothing = element_weights(np.full((2, 2), "?"), CLASSES, "balanced", "?")
    np.testing.assert_array_equal(nothing, np.zeros((2, 2)))


@pytest.mark.parametrize("y", [[[0.5, 1.0]], [[1j, 0]], [[np.nan, 1.0]]])
def test_numbers_that_are_no_labels(y):
    with pytest.raises((ParameterError, ValueError), match="label|NaN"):
        check_dense_labels(y)
