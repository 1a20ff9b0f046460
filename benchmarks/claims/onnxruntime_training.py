"""The claims, tried with the training API of onnxruntime: artifacts, Module, Optimizer."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import onnx

from claims import data

#: The import of its training modules needs torch.
PACKAGES = ["onnxruntime-training-cpu", "torch"]
IMPORT = "import onnxruntime.training.api"


def continue_linear() -> str:
    return _continue("linear")


def continue_mlp() -> str:
    return _continue("mlp")


def _continue(last: str) -> str:
    from skl2onnx import to_onnx

    pipeline = data.fitted_pipeline(last)
    example = np.zeros((1, 64), np.float32)
    onx = to_onnx(
        pipeline, example, target_opset=18, options={id(pipeline): {"zipmap": False}},
        black_op={"LinearClassifier", "Scaler", "Normalizer"},
    )  # fmt: skip
    scores = onx.graph.output[1].name
    weights = [t.name for t in onx.graph.initializer if t.data_type == 1 and "cst" not in t.name]

    def learn(X, y):
        # the loss takes the probabilities for raw scores: only large and many updates help
        trained = _train(onx, weights, scores, [X, y.astype(np.int64)], "CrossEntropyLoss", 1.0, 300)
        return lambda rows: data.run(trained, rows)[0].argmax(1)

    return data.check_improved(pipeline, learn)


def train_network(network: data.Network) -> float:
    scores = network.model.graph.output[network.output].name
    feeds = [network.X[value.name] for value in network.model.graph.input]
    loss = "CrossEntropyLoss" if network.n_classes else "MSELoss"
    y = network.y if network.n_classes else network.y.reshape(network.shape)
    trained = _train(network.model, network.trained, scores, [*feeds, y], loss, network.rate)
    return network.loss(data.run(trained, network.X)[0])


def return_onnx() -> str:
    assert np.isfinite(train_network(data.Network("resnet_script")))
    return ""


def _train(
    model: onnx.ModelProto,
    weights: list[str],
    scores: str,
    feeds: list[np.ndarray],
    loss: str,
    rate: float,
    n_updates: int = 10,
) -> onnx.ModelProto:
    """Make updates on all rows; return the model for inference."""
    from onnxruntime.training import artifacts
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    with tempfile.TemporaryDirectory() as folder:
        artifacts.generate_artifacts(
            model, requires_grad=weights, loss=artifacts.LossType[loss], optimizer=artifacts.OptimType.SGD,
            loss_input_names=[scores], artifact_directory=folder,
        )  # fmt: skip
        state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
        module: Any = Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx")
        optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module)
        optimizer.set_learning_rate(rate)
        for _ in range(n_updates):
            module.train()
            module(*feeds)
            optimizer.step()
            module.lazy_reset_grad()
        module.export_model_for_inferencing(f"{folder}/trained.onnx", [scores])
        return onnx.load(f"{folder}/trained.onnx")
