"""The documented value at each point without a derivative, and slopes without overflow far from zero."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxsgd.gradient.portable import differentiate

KINKS = [
    ("Y = Relu(A)", [0.0], [0.0]),
    ("Y = LeakyRelu<alpha = 0.125>(A)", [0.0], [0.125]),
    ("Y = Abs(A)", [0.0], [0.0]),
    ("Y = Elu<alpha = 0.5>(A)", [0.0], [0.5]),
    ("Y = HardSigmoid(A)", [-2.5, 2.5], [0.0, 0.0]),
    ("Y = ReduceMax(A)", [1.0, 3.0, 3.0], [0.0, 0.5, 0.5]),
    ("Y = ReduceMin(A)", [1.0, 1.0, 3.0], [0.5, 0.5, 0.0]),
    ("Y = ReduceL2(A)", [0.0, 0.0], [0.0, 0.0]),
    ("Y = ReduceL1(A)", [0.0, 2.0], [0.0, 1.0]),
]


@pytest.mark.parametrize(("text", "at", "expected"), KINKS)
def test_kinks(gradients, text, at, expected):
    np.testing.assert_allclose(gradients(text, A=np.array(at))[0], expected, rtol=1e-15)


def test_operands_that_tie_share_the_gradient(gradients):
    a, b = gradients("Y = Max(A, B)", A=np.array([1.0, 2.0, 3.0]), B=np.array([2.0, 2.0, 2.0]))
    np.testing.assert_array_equal(a, [0.0, 0.5, 1.0])
    np.testing.assert_array_equal(b, [1.0, 0.5, 0.0])


def test_clip_lets_gradients_pass_at_its_bounds(gradients):
    bounds = {"L": np.array(-1.0), "H": np.array(1.0)}
    a, low, high = gradients("Y = Clip(A, L, H)", A=np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), **bounds)
    np.testing.assert_array_equal(a, [0.0, 1.0, 1.0, 1.0, 0.0])
    assert (low, high) == (1.0, 1.0)


def test_the_first_maximum_of_a_window_takes_the_gradient(gradients):
    image = np.array([[[[1.0, 3.0, 3.0, 2.0]]]])
    found = gradients("Y = MaxPool<kernel_shape = [1, 2], strides = [1, 2]>(A)", A=image)[0]
    np.testing.assert_array_equal(found, [[[[0.0, 1.0, 1.0, 0.0]]]])


def test_the_first_maximum_of_a_window_is_that_of_the_first_row(gradients):
    image = np.array([[[[0.0, 3.0, 1.0, 1.0], [3.0, 3.0, 1.0, 1.0]]]])
    found = gradients("Y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(A)", A=image)[0]
    np.testing.assert_array_equal(found, [[[[0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_powers_at_zero(gradients):
    base, exponent = gradients("Y = Pow(A, B)", A=np.zeros(4), B=np.array([0.0, 1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(base, [0.0, 1.0, 0.0, 0.0])
    np.testing.assert_array_equal(exponent, np.zeros(4))


STABLE = [
    ("Celu", 0.0, 1.0),
    ("Elu", 0.0, 1.0),
    ("Gelu", 0.0, 1.0),
    ("HardSwish", 0.0, 1.0),
    ("Mish", 0.0, 1.0),
    ("Selu", 0.0, 1.0507009873554805),
    ("Sigmoid", 0.0, 0.0),
    ("Softplus", 0.0, 1.0),
    ("Softsign", 1e-8, 1e-8),
    ("Tanh", 0.0, 0.0),
]


@pytest.fixture
def run_single():
    """Return a function that evaluates the gradient of a few nodes on onnxruntime, in float32."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1

    def run(text, array):
        shape = ", ".join(map(str, array.shape))
        model = (
            f'<ir_version: 9, opset_import: ["": 20]> g (float[{shape}] A) => (float[{shape}] Y) {{ {text} }}'
        )
        gradient = ir.to_proto(differentiate(ir.from_proto(onnx.parser.parse_model(model)), ["Y"], ["A"]))
        session = runtime.InferenceSession(gradient.SerializeToString(), options, ["CPUExecutionProvider"])
        seed = np.linspace(1, 2, array.size, dtype=np.float32).reshape(array.shape)
        return session.run(["A_grad"], {"A": array.astype(np.float32), "Y_grad": seed})[0] / seed

    return run


@pytest.mark.parametrize(("name", "low", "high"), STABLE)
def test_slopes_far_from_zero_are_their_limits(run_single, name, low, high):
    found = run_single(f"Y = {name}(A)", np.array([-1e4, 1e4]))
    np.testing.assert_allclose(found, [low, high], rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_scores_of_ten_thousand_have_finite_gradients(run_single, name):
    assert np.isfinite(run_single(f"Y = {name}(A)", np.array([[-1e4, 0.0, 1e4]]))).all()


def test_an_upper_bound_below_the_lower_one_is_the_result(gradients):
    bounds = {"L": np.array(2.0), "H": np.array(1.0)}
    x, low, high = gradients("Y = Clip(A, L, H)", A=np.array([-3.0, 1.5, 4.0]), **bounds)
    np.testing.assert_array_equal(x, [0.0, 0.0, 0.0])
    assert (low, high) == (0.0, 3.0)
