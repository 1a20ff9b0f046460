"""Private parts of the training loop."""

import numpy as np
import pytest

from onnxsgd.training.loop import _shuffled


@pytest.mark.parametrize("n", [1, 2, 3, 1000, 70_000])
def test_each_number_is_drawn_once(n):
    order = _shuffled(n, np.random.RandomState(0))
    np.testing.assert_array_equal(np.sort(order), np.arange(n))


def test_every_order_is_as_likely():
    random_state = np.random.RandomState(0)
    drawn = [tuple(_shuffled(4, random_state)) for _ in range(24_000)]
    counts = np.unique(drawn, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    # chi-squared with 23 degrees of freedom: 49.7 with a probability of 0.001
    assert ((counts - 1000) ** 2 / 1000).sum() < 49.7


def test_the_seed_decides():
    first, second, other = (_shuffled(50, np.random.RandomState(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)
