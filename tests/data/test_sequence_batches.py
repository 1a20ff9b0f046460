"""Batches of sequences: buckets of similar lengths, or of one."""

from dataclasses import replace

import numpy as np
import pytest
from sequence_graphs import value_inputs

from onnxsgd.data.sequence_batches import SequenceBatches, _round_up
from onnxsgd.data.sequences import Ragged, read_sequences

PLAIN, MASKED = value_inputs(X=["t", 3]), value_inputs(X=["t", 3], mask=["t"])
LENGTHS = np.random.default_rng(0).integers(1, 9, 1000)
X = [np.full((length, 3), float(row)) for row, length in enumerate(LENGTHS)]


def batches(graph, seed=0, size=8, X=X, weight=None):
    generator = None if seed is None else np.random.RandomState(seed)
    return SequenceBatches(read_sequences(X, graph), np.arange(len(X)), weight, size, generator)


@pytest.mark.parametrize("graph", [PLAIN, MASKED], ids=["groups", "buckets"])
@pytest.mark.parametrize("seed", [0, None])
def test_an_epoch_has_each_sample_once(graph, seed):
    source = batches(graph, seed)
    drawn = list(source)
    assert len(drawn) == len(source)
    assert sorted(np.concatenate([y for _, y, _ in drawn])) == list(range(1000))
    for arrays, y, weight in drawn:
        assert weight is None
        assert arrays["X"].shape == (len(y), LENGTHS[y].max(), 3)
        assert len(y) <= 8
        np.testing.assert_array_equal(arrays["X"][:, 0, 0], y)


def test_groups_have_one_length():
    assert all(np.ptp(LENGTHS[rows]) == 0 for rows in batches(PLAIN).orders())


def test_buckets_have_similar_lengths():
    """Sorted windows leave few steps of padding; a random order pads much more."""
    padding = [(LENGTHS[rows].max() - LENGTHS[rows]).sum() for rows in batches(MASKED).orders()]
    assert sum(padding) < 0.05 * LENGTHS.sum()
    unsorted = [(LENGTHS[rows].max() - LENGTHS[rows]).sum() for rows in batches(MASKED, None).orders()]
    assert sum(unsorted) > 0.3 * LENGTHS.sum()


@pytest.mark.parametrize("graph", [PLAIN, MASKED])
def test_epochs_differ_and_seeds_repeat_them(graph):
    source, again = batches(graph), batches(graph)
    first, second = source.orders(), source.orders()
    assert [r.tolist() for r in first] == [r.tolist() for r in again.orders()]
    assert [r.tolist() for r in first] != [r.tolist() for r in second]


def test_without_shuffling_samples_keep_their_order():
    X = [[1], [2, 3], [4], [5, 6], [7], [8]]
    masked = batches(MASKED, None, 2, X)
    assert [rows.tolist() for rows in masked.orders()] == [[0, 1], [2, 3], [4, 5]]
    plain = batches(PLAIN, None, 2, X)
    assert [rows.tolist() for rows in plain.orders()] == [[0, 2], [1, 3], [4, 5]]
    assert [rows.tolist() for rows in batches(PLAIN, None, 1, X).orders()] == [[row] for row in range(6)]


def test_targets_are_padded_with_their_sequences():
    """To a bounded number of lengths, as steps with targets of elements are compiled for each."""
    y = Ragged(tuple(np.full(length, row) for row, length in enumerate(LENGTHS)))
    source = replace(batches(MASKED), y=y, fill=-1)
    for arrays, target, _ in source:
        assert arrays["X"].shape[:2] == arrays["mask"].shape == target.shape
        np.testing.assert_array_equal(arrays["mask"], target >= 0)
    lengths = {_round_up(length) for length in range(1, 1025)}
    assert len(lengths) < 40
    assert all(n <= _round_up(n) <= max(n + 1, 1.25 * n) for n in range(1, 1025))
    plain = list(replace(batches(PLAIN), y=y))
    assert all(arrays["X"].shape[:2] == target.shape for arrays, target, _ in plain)


def test_first_batch_and_subsets():
    weight = np.arange(1000) + 1.0
    source = batches(PLAIN, weight=weight)
    first = source.first()
    assert LENGTHS[first.y].tolist() == [LENGTHS[first.y[0]]] * 8
    np.testing.assert_array_equal(first.sample_weight, first.y + 1.0)
    part = source.take(np.array([5, 3]))
    assert len(part.sequences) == 2
    assert part.y.tolist() == [5, 3]
    assert part.sample_weight.tolist() == [6, 4]
