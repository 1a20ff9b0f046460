"""Losses: value and gradient against numpy in float64, scikit-learn, and the engine."""

import pickle

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, log_softmax, softmax, xlogy

from onnxsgd import DerivativeOptions, add_loss_output, losses
from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.gradient.derivative import onnx_derivative
from onnxsgd.graph.append import builder_of
from onnxsgd.testing import check_gradients


def excess(r, epsilon):
    return np.maximum(0, np.abs(r) - epsilon)


def shares_of_largest(z):
    largest = z == z.max(axis=1, keepdims=True)
    return largest / largest.sum(axis=1, keepdims=True)


def parts_of_focal(y, z):
    log_right = (y * log_softmax(z, axis=1)).sum(axis=1, keepdims=True)
    return log_right, ((1 - y) * softmax(z, axis=1)).sum(axis=1, keepdims=True)


def multinomial_focal(y, z):
    log_right, wrong = parts_of_focal(y, z)
    return -(wrong**1.3) * log_right


def multinomial_focal_slope(y, z):
    log_right, wrong = parts_of_focal(y, z)
    factor = 1.3 * np.exp(log_right) * wrong**0.3 * log_right - wrong**1.3
    return factor * (y - softmax(z, axis=1))


def normal(y, z):
    m, s = np.split(z, 2, axis=1)
    r, c = m - y[:, : m.shape[1]], np.clip(s, -60, 60)
    return (c + r**2 / np.exp(c) + abs(s - c)).sum(axis=1, keepdims=True) / 2


def normal_slope(y, z):
    m, s = np.split(z, 2, axis=1)
    r, c = m - y[:, : m.shape[1]], np.clip(s, -60, 60)
    return np.hstack([r / np.exp(c), np.where(abs(s) > 60, np.sign(s), 1 - r**2 / np.exp(c)) / 2])


# Of each loss: an instance whose kinks lie on multiples of 1/4, its value and its derivative in numpy, where
# y is the target and z the raw prediction.
CASES = {
    "squared_error": (losses.SquaredError(), lambda y, z: (z - y) ** 2 / 2, lambda y, z: z - y),
    "absolute_error": (losses.AbsoluteError(), lambda y, z: abs(z - y), lambda y, z: np.sign(z - y)),
    "elastic": (
        losses.Elastic(l1_weight=0.25, l2_weight=2),
        lambda y, z: abs(z - y) / 4 + 2 * (z - y) ** 2,
        lambda y, z: np.sign(z - y) / 4 + 4 * (z - y),
    ),
    "huber": (
        losses.Huber(epsilon=0.5),
        lambda y, z: np.where(abs(z - y) <= 0.5, (z - y) ** 2 / 2, abs(z - y) / 2 - 0.125),
        lambda y, z: np.clip(z - y, -0.5, 0.5),
    ),
    "epsilon_insensitive": (
        losses.EpsilonInsensitive(epsilon=0.25),
        lambda y, z: excess(z - y, 0.25),
        lambda y, z: np.where(abs(z - y) > 0.25, np.sign(z - y), 0),
    ),
    "squared_epsilon_insensitive": (
        losses.SquaredEpsilonInsensitive(epsilon=0.25),
        lambda y, z: excess(z - y, 0.25) ** 2,
        lambda y, z: 2 * np.sign(z - y) * excess(z - y, 0.25),
    ),
    "quantile": (
        losses.Quantile(quantile=0.875),
        lambda y, z: np.where(y >= z, 0.875 * (y - z), 0.125 * (z - y)),
        lambda y, z: np.where(y >= z, -0.875, 0.125),
    ),
    "log_cosh": (
        losses.LogCosh(),
        lambda y, z: np.logaddexp(z - y, y - z) - np.log(2),
        lambda y, z: np.tanh(z - y),
    ),
    "gaussian_nll": (losses.GaussianNLL(), normal, normal_slope),
    "poisson": (
        losses.Poisson(),
        lambda y, z: np.exp(z) - y - y * z + xlogy(y, y),
        lambda y, z: np.exp(z) - y,
    ),
    "gamma": (
        losses.Gamma(),
        lambda y, z: z - np.log(y) + y / np.exp(z) - 1,
        lambda y, z: 1 - y / np.exp(z),
    ),
    "tweedie": (
        losses.Tweedie(power=1.7),
        lambda y, z: np.exp(0.3 * z) / 0.3 - y**0.3 / 0.21 + y * np.exp(-0.7 * z) / 0.7,
        lambda y, z: np.exp(0.3 * z) - y * np.exp(-0.7 * z),
    ),
    "log_loss": (
        losses.LogLoss(),
        lambda y, z: np.logaddexp(0, z) - y * z,
        lambda y, z: 1 / (1 + np.exp(-z)) - y,
    ),
    "hinge": (
        losses.Hinge(),
        lambda y, z: np.maximum(0, 1 - y * z),
        lambda y, z: np.where(y * z <= 1, -y, 0),
    ),
    "squared_hinge": (
        losses.SquaredHinge(),
        lambda y, z: np.maximum(0, 1 - y * z) ** 2,
        lambda y, z: -2 * y * np.maximum(0, 1 - y * z),
    ),
    "modified_huber": (
        losses.ModifiedHuber(),
        lambda y, z: np.where(y * z >= -1, np.maximum(0, 1 - y * z) ** 2, -4 * y * z),
        lambda y, z: np.where(y * z >= -1, -2 * y * np.maximum(0, 1 - y * z), -4 * y),
    ),
    "perceptron": (
        losses.Perceptron(),
        lambda y, z: np.maximum(0, -y * z),
        lambda y, z: np.where(y * z <= 0, -y, 0),
    ),
    "multiclass_hinge": (
        losses.MulticlassHinge(),
        lambda y, z: (z + 1 - y).max(axis=1, keepdims=True) - (y * z).sum(axis=1, keepdims=True),
        lambda y, z: shares_of_largest(z + 1 - y) - y,
    ),
    "focal": (
        losses.Focal(gamma=1.3),
        lambda y, z: expit(-y * z) ** 1.3 * np.logaddexp(0, -y * z),
        lambda y, z: (
            -y * expit(-y * z) ** 1.3 * (1.3 * expit(y * z) * np.logaddexp(0, -y * z) + expit(-y * z))
        ),
    ),
    "multinomial log_loss": (
        losses.CrossEntropy(),
        lambda y, z: -(y * log_softmax(z, axis=1)).sum(axis=1, keepdims=True),
        lambda y, z: softmax(z, axis=1) - y,
    ),
    "multinomial focal": (losses.MultinomialFocal(gamma=1.3), multinomial_focal, multinomial_focal_slope),
}

TOLERANCE = {np.float32: {"rtol": 1e-5, "atol": 1e-6}, np.float64: {"rtol": 1e-12, "atol": 1e-14}}


def loss_model(loss, dtype, opset, *, gradient=True):
    type_ = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))
    y, z = (ir.Value(name=name, type=type_, shape=ir.Shape(["N", "K"])) for name in "yz")
    graph = ir.Graph([y, z], [], nodes=[], opset_imports={"": opset}, name="loss")
    op = builder_of(graph)
    graph.outputs.append(loss.value(op, y, z))
    if gradient:
        graph.outputs.append(loss.gradient(op, y, z))
    model = ir.to_proto(ir.Model(graph, ir_version=8))
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model, feeds):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def draw_data(loss, shape, seed, on_grid):
    """Targets of the right kind, and predictions; on multiples of 1/4, many lie at a kink exactly."""
    rng = np.random.default_rng(seed)
    count = len(loss.score_factors)
    z, y = 2 * rng.normal(size=(shape[0], shape[1] * count)), np.tile(rng.normal(size=shape), (1, count))
    if loss.targets == "sign":
        y = rng.choice([-1.0, 1.0], size=shape)
    elif loss.targets == "indicator":
        y = np.eye(shape[1])[rng.integers(shape[1], size=shape[0])]
    elif loss.targets != "real":
        y = np.abs(y) + 0.25 * (loss.targets == "positive")
    return (np.round(4 * y) / 4, np.round(4 * z) / 4) if on_grid else (y, z)


def test_every_loss_has_a_case():
    joint = {f"multinomial {name}" for name in losses.MULTINOMIAL_LOSSES}
    assert {*losses.REGRESSION_LOSSES, *losses.CLASSIFICATION_LOSSES, *joint} == set(CASES)


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=15)
@given(
    shape=st.tuples(st.integers(1, 6), st.integers(1, 4)),
    seed=st.integers(0, 2**32 - 1),
    on_grid=st.booleans(),
    opset=st.integers(13, 21),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_formulas_agree_with_numpy(name, shape, seed, on_grid, opset, dtype):
    loss, value, gradient = CASES[name]
    y, z = (a.astype(dtype) for a in draw_data(loss, shape, seed, on_grid))
    found_value, found_gradient = run(loss_model(loss, dtype, opset), {"y": y, "z": z})
    wide_y, wide_z = y.astype(np.float64), z.astype(np.float64)
    assert found_value.dtype == found_gradient.dtype == dtype
    assert found_gradient.shape == z.shape
    np.testing.assert_allclose(found_value, value(wide_y, wide_z), **TOLERANCE[dtype])
    np.testing.assert_allclose(found_gradient, gradient(wide_y, wide_z), **TOLERANCE[dtype])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("opset", [9, 13, 21])
def test_formulas_are_valid_from_opset_9_on(name, opset):
    # skl2onnx writes opset 9 for a converted LogisticRegression
    loss, value, _ = CASES[name]
    y, z = (a.astype(np.float32) for a in draw_data(loss, (4, 3), 0, False))
    model = loss_model(loss, np.float32, opset, gradient=opset >= 13)
    np.testing.assert_allclose(run(model, {"y": y, "z": z})[0], value(y, z), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradient_agrees_with_central_differences(name, dtype):
    loss = CASES[name][0]
    assert check_gradients(loss, dtype=dtype, random_state=1).n_checked == 15 * len(loss.score_factors)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("on_grid", [True, False])
def test_engine_differentiates_value_to_gradient(name, on_grid):
    # The graph toolkit trains with the derivative of `value`, the estimators with `gradient`. If these
    # differed, at a kink, the two would follow different paths.
    loss, _, gradient = CASES[name]
    y, z = draw_data(loss, (50, 3), 0, on_grid)
    feeds = {"y": y.astype(np.float32), "z": z.astype(np.float32)}
    model = loss_model(loss, np.float32, 15, gradient=False)
    derivative = onnx_derivative(model, weights=[], inputs=["z"])
    feeds[derivative.graph.input[-1].name] = np.ones_like(run(model, feeds)[0])
    found = run(derivative, feeds)[0]
    expected = gradient(feeds["y"].astype(np.float64), feeds["z"].astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[0].link != "log"])
def test_extreme_scores_are_finite(name):
    # log(sigmoid(z)) is NaN at z = 200 already
    loss, value, gradient = CASES[name]
    z = np.array([[1e4, -1e4, 3e3], [-1e4, 1e4, 0], [1e4, 1e4, 1e4]], np.float32)
    y = np.array([[1, -1, -1], [1, -1, 1], [-1, 1, -1]], np.float32)
    if loss.targets == "indicator":
        y = np.eye(3, dtype=np.float32)
    z, y = (np.tile(a, (1, len(loss.score_factors))) for a in (z, y))
    found_value, found_gradient = run(loss_model(loss, np.float32, 18), {"y": y, "z": z})
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        expected_value, expected_gradient = value(y.astype(float), z.astype(float)), gradient(y, z)
    if not name.startswith("multinomial"):  # the plain formula of the reference gives 0 * log(0)
        np.testing.assert_allclose(found_value, expected_value, rtol=1e-5)
    assert np.isfinite(found_value).all()
    np.testing.assert_allclose(found_gradient, expected_gradient, rtol=1e-5, atol=1e-6)


def test_cross_entropy_of_extreme_scores():
    z = np.array([[1e4, -1e4, 0], [1e4, -1e4, 0]], np.float32)
    y = np.array([[1, 0, 0], [0, 1, 0]], np.float32)
    value, gradient = run(loss_model(losses.CrossEntropy(), np.float32, 18), {"y": y, "z": z})
    np.testing.assert_allclose(value, [[0], [2e4]])
    np.testing.assert_allclose(gradient, [[0, 0, 0], [1, -1, 0]])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("ignored", [None, -100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("opset", [13, 18])
def test_cross_entropy_is_that_of_torch(smoothing, ignored, dtype, opset):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    z, labels = (3 * rng.normal(size=(8, 5))).astype(dtype), rng.integers(5, size=8)
    z[1] *= 1e3
    y = np.eye(5, dtype=dtype)[labels]
    if ignored is not None:
        labels[2:4], y[2:4] = ignored, 0
    loss = losses.CrossEntropy(label_smoothing=smoothing, ignore_index=ignored)
    scores = torch.tensor(z, requires_grad=True)
    theirs = torch.nn.functional.cross_entropy(
        scores, torch.tensor(labels), reduction="none", label_smoothing=smoothing
    )
    theirs.sum().backward()
    value, gradient = run(loss_model(loss, dtype, opset), {"y": y, "z": z})
    np.testing.assert_allclose(value[:, 0], theirs.detach(), **TOLERANCE[dtype])
    np.testing.assert_allclose(gradient, scores.grad, **TOLERANCE[dtype])
    assert check_gradients(loss, random_state=1).n_checked == 15


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_cross_entropy_of_probabilities_is_that_of_torch(smoothing):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(8, 5)), rng.dirichlet(np.ones(5), size=8)
    scores = torch.tensor(z, requires_grad=True)
    theirs = torch.nn.functional.cross_entropy(
        scores, torch.tensor(y), reduction="none", label_smoothing=smoothing
    )
    theirs.sum().backward()
    loss = losses.CrossEntropy(soft=True, label_smoothing=smoothing)
    value, gradient = run(loss_model(loss, np.float64, 18), {"y": y, "z": z})
    np.testing.assert_allclose(value[:, 0], theirs.detach(), rtol=1e-12)
    np.testing.assert_allclose(gradient, scores.grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("n_targets", [1, 3])
def test_gaussian_nll_is_that_of_torch(n_targets):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    y, m = rng.normal(size=(2, 50, n_targets))
    s = 4 * rng.normal(size=(50, n_targets))
    mean, log_variance = (torch.tensor(a, requires_grad=True) for a in (m, s))
    theirs = torch.nn.GaussianNLLLoss(full=False, reduction="sum", eps=1e-30)
    expected = theirs(mean, torch.tensor(y), log_variance.exp())
    expected.backward()
    model = loss_model(losses.GaussianNLL(), np.float64, 18)
    value, gradient = run(model, {"y": np.hstack([y, y]), "z": np.hstack([m, s])})
    np.testing.assert_allclose(value.sum(), expected.item(), rtol=1e-12)
    slopes = np.hstack([mean.grad.numpy(), log_variance.grad.numpy()])
    np.testing.assert_allclose(gradient, slopes, rtol=1e-10, atol=1e-14)


def test_gaussian_nll_leads_back_from_beyond_its_bounds():
    z = np.array([[1.0, -61], [1, 61], [0, -60], [0, 60]], np.float32)
    y = np.array([[1.0, 1.0]] * 4, np.float32)
    _, gradient = run(loss_model(losses.GaussianNLL(), np.float32, 18), {"y": y, "z": z})
    np.testing.assert_allclose(gradient[:, 1], [-0.5, 0.5, (1 - np.exp(60)) / 2, 0.5], rtol=1e-5)


DEVIANCES = {
    "poisson": ("HalfPoissonLoss", {}, losses.Poisson()),
    "gamma": ("HalfGammaLoss", {}, losses.Gamma()),
    **{
        f"tweedie {power}": ("HalfTweedieLoss", {"power": power}, losses.Tweedie(power))
        for power in (-1.5, 0, 1, 1.3, 1.5, 2, 3)
    },
}


@pytest.mark.parametrize("name", DEVIANCES)
def test_deviances_are_those_of_sklearn(name):
    module = pytest.importorskip("sklearn._loss.loss")
    theirs_name, arguments, loss = DEVIANCES[name]
    theirs = getattr(module, theirs_name)(**arguments)
    least = {"real": -2.0, "non-negative": 0.0, "positive": 1e-3}[loss.targets]
    y, z = (a.ravel() for a in np.meshgrid([least, 0.5, 3.0, 1e5], [-20.0, -1.0, 0.0, 0.3, 12.0]))
    value, gradient = own_formulas(loss, y, z)
    expected = theirs.loss(y, z) + theirs.constant_to_optimal_zero(y)
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-12 * y.max())
    np.testing.assert_allclose(gradient, theirs.gradient(y, z), rtol=1e-10)


@pytest.mark.parametrize("name", DEVIANCES)
def test_deviances_vanish_at_the_target_and_are_finite_far_from_it(name):
    loss = DEVIANCES[name][2]
    y = np.array([[1e-4, 1.0, 1e6]], np.float32)
    model = loss_model(loss, np.float32, 18)
    value, _ = run(model, {"y": y, "z": np.log(y)})
    # the terms of the value are of this size, and cancel
    size = np.maximum(y, y ** (2 - getattr(loss, "power", 1)))
    assert (np.abs(value) < 2e-5 * size).all()
    far = np.array([[-25.0, 25.0, 0.0]], np.float32)
    assert all(np.isfinite(result).all() for result in run(model, {"y": y, "z": far}))


SGD_FAST = {
    "hinge": ("Hinge", (1.0,), losses.Hinge()),
    "perceptron": ("Hinge", (0.0,), losses.Perceptron()),
    "squared_hinge": ("SquaredHinge", (1.0,), losses.SquaredHinge()),
    "modified_huber": ("ModifiedHuber", (), losses.ModifiedHuber()),
    "epsilon_insensitive": ("EpsilonInsensitive", (0.1,), losses.EpsilonInsensitive()),
    "squared_epsilon_insensitive": (
        "SquaredEpsilonInsensitive",
        (0.1,),
        losses.SquaredEpsilonInsensitive(),
    ),
}
CY_LOSSES = {
    "squared_error": ("CyHalfSquaredError", (), losses.SquaredError()),
    "absolute_error": ("CyAbsoluteError", (), losses.AbsoluteError()),
    "huber": ("CyHuberLoss", (0.1,), losses.Huber()),
    "quantile": ("CyPinballLoss", (0.3,), losses.Quantile(quantile=0.3)),
    "log_loss": ("CyHalfBinomialLoss", (), losses.LogLoss()),
}


def sklearn_points(loss):
    """Every pair of a target and a prediction of small sets, which hold ties and kinks."""
    targets = {"real": [-1.0, -0.1, 0.0, 2.0], "sign": [-1.0, 1.0], "indicator": [0.0, 1.0]}[loss.targets]
    y, z = np.meshgrid(targets, [-30.0, -1.5, -1.0, -0.1, 0.0, 0.3, 1.0, 2.0, 30.0], indexing="ij")
    return y.ravel(), z.ravel()


def own_formulas(loss, y, z):
    results = run(loss_model(loss, np.float64, 18), {"y": y[:, None], "z": z[:, None]})
    return [result[:, 0] for result in results]


@pytest.mark.parametrize("name", SGD_FAST)
def test_same_formulas_as_sklearn_sgd(name):
    module = pytest.importorskip("sklearn.linear_model._sgd_fast")
    theirs_name, arguments, loss = SGD_FAST[name]
    theirs = getattr(module, theirs_name)(*arguments)
    y, z = sklearn_points(loss)
    value, gradient = own_formulas(loss, y, z)
    np.testing.assert_allclose(value, [theirs.py_loss(b, a) for a, b in zip(y, z, strict=True)])
    np.testing.assert_allclose(gradient, [theirs.py_dloss(b, a) for a, b in zip(y, z, strict=True)])


@pytest.mark.parametrize("name", CY_LOSSES)
def test_same_formulas_as_sklearn_losses(name):
    module = pytest.importorskip("sklearn._loss._loss")
    theirs_name, arguments, loss = CY_LOSSES[name]
    y, z = sklearn_points(loss)
    expected_value, expected_gradient = np.empty_like(z), np.empty_like(z)
    getattr(module, theirs_name)(*arguments).loss_gradient(y, z, None, expected_value, expected_gradient, 1)
    if name == "absolute_error":
        # at 0, where any slope from -1 to 1 is a derivative, scikit-learn takes -1 and this package 0
        expected_gradient[y == z] = 0
    value, gradient = own_formulas(loss, y, z)
    np.testing.assert_allclose(value, expected_value, rtol=1e-12, atol=1e-14)  # they use log1p
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: losses.Huber(epsilon=0),
            ParameterError,
            r"epsilon=0 is not accepted: it must be a number > 0",
        ),
        (lambda: losses.Huber(epsilon=float("inf")), ParameterError, r"epsilon=inf"),
        (
            lambda: losses.Huber(epsilon=1e160),
            ParameterError,
            r"epsilon=1e\+160 .* a number > 0, at most 1e18",
        ),
        (lambda: losses.Huber(epsilon=float("nan")), ParameterError, r"epsilon=nan"),
        (lambda: losses.Huber(epsilon="0.1"), ParameterTypeError, r"epsilon='0.1'"),
        (lambda: losses.EpsilonInsensitive(epsilon=-1), ParameterError, r"epsilon=-1 .* >= 0"),
        (lambda: losses.SquaredEpsilonInsensitive(epsilon=None), ParameterTypeError, r"epsilon=None"),
        (lambda: losses.Tweedie(power=0.5), ParameterError, r"power=0.5 .* <= 0 or >= 1"),
        (lambda: losses.Tweedie(power="1.5"), ParameterTypeError, r"power='1.5'"),
        (lambda: losses.Quantile(quantile=1), ParameterError, r"quantile=1 .* strictly between 0 and 1"),
        (lambda: losses.Elastic(l1_weight=-0.5), ParameterError, r"l1_weight=-0.5 .* >= 0"),
        (lambda: losses.Elastic(l1_weight=0, l2_weight=0), ParameterError, r"both 0"),
    ],
)
def test_parameters_out_of_range_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_numpy_numbers_are_parameters():
    # a grid search passes numpy scalars
    loss = losses.Huber(epsilon=np.float32(0.5))
    assert type(loss.epsilon) is float
    check_gradients(loss)
    assert losses.Elastic(l1_weight=np.int64(1)) == losses.Elastic(l1_weight=1.0)


@pytest.mark.parametrize("name", CASES)
def test_losses_are_values(name):
    # compiled steps are cached by loss, and estimators that hold one are pickled
    loss = CASES[name][0]
    copy = pickle.loads(pickle.dumps(loss))
    assert copy == loss
    assert hash(copy) == hash(loss)
    assert loss != losses.Huber(epsilon=0.75)


@pytest.mark.parametrize(
    "loss", [losses.Focal(0.5), losses.MultinomialFocal(0.5), losses.Focal(0.0)], ids=str
)
def test_focal_losses_differentiated_by_the_engine_are_finite(loss):
    """The power of a probability that is rounded to 0 has an infinite slope."""
    n_columns = 2 if loss.is_joint else 1
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[N, {n_columns}] X) => (float[N, {n_columns}] Z)
        <float[1] one = {{1}}> {{ Z = Mul(X, one) }}"""
    )
    graph = onnx_derivative(
        add_loss_output(model, loss), options=DerivativeOptions.Loss, loss="loss", label="label"
    )
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    row = np.array([[200.0, -200.0]], np.float32)[:, :n_columns]
    label = np.array([[1.0, 0.0]], np.float32)[:, :n_columns]
    known = {"X": row, "label": label, "one": np.ones(1, np.float32)}
    values = session.run(["loss", "X_grad"], {i.name: known[i.name] for i in session.get_inputs()})
    for value in values:
        np.testing.assert_allclose(value, 0, atol=1e-6)
