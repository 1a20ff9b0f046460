"""check_gradients finds wrong gradients, and passes right ones."""

from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxsgd import losses
from onnxsgd.exceptions import GradientError, GraphError, ParameterError, ParameterTypeError
from onnxsgd.gradient.portable.rules.scan import scan
from onnxsgd.testing import check_gradients


@dataclass(frozen=True)
class LogCosh(losses.Loss):
    """A user's loss: value only, the engine differentiates."""

    def value(self, op, y_true, raw_prediction):
        r = op.Sub(raw_prediction, y_true)
        return op.Sub(op.Add(r, op.Softplus(op.Mul(r, -2.0))), 0.6931471805599453)


@dataclass(frozen=True)
class WrongSign(LogCosh):
    def gradient(self, op, y_true, raw_prediction):
        return op.Tanh(op.Sub(y_true, raw_prediction))


@dataclass(frozen=True)
class WrongFactor(losses.Hinge):
    def gradient(self, op, y_true, raw_prediction):
        return op.Mul(super().gradient(op, y_true, raw_prediction), 1.00001)


@dataclass(frozen=True)
class WrongShape(LogCosh):
    def gradient(self, op, y_true, raw_prediction):
        return op.ReduceSum(op.Tanh(op.Sub(raw_prediction, y_true)), axes=[1], keepdims=1)


@dataclass(frozen=True)
class Invalid(losses.Loss):
    def value(self, op, y_true, raw_prediction):
        return op.NoSuchOperator(raw_prediction)


@dataclass(frozen=True)
class WrongArity(losses.Loss):
    def value(self, op, y_true, raw_prediction):
        return op.Gather(raw_prediction, y_true)


@dataclass(frozen=True)
class NotANumber(losses.SquaredError):
    def gradient(self, op, y_true, raw_prediction):
        return op.Log(op.Mul(op.Mul(raw_prediction, raw_prediction), -1.0))


def test_a_right_gradient_passes_with_a_report():
    report = check_gradients(losses.Huber(epsilon=0.5), n_samples=4, max_elements=7)
    assert report.n_checked == 7
    assert report.max_error < 1e-7
    assert report.worst.startswith("raw_prediction[")
    assert report.gradient == pytest.approx(report.difference, abs=1e-7)


@pytest.mark.parametrize("loss", [LogCosh()])
def test_a_loss_without_gradient_is_differentiated_by_the_engine(loss):
    assert check_gradients(loss, dtype=np.float32).n_checked == 15


@pytest.mark.parametrize("loss", [WrongSign(), WrongFactor(), NotANumber()])
def test_a_wrong_gradient_is_found(loss):
    with pytest.raises(AssertionError, match=r"The gradient by raw_prediction\[\d, \d\] is .* elements do"):
        check_gradients(loss)


def test_tolerances_are_those_given():
    assert check_gradients(WrongFactor(), rtol=1e-4).n_checked == 15
    with pytest.raises(AssertionError):
        check_gradients(losses.LogLoss(), rtol=0, atol=0)


def test_the_worst_element_is_named():
    y, z = np.zeros((2, 3)), np.zeros((2, 3))
    z[1, 2] = 3  # tanh(0) is 0, whatever its sign
    with pytest.raises(AssertionError, match=r"raw_prediction\[1, 2\] .*1 of 6 elements"):
        check_gradients(WrongSign(), feeds={"y_true": y, "raw_prediction": z})


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (Invalid(), "Opset 18 has no operator NoSuchOperator"),
        (WrongArity(), r"formulas of WrongArity\(\) make no valid ONNX graph: .*Gather"),
        (WrongShape(), r"gradient of WrongShape\(\) has shape \(5, 1\): it must be \(5, 3\)"),
    ],
)
def test_formulas_are_checked(loss, message):
    with pytest.raises(GraphError, match=message):
        check_gradients(loss)


def softmax_layer(dtype="float"):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        layer ({dtype}[N, 4] X, int64[N] I) => ({dtype}[N, 3] P, int64[N] J)
        {{ J = Identity(I) H = MatMul(X, W) Z = Add(H, b) P = Softmax(Z) }}"""
    )
    rng = np.random.default_rng(0)
    numpy_type = {"float": np.float32, "double": np.float64}[dtype]
    for name, shape in (("W", (4, 3)), ("b", (3,))):
        array = rng.normal(size=shape).astype(numpy_type)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize(
    ("model_type", "dtype", "error"),
    [
        ("float", None, 1e-5),
        ("float", np.float64, 1e-8),
        ("double", None, 1e-8),
        ("double", np.float32, 1e-5),
    ],
)
def test_the_gradients_of_a_model_pass(model_type, dtype, error):
    report = check_gradients(softmax_layer(model_type), output="P", dtype=dtype)
    assert report.n_checked == 20 + 12 + 3  # by X, W and b
    assert report.max_error < error


def test_weights_and_inputs_are_those_named():
    assert check_gradients(softmax_layer(), output=0, weights=["b"], inputs=[]).n_checked == 3
    assert check_gradients(softmax_layer(), output=0, weights=[], inputs=["X"], n_samples=2).n_checked == 8


def test_feeds_are_used():
    # far from 0 the softmax is flat: every gradient is 0
    report = check_gradients(softmax_layer(), output=0, inputs=[], feeds={"X": np.full((2, 4), 1e3)})
    assert report.gradient == 0
    assert report.difference == 0


def wide(size):
    """Return a small graph that declares rows of `size` columns."""
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[N, {size}] X) => (float[N, {size}] Y) <float w = {{2.0}}> {{ Y = Mul(X, w) }}"""
    )


@pytest.mark.parametrize(
    ("target", "arguments", "error", "message"),
    [
        (losses.Hinge(), {"weights": ["w"]}, ParameterError, "are for models"),
        (losses.Hinge(), {"feeds": {"z": 1}}, ParameterError, r"feeds names \['z'\]: the inputs are \['raw"),
        (losses.Hinge(), {"eps": 0}, ParameterError, "eps=0 is not accepted: it must be > 0"),
        (losses.Hinge(), {"n_samples": 0}, ParameterError, "n_samples=0"),
        (losses.Hinge(), {"max_elements": -1}, ParameterError, "max_elements=-1"),
        (losses.Hinge(), {"dtype": np.float16}, ParameterError, "dtype=.*float16.* float32 or float64"),
        (losses.Hinge(), {"dtype": "no"}, ParameterError, "dtype='no'"),
        (wide(2**28), {}, ParameterError, rf"'X' would be drawn in the shape \[5, {2**28}\]"),
        (losses.Hinge, {}, ParameterTypeError, "a Loss or an onnx.ModelProto, not ABCMeta"),
        (softmax_layer(), {}, ParameterError, r"2 outputs, \['P', 'J'\]"),
        (
            softmax_layer(),
            {"output": 0, "feeds": {"Y": 1}},
            ParameterError,
            r"\['Y'\]: the inputs are \['I', 'X'\]",
        ),
        (softmax_layer(), {"output": 0, "weights": ["v"]}, ParameterError, "'v'"),
    ],
)
def test_refusals_name_the_argument(target, arguments, error, message):
    with pytest.raises(error, match=message):
        check_gradients(target, **arguments)


def test_an_input_without_a_type_is_refused():
    model = softmax_layer()
    del model.graph.output[1], model.graph.node[0], model.graph.input[1]
    unknown = onnx.helper.make_tensor_value_info("U", onnx.TensorProto.UNDEFINED, [3])
    model.graph.input.append(unknown)
    with pytest.raises(GraphError, match="'U' has no type or no shape"):
        check_gradients(model)


@dataclass(frozen=True)
class Overflowing(losses.Loss):
    """The logistic loss as textbooks write it."""

    targets = "binary"

    def value(self, op, y_true, raw_prediction):
        return op.Log(op.Add(op.Exp(op.Neg(op.Mul(y_true, raw_prediction))), 1.0))

    def gradient(self, op, y_true, raw_prediction):
        return op.Neg(op.Mul(y_true, op.Sigmoid(op.Neg(op.Mul(y_true, raw_prediction)))))


def test_a_loss_that_overflows_is_refused():
    with pytest.raises(GradientError, match="value of .* is not finite at raw_prediction = -?1000") as caught:
        check_gradients(Overflowing())
    assert isinstance(caught.value, AssertionError)


SCAN = """<ir_version: 8, opset_import: ["": 18]>
g (float[N, 3, 4] X) => (float[N, 3] y) <float[3] W = {0.5, -0.2, 0.3}, int64[1] axis = {2}> {
    h = ReduceSum <keepdims = 0> (X, axis)
    y = Scan <num_scan_inputs = 1, scan_input_axes = [2], scan_input_directions = [1], body = b (s, x) => (k)
        { p = Mul(s, W) q = Add(p, x) k = Tanh(q) }> (h, X)
}
"""


def test_scans_along_other_axes_are_judged(monkeypatch):
    model = onnx.parser.parse_model(SCAN)
    assert check_gradients(model, n_samples=2).max_error < 1e-5
    monkeypatch.setattr(
        "onnxsgd.gradient.portable.rules.control.scan", lambda *parts, backwards: scan(*parts)
    )
    with pytest.raises(GradientError):
        check_gradients(model, n_samples=2)
