"""The estimator of onnxsgd on a device, timed by differences of fits."""

from __future__ import annotations

import sys
import time

import onnx
import onnx_ir as ir
from workloads import Layers, Task

from onnxsgd import OnnxSGDRegressor
from onnxsgd.engine.step import cuda_blocks as blocks
from onnxsgd.graph.lowering.precision import with_precision
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.sizes import infer_sizes
from trainers import TimedTrain
from trainers.ours import make_graph

__all__ = ["train", "train_half", "train_without_recording"]

#: Epochs of the shorter fits: enough that blocks are recorded in both.
_FEW_EPOCHS = 4


def train(task: Task, device: str) -> TimedTrain:
    """Train by ``fit``: shuffling, sending the order, reading losses and weights of each epoch included."""
    return _train(task, device, make_graph(task.workload, task.initial))


def train_half(task: Task, device: str) -> TimedTrain:
    """Train the graph in float16, with weights in float32 and a scale of the loss.

    Raises
    ------
    ImportError
        If `device` is not a GPU: on the CPU the graph is trained in float32.
    """
    if not device.startswith("cuda"):
        raise ImportError("on the CPU a graph in float16 is trained in float32")
    model = to_ir(make_graph(task.workload, task.initial))
    return _train(task, device, to_proto(with_precision(infer_sizes(model), ir.DataType.FLOAT16)))


def _train(task: Task, device: str, graph: onnx.ModelProto) -> TimedTrain:
    def run(n_epochs: int, shuffle: bool) -> tuple[Layers, list[float]]:
        estimator = OnnxSGDRegressor(
            graph, penalty=None, learning_rate="constant", eta0=task.rate, batch_size=task.batch_size,
            tol=None, random_state=0, max_iter=n_epochs, shuffle=shuffle, device=device,
        )  # fmt: skip
        seconds = [0.0]
        if shuffle:
            # several epochs are one call: an epoch takes the difference of two fits
            seconds = [_difference(estimator, task, n_epochs) for _ in range(n_epochs)]
        weights = estimator.fit(task.X, task.y).get_weights()
        layers = [(weights[f"weight{i}"], weights[f"bias{i}"]) for i in range(len(task.initial))]
        return layers, seconds

    return run


def _difference(estimator: OnnxSGDRegressor, task: Task, n_epochs: int) -> float:
    """Return the seconds of an epoch: fits of many and of few epochs have the same fixed costs."""
    seconds = []
    for n in (_FEW_EPOCHS, _FEW_EPOCHS + n_epochs):
        start = time.perf_counter()
        estimator.set_params(max_iter=n).fit(task.X, task.y)
        seconds.append(time.perf_counter() - start)
    estimator.set_params(max_iter=n_epochs)
    return (seconds[1] - seconds[0]) / n_epochs


def train_without_recording(task: Task, device: str) -> TimedTrain:
    """Train in the same way, but with a kernel launch for each operator of each step.

    Raises
    ------
    ImportError
        If `device` is not a GPU: nothing is recorded there.
    """
    if not device.startswith("cuda"):
        raise ImportError("on the CPU nothing is recorded")
    run = train(task, device)

    def run_unrecorded(n_epochs: int, shuffle: bool) -> tuple[Layers, list[float]]:
        worth, blocks._WORTH_RECORDING = blocks._WORTH_RECORDING, sys.maxsize
        try:
            return run(n_epochs, shuffle)
        finally:
            blocks._WORTH_RECORDING = worth

    return run_unrecorded
