"""Products of standardised rows, beside those of a table in float64."""

import numpy as np
import pytest
from scipy import sparse

from onnxsgd.data import standard_rows as module
from onnxsgd.data.standard_rows import exact_rows, standard_rows

RNG = np.random.default_rng(0)
TABLE = np.where(RNG.random((50, 30)) < 0.3, RNG.normal(5.0, 1.0, (50, 30)), 0.0)
FACTOR, SHARE = RNG.uniform(0.1, 10.0, 30), RNG.uniform(0.0, 1.0, 50)
ROOT = np.sqrt(SHARE / SHARE.sum())
KINDS = {"sparse": sparse.csr_array, "dense": np.asarray, "float32": np.float32}


@pytest.mark.parametrize(
    ("kind", "is_centred"), [("sparse", False), ("sparse", True), ("dense", True), ("float32", True)]
)
def test_products_are_those_of_standardised_rows(kind, is_centred):
    mean = ROOT**2 @ TABLE
    shift = mean if is_centred else np.where(np.arange(30) < 10, mean, 0.0)
    expected = ROOT[:, None] * (TABLE - mean) * FACTOR
    rows = standard_rows(KINDS[kind](TABLE), shift, FACTOR, ROOT)
    left, right = RNG.normal(size=50), RNG.normal(size=30)
    # dense rows have 24 bits
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if kind == "sparse" else {"rtol": 1e-4, "atol": 1e-5}
    assert rows.n_columns == 30
    means = np.zeros(30) if rows.means is None else rows.means
    np.testing.assert_allclose(means, (mean - shift) * FACTOR, atol=1e-12)
    np.testing.assert_allclose(rows.times(right), expected @ right, **tolerance)
    np.testing.assert_allclose(rows.transposed_times(left), expected.T @ left, **tolerance)
    assert rows.times(right).dtype == rows.transposed_times(left).dtype == np.float64


def test_digits_of_columns_far_from_zero_are_kept():
    shift = np.full(30, 1e6)
    rows = standard_rows(TABLE + 1e6, shift, FACTOR, ROOT)
    right = RNG.normal(size=30)
    expected = (ROOT[:, None] * TABLE * FACTOR) @ right
    np.testing.assert_allclose(rows.times(right), expected, rtol=1e-4, atol=1e-5)


def test_dense_rows_are_converted_in_parts(monkeypatch):
    given = TABLE, TABLE.mean(axis=0), FACTOR, ROOT
    whole = standard_rows(*given)
    monkeypatch.setattr(module, "_BLOCK", 7 * 30)
    left = RNG.normal(size=50)
    np.testing.assert_array_equal(standard_rows(*given).transposed_times(left), whole.transposed_times(left))


@pytest.mark.parametrize("n_rows", [20, 50], ids=["wide", "tall"])
@pytest.mark.parametrize("kind", KINDS)
def test_exact_products_are_those_of_standardised_rows(kind, n_rows):
    """Of rows or columns, whichever are fewer; wide sparse data stay sparse."""
    share = SHARE[:n_rows] / SHARE[:n_rows].sum()
    table = KINDS[kind](TABLE[:n_rows])
    dense = table.toarray() if kind == "sparse" else table.astype(np.float64)
    mean = share @ dense
    shift = np.where(np.arange(30) < 10, mean, 0.0)
    expected = np.sqrt(share)[:, None] * (dense - mean) * FACTOR
    rows, of_rows = exact_rows(table, shift, FACTOR, share), RNG.normal(size=(n_rows, 4))
    tolerance = {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(rows.means, (mean - shift) * FACTOR, **tolerance)
    wanted = expected @ expected.T if n_rows < 30 else expected.T @ expected
    np.testing.assert_allclose(rows.products, wanted, **tolerance)
    np.testing.assert_allclose(rows.transposed_times(of_rows), expected.T @ of_rows, **tolerance)
    values, vectors = np.linalg.eigh(wanted)
    known = values > 1e-9
    left = rows.left_vectors(values[known], vectors[:, known])
    np.testing.assert_allclose(left.T @ left, np.eye(known.sum()), atol=1e-8)
    np.testing.assert_allclose(left * values[known] @ left.T, expected @ expected.T, **tolerance)


@pytest.mark.parametrize("far", [1e2, 1e6, 1e9])
def test_exact_products_keep_the_deviations_of_columns_far_from_zero(far):
    """Of sparse data too."""
    table = TABLE[:20].copy()
    table[:, 3] = far + RNG.normal(size=20)
    share, factor = np.full(20, 0.05), FACTOR.copy()
    factor[3] = 1.0
    rows = exact_rows(sparse.csr_array(table), np.zeros(30), factor, share)
    expected = np.sqrt(share)[:, None] * (table - table.mean(axis=0)) * factor
    np.testing.assert_allclose(rows.products, expected @ expected.T, rtol=1e-6, atol=1e-9)
