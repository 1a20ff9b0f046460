"""Products of quantized numbers: the gradients of the products of the real numbers that they represent."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxsgd.exceptions import NotTrainableError
from onnxsgd.gradient.portable import differentiate

RNG = np.random.default_rng(0)


def gradient_of(text, **arrays):
    """Return the result of Y, and the gradient of sum(Y seed) by X, with the seed, on onnxruntime."""
    nodes = onnx.parser.parse_graph("g () => () {" + text + "}").node
    held = [numpy_helper.from_array(a, name) for name, a in arrays.items() if name != "X"]
    x = arrays["X"].astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", *x.shape[1:]])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)],
        held,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

    def run(proto, feeds):
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, feeds)

    y = run(model, {"X": x})[0]
    seed = RNG.normal(size=y.shape).astype(np.float32)
    gradient = ir.to_proto(differentiate(ir.from_proto(model), ["Y"], ["X"]))
    return y, run(gradient, {"X": x, "Y_grad": seed})[1], seed


DYNAMIC = "Q, A, P = DynamicQuantizeLinear(X) {product} F = Cast<to = 1>(I) S = Mul(A, B) Y = Mul(F, S)"


@pytest.mark.parametrize("point", [None, np.array(7, np.uint8), RNG.integers(0, 255, 5).astype(np.uint8)])
@pytest.mark.parametrize("shape", [(6, 4), (3, 2, 4), (2, 2, 3, 4)])
def test_matrices_after_a_dynamic_quantization(shape, point):
    X = RNG.normal(size=shape)
    levels, scale = (
        RNG.integers(0, 255, (4, 5)).astype(np.uint8),
        RNG.uniform(0.01, 0.03, 5).astype(np.float32),
    )
    given = {} if point is None else {"Z": point}
    product = f"I = MatMulInteger(Q, W, P{', Z' if given else ''})"
    y, dx, seed = gradient_of(DYNAMIC.format(product=product), X=X, W=levels, B=scale, **given)
    weight = (levels.astype(np.float64) - (0 if point is None else point)) * scale
    # a level is a 255th of the range
    np.testing.assert_allclose(y, X @ weight, atol=0.51 * np.ptp(X) / 255 * np.abs(weight).sum(axis=0).max())
    np.testing.assert_allclose(dx, seed @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("point", [None, np.array(9, np.uint8)])
@pytest.mark.parametrize("how", ["", "<strides = [2, 1], pads = [1, 0, 1, 2], dilations = [1, 2]>"])
def test_convolutions_after_a_dynamic_quantization(how, point):
    torch = pytest.importorskip("torch", reason="the comparison with torch needs torch")
    X = RNG.normal(size=(2, 3, 7, 8))
    levels, scale = RNG.integers(0, 255, (4, 3, 3, 2)).astype(np.uint8), np.array(0.02, np.float32)
    given = {} if point is None else {"Z": point}
    product = f"I = ConvInteger{how}(Q, W, P{', Z' if given else ''})"
    y, dx, seed = gradient_of(DYNAMIC.format(product=product), X=X, W=levels, B=scale, **given)
    weight = torch.tensor((levels.astype(np.float64) - (0 if point is None else point)) * scale)
    leaf = torch.tensor(X, requires_grad=True)
    settings = {"stride": (2, 1), "dilation": (1, 2)} if how else {}
    padded = torch.nn.functional.pad(leaf, (0, 2, 1, 1)) if how else leaf
    expected = torch.nn.functional.conv2d(padded, weight, **settings)
    expected.backward(torch.tensor(seed).double())
    np.testing.assert_allclose(y, expected.detach().numpy(), atol=0.05 * np.abs(y).max())
    np.testing.assert_allclose(dx, leaf.grad.numpy(), rtol=1e-4, atol=1e-4)


def test_a_static_quantization_has_no_gradient_outside_of_its_range():
    X = np.array([[-9.0, 0.3, 0.5], [0.1, 9.0, -0.2]])
    levels = RNG.integers(-9, 9, (3, 2)).astype(np.int8)
    text = "Q = QuantizeLinear(X, A, P) I = MatMulInteger(Q, W, P) F = Cast<to = 1>(I) Y = Mul(F, A)"
    _, dx, seed = gradient_of(text, X=X, W=levels, A=np.array(0.01, np.float32), P=np.array(128, np.uint8))
    expected = (seed @ levels.T.astype(np.float64)) * (np.abs(X) < 1)
    np.testing.assert_allclose(dx, expected, rtol=1e-4, atol=1e-5)


def test_data_as_the_second_operand_are_refused():
    text = "Q, A, P = DynamicQuantizeLinear(X) I = MatMulInteger(W, Q, Z, P) Y = Cast<to = 1>(I)"
    with pytest.raises(NotTrainableError, match="MatMulInteger .*no gradient with respect to its input 1"):
        gradient_of(text, X=RNG.normal(size=(3, 2)), W=np.ones((4, 3), np.uint8), Z=np.array(0, np.uint8))
