"""Helpers of the tests of the step: its parts for a multilayer perceptron."""

import numpy as np
import onnx
from onnx import parser

from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.idle_runners import CompiledOnUse
from onnxsgd.engine.step.scan_epoch import EpochRunner, build_epoch
from onnxsgd.engine.step.single_step import StepRunner, make_buffers
from onnxsgd.engine.step.step_spec import StepSpec
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.losses import CrossEntropy
from onnxsgd.optimizers import SGD, Adam
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

#: Options of :func:`make_spec` for updates that are products alone, and for others.
PLAIN = {"l2": False, "penalised": frozenset()}
NOT_PLAIN = {
    "l2": {},
    "momentum": {**PLAIN, "optimizer": SGD(0.9)},
    "adam": {**PLAIN, "optimizer": Adam()},
    "average": {**PLAIN, "average": True},
}


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
    loop = EpochRunner(CompiledOnUse(lambda: step, spec, 1), step, buffers, data, block=3)
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


#: A network of two layers, each a ``Gemm``.
LAYERS = """
<ir_version: 9, opset_import: ["" : 18]>
mlp (float[N,D] X) => (float[N,K] Y) {
    a = Gemm(X, W1, b1)
    h = Relu(a)
    Y = Gemm(h, W2, b2)
}
"""


def read_network(text, weights):
    """Return the graph of a text with these initializers, and with shapes."""
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in weights.items())
    return to_ir(onnx.shape_inference.infer_shapes(proto))


def network(n_hidden, n_outputs, *, n_inputs=5, text=LAYERS):
    rng = np.random.default_rng(0)
    shapes = {"W1": (n_inputs, n_hidden), "b1": (n_hidden,), "W2": (n_hidden, n_outputs), "b2": (n_outputs,)}
    weights = {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}
    return read_network(text.replace("[N,D]", f"[N,{n_inputs}]"), weights), weights


def sizes_of(value):
    """Return the sizes of an input or an output of a graph."""
    return tuple(size.dim_value for size in value.type.tensor_type.shape.dim)


def loop_body(step, spec):
    """Return the body of the loop of a step, and the shapes of the tensors that the loop carries."""
    epoch = onnx.load_from_string(build_epoch(step, spec.loss))
    (scan,) = (node for node in epoch.graph.node if node.op_type == "Scan")
    body = next(attribute.g for attribute in scan.attribute if attribute.name == "body")
    (n_scanned,) = (attribute.i for attribute in scan.attribute if attribute.name == "num_scan_inputs")
    return body, [sizes_of(value) for value in body.input[: len(body.input) - n_scanned]]


def carried(step, spec):
    """Return the shapes of the tensors that the loop of a step carries."""
    return loop_body(step, spec)[1]


def run_both(buffers, runners, plan, table):
    """Return the tensors at the start, and losses and tensors after the updates of each of two runners."""
    start, found = buffers.snapshot(), []
    for runner in runners:
        buffers.load(start)
        losses = np.zeros(len(plan.totals))
        runner.run(plan, table, losses)
        found.append((losses, buffers.snapshot()))
    return start, *found


def compare_with_single_steps(made, spec, n_rows):
    """Compare the updates of a loop with those of single steps; return the shapes of its tensors."""
    model, weights = made
    (n_inputs, _), n_outputs = weights["W1"].shape, weights["W2"].shape[1]
    rng = np.random.default_rng(1)
    y = np.eye(n_outputs, dtype=np.float32)[rng.integers(0, n_outputs, n_rows)]
    X = rng.normal(size=(n_rows, n_inputs)).astype(np.float32)
    data = Batches({"X": X}, y, np.ones(n_rows), spec.batch_size, is_mean=True)
    step, buffers, single, loop = runners(model, spec, weights, data)
    table, rates = numbers(spec, data.n_batches)
    plan = data.plan(np.arange(n_rows))
    if spec.optimizer.takes_scaled_gradient:
        plan = plan.descending(rates)
    start, (losses, by_steps), (losses_of_loop, found) = run_both(buffers, (single, loop), plan, table)
    np.testing.assert_allclose(losses_of_loop, losses, rtol=1e-5)
    for key, array in by_steps.items():
        np.testing.assert_allclose(found[key], array, rtol=1e-4, atol=1e-5, err_msg=str(key))
    for name in spec.weights:
        assert not np.array_equal(found[name, WEIGHT], start[name, WEIGHT])
    return carried(step, spec)
