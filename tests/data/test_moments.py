"""Means and deviations agree with numpy in float64, for all rows at once and in parts."""

import functools
import pickle

import numpy as np
import pytest
from scipy import sparse

from onnxsgd.data import moments as module
from onnxsgd.data.moments import Moments, add_moments

X = np.random.default_rng(0).normal([0.0, 1e6, 5.0], [1.0, 0.1, 1e-3], (200, 3))
RNG = np.random.default_rng(2)
WEIGHT = np.random.default_rng(1).integers(1, 4, 200).astype(float)


@pytest.mark.parametrize("block", [21, 131_072])
def test_weights_are_repetitions(block, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", block)
    moments = Moments.of(X, WEIGHT)
    repeated = np.repeat(X, WEIGHT.astype(int), axis=0)
    np.testing.assert_allclose(moments.mean, repeated.mean(axis=0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(moments.deviation(), repeated.std(axis=0), rtol=1e-8)
    np.testing.assert_allclose(moments.size(), np.sqrt((repeated**2).mean(axis=0)), rtol=1e-12)


def test_parts_are_merged():
    parts = [Moments.of(X[rows], WEIGHT[rows]) for rows in (slice(0, 1), slice(1, 50), slice(50, 200))]
    merged = parts[0].merged(parts[1]).merged(parts[2])
    whole = Moments.of(X, WEIGHT)
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(merged.deviation(), whole.deviation(), rtol=1e-8)


def test_sparse_columns_have_the_size_of_their_non_zeros():
    table = np.array([[0.0, 200.0, 0.0], [3.0, 0.0, 0.0], [-4.0, 0.0, 0.0]])
    weight = np.array([5.0, 1.0, 3.0])
    moments = Moments.of(sparse.csr_matrix(table), weight)
    np.testing.assert_array_equal(moments.centre, 0.0)
    own = np.sqrt((9 + 3 * 16) / 4)
    # one without an entry so far has the geometric mean
    common = np.exp((4 * np.log(own) + 5 * np.log(200.0)) / 9)
    np.testing.assert_allclose(moments.deviation(), [own, 200.0, common], rtol=1e-14)
    # a call without a non-zero of a column changes nothing about it
    later = Moments.of(sparse.csr_matrix(table[:1]), weight[:1])
    assert moments.merged(later).deviation()[0] == moments.deviation()[0]


def test_similar_sparse_columns_have_one_scale():
    """Columns of tf-idf differ by importance, columns of units by more."""
    sizes = np.array([0.1, 0.15, 0.2, 100.0])
    moments = Moments.of(sparse.csr_matrix(np.vstack([np.diag(sizes), np.zeros((4, 4))])), np.ones(8))
    common = np.exp(np.log(sizes).mean())
    assert common / 3 > 0.2
    np.testing.assert_allclose(moments.deviation(), sizes, rtol=1e-14)
    three = Moments.of(sparse.csr_matrix(np.vstack([np.diag(sizes[:3]), np.zeros((4, 3))])), np.ones(7))
    np.testing.assert_allclose(three.deviation(), np.exp(np.log(sizes[:3]).mean()), rtol=1e-14)
    np.testing.assert_allclose(three.size(), three.deviation(), rtol=1e-14)


def test_nearly_dense_columns_of_sparse_data_are_those_of_dense_data():
    table = RNG.normal([1e6, 3.0, 50.0, 7.0], [1.0, 1.0, 5.0, 0.0], (40, 4))
    table[:5, 2] = 0.0
    weight = RNG.integers(1, 4, 40).astype(float)
    known = Moments.of(sparse.csr_matrix(table), weight)
    parts = [Moments.of(sparse.csr_matrix(table[k : k + 8]), weight[k : k + 8]) for k in range(0, 40, 8)]
    expected = Moments.of(table, weight)
    for moments in (known, functools.reduce(Moments.merged, parts)):
        np.testing.assert_allclose(moments.centre, expected.mean, rtol=1e-12)
        np.testing.assert_allclose(moments.deviation(), expected.deviation(), rtol=1e-7)
        np.testing.assert_allclose(moments.size(), expected.size(), rtol=1e-12)


def test_moments_of_some_columns_are_merged_into_those_of_all():
    table = RNG.normal(1.0, 1.0, (20, 5)) * (RNG.random((20, 5)) < 0.4)
    table[:, [0, 3]] = 0
    columns, moments = np.array([1, 2, 4]), dict[str, Moments]()
    add_moments(moments, "x", sparse.csr_matrix(table[:, columns]), np.ones(20), columns=(columns, 5))
    expected = Moments.of(sparse.csr_matrix(table), np.ones(20))
    assert len(moments["x"].mean) == 3
    assert moments["x"].crowding(3) == expected.crowding(3)
    later = sparse.csr_matrix(RNG.normal(size=(6, 5)))
    known = pickle.loads(pickle.dumps(moments["x"]))
    add_moments(moments, "x", later, np.ones(6))
    expected_later = expected.merged(Moments.of(later, np.ones(6)))
    for found, want in [(known.whole, expected), (moments["x"], expected_later)]:
        for name in ("count", "mean", "squares", "total"):
            np.testing.assert_array_equal(getattr(found, name), getattr(want, name))


def test_explicit_zeros_do_not_count():
    table = sparse.csr_matrix(([0.0, 2.0], [0, 0], [0, 1, 2]), shape=(2, 1))
    assert Moments.of(table, np.ones(2)).deviation()[0] == 2.0


@pytest.mark.parametrize("block", [7, 131_072])
@pytest.mark.parametrize("axis", [1, -1])
def test_columns_of_more_axes(axis, block, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", block)
    images, weight = RNG.normal(5.0, 2.0, (20, 3, 4, 2)), RNG.integers(1, 3, 20).astype(float)
    moments = Moments.of(images, weight, axis)
    repeated = np.moveaxis(np.repeat(images, weight.astype(int), axis=0), axis, -1)
    columns = repeated.reshape(-1, repeated.shape[-1])
    np.testing.assert_allclose(moments.mean, columns.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.deviation(), columns.std(axis=0), rtol=1e-12)


@pytest.mark.parametrize(("value", "expected"), [(0.0, 1.0), (-3.0, 3.0), (1e9, 1e9)])
def test_constant_columns_have_their_own_size(value, expected):
    """Rounding in float32 is no deviation either."""
    table = np.full((50, 1), np.float32(value)) * (1 + 1e-8 * np.arange(50)[:, None])
    moments = Moments.of(table, np.ones(50))
    assert moments.deviation(np.float32)[0] == pytest.approx(expected, rel=1e-6)
    # in float64 the same differences are data
    assert value == 0 or moments.deviation()[0] < 1e-6 * expected


def test_means_whose_squares_overflow_are_merged():
    parts = [Moments.of(np.full((4, 1), value), np.ones(4)) for value in (1e300, -1e300)]
    with np.errstate(over="raise"):
        merged = parts[0].merged(parts[1])
        assert merged.mean == 0
        assert np.isfinite([merged.deviation(), merged.size()]).all()


def test_columns_whose_differences_overflow_are_infinitely_wide():
    """No number would make all predictions none: fits of the other columns end at zeros."""
    table = np.array([[1e308, 1.0], [-1e308, 2.0], [0.0, 3.0]])
    moments = Moments.of(table, np.ones(3))
    np.testing.assert_array_equal(moments.squares, [np.inf, 2.0])


def test_sparse_data_without_an_entry():
    moments = Moments.of(sparse.csr_matrix((5, 3)), np.ones(5))
    np.testing.assert_array_equal(moments.deviation(), 1.0)
    np.testing.assert_array_equal(moments.total, 5.0)


def test_no_rows_have_no_moments():
    moments = Moments.of(np.zeros((0, 2)), np.zeros(0))
    np.testing.assert_array_equal(moments.deviation(), 1.0)
    np.testing.assert_array_equal(moments.merged(Moments.of(X[:, :2], WEIGHT)).mean > 0.5, [False, True])


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_numbers_next_to_the_smallest_one_are_constant(shift):
    """Weights over such deviations would overflow; float64 holds them."""
    column = 1e-37 * (RNG.normal(size=(50, 1)) + shift)
    moments = Moments.of(column, np.ones(50))
    assert moments.deviation(np.float32)[0] == moments.size(np.float32)[0] == 1.0
    assert moments.deviation()[0] == pytest.approx(column.std())
    assert moments.size()[0] == pytest.approx(np.sqrt((column**2).mean()))


def test_the_columns_that_an_update_moves():
    """Ten rows of two entries each, in four of 100 columns."""
    table = sparse.csr_matrix((np.ones(20), np.arange(20) % 4, np.arange(0, 21, 2)), shape=(10, 100))
    moments = Moments.of(table, np.ones(10))
    assert moments.crowding(100) == pytest.approx((np.sqrt(2 * 4) / 100) ** 0.5)
    assert Moments.of(table[:, :0], np.ones(10)).crowding(100) == 1
    assert Moments.of(sparse.csr_matrix((10, 3)), np.ones(10)).crowding(100) == 1
    assert Moments.of(table.toarray(), np.ones(10)).crowding(100) == 1


@pytest.mark.parametrize(
    ("factors", "is_other"),
    [
        ([20, 20, 20, 1], True),
        ([0.05, 0.05, 0.05, 0.05], True),
        ([20, 20, 1, 1], False),
        ([5, 5, 5, 5], False),
    ],
)
def test_rows_of_another_magnitude_replace_those_before(factors, is_other):
    """If most columns have it; columns that are constant have no magnitude."""
    X, weight = np.random.default_rng(0).normal(3.0, 1.0, (64, 4)), np.ones(64)
    moments, kept = {}, {}
    for table in (X, X * factors):
        add_moments(moments, "x", table, weight, may_change=True)
        add_moments(kept, "x", table, weight)
    np.testing.assert_array_equal(moments["x"].total, 64.0 if is_other else 128.0)
    np.testing.assert_array_equal(kept["x"].total, 128.0)
    assert not Moments.of(np.ones((9, 2)), np.ones(9)).differs_from(
        Moments.of(5 * np.ones((9, 2)), np.ones(9))
    )


def _with_extremes(n, every, seed=4):
    """Return normal rows, and the same with a few ten thousand times as large."""
    table = np.random.default_rng(seed).normal(2.0, 1.0, (n, 4))
    extreme = table.copy()
    extreme[::every] *= 1e4
    return table, extreme


def test_extreme_rows_do_not_count_in_the_bulk():
    table, extreme = _with_extremes(500, 100)
    weight, moments, all_rows = np.random.default_rng(1).integers(1, 4, 500).astype(float), {}, {}
    assert add_moments(moments, "x", extreme, weight, of_bulk=True)
    is_usual = np.arange(500) % 100 > 0
    usual = Moments.of(table[is_usual], weight[is_usual])
    np.testing.assert_allclose(moments["x"].mean, usual.mean, rtol=1e-12)
    np.testing.assert_allclose(moments["x"].deviation(), usual.deviation(), rtol=1e-12)
    np.testing.assert_array_equal(moments["x"].count, weight.sum())
    assert not add_moments(all_rows, "x", extreme, weight)
    assert (all_rows["x"].deviation() > 500).all()
    assert not add_moments({}, "x", table, weight, of_bulk=True)


@pytest.mark.parametrize("rows", [1, 10, 50, 200])
def test_extreme_rows_of_a_stream_change_little(rows):
    _, extreme = _with_extremes(3000, 60)
    moments = {}
    # ordinary rows first: single ones cannot tell
    for start in range(1 if rows == 1 else 0, 3000, rows):
        part = extreme[start : start + rows]
        add_moments(moments, "x", part, np.ones(len(part)), may_change=rows >= 32, of_bulk=True)
    assert (moments["x"].deviation() < 2).all()
    np.testing.assert_allclose(moments["x"].centre, 2.0, atol=0.5)


@pytest.mark.parametrize("may_narrow", [True, False])
def test_few_first_rows_with_extreme_entries_are_replaced_where_that_is_allowed(may_narrow):
    _, extreme = _with_extremes(1000, 500)
    moments = {}
    for part in (extreme[:10], extreme[10:60]):
        given = {"of_bulk": True, "may_narrow": may_narrow}
        add_moments(moments, "x", part, np.ones(len(part)), **given)
    assert (moments["x"].deviation() < 3).all() == may_narrow


def test_a_stream_whose_rows_all_change_is_followed():
    table, moments = _with_extremes(3000, 10_000)[0], {}
    table[1500:] *= 100
    for start in range(3000):
        add_moments(moments, "x", table[start : start + 1], np.ones(1), of_bulk=True)
    assert (moments["x"].deviation() > 30).all()


@pytest.mark.parametrize("n_rows", [1, 5, 40, 300])
@pytest.mark.parametrize("value", [0.0, 0.1])
def test_a_column_that_begins_to_vary_is_at_most_ten_deviations_wide(n_rows, value):
    """Those of half of the new rows are as before; the other column is that of all rows."""
    table, moments = RNG.normal(size=(1000 + n_rows, 2)), {}
    table[: 1000 + n_rows // 2, 0] = value
    for start in range(0, 1000, 50):
        add_moments(moments, "x", table[start : start + 50], np.full(50, 0.5))
    add_moments(moments, "x", table[1000:], np.full(n_rows, 0.5))
    new = table[1000 + n_rows // 2 :, 0] - value
    least = np.sqrt(np.mean(new**2)) / 10
    assert (least > table[:, 0].std()) == (n_rows < 40)
    np.testing.assert_allclose(moments["x"].centre, table.mean(axis=0))
    expected = [max(least, table[:, 0].std()), table[:, 1].std()]
    np.testing.assert_allclose(moments["x"].deviation(), expected)
    assert moments["x"].is_full
    # from now on as any other column
    further, n_known = RNG.normal(size=(500, 2)), 1000 + n_rows
    add_moments(moments, "x", further, np.full(500, 0.5))
    mean = table[:, 0].sum() + further[:, 0].sum()
    mean /= n_known + 500
    squares = n_known * (expected[0] ** 2 + table[:, 0].mean() ** 2) + (further[:, 0] ** 2).sum()
    np.testing.assert_allclose(moments["x"].deviation()[0], np.sqrt(squares / (n_known + 500) - mean**2))


def test_a_column_that_begins_to_vary_has_the_moments_of_all_rows_under_a_bounded_loss():
    table, moments = np.zeros((1001, 1)), {}
    table[1000] = 1.0
    for rows in (table[:1000], table[1000:]):
        add_moments(moments, "x", rows, np.ones(len(rows)), of_bulk=True)
    np.testing.assert_allclose(moments["x"].deviation(), table.std())


class _Computed:
    """A table whose rows are computed when they are read, such as results of a frozen part."""

    def __init__(self, table):
        self._table, self.shape, self.dtype = table, table.shape, table.dtype

    def __len__(self):
        return len(self._table)

    def __getitem__(self, rows):
        return self._table[rows]


def test_columns_of_rows_that_are_computed_begin_to_vary():
    table, found = np.zeros((1001, 2)), []
    table[1000] = 1.0
    for made in (np.asarray, _Computed):
        moments = {}
        for rows in (table[:1000], table[1000:]):
            add_moments(moments, "x", made(rows), np.ones(len(rows)))
        found.append(moments["x"].deviation())
    np.testing.assert_allclose(found, 0.1)


def test_a_column_that_stays_constant_is_merged_as_it_is():
    moments = {}
    for rows in (np.zeros((20, 2)), np.zeros((0, 2)), np.zeros((5, 2))):
        add_moments(moments, "x", rows, np.ones(len(rows)))
    np.testing.assert_array_equal(moments["x"].squares, 0.0)


def test_moments_are_pickled_alone():
    """Not the shares and variances that were computed from them."""
    moments = Moments.of(np.arange(6.0).reshape(3, 2), np.ones(3))
    before = len(pickle.dumps(moments))
    deviation = moments.deviation()
    assert len(pickle.dumps(moments)) == before
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(moments)).deviation(), deviation)


@pytest.mark.parametrize(
    ("n_far", "n_rows", "factor", "are_extreme"),
    [
        (1, 10, 100.0, True),
        (2, 50, 100.0, True),
        (8, 10, 100.0, False),
        (1, 1, 100.0, False),
        (1, 1, 1e4, True),
    ],
)
def test_far_rows_of_data_that_drift_are_no_extremes(n_far, n_rows, factor, are_extreme):
    """Most rows of a call, or one row alone that is not far out, show that the data change."""
    rng = np.random.default_rng(0)
    moments = {}
    add_moments(moments, "X", rng.normal(size=(200, 4)), np.ones(200), of_bulk=True)
    rows = rng.normal(size=(n_rows, 4))
    rows[:n_far] *= factor
    assert add_moments(moments, "X", rows, np.ones(n_rows), of_bulk=True) == are_extreme
    # data that have changed are followed
    assert (moments["X"].deviation().max() > 2.0) == (not are_extreme)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dense_moments_need_not_know_that_they_are_dense(dtype):
    """Those of a saved estimator have two equal arrays in place of one."""
    table = RNG.normal(size=(40, 5)) * [1.0, 1e-3, 1e4, 0.0, 1.0] + [0.0, 5.0, 0.0, 2.5, 1e3]
    known = Moments.of(table[:25], np.ones(25)).merged(Moments.of(table[25:], np.ones(15)))
    saved = Moments(*(getattr(known, name).copy() for name in ("count", "mean", "squares", "total")))
    assert known.count is known.total
    np.testing.assert_array_equal(known.centre, saved.centre)
    np.testing.assert_array_equal(known.deviation(dtype), saved.deviation(dtype))
    np.testing.assert_array_equal(known.size(dtype), saved.size(dtype))
    assert known.crowding(5) == saved.crowding(5) == 1.0
    together = known.merged(saved)
    np.testing.assert_array_equal(together.total, together.count)


def test_rows_after_sparse_ones_are_compared_without_a_warning():
    """Columns without an entry in the sparse rows have seen none: nothing is far from them."""
    draw = np.random.default_rng(0)
    table = draw.normal(size=(40, 3))
    table[:, 0] = 0.0
    seen = Moments.of(sparse.csr_matrix(table), np.ones(40))
    rows = draw.normal(size=(8, 3))
    assert not Moments.of(rows, np.ones(8)).is_far_from(seen)
    assert Moments.of(rows + np.array([0.0, 0.0, 30.0]), np.ones(8)).is_far_from(seen)
