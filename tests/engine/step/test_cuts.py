"""Cuts: each sample in one batch, as many updates as needed, of equal size if asked for."""

import numpy as np
import pytest

from onnxsgd.engine.step.cuts import Cuts

SIZES = [(1, 8), (8, 8), (9, 8), (17, 8), (33, 32), (100, 32), (20_000, 32), (5, 1)]


@pytest.mark.parametrize("is_even", [True, False])
@pytest.mark.parametrize("n_accumulated", [1, 3])
@pytest.mark.parametrize(("n_samples", "batch_size"), SIZES)
def test_each_sample_is_in_one_batch(n_samples, batch_size, n_accumulated, is_even):
    cuts = Cuts.of(n_samples, batch_size, n_accumulated, is_even=is_even)
    assert cuts.n_rows.sum() == n_samples
    assert cuts.n_rows.min() >= 1
    assert cuts.n_rows.max() <= batch_size
    filled = cuts.filled(batch_size)
    assert filled.shape == (len(cuts.n_rows), batch_size)
    taken = [row[:count] for row, count in zip(filled, cuts.n_rows, strict=True)]
    np.testing.assert_array_equal(np.concatenate(taken), np.arange(n_samples))
    # neighbours fill short batches up
    np.testing.assert_array_equal(filled, np.minimum(filled[:, :1] + np.arange(batch_size), n_samples - 1))


@pytest.mark.parametrize("n_accumulated", [1, 3])
@pytest.mark.parametrize(("n_samples", "batch_size"), SIZES)
def test_even_updates_are_as_many_and_differ_by_one_sample(n_samples, batch_size, n_accumulated):
    sizes = []
    for is_even in (True, False):
        cuts = Cuts.of(n_samples, batch_size, n_accumulated, is_even=is_even)
        updates = np.arange(len(cuts.n_rows)) if cuts.updates is None else cuts.updates
        sizes.append(np.bincount(updates, cuts.n_rows))
        assert np.bincount(updates).max() <= n_accumulated
    even, full = sizes
    assert len(even) == len(full) == -(-n_samples // (batch_size * n_accumulated))
    assert np.ptp(even) <= 1
    assert (full[:-1] == batch_size * n_accumulated).all()


def test_the_batches_of_an_update_are_even_too():
    """No batch of a single sample, whose columns have no variance, beside larger ones."""
    cuts = Cuts.of(13, 4, 3, is_even=True)
    np.testing.assert_array_equal(cuts.n_rows, [4, 3, 3, 3])
    np.testing.assert_array_equal(cuts.updates, [0, 0, 1, 1])
    cuts = Cuts.of(13, 4, 3)
    np.testing.assert_array_equal(cuts.n_rows, [4, 4, 4, 1])
    np.testing.assert_array_equal(cuts.updates, [0, 0, 0, 1])
