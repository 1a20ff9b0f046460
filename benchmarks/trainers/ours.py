"""The estimators of onnxsgd, on an ONNX graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from workloads import Layers, Task, Workload

from trainers import Train

__all__ = ["make_graph", "train_with"]


def train_with(task: Task, engine: str) -> Train:
    """Train by ``fit`` as a user does, checks of the data included.

    With several threads allowed, the estimator chooses their number.
    """
    from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor

    cls: Any = OnnxSGDRegressor if task.workload.kind == "regression" else OnnxSGDClassifier
    estimator = cls(
        make_graph(task.workload, task.initial), penalty=None, learning_rate="constant", eta0=task.rate,
        batch_size=task.batch_size, tol=None, random_state=0, engine=engine,
        n_threads=1 if task.n_threads == 1 else None,
    )  # fmt: skip

    def train(n_epochs: int, shuffle: bool) -> Layers:
        weights = estimator.set_params(max_iter=n_epochs, shuffle=shuffle).fit(task.X, task.y).get_weights()
        return [(weights[f"weight{i}"], weights[f"bias{i}"]) for i in range(len(task.initial))]

    return train


def make_graph(workload: Workload, layers: Layers) -> onnx.ModelProto:
    """Return the network as an ONNX graph that ends in raw scores."""
    nodes, initializers, x = [], [], "X"
    for i, (weight, bias) in enumerate(layers):
        initializers += [
            numpy_helper.from_array(weight, f"weight{i}"),
            numpy_helper.from_array(bias, f"bias{i}"),
        ]
        last = i == len(layers) - 1
        score = "score" if last else f"score{i}"
        nodes.append(helper.make_node("Gemm", [x, f"weight{i}", f"bias{i}"], [score]))
        if not last:
            x = f"hidden{i}"
            nodes.append(helper.make_node("Relu", [score], [x]))
    table = [np.dtype(np.float32), TensorProto.FLOAT]
    graph = helper.make_graph(
        nodes, workload.name,
        [helper.make_tensor_value_info("X", table[1], [None, workload.sizes[0]])],
        [helper.make_tensor_value_info("score", table[1], [None, workload.sizes[-1]])],
        initializers,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
