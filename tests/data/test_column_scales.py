"""Columns of few rows share a scale where the wide ones tell more about the target."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from onnxsgd.data import column_scales as module
from onnxsgd.data.column_scales import telling_scales

N, P, TELLING = 100, 400, 20


def scales(of_telling, of_others, **changes):
    rng = np.random.default_rng(0)
    table = rng.normal(3.0, 1.0, (N, P)) * np.where(np.arange(P) < TELLING, of_telling, of_others)
    target = (table[:, :TELLING] - 3.0 * of_telling).sum(axis=1, keepdims=True)
    given = {"table": table, "target": target, "sample_weight": np.ones(N)} | changes
    own = given["table"].std(axis=0)
    return own, telling_scales(centre=given["table"].mean(axis=0), scale=own, **given)


def test_wider_columns_that_tell_more_share_the_scale():
    own, shared = scales(2.0, 1.0)
    np.testing.assert_allclose(shared, np.exp(np.log(own).mean()), rtol=1e-12)


@pytest.mark.parametrize("others", [1.0, 2.0])
def test_other_columns_keep_their_own(others):
    own, kept = scales(1.0, others)
    np.testing.assert_array_equal(kept, own)


def test_all_columns_share_the_scale_however_much_wider_some_are():
    own, shared = scales(1e6, 1.0)
    np.testing.assert_allclose(shared, np.exp(np.log(own).mean()), rtol=1e-12)


def test_columns_beyond_a_factor_of_three_keep_the_excess_where_errors_tell_nothing(monkeypatch):
    monkeypatch.setattr(module, "_BETTER", 0.0)
    own, shared = scales(60.0, 1.0)
    common = np.exp(np.log(own).mean())
    np.testing.assert_allclose(shared[:TELLING], own[:TELLING] / 3.0, rtol=1e-12)
    np.testing.assert_allclose(shared[TELLING:], common, rtol=1e-12)


@pytest.mark.parametrize("of_raw", [True, False])
def test_fewer_columns_than_rows_share_a_scale_if_rows_are_predicted_better(of_raw):
    """Effects of raw columns, and of standardised ones, of which the widest have some of the largest."""
    rng = np.random.default_rng(3)
    own, table = np.exp(rng.normal(size=60)), rng.normal(size=(200, 60))
    effects = rng.normal(size=60) * (own if of_raw else 1.0 + 0.2 * own)
    target = (table @ effects)[:, None]
    found = telling_scales(table * own, target, np.ones(200), np.zeros(60), own)
    np.testing.assert_allclose(found, np.exp(np.log(own).mean()) if of_raw else own, rtol=1e-12)


def test_units_that_few_columns_share_by_chance_are_kept():
    """The widest columns of breast cancer tell most, but not in proportion to their width."""
    X, y = load_breast_cancer(return_X_y=True)
    own = X.std(axis=0)
    for seed in range(5):
        rows = np.random.default_rng(seed).permutation(len(X))[:300]
        kept = telling_scales(X[rows], 1.0 * y[rows, None], np.ones(300), X[rows].mean(axis=0), own)
        np.testing.assert_array_equal(kept, own)


@pytest.mark.parametrize("least", [0.0, 1e-200, 5e-324])
def test_rows_that_decide_may_have_hardly_a_weight(least):
    """Of 1,400 rows each third one decides on the error."""
    rng = np.random.default_rng(5)
    own, table = np.exp(rng.normal(size=100)), rng.normal(size=(1400, 100))
    target, weight = (table @ (own * rng.normal(size=100)))[:, None], np.full(1400, least)
    weight[1::3] = 1.0
    if not least:
        weight[0] = weight[3] = 1e-300
    found = telling_scales(table * own, target, weight, np.zeros(100), own)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("weight", [np.ones(N), np.arange(N) % 2.0, np.where(np.arange(N) < 3, 1.0, 0.0)])
def test_extreme_widths_and_weights_give_finite_scales(weight):
    rng = np.random.default_rng(4)
    own = 10.0 ** rng.uniform(-150, 150, P)
    table, target = rng.normal(size=(N, P)) * own, rng.normal(size=(N, 1))
    target[:, 0] += (table / own) @ (np.log10(own) > 100)
    found = telling_scales(table, target, weight, np.zeros(P), own)
    assert np.isfinite(found).all()
    assert (found > 0).all()


def test_blocks_give_the_same(monkeypatch):
    _, whole = scales(2.0, 1.0)
    monkeypatch.setattr(module, "_BLOCK", 7 * P)
    np.testing.assert_allclose(scales(2.0, 1.0)[1], whole, rtol=1e-12)


def test_constant_columns_have_no_part_in_it():
    table = np.full((N, P), 5.0)
    own = np.full(P, 5.0)
    kept = telling_scales(table, np.arange(N)[:, None], np.ones(N), np.full(P, 5.0), own)
    np.testing.assert_array_equal(kept, own)


def with_codes(of_levels, n_rows=120, n_levels=60):
    """Return the arguments for six numbers of different units beside codes of a category."""
    rng = np.random.default_rng(1)
    numbers, levels = rng.normal(size=(n_rows, 6)), rng.integers(0, n_levels, n_rows)
    target = numbers.sum(axis=1) + of_levels * rng.normal(size=n_levels)[levels]
    codes = levels[:, None] == np.arange(n_levels)
    table = np.hstack([numbers * 10.0 ** np.arange(-3, 3), codes])
    return {
        "table": table[:, table.std(axis=0) > 0],
        "target": target[:, None],
        "sample_weight": np.ones(n_rows),
    }


def test_codes_of_categories_have_one_scale_where_rows_are_predicted_better():
    own, found = scales(0.0, 0.0, **with_codes(0.0))
    factor = found[0] / own[0]
    np.testing.assert_allclose(found[:6], own[:6] * factor, rtol=1e-12)
    np.testing.assert_allclose(found[6:], factor, rtol=1e-12)
    # the mean width stays
    assert np.log(found).mean() == pytest.approx(np.log(own).mean())


def test_codes_that_tell_more_than_numbers_keep_their_own():
    given = with_codes(30.0, n_rows=400)
    own, found = scales(0.0, 0.0, **given)
    np.testing.assert_array_equal(found, own)


@pytest.mark.parametrize("entry", [2.0, 0.5])
def test_codes_are_zeros_and_ones_alone(entry):
    """One other entry makes a number of a column; a table of codes alone has no other columns."""
    given = with_codes(0.0)
    column = given["table"][:, 6]
    given["table"][np.flatnonzero(column)[0], 6] = entry
    own, found = scales(0.0, 0.0, **given)
    factor = found[0] / own[0]
    assert found[6] == pytest.approx(own[6] * factor)
    np.testing.assert_allclose(found[7:], factor, rtol=1e-12)
    alone = with_codes(0.0)
    alone["table"] = alone["table"][:, 6:]
    own, found = scales(0.0, 0.0, **alone)
    np.testing.assert_array_equal(found, own)
