"""The estimator of onnxsgd on a device, timed by a schedule that reads the clock."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
from workloads import Layers, Task

from onnxsgd import OnnxSGDRegressor
from onnxsgd.engine.step import cuda_blocks as blocks
from onnxsgd.graph.lowering.precision import with_precision
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.sizes import infer_sizes
from onnxsgd.schedules import Constant
from trainers import TimedTrain
from trainers.ours import make_graph

__all__ = ["train", "train_half", "train_without_recording"]


@dataclass(frozen=True)
class _Clock(Constant):
    """A constant rate that records the time of each call: at the beginning of each epoch."""

    times: list[float] = field(default_factory=list, compare=False)

    def rates(self, t: int, eta: float, count: int) -> np.ndarray:
        """Return the rates of the next epoch."""
        self.times.append(time.perf_counter())
        return super().rates(t, eta, count)


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
        clock = _Clock(task.rate)
        # an epoch ends where the next one begins: timing needs one more. With `tol` the loss of each epoch is
        # read at its end, as the peers do; without it many epochs are planned at once
        estimator = OnnxSGDRegressor(
            graph, penalty=None, learning_rate=clock, batch_size=task.batch_size, tol=0.0, random_state=0,
            max_iter=n_epochs + int(shuffle), n_iter_no_change=n_epochs + 1, shuffle=shuffle, device=device,
        )  # fmt: skip
        weights = estimator.fit(task.X, task.y).get_weights()
        layers = [(weights[f"weight{i}"], weights[f"bias{i}"]) for i in range(len(task.initial))]
        return layers, np.diff(clock.times).tolist()

    return run


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
