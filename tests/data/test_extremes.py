"""Extreme entries are told from long tails, rare ones, constants and small tables."""

import numpy as np
import pytest
from scipy import stats

from onnxsgd.data.extremes import bulk, clipped, row_shares

RNG = np.random.default_rng(0)
NORMAL = RNG.normal(5.0, 2.0, 1000)


def _with(values):
    column = NORMAL.copy()
    column[: len(values)] = values
    return column


def _found(column):
    table = np.stack([column, NORMAL], axis=1)
    return bulk(table, table.std(axis=0))


@pytest.mark.parametrize("values", [[1e6], [-999999.0] * 20, [1e4, -1e8], [1e30]], ids=str)
def test_a_few_entries_that_carry_the_variance(values):
    found = _found(_with(values))
    assert list(found) == [0]
    np.testing.assert_array_equal(np.flatnonzero(~found[0]), np.arange(len(values)))


@pytest.mark.parametrize(
    "column",
    [
        NORMAL,
        np.exp(2 * RNG.normal(size=1000)),
        (np.arange(1000) % 100 == 0) * 1e5,
        np.full(1000, 3.0),
        _with([30.0] * 5),
        _with([1e4] * 100),
        np.where(np.arange(1000) == 7, 5.0, 1.0 + 1e-9 * RNG.normal(size=1000)),
    ],
    ids=["normal", "lognormal", "indicator", "constant", "mild", "many", "rounding"],
)
def test_columns_without_extreme_entries(column):
    assert _found(column) == {}


def test_milder_entries_next_to_extreme_ones():
    """A row of mixed units is extreme in all columns, although not in all by the same factor."""
    mild = _with([500.0])
    assert _found(mild) == {}
    table = np.stack([_with([1e6]), mild], axis=1)
    assert list(bulk(table, table.std(axis=0))) == [0, 1]


@pytest.mark.parametrize(("n_columns", "has_bulk"), [(20, True), (70, False)])
@pytest.mark.parametrize("share", [0.045, 0.055])
def test_entries_that_nearly_all_rows_have_are_no_extremes(n_columns, has_bulk, share):
    """The rows without one tell little; columns with a little more than a few count too."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(1000, n_columns))
    table[rng.random(table.shape) < share] = 1e6
    table[:, 0] = rng.normal(size=1000)
    table[:10, 0] = 1e6
    assert (0 in bulk(table, table.std(axis=0))) == has_bulk


def test_a_narrow_column_has_no_bulk():
    column = _with([1e6])
    for width, has_bulk in ((4.0, True), (6.0, False)):
        # the deciles of the column are 5.1 apart
        assert (list(bulk(column[:, None], np.array([column.std()]), width)) == [0]) == has_bulk


def test_few_rows_have_no_bulk():
    table = _with([1e6])[:19, None]
    assert bulk(table, table.std(axis=0)) == {}


def test_rows_count_less_beyond_three_deviations():
    shares = row_shares([np.array([[1.0, -1.0], [30.0, 30.0], [0.0, 0.0]]), np.full((3, 1, 2), 2.0)])
    np.testing.assert_allclose(shares, [1.0, 0.1, 1.0])
    assert row_shares([np.full((1, 2), 1e30, np.float32)]) == pytest.approx(3e-30)


@pytest.mark.parametrize("most", [1.0, 3.0])
def test_numbers_are_clipped_at_deviations_of_their_median(most):
    table = np.random.default_rng(0).standard_t(2, (200, 3))
    table[:, 2] = np.where(np.arange(200) < 110, 5.0, table[:, 2])
    spread = most * stats.median_abs_deviation(table, axis=0, scale="normal")
    median = np.median(table, axis=0)
    kept = clipped(table, most)
    np.testing.assert_allclose(kept[:, :2], np.clip(table, median - spread, median + spread)[:, :2])
    assert (kept != table).any(axis=0).tolist() == [True, True, False]
