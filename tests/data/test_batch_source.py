"""Batches that an iterable yields: their parts, their epochs."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from onnxsgd.data.batch_source import Batch, BatchSource, is_batch_source
from onnxsgd.exceptions import ParameterError, ParameterTypeError

X, Y, WEIGHT = np.zeros((4, 3)), np.arange(4.0), np.ones(4)


class Rows:
    """A data set that cuts its own batches, as those of Hugging Face do; it has the attribute `shape` too."""

    shape = (10, 2)

    def __len__(self):
        return 10

    def __iter__(self):
        yield from ({"x": [float(i)], "label": i} for i in range(10))

    def iter(self, batch_size):
        for start in range(0, 10, batch_size):
            rows = range(start, min(10, start + batch_size))
            yield {"x": [[float(i)] for i in rows], "label": list(rows)}


class Tensor:
    """A tensor of torch on another device, which counts gradients."""

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self.array


def numbers(source, n_epochs):
    return [[batch.y[0] for batch in source.epoch()] for _ in range(n_epochs)]


def batches(n):
    return [(X, np.full(4, float(number))) for number in range(n)]


@pytest.mark.parametrize("item", [
    (X, Y), [X, Y], (X, Y, WEIGHT), {"x": X, "y": Y}, {"pixels": X, "label": Y, "sample_weight": WEIGHT},
    (Tensor(X), Tensor(Y)), {"x": Tensor(X), "labels": Tensor(Y)},
])  # fmt: skip
def test_parts_of_a_batch(item):
    batch = Batch.of(item)
    assert batch.X is X
    assert batch.y is Y
    assert batch.sample_weight is (WEIGHT if len(item) == 3 else None)


def test_several_features_are_a_dictionary():
    assert Batch.of({"a": X, "b": X, "target": Y}).X == {"a": X, "b": X}
    assert Batch.of(({"a": Tensor(X), "b": X}, Y)).X == {"a": X, "b": X}


@pytest.mark.parametrize(("item", "message"), [
    ((X,), "has 1 parts"),
    ((X, Y, WEIGHT, Y), "has 4 parts"),
    ({"x": X}, r"has the entries \['x'\]"),
    ({"y": Y}, r"has the entries \['y'\]"),
    ({"x": X, "y": Y, "label": Y}, r"has the entries \['label', 'x', 'y'\]"),
    ((X[0], 3.0), "over batches of samples"),
])  # fmt: skip
def test_other_batches_are_refused(item, message):
    with pytest.raises(ParameterError, match=message):
        Batch.of(item)


def test_batches_of_another_type_are_refused():
    with pytest.raises(ParameterTypeError, match=r"of type ndarray: each must be \(X, y\)"):
        Batch.of(X)


@pytest.mark.parametrize(
    "X", [[(X, Y)], [{"x": X, "y": Y}], iter([]), (i for i in ()), Rows(), {1}.__iter__()]
)
def test_iterables_of_batches(X):
    assert is_batch_source(X)


@pytest.mark.parametrize("X", [
    X, X.tolist(), [], [1.0, 2.0], ["a text"], "text", b"bytes", 5, None, {"a": X}, pd.DataFrame(X),
    pd.Series(Y), sparse.csr_array(X), np.float64(1.0), [X, X],
])  # fmt: skip
def test_data_as_a_whole_are_no_batches(X):
    assert not is_batch_source(X)


def test_an_iterable_begins_anew_in_each_epoch():
    source = BatchSource(batches(3), None, None)
    assert source.is_repeatable
    assert source.n_batches == 3
    assert source.first().y[0] == 0
    assert numbers(source, 3) == [[0, 1, 2]] * 3
    assert source.has_next


@pytest.mark.parametrize(("n_steps", "epochs"), [
    (2, [[0, 1], [2, 0], [1, 2]]), (3, [[0, 1, 2]] * 3), (4, [[0, 1, 2, 0], [1, 2, 0, 1], [2, 0, 1, 2]]),
    (7, [[0, 1, 2, 0, 1, 2, 0], [1, 2, 0, 1, 2, 0, 1], [2, 0, 1, 2, 0, 1, 2]]),
])  # fmt: skip
def test_steps_of_an_epoch(n_steps, epochs):
    """The next epoch continues within the iterable."""
    source = BatchSource(batches(3), n_steps, None)
    assert source.n_batches == n_steps
    assert numbers(source, 3) == epochs


@pytest.mark.parametrize(("n_steps", "epochs"), [
    (None, [[0, 1, 2, 3]]), (2, [[0, 1], [2, 3]]), (3, [[0, 1, 2], [3]]), (9, [[0, 1, 2, 3]]),
])  # fmt: skip
def test_an_iterator_is_read_once(n_steps, epochs):
    source = BatchSource((batch for batch in batches(4)), n_steps, None)
    assert not source.is_repeatable
    assert source.n_batches == n_steps
    source.first()
    found = []
    while source.has_next:
        found += numbers(source, 1)
    assert found == epochs


def test_no_batch_is_read_before_it_is_needed():
    read = []

    def endless():
        while True:
            read.append(len(read))
            yield X, Y

    source = BatchSource(endless(), 2, None)
    source.first()
    assert len(read) == 1
    list(source.epoch())
    assert len(read) == 2


@pytest.mark.parametrize("empty", [[], iter(()), {}.values()])
def test_no_batches_at_all(empty):
    with pytest.raises(ParameterError, match="yields no batches"):
        BatchSource(empty, None, None).first()
    for n_steps in (None, 3):
        with pytest.raises(ParameterError, match="yields no batches"):
            list(BatchSource(empty, n_steps, None).epoch())


@pytest.mark.parametrize(("n_rows", "sizes"), [(None, [10]), (4, [4, 4, 2])])
def test_a_data_set_cuts_its_batches(n_rows, sizes):
    source = BatchSource(Rows(), None, n_rows)
    assert source.n_batches == len(sizes)
    assert [len(batch.y) for batch in source.epoch()] == sizes
    assert [len(batch.y) for batch in source.aside()] == sizes


class RowsOf(Rows):
    """A data set of the given rows."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        yield from self.rows

    def iter(self, batch_size):
        for start in range(0, len(self.rows), batch_size):
            part = self.rows[start : start + batch_size]
            yield {name: [row[name] for row in part] for name in part[0]}


@pytest.mark.parametrize(("row", "n_rows"), [
    ({"x": [[1.0], [2.0], [3.0]], "label": [0, 1, 0]}, 3),
    ({"x": np.zeros((3, 2)), "z": np.zeros(3), "label": np.arange(3)}, 3),
    ({"x": [1.0, 2.0], "label": 0}, None),
    ({"x": [1.0, 2.0, 4.0], "label": [0, 1]}, None),
    ({"x": "text", "label": "none"}, None),
    ({"x": np.zeros(3), "label": np.array(0)}, None),
])  # fmt: skip
def test_rows_that_may_be_batches_are_noted(row, n_rows):
    error = ValueError("")
    BatchSource(RowsOf([row, row]), None, None).advise(error)
    notes = getattr(error, "__notes__", [])
    assert [f"have {n_rows} values. If its rows are batches" in note for note in notes] == [True] * (
        n_rows is not None
    )


def test_only_rows_of_data_sets_are_noted():
    for source in ([({"x": X}, X)], RowsOf([]), iter([])):
        error = ValueError("")
        BatchSource(source, None, None).advise(error)
        assert not hasattr(error, "__notes__")


def test_targets_of_different_lengths_are_a_batch():
    assert Batch.of({"tokens": [[1, 2], [3]], "labels": [[0, 1], [1]]}).y == [[0, 1], [1]]
