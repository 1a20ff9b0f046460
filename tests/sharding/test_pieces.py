"""Pieces of data: cut, dealt and compared."""

import numpy as np
import pytest
from scipy import sparse
from serial_executor import SerialExecutor

from onnxsgd.data.row_tables import row_blocks
from onnxsgd.exceptions import ParameterError
from onnxsgd.sharding.pieces import (
    are_alike,
    cut_evenly,
    dealt_evenly,
    first_rows,
    joined_counts,
    piece_of,
    summary_of_pieces,
)

RANDOM = np.random.RandomState(0)
Y = RANDOM.randint(0, 3, 100)
PIECES = [
    (np.arange(start, stop)[:, None], Y[start:stop], None) for start, stop in ((0, 10), (10, 70), (70, 100))
]


def rows_of(executor, shards):
    return [np.concatenate([X[:, 0] for X, _, _ in executor.results(shard)]) for shard in shards]


@pytest.mark.parametrize("n_shards", [1, 2, 3, 7, 100])
def test_a_cut_gives_each_shard_the_same_number_of_neighbours(n_shards):
    executor = SerialExecutor()
    handles = [executor.source(piece) for piece in PIECES]
    rows = rows_of(executor, cut_evenly(executor, handles, [10, 60, 30], n_shards))
    assert (np.concatenate(rows) == np.arange(100)).all()
    assert {len(part) for part in rows} <= {100 // n_shards, 100 // n_shards + 1}


def test_dealt_rows_are_all_rows_once_and_the_same_again():
    executor = SerialExecutor()
    handles = [executor.source(piece) for piece in PIECES]
    rows, again = (rows_of(executor, dealt_evenly(executor, handles, 4, 5)) for _ in range(2))
    assert (np.sort(np.concatenate(rows)) == np.arange(100)).all()
    assert all((a == b).all() for a, b in zip(rows, again, strict=True))
    others = rows_of(executor, dealt_evenly(executor, handles, 4, 6))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(rows, others, strict=True))
    # a part of each piece
    assert all(10 < np.count_nonzero((part >= 10) & (part < 70)) < 20 for part in rows)


def test_pieces_of_all_kinds_keep_their_rows_together():
    pandas = pytest.importorskip("pandas")
    X = np.arange(20.0).reshape(10, 2)
    for table in (X, sparse.csr_matrix(X), pandas.DataFrame(X, columns=["a", "b"])):
        weight = pandas.Series(np.arange(10.0), index=np.arange(10)[::-1])
        features, y, weights = first_rows((table, np.arange(10), weight), 3)
        assert type(features) is type(table)
        assert features.shape == (3, 2)
        assert (np.asarray(weights) == y).all()


def test_parts_of_different_lengths_are_refused():
    with pytest.raises(ParameterError, match="Partition 3 has 4 rows of X, 5 rows of y"):
        piece_of(3, np.zeros((4, 1)), np.zeros(5), None)
    with pytest.raises(ParameterError, match="2 rows of sample_weight"):
        piece_of(0, np.zeros((4, 1)), np.zeros(4), np.zeros(2))


def test_summaries_count_labels_of_rows_with_weight():
    found = summary_of_pieces(True, (None, np.array(["b", "a", "b"]), None), (None, np.array(["c"]), [0.0]))
    assert (found.n_rows, found.labels.tolist(), found.counts.tolist()) == (4, ["a", "b", "c"], [1, 2, 0])
    assert summary_of_pieces(True, (None, np.empty(0), None)).n_rows == 0
    real = summary_of_pieces(False, (None, np.array([1.0, 3.0]), None)).moments
    assert (real.mean[0], real.squares[0]) == (2.0, 2.0)
    assert summary_of_pieces(False, (None, np.array(["x"]), None)).moments is None


def summaries(targets, has_labels):
    return [summary_of_pieces(has_labels, (None, y, None)) for y in targets]


@pytest.mark.parametrize("n_rows", [5, 50, 5000])
def test_random_shards_are_alike_and_sorted_ones_are_not(n_rows):
    generator = np.random.RandomState(n_rows)
    y = generator.randint(0, 5, 4 * n_rows)
    assert are_alike(summaries(np.split(y, 4), True))
    real = generator.standard_normal(4 * n_rows) * 1e3 + 1e6
    assert are_alike(summaries(np.split(real, 4), False))
    # few rows tell nothing
    if n_rows > 5:
        assert not are_alike(summaries(np.split(np.sort(y), 4), True))
        assert not are_alike(summaries(np.split(np.sort(real), 4), False))


@pytest.mark.parametrize("labels", [np.arange(5), np.array(list("vwxyz"))], ids=["numbers", "strings"])
def test_labels_of_many_rows_are_counted_in_blocks(labels, monkeypatch):
    monkeypatch.setattr("onnxsgd.sharding.pieces.row_blocks", lambda n_rows: row_blocks(n_rows, 64))
    places, weight = np.random.RandomState(0).randint(0, 5, 1000), np.arange(1000) % 3
    parts = [slice(0, 500), slice(500, 1000)]
    pieces = [(np.zeros((500, 1)), labels[places[part]], weight[part]) for part in parts]
    found = summary_of_pieces(True, *pieces)
    np.testing.assert_array_equal(found.labels, labels, strict=True)
    np.testing.assert_array_equal(found.counts, np.bincount(places[weight > 0]))


def test_labels_of_elements_are_counted_together():
    """The first piece has the labels 0 and 1 alone; rows of weight zero do not count."""
    parts = [np.array([[0, 1], [1, 1]]), np.array([[0, 2], [2, 2], [1, 2]])]
    weights = [None, np.array([1.0, 1.0, 0.0])]
    found = [summary_of_pieces(True, (y[:, :1], y, weight)) for y, weight in zip(parts, weights, strict=True)]
    labels, counts = joined_counts(found)
    assert labels.tolist() == [0, 1, 2]
    assert counts.tolist() == [[2], [3], [3]]
    assert joined_counts(found[:1])[1].tolist() == [[1, 0], [1, 2]]
