"""The tables of the gradient builder: each line against central differences, each refusal."""

import importlib
import zlib
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxsgd.exceptions import EngineError, GraphError, MissingRuntimeError, NotTrainableError
from onnxsgd.gradient import joint_graph as forward_backward
from onnxsgd.gradient.native import builder as orttraining
from onnxsgd.gradient.native.coverage import DIFFERENTIABLE
from onnxsgd.gradient.native.refused_forms import REFUSALS


def forward_backward_model(model, weights, inputs=()):
    return forward_backward.forward_backward_model(model, weights, inputs, engine="onnxruntime-training")


pytestmark = pytest.mark.native

#: The size that a named dimension has when a case is run.
SIZES = {"N": 3, "M": 2, "K": 1, "L": 5}

#: Values from 0.1 to 1: no two are equal in any type, so that no maximum is a tie, and none is a bound.
NUMBERS = np.setdiff1d(np.arange(205, 2048), [1024]) / 2048

#: The first and the last opset, and those where the forms of operators change in between.
OPSETS = (13, 18, 21)


@dataclass
class Case:
    """Nodes that compute Y; `inputs` have gradients, `constants` are initializers.

    An input called P is positive. `float64` says whether the runtime has every kernel for it.
    """

    body: str
    inputs: dict[str, tuple] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)
    opsets: tuple[int, ...] = OPSETS
    float64: bool = True


def ints(*values):
    return np.array(values, np.int64)


X, W = ("N", 4), (4,)
IMAGE = (1, 2, 4, 4)

CASES = {
    "Abs": Case("Y = Abs(X)", {"X": X}),
    "Add": Case("Y = Add(X, W)", {"X": X, "W": W}),
    "Add column": Case("Y = Add(X, W)", {"X": X, "W": ("N", 1)}),
    "Add scalar": Case("Y = Add(X, W)", {"X": X, "W": ()}),
    "Add to more dimensions": Case("Y = Add(X, W)", {"X": (4,), "W": (2, 3, 1)}),
    "Add sizes only known at run time": Case(
        "Z = Reshape(W, s)\n Y = Add(X, Z)", {"X": X, "W": ("M", 3, 2)}, {"s": ints(-1, 4)}
    ),
    "Add one row only known at run time": Case(
        "Z = Reshape(W, s)\n Y = Add(X, Z)", {"X": X, "W": (2, 2)}, {"s": ints(-1, 4)}
    ),
    "AveragePool": Case(
        "Y = AveragePool<kernel_shape=[2, 2], strides=[2, 2]>(X)", {"X": IMAGE}, float64=False
    ),
    "AveragePool padded": Case(
        "Y = AveragePool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(X)", {"X": IMAGE}, float64=False
    ),
    "AveragePool padding counts": Case(
        "Y = AveragePool<kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1>(X)",
        {"X": IMAGE},
        float64=False,
    ),
    "Clip": Case("Y = Clip(X, a, b)", {"X": X}, {"a": -0.5, "b": 0.5}),
    "Clip below": Case("Y = Clip(X, a)", {"X": X}, {"a": -0.5}),
    "Clip above": Case("Y = Clip(X, , b)", {"X": X}, {"b": 0.5}),
    "Concat": Case("Y = Concat<axis=1>(X, W)", {"X": X, "W": ("N", 2)}),
    "Concat one tensor twice": Case("Y = Concat<axis=-1>(X, W, X)", {"X": X, "W": ("N", 2)}),
    "Concat twice": Case(
        "A = Concat<axis=1>(X, W)\n B = Concat<axis=1>(W, X)\n Y = Mul(A, B)", {"X": X, "W": ("N", 2)}
    ),
    "Concat sizes only known at run time": Case(
        "Z = Reshape(X, s)\n Y = Concat<axis=0>(Z, W)", {"X": X, "W": ("M", 2)}, {"s": ints(-1, 2)}
    ),
    "Conv": Case("Y = Conv(X, W, b)", {"X": (2, 2, 4, 4), "W": (2, 2, 3, 3), "b": (2,)}, float64=False),
    "Conv strided": Case(
        "Y = Conv<strides=[2, 2], pads=[1, 1, 1, 1]>(X, W)",
        {"X": (2, 2, 4, 4), "W": (2, 2, 3, 3)},
        float64=False,
    ),
    "Conv dilated": Case(
        "Y = Conv<dilations=[2, 2]>(X, W)", {"X": (1, 2, 5, 5), "W": (2, 2, 2, 2)}, float64=False
    ),
    "Conv of groups": Case("Y = Conv<group=2>(X, W)", {"X": (2, 4, 4, 4), "W": (2, 2, 3, 3)}, float64=False),
    "Conv of one dimension": Case("Y = Conv(X, W)", {"X": (2, 3, 6), "W": (4, 3, 2)}, float64=False),
    "Cos": Case("Y = Cos(X)", {"X": X}, float64=False),
    "Div": Case("Y = Div(X, P)", {"X": X, "P": W}),
    "Div scalar": Case("Y = Div(W, P)", {"W": (), "P": X}),
    "Div of sizes only known at run time": Case(
        "Z = Reshape(W, s)\n Y = Div(Z, P)", {"W": (2, 2), "P": X}, {"s": ints(-1, 4)}
    ),
    "Erf": Case("Y = Erf(X)", {"X": X}, float64=False),
    "Exp": Case("Y = Exp(X)", {"X": X}),
    "Expand": Case("Y = Expand(X, s)", {"X": (3, 1)}, {"s": ints(2, 3, 4)}),
    "Expand columns": Case("Y = Expand(X, s)", {"X": ("N", 1)}, {"s": ints(1, 4)}),
    "Flatten": Case("Y = Flatten(X)", {"X": ("N", 2, 3)}),
    "Gather rows": Case("Y = Gather(X, i)", {"X": (5, 3)}, {"i": ints(0, 2, -1, 2)}),
    "Gather table of indices": Case("Y = Gather(X, i)", {"X": (5, 3)}, {"i": np.array([[0, 2], [2, 4]])}),
    "Gather columns": Case("Y = Gather<axis=1>(X, i)", {"X": X}, {"i": ints(-1, 0, -1)}),
    "Gather one column": Case("Y = Gather<axis=1>(X, i)", {"X": X}, {"i": np.array(1)}),
    "GatherElements": Case(
        "Y = GatherElements<axis=1>(X, i)", {"X": (2, 3)}, {"i": np.array([[0, -1, 1], [2, 1, -2]])}
    ),
    "GatherND": Case("Y = GatherND(X, i)", {"X": (3, 4)}, {"i": np.array([[0], [2], [0]])}),
    "GatherND by batch": Case(
        "Y = GatherND<batch_dims=1>(X, i)", {"X": (3, 4)}, {"i": np.array([[0], [2], [0]])}
    ),
    "Gelu": Case("Y = Gelu(X)", {"X": X}, opsets=(20, 21), float64=False),
    "Gemm": Case("Y = Gemm(X, W, b)", {"X": X, "W": (4, 3), "b": (3,)}),
    "Gemm scaled": Case(
        "Y = Gemm<transB=1, alpha=0.5, beta=2.0>(X, W, b)", {"X": X, "W": (3, 4), "b": ("N", 3)}
    ),
    "Gemm transposed": Case(
        "Y = Gemm<transA=1, transB=1>(X, W, b)", {"X": (4, "N"), "W": (3, 4), "b": (1, 3)}
    ),
    "Gemm scalar": Case("Y = Gemm<transA=1>(X, W, b)", {"X": (4, "N"), "W": (4, 3), "b": ()}),
    "Gemm without bias": Case("Y = Gemm(X, W)", {"X": X, "W": (4, 3)}),
    "GlobalAveragePool": Case("Y = GlobalAveragePool(X)", {"X": ("N", 3, 4, 5)}, float64=False),
    "Identity": Case("Y = Identity(X)", {"X": X}),
    "LayerNormalization": Case(
        "Y = LayerNormalization(X, W, b)", {"X": X, "W": W, "b": W}, opsets=(17, 18, 21)
    ),
    "LayerNormalization without bias": Case(
        "Y = LayerNormalization(X, W)", {"X": X, "W": W}, opsets=(17, 18, 21)
    ),
    "LayerNormalization of tables": Case(
        "Y, mean, inverse = LayerNormalization<axis=1>(X, W, b)",
        {"X": ("N", 2, 3), "W": (2, 3), "b": (2, 3)},
        opsets=(17, 18, 21),
    ),
    "LeakyRelu": Case("Y = LeakyRelu<alpha=0.2>(X)", {"X": X}, float64=False),
    "Log": Case("Y = Log(P)", {"P": X}),
    "LogSoftmax": Case("Y = LogSoftmax(X)", {"X": ("N", 2, 3)}),
    "LogSoftmax of columns": Case("Y = LogSoftmax<axis=0>(X)", {"X": (3, 4)}),
    "MatMul": Case("Y = MatMul(X, W)", {"X": X, "W": (4, 3)}),
    "MatMul from a vector": Case("Y = MatMul(W, X)", {"W": (4,), "X": (4, 3)}),
    "MatMul stack and matrix": Case("Y = MatMul(X, W)", {"X": ("N", 3, 4), "W": (4, 3)}),
    "MatMul matrix and stack": Case("Y = MatMul(X, W)", {"X": (3, 4), "W": (5, 4, 3)}),
    "MatMul stacks": Case("Y = MatMul(X, W)", {"X": ("N", 3, 4), "W": ("N", 4, 3)}),
    "MatMul stacks repeated": Case("Y = MatMul(X, W)", {"X": (2, 1, 3, 4), "W": (5, 4, 3)}),
    "Max": Case("Y = Max(X, W, V)", {"X": X, "W": W, "V": ("N", 1)}),
    "MaxPool": Case("Y = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(X)", {"X": IMAGE}),
    "MaxPool overlapping": Case(
        "Y = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(X)", {"X": IMAGE}, opsets=(16, 21)
    ),
    "MaxPool with indices": Case("Y, i = MaxPool<kernel_shape=[2]>(X)", {"X": (2, 3, 4)}, float64=False),
    "Min": Case("Y = Min(X, W)", {"X": X, "W": W}),
    "Min of one": Case("Y = Min(X)", {"X": X}),
    "Mul": Case("Y = Mul(X, W)", {"X": X, "W": W}),
    "Mul square": Case("Y = Mul(X, X)", {"X": X}),
    "Mul shape of another": Case(
        "s = Shape(X)\n Z = Reshape(W, s)\n Y = Mul(X, Z)", {"X": X, "W": ("N", 2, 2)}
    ),
    "Neg": Case("Y = Neg(X)", {"X": X}),
    "Pad": Case("Y = Pad(X, p)", {"X": (2, 3)}, {"p": ints(0, 1, 1, 2)}),
    "Pow": Case("Y = Pow(P, e)", {"P": X}, {"e": 2.5}),
    "Pow square": Case("Y = Pow(X, e)", {"X": X}, {"e": 2.0}),
    "Pow of columns": Case("Y = Pow(P, e)", {"P": ("N", 3)}, {"e": [2.0, 3.0, 0.5]}),
    "Reciprocal": Case("Y = Reciprocal(P)", {"P": X}),
    "ReduceL2": Case("Y = ReduceL2<axes=[1]>(X)", {"X": X}, opsets=(13, 16), float64=False),
    "ReduceL2 axes as input": Case(
        "Y = ReduceL2<keepdims=0>(X, a)", {"X": X}, {"a": ints(1)}, (18, 21), float64=False
    ),
    "ReduceLogSumExp": Case("Y = ReduceLogSumExp<axes=[1]>(X)", {"X": X}, opsets=(13, 16)),
    "ReduceLogSumExp axes as input": Case(
        "Y = ReduceLogSumExp<keepdims=0>(X, a)", {"X": X}, {"a": ints(1)}, (18, 21)
    ),
    "ReduceMean": Case("Y = ReduceMean<axes=[1], keepdims=0>(X)", {"X": X}, opsets=(13, 16)),
    "ReduceMean axes as input": Case(
        "Y = ReduceMean(X, a)", {"X": ("N", 4, 2)}, {"a": ints(-1, 0)}, (18, 21)
    ),
    "ReduceMean drops axes": Case("Y = ReduceMean<keepdims=0>(X, a)", {"X": X}, {"a": ints(1)}, (18, 21)),
    "ReduceMean of all": Case("Y = ReduceMean<keepdims=0>(X)", {"X": X}),
    "ReduceSum": Case("Y = ReduceSum(X, a)", {"X": X}, {"a": ints(1)}),
    "ReduceSum drops axes": Case("Y = ReduceSum<keepdims=0>(X, a)", {"X": ("N", 4, 2)}, {"a": ints(0, 2)}),
    "ReduceSum of all": Case("Y = ReduceSum(X)", {"X": X}),
    "Relu": Case("Y = Relu(X)", {"X": X}),
    "Relu inside": Case("Z = Neg(X)\n V = Relu(Z)\n Y = Mul(V, V)", {"X": X}),
    "Reshape": Case("Y = Reshape(X, s)", {"X": X}, {"s": ints(-1, 2, 2)}),
    "Reshape keeps rows": Case("Y = Reshape(X, s)", {"X": X}, {"s": ints(0, 2, 2)}),
    "Reshape flat": Case("Y = Reshape(X, s)", {"X": X}, {"s": ints(-1)}),
    "ScatterElements": Case(
        "Y = ScatterElements<axis=1>(X, i, W)",
        {"X": (2, 4), "W": (2, 2)},
        {"i": np.array([[0, -1], [2, 1]])},
        float64=False,
    ),
    "ScatterND": Case(
        "Y = ScatterND(X, i, W)", {"X": (3, 4), "W": (2, 4)}, {"i": np.array([[0], [2]])}, float64=False
    ),
    "Sigmoid": Case("Y = Sigmoid(X)", {"X": X}),
    "Sin": Case("Y = Sin(X)", {"X": X}),
    "Slice": Case("Y = Slice(X, s, e, a)", {"X": ("N", 5)}, {"s": ints(1), "e": ints(-1), "a": ints(1)}),
    "Slice by steps": Case(
        "Y = Slice(X, s, e, a, t)",
        {"X": (3, 6)},
        {"s": ints(0), "e": ints(6), "a": ints(-1), "t": ints(2)},
    ),
    "Slice of all axes": Case("Y = Slice(X, s, e)", {"X": (3, 6)}, {"s": ints(1, 2), "e": ints(3, 1000)}),
    "Softmax": Case("Y = Softmax(X)", {"X": ("N", 2, 3)}),
    "Softmax of columns": Case("Y = Softmax<axis=0>(X)", {"X": (3, 4)}),
    "SoftmaxCrossEntropyLoss": Case(
        "Y = SoftmaxCrossEntropyLoss(X, i)", {"X": (3, 4)}, {"i": ints(0, 2, 3)}, (16, 21)
    ),
    "SoftmaxCrossEntropyLoss weighted": Case(
        'Y = SoftmaxCrossEntropyLoss<reduction="sum", ignore_index=2>(X, i, w)',
        {"X": (3, 4)},
        {"i": ints(0, 2, 3), "w": [1.0, 2.0, 0.5, 3.0]},
        (16, 21),
    ),
    "Split": Case("Y, Z = Split<axis=1>(X, s)\n", {"X": X}, {"s": ints(1, 3)}),
    "Split last part": Case("Z, Y = Split<axis=1>(X, s)\n", {"X": X}, {"s": ints(1, 3)}),
    "Split a part that is frozen afterwards": Case(
        "Z, V = Split<axis=1>(X, s)\n L = ArgMax<axis=1>(Z)\n F = CastLike(L, V)\n Y = Mul(V, F)",
        {"X": X},
        {"s": ints(1, 3)},
        (16, 21),
    ),
    "Sqrt": Case("Y = Sqrt(P)", {"P": X}),
    "Squeeze": Case("Y = Squeeze(X, a)", {"X": ("N", 1, 4)}, {"a": ints(1)}),
    "Squeeze all": Case("Y = Squeeze(X)", {"X": (3, 1, 4)}),
    "Sub": Case("Y = Sub(X, W)", {"X": X, "W": ("N", 1)}),
    "Tanh": Case("Y = Tanh(X)", {"X": X}),
    "Tile": Case("Y = Tile(X, r)", {"X": ("N", 3)}, {"r": ints(2, 2)}),
    "TopK": Case("Y, i = TopK<axis=1>(X, k)", {"X": X}, {"k": ints(2)}),
    "TopK smallest": Case("Y, i = TopK<axis=0, largest=0>(X, k)", {"X": (5, 4)}, {"k": ints(2)}),
    "Transpose": Case("Y = Transpose<perm=[1, 2, 0]>(X)", {"X": ("N", 4, 2)}),
    "Transpose without perm": Case("Y = Transpose(X)", {"X": X}),
    "Trilu": Case("Y = Trilu<upper=0>(X, k)", {"X": (4, 4)}, {"k": np.array(1)}, (14, 18, 21)),
    "Unsqueeze": Case("Y = Unsqueeze(X, a)", {"X": X}, {"a": ints(1)}),
    "Where": Case("Y = Where(c, X, W)", {"X": X, "W": X}, {"c": np.array([True, False, True, True])}),
    "Where a scalar": Case(
        "Z = ReduceSum<keepdims=0>(X)\n V = Where(c, Z, w)\n Y = Mul(V, V)",
        {"X": X},
        {"w": 0.5, "c": np.array(True)},
    ),
    "Where constant": Case(
        "Y = Where(c, X, w)", {"X": X}, {"w": 0.5, "c": np.array([True, False, True, True])}
    ),
    "Cast": Case("Z = Cast<to=1>(X)\n V = Tanh(Z)\n Y = CastLike(V, X)", {"X": X}, opsets=(16, 21)),
}


def build(case, opset, dtype):
    """Return the model of a case, values for its inputs, and a gradient for its output's shape."""
    rng = np.random.default_rng(zlib.crc32(case.body.encode()))
    shapes = {name: [SIZES.get(dim, dim) for dim in dims] for name, dims in case.inputs.items()}
    numbers = np.resize(rng.permutation(NUMBERS), sum(prod(shape) for shape in shapes.values()))
    real = {np.float16: "float16", np.float32: "float", np.float64: "double"}[dtype]
    feeds, declared = {}, []
    for name, dims in case.inputs.items():
        values, numbers = np.split(numbers, [prod(shapes[name])])
        values = values.reshape(shapes[name])
        feeds[name] = np.asarray(values if name == "P" else values * rng.choice([-1, 1], values.shape), dtype)
        declared.append(f"{real}[{', '.join(map(str, dims))}] {name}" if dims else f"{real} {name}")
    signature = f"g ({', '.join(declared)}) => ({real} Y)"
    text = f'<ir_version: 9, opset_import: ["": {opset}]>\n{signature} {{ {case.body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for name, value in case.constants.items():
        array = np.asarray(value)
        array = array.astype(dtype) if array.dtype == np.float64 else array
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model, feeds


def check(case, opset, dtype, tolerance, evaluate, differences, execute):
    exact, feeds = build(case, opset, np.float64)
    (y,) = evaluate(exact, feeds)
    seed = np.random.default_rng(1).normal(size=y.shape)
    step = 1e-3 if "to=1" in case.body else 1e-6
    expected = differences(exact, feeds, [seed], list(case.inputs), step)
    model, feeds = build(case, opset, dtype)
    both = forward_backward_model(ir.from_proto(model), (), list(case.inputs))
    found = execute(ir.to_proto(both), {**feeds, "Y_grad": seed.astype(dtype)})
    np.testing.assert_allclose(found["Y"], y, rtol=tolerance, atol=tolerance)
    for name, gradient in zip(case.inputs, expected, strict=True):
        scale = 1 + np.abs(gradient).max()
        assert found[f"{name}_grad"].shape == gradient.shape
        assert found[f"{name}_grad"].dtype == dtype
        np.testing.assert_allclose(found[f"{name}_grad"], gradient, rtol=0, atol=tolerance * scale)


@pytest.fixture
def forms_unasked(monkeypatch):
    """Build gradients of all forms: these cases are part of the proof."""
    monkeypatch.setattr(orttraining, "unproven", lambda node: None)


@pytest.mark.usefixtures("forms_unasked")
@pytest.mark.parametrize(("name", "opset"), [(n, o) for n, case in CASES.items() for o in case.opsets])
def test_a_gradient_equals_central_differences(name, opset, evaluate, differences, execute):
    # float32 holds 7 digits, a few are lost in sums
    tolerance = 2e-4 if name == "Cast" else 1e-5
    check(CASES[name], opset, np.float32, tolerance, evaluate, differences, execute)


@pytest.mark.usefixtures("forms_unasked")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.float64])
def test_a_gradient_of_float64_has_its_precision(name, evaluate, differences, execute):
    case = CASES[name]
    # the error of central differences of step 1e-6; a float32 anywhere on the path gives 1e-7
    tolerance = 2e-4 if name == "Cast" else 2e-8
    check(case, case.opsets[-1], np.float64, tolerance, evaluate, differences, execute)


def test_each_operator_of_the_table_has_a_case():
    tried = {
        word for case in CASES.values() for word in case.body.replace("(", " ").replace("<", " ").split()
    }
    # Dropout draws at random: see test_dropout_scales_the_kept_elements
    assert set(DIFFERENTIABLE) - tried == {"Dropout"}
    assert set(REFUSALS) <= set(DIFFERENTIABLE)


#: Forms of operators that the builder gets wrong, or crashes on, and a part of the message.
REFUSED = {
    "Atan": (Case("Y = Atan(X)", {"X": X}), "Atan has no gradient"),
    "operator of another domain": (
        Case("V = ai.onnx.ml.Binarizer(X)\n Y = Mul(V, X)", {"X": X}),
        "ai.onnx.ml.Binarizer has no gradient",
    ),
    "AveragePool": (
        Case('Y = AveragePool<kernel_shape=[2, 2], auto_pad="SAME_UPPER">(X)', {"X": IMAGE}),
        "AveragePool with auto_pad",
    ),
    "Conv auto_pad": (
        Case('Y = Conv<auto_pad="SAME_UPPER">(X, W)', {"X": (1, 1, 4, 4), "W": (1, 1, 3, 3)}),
        "Conv with auto_pad",
    ),
    "Dropout": (Case("Y = Dropout(X)", {"X": X}), "Dropout outside training mode"),
    "LayerNormalization": (
        Case("Z = Squeeze(W)\n Y = LayerNormalization(X, Z)", {"X": X, "W": ("M", 4)}, opsets=(18,)),
        "LayerNormalization without bias, its scale of unknown shape,",
    ),
    "MatMul": (
        Case("Z = Squeeze(W)\n Y = MatMul(X, Z)", {"X": (3,), "W": ("M", 3)}),
        "MatMul with a vector on the right",
    ),
    "MaxPool": (
        Case("Y, i = MaxPool<kernel_shape=[2, 2], storage_order=1>(X)", {"X": IMAGE}),
        "MaxPool with storage_order=1",
    ),
    "Pad": (
        Case('Y = Pad<mode="edge">(X, p)', {"X": (2, 3)}, {"p": ints(0, 1, 1, 2)}),
        "Pad with mode='edge'",
    ),
    "Pad axes": (
        Case("Y = Pad(X, p, , a)", {"X": (2, 3)}, {"p": ints(1, 2), "a": ints(1)}, (18,)),
        "Pad with an input 'axes'",
    ),
    "Pow to a table": (
        Case("Y = Pow(P, e)", {"P": ("N", 1)}, {"e": [2.0, 3.0]}),
        "Pow of operands whose shapes",
    ),
    "Pow exponent": (Case("Y = Pow(P, W)", {"P": W, "W": W}), "Pow has no gradient for its input 1, 'W'"),
    "ReduceL2": (
        Case("Y = ReduceL2<axes=[1], keepdims=0>(X)", {"X": X}, opsets=(13,)),
        "keepdims=0 before opset 18",
    ),
    "ReduceLogSumExp": (
        Case("Y = ReduceLogSumExp<axes=[1], keepdims=0>(X)", {"X": X}, opsets=(13,)),
        "keepdims=0 before opset 18",
    ),
    "ReduceMean": (
        Case("Y = ReduceMean<noop_with_empty_axes=1>(X)", {"X": X}, opsets=(18,)),
        "noop_with_empty_axes=1",
    ),
    "ReduceSum": (Case("Y = ReduceSum<noop_with_empty_axes=1>(X)", {"X": X}), "noop_with_empty_axes=1"),
    "ScatterElements": (
        Case(
            'Y = ScatterElements<reduction="add">(X, i, W)',
            {"X": (3, 4), "W": (1, 4)},
            {"i": np.array([[0, 1, 2, 0]])},
            (18,),
        ),
        "ScatterElements with reduction='add'",
    ),
    "ScatterND": (
        Case(
            'Y = ScatterND<reduction="add">(X, i, W)',
            {"X": (3, 4), "W": (1, 4)},
            {"i": np.array([[0]])},
            (18,),
        ),
        "ScatterND with reduction='add'",
    ),
    "Slice": (
        Case(
            "Y = Slice(X, s, e, a, t)",
            {"X": (3, 6)},
            {"s": ints(5), "e": ints(-7), "a": ints(1), "t": ints(-1)},
        ),
        "Slice with steps that are not constant and positive",
    ),
    "Transpose": (
        Case("Z = Squeeze(W)\n V = Transpose(Z)\n Y = Mul(X, V)", {"X": (), "W": ("M", 4)}),
        "Transpose without perm, of a tensor of unknown rank,",
    ),
    "Where": (
        Case("Y = Where(c, X, W)", {"X": X, "W": W}, {"c": np.array([True, False, True, True])}),
        "Where of operands whose shapes differ",
    ),
    "Clip bound": (Case("Y = Clip(X, W)", {"X": X, "W": ()}), "Clip has no gradient for its input 1, 'W'"),
    "no path": (
        Case("L = ArgMax(W)\n F = Cast<to=1>(L)\n Y = Mul(X, F)", {"X": X, "W": X}),
        "No gradient can reach 'W'",
    ),
}


def test_each_refusal_of_the_table_has_a_case():
    assert set(REFUSALS) <= {name.split()[0] for name in REFUSED}


@pytest.mark.parametrize("name", REFUSED)
def test_a_form_without_gradient_is_refused_by_name(name):
    case, message = REFUSED[name]
    model, _ = build(case, case.opsets[-1], np.float32)
    if "ai.onnx.ml" in case.body:
        model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    with pytest.raises(NotTrainableError, match=message.replace("(", r"\(")) as caught:
        forward_backward_model(ir.from_proto(model), (), list(case.inputs))
    assert "'Y'" in str(caught.value) or "'V'" in str(caught.value)


def test_float64_indices_are_refused_before_the_builder_fails():
    model, _ = build(CASES["ScatterND"], 18, np.float64)
    with pytest.raises(NotTrainableError, match="ScatterND of type DOUBLE"):
        forward_backward_model(ir.from_proto(model), (), ["X", "W"])


#: An If reads a value that gradients pass: the builder ends the interpreter.
IF_AFTER = """g (float[N, 3] X, bool c) => (float[N, 3] Y) <float[3, 3] W = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
    Z = MatMul(X, W)
    Y = If (c) <then_branch = a () => (float[N, 3] A) { A = Neg(Z) },
                else_branch = b () => (float[N, 3] B) { B = Abs(Z) }>
}"""


def test_an_if_after_a_weight_is_refused_with_its_place(parse):
    with pytest.raises(NotTrainableError, match=r"If has no gradient.*output 'Y'"):
        forward_backward_model(ir.from_proto(parse(IF_AFTER)), ["W"])


def test_an_if_beside_the_path_stays_in_place(parse, execute):
    # the class that an If computes from the scores is returned, and no gradient is taken for it
    text = IF_AFTER.replace("=> (float[N, 3] Y)", "=> (float[N, 3] Z, int64[N] L)")
    text = text.replace(
        "(float[N, 3] A) { A = Neg(Z) }", "(int64[N] A) { A = ArgMax<axis=1, keepdims=0>(Z) }"
    )
    text = text.replace(
        "(float[N, 3] B) { B = Abs(Z) }", "(int64[N] B) { B = ArgMin<axis=1, keepdims=0>(Z) }"
    )
    model = parse(text.replace("Y = If", "L = If"))
    both = ir.to_proto(forward_backward_model(ir.from_proto(model), ["W"]))
    feeds = {"X": np.eye(3, dtype=np.float32), "W": np.diag([1, 2, 3]).astype(np.float32)}
    for condition, label in ((True, [0, 1, 2]), (False, [1, 0, 0])):
        found = execute(both, {**feeds, "c": np.array(condition), "Z_grad": np.ones((3, 3), np.float32)})
        assert found["L"].tolist() == label
        np.testing.assert_array_equal(found["W_grad"], np.ones((3, 3)))


@pytest.mark.parametrize(
    "before",
    [
        "H = my.domain.Unknown(X)",
        "H = ai.onnx.ml.Normalizer(X)",
        "H = Softplus(X)",
        "H = If (c) <then_branch = a () => (float[N, 3] A) { A = Neg(X) }, "
        "else_branch = b () => (float[N, 3] B) { B = Abs(X) }>",
    ],
)
def test_any_operator_may_precede_the_first_weight(parse, before):
    model = parse(
        "g (float[N, 3] X, bool c) => (float[N, 3] Y) "
        "<float[3, 3] W = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[N, 3] H> {"
        f"{before}\n Y = MatMul(H, W) }}"
    )
    both = forward_backward_model(ir.from_proto(model), ["W"])
    assert [value.name for value in both.graph.outputs] == ["Y", "W_grad"]
    assert both.graph[0].op_type == model.graph.node[0].op_type


@pytest.mark.parametrize("opset", [12, 22])
def test_an_opset_out_of_range_is_refused_with_the_range(opset, parse):
    model = ir.from_proto(parse("g (real[N, 3] X) => (real[N, 3] Y) { Y = Tanh(X) }", opset))
    with pytest.raises(NotTrainableError, match=rf"opset {opset}: .* opsets 13 to 21.*convert_version"):
        forward_backward_model(model, [], ["X"])


def test_differentiable_reads_operator_types_and_attributes():
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, 3]))
    assert orttraining.differentiable(ir.node("Tanh", [x])) is None
    assert orttraining.differentiable(ir.node("ArgMax", [x])) is None
    assert (
        orttraining.differentiable(ir.node("Einsum", [x])) == "Einsum has no gradient in onnxruntime-training"
    )
    assert "auto_pad" in orttraining.differentiable(ir.node("Conv", [x], {"auto_pad": "SAME_LOWER"}))


def test_an_invalid_graph_is_refused_in_the_runtime_s_words(parse):
    model = parse("g (float[N, 5] X, float[4, 3] W) => (float[N, 3] Y) { Y = MatMul(X, W) }")
    with pytest.raises(GraphError, match="Incompatible dimensions"):
        forward_backward_model(ir.from_proto(model), (), ["X"])


def test_a_failure_of_the_builder_is_no_crash(parse):
    model = parse("g (float[N, 4] X) => (float[N, 4] Y) { Y = Softplus(X) }")
    with pytest.raises(EngineError, match="Softplus"):
        orttraining.build_gradient_model(model, [], ["X"])


def test_the_builder_returns_gradients_of_weights_in_the_order_asked(parse):
    model = parse(
        "g (float[N, 4] X, float[4] b, float[4] a) => (float[N, 4] Y) { Z = Mul(X, a)\n Y = Add(Z, b) }"
    )
    native = orttraining.build_gradient_model(model, ["b", "a"], ["X"])
    assert [value.name for value in native.model.graph.output] == ["X_grad", "b_grad", "a_grad"]
    assert "YieldOp" in [node.op_type for node in native.model.graph.node]
    assert [node.op_type for node in native.forward.graph.node] == ["Mul", "Add"]
    assert native.info.initializer_names_to_train == ["b", "a"]


def test_dropout_scales_the_kept_elements(parse, execute):
    model = parse("g (float[N, 4] X, float r, bool t) => (float[N, 4] Y) { Y, m = Dropout(X, r, t) }")
    model.graph.initializer.extend(
        [numpy_helper.from_array(np.float32(0.5), "r"), numpy_helper.from_array(np.array(True), "t")]
    )
    del model.graph.input[1:]
    both = ir.to_proto(forward_backward_model(ir.from_proto(model), (), ["X"]))
    x, seed = np.ones((50, 4), np.float32), np.full((50, 4), 3, np.float32)
    found = execute(both, {"X": x, "Y_grad": seed})
    # the same elements, twice as large, forward and backward
    assert set(np.unique(found["Y"])) == {0.0, 2.0}
    np.testing.assert_array_equal(found["X_grad"], 3 * found["Y"])


def test_a_frozen_tensor_may_be_read_any_number_of_times(parse, differences, execute):
    # some gradients come with those of frozen operands, which the builder then defines twice
    text = """g (real[N, 2] X, real[N, 2] Z, real[2] s, real[2] b) => (real[N, 6] Y) {
        A = LayerNormalization(X, s, b)
        B = Mul(A, X)
        C = LayerNormalization(B, s, b)
        D = Concat<axis=1>(C, Z, Z)
        E = Concat<axis=1>(Z, X, C)
        Y = Mul(D, E)
    }"""
    rng = np.random.default_rng(0)
    feeds = {"X": rng.normal(size=(3, 2)), "Z": rng.normal(size=(3, 2)), "s": np.ones(2), "b": np.ones(2)}
    seed = rng.normal(size=(3, 6))
    both = forward_backward_model(ir.from_proto(parse(text, real="double")), (), ["X"])
    found = execute(ir.to_proto(both), {**feeds, "Y_grad": seed})
    (expected,) = differences(parse(text, real="double"), feeds, [seed], ["X"])
    np.testing.assert_allclose(found["X_grad"], expected, rtol=1e-4, atol=1e-4)


@pytest.fixture
def forget_bindings():
    orttraining.bindings.cache_clear()
    yield
    orttraining.bindings.cache_clear()


@pytest.mark.usefixtures("forget_bindings")
def test_a_missing_runtime_has_the_usual_error(monkeypatch):
    def fail():
        raise MissingRuntimeError("No onnxruntime is installed.")

    monkeypatch.setattr(orttraining, "load_runtime", fail)
    assert not orttraining.is_available()
    with pytest.raises(MissingRuntimeError, match="No onnxruntime is installed"):
        orttraining.bindings()


@pytest.mark.usefixtures("forget_bindings")
def test_a_runtime_that_cannot_train_names_the_edition_to_install(monkeypatch):
    class Plain:
        __version__ = "1.31.1"

    monkeypatch.setattr(orttraining, "load_runtime", lambda: Plain)
    monkeypatch.setattr(importlib, "import_module", lambda name: Plain)
    assert not orttraining.is_available()
    with pytest.raises(
        MissingRuntimeError,
        match=r"onnxruntime 1\.31\.1 cannot build gradients.*engine='portable'.*"
        r"pip install .*onnxruntime-training-cpu==1\.19\.2",
    ) as caught:
        orttraining.bindings()
    assert isinstance(caught.value, ImportError)


def test_the_training_edition_is_found():
    assert orttraining.is_available()
