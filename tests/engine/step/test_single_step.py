"""The runner of single steps, kept between calls."""

import copy

import numpy as np
import pytest
from sklearn.frozen import FrozenEstimator
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier
from onnxsgd.runtime.cache import cache

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 5)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_kept_block_has_the_rows_and_the_weights_of_each_call():
    """Calls of several batches take the arrays of earlier ones, of other weights and numbers, again."""
    network = FrozenEstimator(MLPClassifier((6,), max_iter=2, random_state=0).fit(X, Y))
    weights = RNG.uniform(0.5, 2.0, size=40)
    calls = [
        (40, None),
        (40, weights),
        (40, None),
        (24, None),
        (40, weights[::-1].copy()),
        (24, weights[:24]),
    ]
    kept = OnnxSGDClassifier(network, random_state=0).partial_fit(X, Y, classes=[0, 1])
    fresh = copy.copy(kept)
    for n_rows, weight in calls:
        kept.partial_fit(X[:n_rows], Y[:n_rows], sample_weight=weight)
    for n_rows, weight in calls:
        cache.clear()
        fresh.partial_fit(X[:n_rows], Y[:n_rows], sample_weight=weight)
    for name, array in kept.get_weights().items():
        np.testing.assert_array_equal(array, fresh.get_weights()[name])
