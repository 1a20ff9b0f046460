"""The plain forward/backward agent: gradients from onnxruntime-training, loss and update in numpy."""

from __future__ import annotations

import numpy as np
from workloads import Layers, Task

from trainers import Train
from trainers.ours import make_graph
from trainers.plain_numpy import loss_gradient

__all__ = ["train_by_agent"]


def train_by_agent(task: Task) -> Train:
    """Train with ``OrtGradientForwardBackward``."""
    import onnxruntime

    from onnxsgd import OrtGradientForwardBackward

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task.n_threads
    names = [f"{kind}{i}" for i in range(len(task.initial)) for kind in ("weight", "bias")]
    builder = OrtGradientForwardBackward(
        make_graph(task.workload, task.initial), weights_to_train=names, sess_options=options,
        engine="onnxruntime-training",
    )  # fmt: skip
    agent = builder.new_instance()

    def train(n_epochs: int, shuffle: bool) -> Layers:
        weights = [array.copy() for layer in task.initial for array in layer]
        rng = np.random.default_rng(0)
        for _ in range(n_epochs):
            order = rng.permutation(len(task.X)) if shuffle else np.arange(len(task.X))
            for rows in order.reshape(-1, task.batch_size):
                score = agent.forward([task.X[rows], *weights], training=True)[0].numpy()
                slope = loss_gradient(task, score, task.y[rows]).astype(np.float32)
                gradients = agent.backward([slope])
                for number, weight in enumerate(weights):
                    weight -= np.float32(task.rate) * gradients[number + 1].numpy()
        return list(zip(weights[::2], weights[1::2], strict=True))

    return train
