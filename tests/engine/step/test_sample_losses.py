"""The mean loss of raw predictions, beside numpy and beside the loss of a step."""

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from sklearn.metrics import log_loss

from onnxsgd.engine.predict import InferenceGraph
from onnxsgd.engine.step import sample_losses
from onnxsgd.engine.step.sample_losses import mean_loss, mean_loss_of_graph
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


@pytest.mark.parametrize("name", ["X", "target"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_raw_predictions_and_losses_are_one_graph(name, dtype):
    """Its input for the targets has a name of its own."""
    kind = "float" if dtype is np.float32 else "double"
    graph = f"linear ({kind}[N, 5] {name}, {kind}[5, 3] w, {kind}[3] b) => ({kind}[N, 3] z)"
    text = f'<ir_version: 9, opset_import: ["": 18]> {graph} {{ z = Gemm({name}, w, b) }}'
    model = ir.from_proto(onnx.parser.parse_model(text))
    x, w, b, labels = table(5, dtype), table(3, dtype)[:5], table(3, dtype)[0], RNG.randint(3, size=ROWS)
    y, z = np.eye(3, dtype=dtype)[labels], x.astype(float) @ w + b
    expected = np.average(np.logaddexp(0, z).sum(axis=1) - z[np.arange(ROWS), labels], weights=WEIGHT)
    inference, weights = InferenceGraph(model, "z", ["w", "b"]), {"w": w, "b": b}
    assert inference.takes_at_once({name: x})
    found = mean_loss_of_graph(LogLoss(), y, {name: x}, weights, WEIGHT, inference, model)
    np.testing.assert_allclose(found, expected, rtol=1e-6 if dtype is np.float32 else 1e-14)
    other = mean_loss(LogLoss(), y, inference.run({name: x}, weights), WEIGHT, model)
    np.testing.assert_allclose(found, other, rtol=1e-6 if dtype is np.float32 else 1e-14)


@pytest.mark.parametrize("x", [table(5)[:1], table(5)[:0], np.lib.format.open_memmap])
def test_single_rows_and_other_tables_take_two_graphs(x, tmp_path):
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 18]> linear (float[N, 5] X, float[5, 3] w) => (float[N, 3] z)'
            "{ z = MatMul(X, w) }"
        )
    )
    if callable(x):
        x = x(tmp_path / "x.npy", "w+", np.float32, (ROWS, 5))
    assert not InferenceGraph(model, "z", ["w"]).takes_at_once({"X": x})
