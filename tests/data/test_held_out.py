import numpy as np
import pytest

from onnxsgd.data import row_tables
from onnxsgd.data.held_out import hold_out_rows


def _split(n_rows, fraction, columns=None, seed=0):
    kept, held_out = hold_out_rows(n_rows, fraction, np.random.RandomState(seed), columns)
    np.testing.assert_array_equal(np.sort(np.concatenate([kept, held_out])), np.arange(n_rows))
    assert (np.diff(kept.astype(int)) > 0).all()
    assert (np.diff(held_out.astype(int)) > 0).all()
    return held_out


@pytest.mark.parametrize("n_rows", [10, 40_000])
def test_so_many_rows_are_held_out(n_rows):
    assert len(_split(n_rows, 0.1)) == n_rows // 10
    assert len(_split(n_rows, 0.55)) == -(-n_rows * 55 // 100)


def test_classes_have_the_same_share():
    columns = np.random.default_rng(0).choice(3, 40_000, p=[0.9, 0.099, 0.001]).astype(np.int8)
    held_out = _split(40_000, 0.25, columns)
    share = np.bincount(columns[held_out]) / np.bincount(columns)
    np.testing.assert_allclose(share, 0.25, atol=0.02)
    assert len(held_out) == 10_000


def test_all_rows_are_as_probable(monkeypatch):
    """Also where the rows of a block are few: a binomial test of each row, at five deviations."""
    blocks = row_tables.row_blocks
    monkeypatch.setattr("onnxsgd.data.held_out.row_blocks", lambda n: blocks(n, 7))
    counts = np.zeros(30)
    for seed in range(2000):
        counts[_split(30, 0.3, seed=seed)] += 1
    np.testing.assert_allclose(counts / 2000, 0.3, atol=5 * np.sqrt(0.3 * 0.7 / 2000))


def test_what_cannot_be_held_out_is_told():
    state = np.random.RandomState(0)
    with pytest.raises(ValueError, match="left to train on"):
        hold_out_rows(5, 0.99, state)
    with pytest.raises(ValueError, match="only 1 member"):
        hold_out_rows(5, 0.5, state, np.array([0, 0, 0, 0, 1]))
    with pytest.raises(ValueError, match="fewer than the 3 classes"):
        hold_out_rows(10, 0.1, state, np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2]))
