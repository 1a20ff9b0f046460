"""Batches: each sample once, the last batch padded."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from onnxsgd.engine.step.batches import Batches, Standard


def test_each_sample_is_taken_once_and_the_last_batch_is_padded_with_weight_zero(data):
    plan = data.plan(np.random.RandomState(0).permutation(53))
    real = plan.rows.ravel()[plan.sample_weight.ravel() > 0]
    assert sorted(real) == list(range(53))
    np.testing.assert_allclose(plan.sample_weight.sum(axis=(1, 2)), 1, rtol=1e-6)
    wanted = [data.sample_weight[rows[:5] if i == 6 else rows].sum() for i, rows in enumerate(plan.rows)]
    np.testing.assert_allclose(plan.totals, np.array(wanted) / data.sample_weight.sum(), rtol=1e-12)


@pytest.mark.parametrize("is_even", [True, False])
def test_several_epochs_are_those_of_single_ones(data, is_even):
    weight = np.ones(53) if is_even else data.sample_weight
    batches = replace(data, sample_weight=weight, weight_unit=0.5)
    orders = np.stack([np.random.RandomState(epoch).permutation(53) for epoch in range(3)])
    losses = np.random.RandomState(9).uniform(size=21)
    single = [batches.plan(order) for order in orders]
    means = [plan.mean_losses(part, 1)[0] for plan, part in zip(single, losses.reshape(3, 7), strict=True)]
    # twice: plans of equal weights are kept
    for _ in range(2):
        plan = batches.plan(orders)
        for name in ("rows", "sample_weight", "factors"):
            whole = np.concatenate([getattr(each, name) for each in single])
            np.testing.assert_array_equal(getattr(plan, name), whole)
        np.testing.assert_allclose(plan.mean_losses(losses, 3), means, rtol=1e-12)
        np.testing.assert_allclose(losses @ plan.totals, np.mean(means), rtol=1e-12)


def test_batches_of_one_keep_their_weights(data):
    single = Batches(data.features, data.target, data.sample_weight, 1, False)
    np.testing.assert_allclose(
        single.plan(np.arange(53)).sample_weight.ravel(), data.sample_weight, rtol=1e-7
    )


@pytest.mark.parametrize("size", [8, 1])
def test_the_gradients_of_an_epoch_are_those_of_the_weighted_mean(data, size):
    """Batches of heavy samples count more; the last one, of five samples, by its mean weight."""
    weight = np.where(np.arange(53) % 10 == 0, 300.0, data.sample_weight)
    batches = replace(
        data, sample_weight=weight, batch_size=size, is_mean=size > 1, weight_unit=weight.mean()
    )
    plan = batches.plan(np.arange(53))
    found = (plan.factors[:, None, None] * plan.sample_weight).ravel()[:53]
    counted = np.minimum(size, 53 - np.arange(53) // size * size)
    np.testing.assert_allclose(found, weight / weight.mean() / counted, rtol=1e-6)
    np.testing.assert_array_equal(replace(batches, weight_unit=None).plan(np.arange(53)).factors, 1.0)


def test_rates_multiply_the_factors_of_batches(data):
    plan = replace(data, weight_unit=0.5).plan(np.arange(53))
    np.testing.assert_array_equal(plan.descending(np.full(7, 0.1)).factors, -0.1 * plan.factors)


def test_samples_taken_again_are_standardised_once_to_the_same_numbers(data):
    name = next(iter(data.features))
    shift, factor = np.float32([[0.5], [3.0]]) * np.ones(data.features[name].shape[1], np.float32)
    once = replace(data, standards={name: Standard(shift, factor)})
    again = replace(once, is_repeated=True)
    rows = np.arange(10).reshape(2, 5)
    found = []
    for batches in (once, again):
        tables = {n: np.zeros((2, 5, *a.shape[1:]), a.dtype) for n, a in data.features.items()}
        batches.fill(rows, tables, np.zeros((2, 5, *data.target.shape[1:]), data.target.dtype))
        found.append(tables[name])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(
        found[1], (data.features[name][:10].reshape(found[1].shape) - 0.5) * 3.0, rtol=1e-6
    )
    whole = np.zeros((*data.features[name].shape, 2), np.float32)[..., 0]
    once.copy_table(name, whole)
    np.testing.assert_array_equal(whole[:10].reshape(found[1].shape), found[1])


def test_sparse_tables_are_standardised_as_dense_ones_are():
    """A centred column has an entry in each row, others keep their zeros."""
    rng = np.random.default_rng(0)
    table = (rng.normal(3.0, 1.0, (30, 5)) * (rng.random((30, 5)) < [0.2, 0.9, 1.0, 0.0, 0.3])).astype(
        np.float32
    )
    standard = Standard(np.float32([0, 3, 2, 0, 0]), np.float32([2, 0.5, 4, 1, 3]))
    target, weight = np.zeros((30, 1), np.float32), np.ones(30)
    both = [
        Batches({"x": data}, target, weight, 8, True, {"x": standard})
        for data in (table, sparse.csr_matrix(table))
    ]
    found = both[1].sparse_table("x")
    np.testing.assert_array_equal(found.toarray(), both[0].table("x"))
    np.testing.assert_array_equal(
        found.count_nonzero(axis=0)[[0, 3, 4]], np.count_nonzero(table, axis=0)[[0, 3, 4]]
    )
    np.testing.assert_array_equal(both[1].features["x"].toarray(), table)
    # the updates subtract the mean of the second column, then of both
    centre = standard.shift * standard.factor
    near = np.where(np.arange(5) == 1, centre, 0)
    np.testing.assert_allclose(
        both[1].sparse_table("x", near).toarray(), both[0].table("x") + near, rtol=1e-6
    )
    scaled = both[1].sparse_table("x", centre)
    np.testing.assert_array_equal(scaled.toarray(), table * standard.factor)
    assert scaled.nnz == np.count_nonzero(table)


def test_equal_weights_are_shared_and_cannot_be_changed(data):
    batches = [replace(data, sample_weight=np.full(53, 2.0), weight_unit=unit) for unit in (2.0, 2.0, 1.0)]
    plans = [each.plan(np.arange(53)) for each in batches]
    assert plans[0].sample_weight is plans[1].sample_weight
    np.testing.assert_allclose(plans[2].factors, 2.0 * plans[0].factors, rtol=1e-12)
    with pytest.raises(ValueError, match="read-only"):
        plans[0].factors[0] = 0.0


def test_small_dense_tables_get_ones_beside_them_once(data, monkeypatch):
    X = data.features["X"]
    wide = data.with_ones("X")
    np.testing.assert_array_equal(wide, np.column_stack([X, np.ones(53)]))
    assert (wide.dtype, data.with_ones("X") is wide) == (np.float32, True)
    standards = {"X": Standard(np.full(5, 2, np.float32), np.full(5, 3, np.float32))}
    np.testing.assert_array_equal(
        replace(data, standards=standards, is_repeated=True).with_ones("X")[:, :-1], (X - 2) * 3
    )
    # the rows of others are computed when they are taken
    assert replace(data, standards=standards).with_ones("X") is None
    assert replace(data, features={"X": sparse.csr_array(X)}).with_ones("X") is None
    monkeypatch.setattr("onnxsgd.engine.step.batches._SMALL_TABLE", X.nbytes - 1)
    assert replace(data).with_ones("X") is None
