"""Quantization: rounding has the gradient of the identity, and clipped numbers have none."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.portable import differentiate

LEVELS = np.random.default_rng(0).integers(-128, 128, size=(4, 6)).astype(np.int8)
POINT = np.array(3, dtype=np.int8)
POINTS = np.array([3, 0, -7, 5], dtype=np.int8)
BLOCKS = np.array([[3, 0], [-7, 5], [1, 2], [0, 0]], dtype=np.int8)

SCALES = [
    ("Y = DequantizeLinear(Q, S)", {"S": ()}, 19),
    ("Y = DequantizeLinear(Q, S, Z)", {"S": (), "Z": POINT}, 19),
    ("Y = DequantizeLinear<axis = 0>(Q, S, Z)", {"S": (4,), "Z": POINTS}, 19),
    ("Y = DequantizeLinear(Q, S)", {"S": (6,)}, 19),
    ("Y = DequantizeLinear<axis = -1>(Q, S)", {"S": (6,)}, 21),
    ("Y = DequantizeLinear<axis = 1, block_size = 3>(Q, S, Z)", {"S": (4, 2), "Z": BLOCKS}, 21),
    ("Y = DequantizeLinear<axis = 0, block_size = 3>(Q, S)", {"S": (2, 6)}, 21),
]


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize(("text", "operands", "opset"), SCALES)
def test_scales_of_dequantization(check, text, operands, opset, dims):
    check(text, {"Q": LEVELS, **operands}, dims, opset=opset, single=True, rtol=1e-5)


@pytest.fixture
def gradients():
    """Return the function that computes the gradients of the sum of Y on onnxruntime, in float32."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1

    def run(text, dims="known", **arrays):
        model, real = build(text, dims, **arrays)
        gradient = ir.to_proto(differentiate(ir.from_proto(model), ["Y"], list(real)))
        session = runtime.InferenceSession(gradient.SerializeToString(), options, ["CPUExecutionProvider"])
        before = runtime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        y = before.run(["Y"], real)[0]
        names = [value.name for value in gradient.graph.output[1:]]
        return session.run(names, {**real, "Y_grad": seed_of(y.shape)})

    return run


def seed_of(shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def build(text, dims="known", **arrays):
    """Return a model of single precision, and its real operands."""
    nodes = onnx.parser.parse_graph("g () => () {" + text + "}").node
    real = {name: a.astype(np.float32) for name, a in arrays.items() if a.dtype.kind == "f"}
    shapes = {name: a.shape if dims == "known" else [None] * a.ndim for name, a in real.items()}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    held = [numpy_helper.from_array(a, name) for name, a in arrays.items() if name not in real]
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "quantized", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), real


#: Far enough from the ties of rounding; some are clipped at either end.
X = np.array([-3.0, -2.03, -0.61, -0.24, 0.04, 0.36, 0.93, 1.22, 1.27, 1.31, 2.0, 9.0]).reshape(3, 4)
SCALE = 0.01


def learned(x, scale, point, low=-128, high=127):
    """Return the gradients of a quantized and dequantized x, element by element: by x, and by the scale."""
    level = np.rint(x / scale) + point
    inside = (level >= low) & (level <= high)
    return inside, np.where(inside, np.rint(x / scale) - x / scale, np.clip(level, low, high) - point)


ROUND_TRIP = "Q = QuantizeLinear{how}(X, S, Z) {between} Y = DequantizeLinear{how}({then}, S, Z)"


@pytest.mark.parametrize("dims", ["known", "hidden"])
def test_straight_through_and_learned_step_size(gradients, dims):
    text = ROUND_TRIP.format(how="", between="", then="Q")
    x, scale = gradients(text, dims, X=X, S=np.array(SCALE), Z=POINT)
    inside, step = learned(X, SCALE, 3)
    assert 0 < inside.sum() < inside.size
    np.testing.assert_allclose(x, seed_of(X.shape) * inside, rtol=1e-5)
    np.testing.assert_allclose(scale, (seed_of(X.shape) * step).sum(), rtol=1e-3)


@pytest.mark.parametrize("dims", ["known", "hidden"])
@pytest.mark.parametrize("axis", [0, -1])
def test_a_scale_for_each_channel(gradients, axis, dims):
    count = X.shape[axis]
    scales, points = np.linspace(0.01, 0.02, count), np.arange(count, dtype=np.uint8) + 100
    text = ROUND_TRIP.format(how=f"<axis = {axis}>", between="", then="Q")
    x, scale = gradients(text, dims, X=X, S=scales, Z=points)
    along = (slice(None), None) if axis == 0 else (None, slice(None))
    inside, step = learned(X, scales[along], points[along].astype(int), 0, 255)
    np.testing.assert_allclose(x, seed_of(X.shape) * inside, rtol=1e-5)
    np.testing.assert_allclose(scale, (seed_of(X.shape) * step).sum(axis=1 + axis), rtol=1e-3)


def test_a_scale_for_each_block(gradients):
    scales = np.array([[0.011, 0.023], [0.017, 0.041], [0.031, 0.013]])
    text = ROUND_TRIP.format(how="<axis = 1, block_size = 2>", between="", then="Q")
    x, scale = gradients(text, X=X, S=scales, Z=np.zeros((3, 2), dtype=np.int8))
    inside, step = learned(X, np.repeat(scales, 2, axis=1), 0)
    np.testing.assert_allclose(x, seed_of(X.shape) * inside, rtol=1e-5)
    np.testing.assert_allclose(scale, (seed_of(X.shape) * step).reshape(3, 2, 2).sum(axis=2), rtol=1e-3)


MOVES = [
    ("T = Transpose<perm = [1, 0]>(Q)", lambda g: g.T, (4, 3)),
    ("T = Reshape(Q, I)", lambda g: g.reshape(3, 4), (12,)),
    ("T = Concat<axis = 0>(Q, Q)", lambda g: g[:3] + g[3:], (6, 4)),
    ("T = Gather(Q, J)", lambda g: np.stack([g[1], g[0] + g[2], 0 * g[0]]), (3, 4)),
]


@pytest.mark.parametrize(("between", "back", "shape"), MOVES)
def test_gradients_pass_moves_of_quantized_numbers(gradients, between, back, shape):
    text = ROUND_TRIP.format(how="", between=between, then="T")
    held = {"I": np.array([-1]), "J": np.array([1, 0, 1])}
    x, scale = gradients(text, X=X, S=np.array(SCALE), Z=POINT, **held)
    inside, step = learned(X, SCALE, 3)
    np.testing.assert_allclose(x, back(seed_of(shape)) * inside, rtol=1e-5)
    np.testing.assert_allclose(scale, (back(seed_of(shape)) * step).sum(), rtol=1e-3)


def test_a_cast_of_quantized_numbers_keeps_the_gradient_real(gradients):
    text = "Q = QuantizeLinear(X, S, Z) Y = Cast<to = 1>(Q)"
    x, _ = gradients(text, X=X, S=np.array(SCALE), Z=POINT)
    np.testing.assert_allclose(x, seed_of(X.shape) * learned(X, SCALE, 3)[0] / np.float32(SCALE), rtol=1e-5)


def test_casts_to_eight_bits_and_back_pass_the_gradient():
    model, _ = build("Q = Cast<to = 17>(X) Y = Cast<to = 1>(Q)", X=X)
    gradient = ir.to_proto(differentiate(ir.from_proto(model), ["Y"], ["X"]))
    feeds = {"X": X.astype(np.float32), "Y_grad": seed_of(X.shape)}
    found = ReferenceEvaluator(gradient).run(["X_grad"], feeds)
    np.testing.assert_array_equal(found[0], seed_of(X.shape))


def test_arithmetic_of_quantized_numbers_is_refused():
    text = "Q = QuantizeLinear(X, S, Z) C = Cast<to = 6>(Q) M = Mul(C, I) Y = Cast<to = 1>(M)"
    model, _ = build(text, X=X, S=np.array(SCALE), Z=POINT, I=np.array(2, dtype=np.int32))
    with pytest.raises(NotTrainableError, match="Mul .* reads the quantized tensor 'C', whose gradient"):
        differentiate(ir.from_proto(model), ["Y"], ["X"])


DYNAMIC = "Q, S, Z = DynamicQuantizeLinear(X) Y = DequantizeLinear(Q, S, Z)"


@pytest.mark.parametrize("dims", ["known", "hidden"])
def test_a_dynamic_quantization_passes_all_gradients(gradients, dims):
    """Its range holds all numbers; its scale counts as a constant."""
    (x,) = gradients(DYNAMIC, dims, X=X)
    np.testing.assert_allclose(x, seed_of(X.shape), rtol=1e-5)


def test_the_scale_of_a_dynamic_quantization_alone_has_the_gradient_of_the_range(gradients):
    (x,) = gradients("Q, Y, Z = DynamicQuantizeLinear(X)", X=X)
    expected = np.zeros(X.size)
    expected[[X.argmax(), X.argmin()]] = seed_of(()) / 255, -seed_of(()) / 255
    np.testing.assert_allclose(x, expected.reshape(X.shape), rtol=1e-5)


def test_comparisons_of_quantized_numbers_have_no_slope(gradients):
    text = "Q = QuantizeLinear(X, S, Z) C = Cast<to = 6>(Q) B = Greater(C, I) Y = Cast<to = 1>(B)"
    x, _ = gradients(text, X=X, S=np.array(SCALE), Z=POINT, I=np.array(0, dtype=np.int32))
    np.testing.assert_array_equal(x, np.zeros(X.shape))


def test_torch_has_the_same_gradients(gradients):
    torch = pytest.importorskip("torch")
    text = ROUND_TRIP.format(how="", between="", then="Q")
    found = gradients(text, X=X, S=np.array(SCALE), Z=POINT)
    leaves = [torch.tensor(np.asarray(a, dtype=np.float32), requires_grad=True) for a in (X, [SCALE])]
    point = torch.tensor([3.0])
    y = torch._fake_quantize_learnable_per_tensor_affine(*leaves, point, -128, 127, 1.0)
    y.backward(torch.tensor(seed_of(X.shape)))
    for mine, leaf in zip(found, leaves, strict=True):
        np.testing.assert_allclose(mine.ravel(), leaf.grad.numpy().ravel(), rtol=1e-3)
