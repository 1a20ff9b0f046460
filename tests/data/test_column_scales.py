"""Columns that outnumber the rows share a scale where the wide ones tell more about the target."""

import numpy as np
import pytest

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


def test_columns_beyond_a_factor_of_three_keep_the_excess():
    own, shared = scales(60.0, 1.0)
    common = np.exp(np.log(own).mean())
    np.testing.assert_allclose(shared[:TELLING], own[:TELLING] / 3.0, rtol=1e-12)
    np.testing.assert_allclose(shared[TELLING:], common, rtol=1e-12)


def test_blocks_give_the_same(monkeypatch):
    _, whole = scales(2.0, 1.0)
    monkeypatch.setattr(module, "_BLOCK", 7 * P)
    np.testing.assert_allclose(scales(2.0, 1.0)[1], whole, rtol=1e-12)


def test_constant_columns_have_no_part_in_it():
    table = np.full((N, P), 5.0)
    own = np.full(P, 5.0)
    kept = telling_scales(table, np.arange(N)[:, None], np.ones(N), np.full(P, 5.0), own)
    np.testing.assert_array_equal(kept, own)
