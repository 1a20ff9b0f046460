"""Rows of samples: features, targets and weights stay together."""

import numpy as np
import pytest
from scipy import sparse

from onnxsgd.data.samples import Samples
from onnxsgd.exceptions import ParameterError


@pytest.fixture
def samples():
    rows = np.arange(10.0).reshape(5, 2)
    return Samples({"x": rows, "s": sparse.csr_matrix(rows)}, np.arange(5), np.array([1.0, 0, 2, 0, 3]))


@pytest.mark.parametrize("rows", [np.array([4, 0]), slice(1, 3)])
def test_rows_are_taken_from_every_part(samples, rows):
    taken = samples.take(rows)
    expected = np.arange(5)[rows]
    np.testing.assert_array_equal(taken.target, expected)
    np.testing.assert_array_equal(taken.weight, samples.weight[rows])
    np.testing.assert_array_equal(taken.features["x"][:, 0], 2 * expected)
    np.testing.assert_array_equal(taken.features["s"].toarray()[:, 0], 2 * expected)


def test_rows_of_weight_zero_are_dropped(samples):
    """A batch of such rows would divide by zero."""
    kept = samples.without_zeros()
    np.testing.assert_array_equal(kept.target, [0, 2, 4])
    assert kept.without_zeros() is kept


def test_weights_are_multiplied(samples):
    np.testing.assert_array_equal(samples.weighted_by(np.full(5, 2.0)).weight, [2, 0, 4, 0, 6])


@pytest.mark.parametrize(
    "weight", [[0, 1, 0, 1, 0], [1, 1, -1, 1, 1], [1, 1, np.inf, 1, 1], [1, 1, np.nan, 1, 1]]
)
def test_weights_of_classes_that_leave_nothing_are_refused(samples, weight):
    with pytest.raises(ParameterError, match="class_weight gives the samples weights from"):
        samples.weighted_by(np.array(weight, float))
