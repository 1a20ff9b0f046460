"""The mean loss of raw predictions, beside numpy and beside the loss of a step."""

import numpy as np
import onnx_ir as ir
import pytest
from sklearn.metrics import log_loss

from onnxsgd.engine.step import sample_losses
from onnxsgd.engine.step.sample_losses import mean_loss
from onnxsgd.losses import CrossEntropy, Huber, LogLoss, SquaredError

RNG = np.random.RandomState(0)
ROWS = 50
WEIGHT = RNG.uniform(0.1, 3.0, ROWS)
MODEL = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 18}), ir_version=9)


def table(width, dtype=np.float32):
    return RNG.normal(size=(ROWS, width)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("block", [7, 65_536])
def test_the_losses_of_outputs_are_added_and_those_of_samples_averaged(dtype, width, block, monkeypatch):
    monkeypatch.setattr(sample_losses, "_BLOCK", block)
    y, z = table(width, dtype), table(width, dtype)
    expected = np.average(((z.astype(float) - y) ** 2 / 2).sum(axis=1), weights=WEIGHT)
    found = mean_loss(SquaredError(), y, z, WEIGHT, MODEL)
    np.testing.assert_allclose(found, expected, rtol=1e-6 if dtype is np.float32 else 1e-14)


def test_a_vector_of_raw_predictions_is_a_table_of_one_column():
    y, z = table(1), table(1)
    assert mean_loss(SquaredError(), y, z.ravel(), WEIGHT, MODEL) == mean_loss(
        SquaredError(), y, z, WEIGHT, MODEL
    )


def test_losses_of_classes_agree_with_scikit_learn():
    z, labels = 3 * table(4), RNG.randint(4, size=ROWS)
    y = np.eye(4, dtype=np.float32)[labels]
    probability = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    expected = log_loss(labels, probability, sample_weight=WEIGHT)
    np.testing.assert_allclose(mean_loss(CrossEntropy(), y, z, WEIGHT, MODEL), expected, rtol=1e-5)
    two = (labels > 1).astype(np.float32)[:, None]
    expected = log_loss(two.ravel(), 1 / (1 + np.exp(-z[:, 0])), sample_weight=WEIGHT)
    np.testing.assert_allclose(mean_loss(LogLoss(), two, z[:, :1], WEIGHT, MODEL), expected, rtol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_mean_that_is_not_finite_is_infinite(value):
    z = np.full((ROWS, 1), value, np.float32)
    assert mean_loss(SquaredError(), table(1), z, WEIGHT, MODEL) == np.inf


def test_a_change_of_the_parameters_of_a_loss_counts():
    y, z = table(1), 5 * table(1)
    first, second = (mean_loss(Huber(epsilon), y, z, WEIGHT, MODEL) for epsilon in (0.1, 1.0))
    assert first < second
