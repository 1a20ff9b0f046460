"""Operators that a CUDA graph may record: their kernels keep no data on the host."""

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxsgd.engine.step.cuda_graph_operators import _CONDITIONS as CONDITIONS
from onnxsgd.engine.step.cuda_graph_operators import is_recordable
from onnxsgd.engine.step.step_spec import StepSpec
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.engine.step.unrolled import build_block
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import to_ir
from onnxsgd.graph.reading.linear import linear_graph
from onnxsgd.losses import CLASSIFICATION_LOSSES, REGRESSION_LOSSES, CrossEntropy, SquaredError
from onnxsgd.optimizers import SGD, Adam


def read(text):
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {text}')


#: Graphs, and whether a CUDA graph may record them.
GRAPHS = [
    ("(float[4,3] x, float[3,2] w) => (float[4,2] y) { y = MatMul(x, w) }", True),
    ("(float[2,4,3] x, float[3,2] w) => (float[2,4,2] y) { y = MatMul(x, w) }", True),
    ("(float[2,4,3] x, float[2,3,2] w) => (float[2,4,2] y) { y = MatMul(x, w) }", True),
    ("(float[2,4,3] x, float[1,3,2] w) => (float[2,4,2] y) { y = MatMul(x, w) }", False),
    ("(float[4,3] x, float[2,3,2] w) => (float[2,4,2] y) { y = MatMul(x, w) }", False),
    ("(float[4,3] x) => (float[8,3] y) { y = Concat<axis = 0>(x, x) }", True),
    ("(float[4,3] x, float[2,3] z) => (float[6,3] y) { y = Concat<axis = 0>(x, z) }", False),
    (f"(float[1] x) => (float[32] y) {{ y = Concat<axis = 0>({', '.join('x' * 32)}) }}", True),
    (f"(float[1] x) => (float[33] y) {{ y = Concat<axis = 0>({', '.join('x' * 33)}) }}", False),
    ("(float[4] x) => (float[2] y, float[2] z) <int64[2] s = {2, 2}> { y, z = Split(x, s) }", True),
    ("(float[4] x) => (float[1] y, float[3] z) <int64[2] s = {1, 3}> { y, z = Split(x, s) }", False),
    ("(float[4,3] x) => (float[4,3] y) { y = Dropout(x) }", False),
    ("(float[4,3] x, int64[2,1] i) => (float[2,3] y) { y = GatherND(x, i) }", False),
    ("(float[4,3] x) => (float[4,3] y) { m = Relu(x) y = RandomNormalLike(m) }", False),
]  # fmt: skip


def test_every_condition_holds_and_fails_in_a_case():
    for operator in CONDITIONS:
        answers = {expected for text, expected in GRAPHS if f"= {operator}" in text}
        assert answers == {True, False}, operator


@pytest.mark.parametrize(("text", "expected"), GRAPHS)
def test_each_operator_is_known_or_refused(text, expected):
    """Replayed, Dropout would draw the same numbers, and tables in host memory would be freed."""
    assert is_recordable(read(text).SerializeToString()) is expected


@pytest.mark.parametrize("operator", ["Tanh", "Sigmoid", "LeakyRelu", "Erf", "Softmax", "Mish", "HardSwish"])
def test_networks_with_common_activations_can_be_recorded(operator):
    text = f"(float[N,5] x) => (float[N,1] y) {{ a = MatMul(x, W) h = {operator}(a) y = MatMul(h, V) }}"
    model = read(text)
    rng = np.random.RandomState(0)
    for name, shape in (("W", (5, 4)), ("V", (4, 1))):
        array = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    lowered = lower_for_training(to_ir(onnx.shape_inference.infer_shapes(model)))
    spec = StepSpec(
        weights=("W", "V"), penalised=frozenset(), loss=SquaredError(), optimizer=SGD(), l1=False, l2=False,
        average=False, batch_size=8, n_outputs=1, engine="portable",
    )  # fmt: skip
    assert is_recordable(build_step(lowered, spec).model)


def test_operators_of_others_are_refused():
    model = read("(float[4,3] x) => (float[4,3] y) { y = Relu(x) }")
    model.graph.node[0].domain = "com.microsoft"
    model.opset_import.add(domain="com.microsoft", version=1)
    assert not is_recordable(model.SerializeToString())


LOSSES = {
    kind.__name__: kind
    for kind in (*REGRESSION_LOSSES.values(), *CLASSIFICATION_LOSSES.values(), CrossEntropy)
}


@pytest.mark.parametrize("optimizer", [SGD(0.9, True), Adam()], ids=["sgd", "adam"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_blocks_with_every_loss_can_be_recorded(loss, optimizer):
    """Otherwise each operator of each step would be a kernel launch: three to ten times slower."""
    n_outputs = 3 if loss is CrossEntropy else len(loss.score_factors)
    model, weights = linear_graph(5, n_outputs)
    spec = StepSpec(
        weights=weights, penalised=frozenset(weights), loss=loss(), optimizer=optimizer, l1=True, l2=True,
        average=True, batch_size=8, n_outputs=n_outputs, engine="portable",
    )  # fmt: skip
    step = build_step(model, spec)
    assert is_recordable(step.model)
    block = build_block(step, spec.loss, 16)
    onnx.checker.check_model(onnx.load_from_string(block), full_check=True)
    assert is_recordable(block)
