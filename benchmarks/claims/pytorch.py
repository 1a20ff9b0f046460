"""The claims, tried with PyTorch, skorch and onnx2torch."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from claims import data

PACKAGES = ["torch", "skorch", "onnx2torch"]
IMPORT = "import skorch, torch"


def continue_linear() -> str:
    return _continue("linear")


def continue_mlp() -> str:
    return _continue("mlp")


def _continue(last: str) -> str:
    """Convert the pipeline to ONNX and that to a module, and train it by skorch."""
    from onnx2torch import convert
    from skl2onnx import to_onnx

    pipeline = data.fitted_pipeline(last)
    example = np.zeros((1, 64), np.float32)
    onx = to_onnx(pipeline, example, target_opset=18, options={id(pipeline): {"zipmap": False}})
    module = convert(onx)
    return data.check_improved(pipeline, lambda X, y: _net(module, lr=0.1).partial_fit(X, y).predict)


def train_network(network: data.Network) -> float:
    import torch
    from onnx2torch import convert

    module = convert(network.model)
    feeds = [torch.from_numpy(network.X[value.name]) for value in network.model.graph.input]
    y = torch.from_numpy(network.y)
    optimizer = torch.optim.SGD(module.parameters(), network.rate)

    def scores():
        outputs = module(*feeds)
        return outputs[network.output] if isinstance(outputs, (tuple, list)) else outputs

    for _ in range(10):
        optimizer.zero_grad()
        output = scores()
        if network.n_classes:
            loss = torch.nn.functional.cross_entropy(output, y)
        else:
            loss = torch.nn.functional.mse_loss(output.reshape(y.shape), y)
        loss.backward()
        optimizer.step()
    return network.loss(scores().detach().numpy())


def return_onnx() -> str:
    import onnx
    import torch

    X, y = data.scaled_rows()
    net = _net(_linear(), max_epochs=5).fit(X, y)
    buffer = io.BytesIO()
    torch.onnx.export(
        net.module_, (torch.from_numpy(X[:2]),), buffer, dynamo=False,
        input_names=["X"], output_names=["scores"], dynamic_axes={"X": {0: "N"}, "scores": {0: "N"}},
    )  # fmt: skip
    data.check_onnx(onnx.load_from_string(buffer.getvalue()), X, net.predict(X))
    return "by torch.onnx.export"


def grid_search() -> str:
    return data.check_grid(_net(_linear(), max_epochs=5), "lr", [0.01, 0.1])


def raw_data() -> str:
    return data.raw_score(_net(_linear()))


def sample_weights() -> str:
    return data.check_weights(lambda X, y, w: _net(_linear()).fit(X, y, sample_weight=w).predict)


def sparse_data() -> str:
    import torch

    X, y = data.sparse_rows()
    _net(torch.nn.Linear(X.shape[1], 2), max_epochs=2).fit(X, y)
    return ""


def stream() -> str:
    net = _net(_linear(), train_split=None)
    return data.check_stream(net.partial_fit, net.predict)


def new_network() -> str:
    import torch

    layers = torch.nn.Linear(30, 16), torch.nn.GELU(), torch.nn.Linear(16, 2)
    X, y = data.scaled_rows()
    return f"{_net(torch.nn.Sequential(*layers), max_epochs=20, lr=0.5).fit(X, y).score(X, y):.2f}"


def _linear() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Linear(30, 2)


def _net(module: Any, **settings: Any) -> Any:
    import torch
    from skorch import NeuralNetClassifier

    return NeuralNetClassifier(module, criterion=torch.nn.CrossEntropyLoss, verbose=0, **settings)
