"""The compiled step, the loop over batches, and the buffers between them."""

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.fuse import fuse
from onnxsgd.engine.step.scan_epoch import EpochRunner, build_epoch
from onnxsgd.engine.step.single_step import StepRunner, make_buffers
from onnxsgd.engine.step.training_step import StepSpec, build_step
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.losses import CrossEntropy, LogLoss, Loss, SquaredError
from onnxsgd.optimizers import SGD, Adam
from onnxsgd.runtime.sessions import make_session, resolve_threads

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


@pytest.fixture
def weights():
    rng = np.random.RandomState(0)
    return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in SHAPES.items()}


@pytest.fixture
def model(weights):
    proto = parser.parse_model(MLP)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in weights.items())
    return to_ir(onnx.shape_inference.infer_shapes(proto))


@pytest.fixture
def data():
    rng = np.random.RandomState(1)
    X = rng.normal(size=(53, 5)).astype(np.float32)
    y = np.eye(3, dtype=np.float32)[rng.randint(0, 3, 53)]
    return Batches({"X": X}, y, rng.uniform(0.5, 2, 53), 8, True)


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
    buffers = make_buffers(session, step)
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


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def by_hand(weights, data, plan, rate, l2):
    """The same updates in float64 numpy."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    losses = []
    for rows, weight in zip(plan.rows, plan.sample_weight, strict=True):
        X, y = data.features["X"][rows].astype(np.float64), data.target[rows].astype(np.float64)
        h = np.maximum(X @ w["W1"] + w["b1"], 0)
        p = softmax(h @ w["W2"] + w["b2"])
        losses.append(-(weight * y * np.log(p)).sum())
        d2 = (p - y) * weight
        d1 = (d2 @ w["W2"].T) * (h > 0)
        gradients = {"W1": X.T @ d1, "b1": d1.sum(axis=0), "W2": h.T @ d2, "b2": d2.sum(axis=0)}
        for name, gradient in gradients.items():
            decay = l2 * w[name] if name[0] == "W" else 0
            w[name] = w[name] - rate * (gradient + decay)
    return w, np.array(losses)


@pytest.mark.parametrize("engine", ["portable", "onnxruntime-training"])
def test_an_epoch_equals_the_same_updates_in_numpy(model, weights, data, engine):
    spec = make_spec(engine=engine)
    _, buffers, step, _ = runners(model, spec, weights, data)
    table, rates = numbers(spec, data.n_batches)
    plan = data.plan(np.random.RandomState(2).permutation(53)).descending(rates)
    losses = np.zeros(data.n_batches)
    step.run(plan, table, losses)
    wanted, wanted_losses = by_hand(weights, data, plan, 0.05, 0.01)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-5)
    for name, array in buffers.weights().items():
        np.testing.assert_allclose(array, wanted[name], rtol=1e-5, atol=1e-6)
        assert np.abs(array - weights[name]).max() > 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": SGD(0.9, True), "l1": True, "average": True},
        {"optimizer": Adam(), "loss": SquaredError()},
    ],
    ids=["sgd", "nesterov-l1-average", "adam"],
)
def test_the_loop_gives_the_very_numbers_of_single_steps(model, weights, data, options):
    spec = make_spec(**options)
    _, buffers, step, loop = runners(model, spec, weights, data)
    table, rates = numbers(spec, data.n_batches)
    plan = data.plan(np.arange(53))
    if spec.optimizer.takes_scaled_gradient:
        plan = plan.descending(rates)
    start = buffers.snapshot()
    one, many = np.zeros(data.n_batches), np.zeros(data.n_batches)
    step.run(plan, table, one)
    by_steps = buffers.snapshot()
    buffers.load(start)
    loop.run(plan, table, many)
    assert loop.n_done == step.n_done == 7
    np.testing.assert_allclose(many, one, rtol=1e-6)
    for key, array in buffers.snapshot().items():
        np.testing.assert_array_equal(array, by_steps[key])
        assert not np.array_equal(array, start[key])


@dataclass(frozen=True)
class Offset(Loss):
    """Its gradient does not depend on the target."""

    def value(self, op, y_true, raw_prediction):
        return op.Sub(raw_prediction, y_true)

    def gradient(self, op, y_true, raw_prediction):
        return op.Add(op.Mul(raw_prediction, 0.0), 1.0)


def test_the_loop_takes_a_loss_whose_gradient_ignores_the_target(model, weights, data):
    _, _, step, loop = runners(model, make_spec(loss=Offset()), weights, data)
    table, rates = numbers(make_spec(), data.n_batches)
    plan = data.plan(np.arange(53)).descending(rates)
    one, many = np.zeros(data.n_batches), np.zeros(data.n_batches)
    loop.run(plan, table, many)
    step._buffers.load({(name, WEIGHT): array for name, array in weights.items()})
    step.run(plan, table, one)
    np.testing.assert_allclose(many, one, rtol=1e-6)


def test_a_loss_that_is_not_finite_ends_the_run(model, weights, data):
    spec = make_spec()
    _, _, step, loop = runners(model, spec, {**weights, "W1": np.full((5, 12), 1e38, np.float32)}, data)
    table, rates = numbers(spec, data.n_batches)
    plan = data.plan(np.arange(53)).descending(rates)
    for runner, n_done in [(step, 1), (loop, 3)]:
        runner.run(plan, table, np.zeros(data.n_batches))
        assert runner.n_done == n_done


def test_each_sample_is_taken_once_and_the_last_batch_is_padded_with_weight_zero(data):
    plan = data.plan(np.random.RandomState(0).permutation(53))
    real = plan.rows.ravel()[plan.sample_weight.ravel() > 0]
    assert sorted(real) == list(range(53))
    np.testing.assert_allclose(plan.sample_weight.sum(axis=(1, 2)), 1, rtol=1e-6)
    wanted = [data.sample_weight[rows[:5] if i == 6 else rows].sum() for i, rows in enumerate(plan.rows)]
    np.testing.assert_allclose(plan.totals, np.array(wanted) / data.sample_weight.sum(), rtol=1e-12)


def test_batches_of_one_keep_their_weights(data):
    single = Batches(data.features, data.target, data.sample_weight, 1, False)
    np.testing.assert_allclose(
        single.plan(np.arange(53)).sample_weight.ravel(), data.sample_weight, rtol=1e-7
    )


@pytest.mark.parametrize("engine", ["portable", "onnxruntime-training"])
def test_a_step_of_an_mlp_is_fused(model, engine):
    graph = onnx.load_from_string(build_step(model, make_spec(engine=engine)).model).graph
    operators = [node.op_type for node in graph.node]
    assert not {"ReluGrad", "Where", "Greater", "Shape", "Reshape", "Expand", "Cast"}.intersection(operators)
    assert operators.count("HardSigmoid") == 1
    updates = {node.output[0]: node.op_type for node in graph.node}
    assert updates["W1_new"] == updates["W2_new"] == "Gemm"
    assert {node.domain for node in graph.node} == {""}


def evaluate(model, **feeds):
    session = make_session(to_proto(model).SerializeToString(), 1)
    return session.run(None, feeds)


@pytest.mark.parametrize(
    ("text", "operators"),
    [
        ("y = Cast<to=1>(m)\n m = Greater(x, zero)", ["HardSigmoid"]),
        ("y = Cast<to=1>(m)\n m = Cast<to=9>(r)\n r = Relu(x)", ["Relu", "HardSigmoid"]),
        ("y = Cast<to=1>(m)\n m = Cast<to=9>(x)", ["Cast", "Cast"]),
        ("y = ReduceSum<keepdims=0>(x, axis)", ["MatMul"]),
        ("y = ReduceSum<keepdims=1>(x, axis)", ["MatMul"]),
        ("y = Add(c, p)\n p = Gemm<transA=1>(x, x)", ["Gemm"]),
        ("y = Add(c, p)\n p = Gemm<transA=1, alpha=0.5>(x, x)", ["Gemm"]),
        ("y = Add(p, c)\n p = Gemm<transA=1>(x, x)", ["Gemm"]),
        ("y = Add(c, p)\n p = Gemm<transA=1>(x, x, c)", ["Gemm", "Add"]),
        ("y = Sub(c, p)\n p = Gemm<transA=1>(x, x)", ["Gemm", "Sub"]),
    ],
)
def test_each_fusion_keeps_the_numbers(text, operators):
    lines = list(reversed(text.split("\n ")))
    kind = {"Reduce": "float[8]" if "keepdims=0" in text else "float[1,8]", "Gemm": "float[8,8]"}
    shape = next((s for key, s in kind.items() if key in text), "float[6,8]")
    source = (
        '<ir_version: 9, opset_import: ["" : 18]> g (float[6,8] x, float[8,8] c) => (' + shape + " y) "
        "<float zero = {0}, int64[1] axis = {0}> {" + "\n".join(lines) + "}"
    )
    model = to_ir(onnx.shape_inference.infer_shapes(parser.parse_model(source)))
    rng = np.random.RandomState(0)
    feeds = {"x": rng.normal(size=(6, 8)).astype(np.float32), "c": rng.normal(size=(8, 8)).astype(np.float32)}
    feeds["x"][0, :4] = [0.0, -0.0, 1.2e-38, -1e38]
    feeds["x"][1] = 0.5
    if "Gemm" in text or "Reduce" in text:
        feeds["x"][0] = 1.0
    (before,) = evaluate(model, **feeds)
    fuse(model)
    (after,) = evaluate(model, **feeds)
    assert [node.op_type for node in model.graph] == operators
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)


def test_a_weighted_sum_of_columns_is_one_product():
    source = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[6,1] x, float[6,1] w) => (float[1,1] y) <float half = {0.5}> {
        a = Mul(x, x)
        b = Mul(a, half)
        c = Mul(b, w)
        y = ReduceSum<keepdims=1>(c)
    }"""
    model = to_ir(onnx.shape_inference.infer_shapes(parser.parse_model(source)))
    rng = np.random.RandomState(0)
    x, w = rng.normal(size=(6, 1)).astype(np.float32), rng.uniform(size=(6, 1)).astype(np.float32)
    fuse(model)
    assert [node.op_type for node in model.graph] == ["Mul", "Gemm"]
    np.testing.assert_allclose(evaluate(model, x=x, w=w)[0], [[0.5 * (x * x * w).sum()]], rtol=1e-6)


def test_threads_follow_the_work_and_the_limit_of_joblib(monkeypatch):
    assert resolve_threads(3, 1) == 3
    assert resolve_threads(None, 1_000) == 1
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert resolve_threads(None, 10**9) == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert resolve_threads(None, 10**9) == 2


def test_static_shapes_everywhere(model):
    step = to_ir(onnx.load_from_string(build_step(model, make_spec()).model))
    values = [*step.graph.inputs, *step.graph.outputs]
    assert all(value.shape is not None and value.shape.is_static() for value in values)
    assert isinstance(step, ir.Model)


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Max", "Greater"])
def test_numbers_beside_a_column_get_its_rank(operator):
    """With fewer dimensions the runtime loops over single elements: 126 instead of 4 us for 20,000."""
    kind = "bool" if operator == "Greater" else "float"
    source = f"""
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[80,1] x, float[80] v, float s) =>
    ({kind}[80,1] a, {kind}[80,1] b, {kind}[80] c, {kind}[80,1] s_table)
    <float half = {{0.5}}> {{
        a = {operator}(x, half)
        b = {operator}(half, x)
        c = {operator}(v, half)
        s_table = {operator}(x, s)
    }}"""
    model = to_ir(onnx.shape_inference.infer_shapes(parser.parse_model(source)))
    x = np.linspace(0, 1, 80, dtype=np.float32)
    feeds = {"x": x[:, None], "v": x, "s": np.array(0.25, np.float32)}
    before = evaluate(model, **feeds)
    fuse(model)
    after = evaluate(model, **feeds)
    for wanted, found in zip(before, after, strict=True):
        np.testing.assert_array_equal(found, wanted)
    nodes = {node.outputs[0].name: node for node in model.graph}
    ranks = {name: [len(value.shape) for value in nodes[name].inputs] for name in ("a", "b", "c", "s_table")}
    assert ranks == {"a": [2, 2], "b": [2, 2], "c": [1, 0], "s_table": [2, 2]}


def test_intercepts_are_rows_inside_only(model, weights, data):
    step, buffers, *_ = runners(model, make_spec(), weights, data)
    assert step.rows == {("b1", WEIGHT), ("b2", WEIGHT)}
    assert {name: array.shape for name, array in buffers.weights().items()} == SHAPES
    nodes = {node.output[0]: node.op_type for node in onnx.load_from_string(step.model).graph.node}
    assert nodes["b1_new"] == nodes["b2_new"] == "Gemm"
    whole = build_step(model, make_spec(), with_rows=False)
    assert not whole.rows
    given = {value.name: value for value in onnx.load_from_string(whole.model).graph.input}
    assert [dim.dim_value for dim in given["b1"].type.tensor_type.shape.dim] == [12]


def test_the_states_of_an_intercept_are_rows_like_itself(model):
    step = build_step(model, make_spec(optimizer=SGD(0.9), average=True))
    assert {kind for name, kind in step.rows if name == "b1"} == {WEIGHT, "velocity", "average"}
    nodes = {node.output[0]: node.op_type for node in onnx.load_from_string(step.model).graph.node}
    assert nodes["b1_velocity_new"] == "Gemm"


@pytest.mark.parametrize(
    "line", ["c = Softmax(b1)\n b = Add(a, c)", "c = Reshape(b1, shape)\n d = Squeeze(c)\n b = Add(a, d)"]
)
def test_vectors_that_need_their_shape_stay_vectors(weights, line):
    source = MLP.replace("b = Add(a, b1)", line).replace(
        "=> (float[N,K] Y)", "=> (float[N,K] Y) <int64[3] shape = {1, 1, 12}>"
    )
    proto = parser.parse_model(source)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in weights.items())
    step = build_step(to_ir(onnx.shape_inference.infer_shapes(proto)), make_spec())
    assert step.rows == {("b2", WEIGHT)}


_MEETINGS = {
    "one number and a vector": "<float[1] s = {2}, BIAS> { u = Mul(s, b) h = MatMul(X, W) Y = Add(h, u) }",
    "two vectors": "<float[4] s = {2, 1, 1, 1}, BIAS> { u = Mul(s, b) h = MatMul(X, W) Y = Add(h, u) }",
    "and a shape": "<float[4] s = {2, 1, 1, 1}, BIAS> "
    "{ p = Softmax(s) u = Mul(s, b) h = MatMul(X, W) k = Add(h, u) Y = Mul(k, p) }",
}


@pytest.mark.parametrize("text", _MEETINGS.values(), ids=_MEETINGS)
def test_trained_vectors_that_are_combined_are_trained(text):
    """Each update is that of the gradient, in the loop and in single steps."""
    bias = "float[4] b = {1, 2, 3, 4}, float[3, 4] W = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}"
    source = '<ir_version: 9, opset_import: ["" : 18]> g (float[N,3] X) => (float[N,4] Y) '
    proto = parser.parse_model(source + text.replace("BIAS", bias))
    graph = to_ir(onnx.shape_inference.infer_shapes(proto))
    names = ("s", "b")
    spec = make_spec(
        weights=names, penalised=frozenset(), loss=SquaredError(), l2=False, n_outputs=4, batch_size=64
    )
    rng = np.random.RandomState(0)
    X, y = rng.normal(size=(64, 3)).astype(np.float32), rng.normal(size=(64, 4)).astype(np.float32)
    batches = Batches({"X": X}, y, np.ones(64), 64, True)
    start = {name: np.array(graph.graph.initializers[name].const_value.numpy()) for name in names}
    _, buffers, one, loop = runners(graph, spec, start, batches)
    plan = batches.plan(np.arange(64)).descending(np.array([1e-3]))
    table = numbers(spec, 1, 1e-3, 0.0)[0]

    def objective(weights):
        inputs = {
            "X": X.astype(np.float64),
            **{name: array.astype(np.float64) for name, array in weights.items()},
        }
        return 0.5 * ((_evaluate64(proto, inputs) - y) ** 2).sum() / 64

    expected = {name: array.astype(np.float64) for name, array in start.items()}
    for name, array in start.items():
        for i in range(len(array)):
            up, down = ({k: v.astype(np.float64) for k, v in start.items()} for _ in range(2))
            up[name][i] += 1e-6
            down[name][i] -= 1e-6
            expected[name][i] -= 1e-3 * (objective(up) - objective(down)) / 2e-6
    for runner in (one, loop):
        buffers.load({(name, WEIGHT): array for name, array in start.items()})
        runner.run(plan, table, np.zeros(1))
        for name, array in buffers.weights().items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-5)


def _evaluate64(proto, inputs):
    """Evaluate a graph in float64, the initializers that are among the inputs replaced."""
    double = onnx.ModelProto()
    double.CopyFrom(proto)
    for tensor in double.graph.initializer:
        array = inputs.pop(tensor.name, onnx.numpy_helper.to_array(tensor).astype(np.float64))
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return onnx.reference.ReferenceEvaluator(double).run(None, inputs)[0]


@pytest.mark.parametrize(
    "text",
    [
        "c = Greater(x, wide)\n k = Cast<to=1>(c)\n y = Mul(k, x)",
        "c = Greater(x, zero)\n k = Cast<to=7>(c)\n q = MatMul(k, m)\n r = Add(q, k)\n y = Cast<to=1>(r)",
        "c = Greater(x, zero)\n k = Cast<to=7>(c)\n q = ReduceSum<keepdims=1>(k, axis)\n y = Cast<to=1>(q)",
    ],
    ids=["a wider zero", "product of integers", "sum of integers"],
)
def test_similar_patterns_are_not_fused(text):
    source = (
        '<ir_version: 9, opset_import: ["" : 18]> g (float[3,3] x) => (float[A,B] y) '
        "<float zero = {0}, float[1,1,1] wide = {0}, int64[3,3] m = {1,0,0,0,1,0,0,0,1}, int64[1] axis = {0}>"
        " {" + text + "}"
    )
    if "wide)" in text:
        source = source.replace("float[A,B] y", "float[A,B,C] y")
    model = to_ir(onnx.shape_inference.infer_shapes(parser.parse_model(source)))
    x = np.random.RandomState(0).normal(size=(3, 3)).astype(np.float32)
    (before,) = evaluate(model, x=x)
    fuse(model)
    np.testing.assert_array_equal(evaluate(model, x=x)[0], before)
    assert not {"Gemm", "HardSigmoid"}.intersection(node.op_type for node in model.graph)


def test_the_loop_computes_losses_once_for_all_batches(model):
    """In the body they would cost as much as the training of a small model."""
    spec = make_spec(loss=LogLoss())
    graph = onnx.load_from_string(build_epoch(build_step(model, spec), spec.loss)).graph
    scan = next(node for node in graph.node if node.op_type == "Scan")
    body = next(attribute.g for attribute in scan.attribute if attribute.name == "body")
    assert "Log" in {node.op_type for node in graph.node}
    assert "Log" not in {node.op_type for node in body.node}
    # no penalty: its strength is not cut into slices
    without = make_spec(l2=False)
    graph = onnx.load_from_string(build_epoch(build_step(model, without), without.loss)).graph
    assert not [value.name for value in graph.input if "decay" in value.name]
