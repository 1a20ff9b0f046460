"""Batches: each sample once, the last batch padded."""

import numpy as np

from onnxsgd.engine.step.batches import Batches


def test_each_sample_is_taken_once_and_the_last_batch_is_padded_with_weight_zero(data):
    plan = data.plan(np.random.RandomState(0).permutation(53))
    real = plan.rows.ravel()[plan.sample_weight.ravel() > 0]
    assert sorted(real) == list(range(53))
    np.testing.assert_allclose(plan.sample_weight.sum(axis=(1, 2)), 1, rtol=1e-6)
    wanted = [data.sample_weight[rows[:5] if i == 6 else rows].sum() for i, rows in enumerate(plan.rows)]
    np.testing.assert_allclose(plan.totals, np.array(wanted) / data.sample_weight.sum(), rtol=1e-12)


def test_batches_of_one_keep_their_weights(data):
    single = Batches(data.features, data.target, data.sample_weight, 1, False)
    np.testing.assert_allclose(
        single.plan(np.arange(53)).sample_weight.ravel(), data.sample_weight, rtol=1e-7
    )
