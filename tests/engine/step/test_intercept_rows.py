"""Intercepts and their states are rows inside the step."""

import numpy as np
import onnx
import pytest
from engine.step.mlp_step import MLP, SHAPES, make_spec, numbers, runners
from onnx import parser

from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.graph.model import to_ir
from onnxsgd.losses import SquaredError
from onnxsgd.optimizers import SGD


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


def test_the_sum_of_an_intercept_with_a_factor_is_added_by_a_product(weights):
    source = MLP.replace("b = Add(a, b1)", "c = Mul(b1, third)\n b = Add(a, c)").replace(
        "=> (float[N,K] Y)", "=> (float[N,K] Y) <float third = {0.333}>"
    )
    proto = parser.parse_model(source)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in weights.items())
    step = build_step(to_ir(onnx.shape_inference.infer_shapes(proto)), make_spec())
    assert ("b1", WEIGHT) in step.rows
    nodes = {node.output[0]: node.op_type for node in onnx.load_from_string(step.model).graph.node}
    assert nodes["b1_new"] == "Gemm"


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
