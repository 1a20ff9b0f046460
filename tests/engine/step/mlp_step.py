"""Helpers of the tests of the step: its parts for a multilayer perceptron."""

import numpy as np

from onnxsgd.engine.step.scan_epoch import EpochRunner, build_epoch
from onnxsgd.engine.step.single_step import StepRunner, make_buffers
from onnxsgd.engine.step.step_spec import StepSpec
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.graph.model import to_proto
from onnxsgd.losses import CrossEntropy
from onnxsgd.optimizers import SGD
from onnxsgd.runtime.sessions import make_session

MLP = """
<ir_version: 9, opset_import: ["" : 18]>
mlp (float[N,5] X) => (float[N,K] Y) {
    a = MatMul(X, W1)
    b = Add(a, b1)
    h = Relu(b)
    Y = Gemm(h, W2, b2)
}
"""


SHAPES = {"W1": (5, 12), "b1": (12,), "W2": (12, 3), "b2": (3,)}


def make_spec(loss=None, optimizer=None, **more):
    settings = {
        "weights": tuple(SHAPES), "penalised": frozenset({"W1", "W2"}), "loss": loss or CrossEntropy(),
        "optimizer": optimizer or SGD(), "l1": False, "l2": True, "average": False, "batch_size": 8,
        "n_outputs": 3, "engine": "portable",
    }  # fmt: skip
    return StepSpec(**settings | more)


def runners(model, spec, weights, data):
    step = build_step(model, spec)
    session = make_session(step.model, 1)
    buffers = make_buffers(spec, weights)
    buffers.load({(name, WEIGHT): array for name, array in weights.items()})
    loop = EpochRunner(make_session(build_epoch(step, spec.loss), 1), step, buffers, data, block=3)
    return step, buffers, StepRunner(session, step, buffers, data), loop


def numbers(spec, count, rate=0.05, l2=0.01):
    t = np.arange(1.0, count + 1)
    rates = np.full(count, rate)
    columns = [np.broadcast_to(c, count) for c in spec.optimizer.scalars(t, rates, l2).values()]
    more = [np.cumsum(rates * 0.001)] if spec.l1 else []
    more += [1 / t] if spec.average else []
    return np.stack([*columns, *more], axis=1), rates


def evaluate(model, **feeds):
    session = make_session(to_proto(model).SerializeToString(), 1)
    return session.run(None, feeds)
