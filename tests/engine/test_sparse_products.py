"""Products of sparse rows are added in place, and equal those of dense rows."""

import numpy as np
import pytest
from scipy import sparse

from onnxsgd.engine.sparse_products import SparseRows, is_sparse_table, multiply

RNG = np.random.default_rng(0)
#: An empty row, an empty column, and an entry in two parts.
DATA, INDICES, INDPTR = [1.5, -2.0, 3.0, 0.25, 4.0], [0, 2, 2, 1, 0], [0, 3, 3, 5]
DENSE = np.array([[1.5, 0, 1, 0], [0, 0, 0, 0], [4, 0.25, 0, 0]])


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_products_are_added(n_outputs, dtype, index):
    rows = SparseRows(np.array(INDPTR, index), np.array(INDICES, index), np.array(DATA, dtype), 4)
    table, out = RNG.normal(size=(4, n_outputs)).astype(dtype), np.ones((3, n_outputs), dtype)
    rows.add_product(table, out)
    np.testing.assert_allclose(out, 1 + DENSE @ table, rtol=1e-6)
    rows.add_transposed_product(out, table_out := np.ones((4, n_outputs), dtype))
    np.testing.assert_allclose(table_out, 1 + DENSE.T @ out, rtol=1e-6)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_product_of_all_rows(is_transposed):
    weight = RNG.normal(size=(2, 4) if is_transposed else (4, 2))
    product = multiply(sparse.csr_array(DENSE), weight, is_transposed)
    np.testing.assert_allclose(product, DENSE @ (weight.T if is_transposed else weight), rtol=1e-12)
    assert product.flags.c_contiguous


def test_tables_that_products_support():
    assert is_sparse_table(sparse.csr_matrix(DENSE))
    assert not is_sparse_table(sparse.csc_matrix(DENSE))
    assert not is_sparse_table(sparse.csr_matrix(DENSE.astype(np.int64)))
    assert not is_sparse_table(DENSE)


def test_rows_may_have_others_around_them():
    table = sparse.csr_array(DENSE[[2, 0, 2, 1]])
    rows = SparseRows(table.indptr[1:4], table.indices, table.data, 4)
    weight = RNG.normal(size=(4, 2))
    for some in (rows, rows.alone()):
        some.add_product(weight, out := np.zeros((2, 2)))
        np.testing.assert_allclose(out, DENSE[[0, 2]] @ weight, rtol=1e-12)
        some.add_transposed_product(out, back := np.zeros((4, 2)))
        np.testing.assert_allclose(back, DENSE[[0, 2]].T @ out, rtol=1e-12)
    assert len(rows.alone().data) == 4


def test_weights_of_zero_need_no_product():
    matrix = sparse.csr_array(DENSE.astype(np.float32))
    np.testing.assert_array_equal(
        product := multiply(matrix, np.zeros((2, 4), np.float32), True), np.zeros((3, 2))
    )
    assert product.dtype == np.float32
