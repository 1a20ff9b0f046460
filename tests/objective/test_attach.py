"""add_loss_output: values, gradients, names, metadata, refusals."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import expit, log_softmax, softmax, xlogy

from onnxsgd import losses
from onnxsgd.exceptions import GraphError, ParameterError, ParameterTypeError
from onnxsgd.gradient.derivative import DerivativeOptions, onnx_derivative
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import FROZEN, to_ir
from onnxsgd.objective.attach import add_loss_output
from onnxsgd.objective.score_table import SCORES as TABLE
from onnxsgd.penalties import Penalty

SIGN = ("hinge", "squared_hinge", "modified_huber", "perceptron", "focal")
INDICATOR = ("log_loss", "multiclass_hinge")
#: Scores that compare classes: outputs of three axes have a test of their own.
JOINT = ("multiclass_hinge",)
POSITIVE = ("poisson", "gamma", "tweedie")


def clip(r, epsilon):
    return np.clip(r, -epsilon, epsilon)


def margin(y, f, threshold):
    return np.maximum(0, threshold - y * f)


def by_sample(function, y, f):
    """Apply a function of tables, with a row for each sample."""
    result = function(*(np.reshape(a, (len(f), -1)) for a in np.broadcast_arrays(y, f)))
    return result.reshape(f.shape if result.size == f.size else (len(f), *[1] * (f.ndim - 1)))


def largest(table):
    wins = table == table.max(axis=1, keepdims=True)
    return wins / wins.sum(axis=1, keepdims=True)


# Keyword arguments, the loss of one element and its derivative, in numpy, of a target y and an output f.
SCORES = {
    "squared_error": ({}, lambda y, f: (f - y) ** 2, lambda y, f: 2 * (f - y)),
    "l2": ({}, lambda y, f: (f - y) ** 2, lambda y, f: 2 * (f - y)),
    "absolute_error": ({}, lambda y, f: abs(f - y), lambda y, f: np.sign(f - y)),
    "l1": ({}, lambda y, f: abs(f - y), lambda y, f: np.sign(f - y)),
    "elastic": (
        {"l1_weight": 0.1, "l2_weight": 3},
        lambda y, f: 0.1 * abs(f - y) + 3 * (f - y) ** 2,
        lambda y, f: 0.1 * np.sign(f - y) + 6 * (f - y),
    ),
    "huber": (
        {"epsilon": 0.7},
        lambda y, f: clip(f - y, 0.7) * (f - y) - clip(f - y, 0.7) ** 2 / 2,
        lambda y, f: clip(f - y, 0.7),
    ),
    "epsilon_insensitive": (
        {"epsilon": 0.2},
        lambda y, f: np.maximum(0, abs(f - y) - 0.2),
        lambda y, f: np.sign(f - y) * (abs(f - y) > 0.2),
    ),
    "squared_epsilon_insensitive": (
        {"epsilon": 0.2},
        lambda y, f: np.maximum(0, abs(f - y) - 0.2) ** 2,
        lambda y, f: 2 * np.sign(f - y) * np.maximum(0, abs(f - y) - 0.2),
    ),
    "quantile": (
        {"quantile": 0.9},
        lambda y, f: np.maximum(0.9 * (y - f), -0.1 * (y - f)),
        lambda y, f: np.where(y >= f, -0.9, 0.1),
    ),
    "log_cosh": ({}, lambda y, f: np.log(np.cosh(f - y)), lambda y, f: np.tanh(f - y)),
    "poisson": (
        {},
        lambda y, f: np.exp(f) - y - y * f + xlogy(y, y),
        lambda y, f: np.exp(f) - y,
    ),
    "gamma": ({}, lambda y, f: f - np.log(y) + y * np.exp(-f) - 1, lambda y, f: 1 - y * np.exp(-f)),
    "tweedie": (
        {"power": 3},
        lambda y, f: 1 / (2 * y) + y * np.exp(-2 * f) / 2 - np.exp(-f),
        lambda y, f: np.exp(-f) - y * np.exp(-2 * f),
    ),
    "log_loss": ({}, lambda y, f: np.logaddexp(0, f) - y * f, lambda y, f: 1 / (1 + np.exp(-f)) - y),
    "hinge": ({}, lambda y, f: margin(y, f, 1), lambda y, f: -y * (y * f <= 1)),
    "squared_hinge": ({}, lambda y, f: margin(y, f, 1) ** 2, lambda y, f: -2 * y * margin(y, f, 1)),
    "modified_huber": (
        {},
        lambda y, f: np.where(y * f < -1, -4 * y * f, margin(y, f, 1) ** 2),
        lambda y, f: np.where(y * f < -1, -4 * y, -2 * y * margin(y, f, 1)),
    ),
    "multiclass_hinge": (
        {},
        lambda y, f: by_sample(
            lambda y, f: (f + 1 - y).max(1, keepdims=True) - (y * f).sum(1, keepdims=True), y, f
        ),
        lambda y, f: by_sample(lambda y, f: largest(f + 1 - y) - y, y, f),
    ),
    "focal": (
        {"gamma": 1},
        lambda y, f: expit(-y * f) * np.logaddexp(0, -y * f),
        lambda y, f: -y * expit(-y * f) * (expit(y * f) * np.logaddexp(0, -y * f) + expit(-y * f)),
    ),
    "perceptron": ({}, lambda y, f: margin(y, f, 0), lambda y, f: -y * (y * f <= 0)),
}
PENALTIES = st.sampled_from(
    [
        None,
        {"W": {"l1": 0.3, "l2": 2}},
        {"W": 1, "b": {"l1": 0.5}, "X": {"l2": 0.25}},
        {"W": Penalty(l1=0.3, l2=2), "b": Penalty(l2=0.5)},
    ]
)


def draw(score, shape, rng):
    if score in SIGN:
        return rng.choice([-1.0, 1.0], size=shape)
    if score in INDICATOR:
        return rng.integers(2, size=shape)
    drawn = rng.normal(size=shape)
    return np.abs(drawn) + 0.1 if score in POSITIVE else drawn


def weights_of(model):
    return {
        entry.name: onnx.numpy_helper.to_array(entry).astype(np.float64) for entry in model.graph.initializer
    }


def coefficients_of(given_):
    if isinstance(given_, Penalty):
        return {"l1": given_.l1 or 0, "l2": given_.l2 / 2}
    return given_ if isinstance(given_, dict) else {"l2": given_}


def penalty_value(penalty, tensors):
    total = 0.0
    for name, given_ in (penalty or {}).items():
        coefficients = coefficients_of(given_)
        total += coefficients.get("l1", 0) * np.abs(tensors[name]).sum()
        total += coefficients.get("l2", 0) * (tensors[name] ** 2).sum()
    return total


def penalty_slope(penalty, name, tensor):
    given_ = (penalty or {}).get(name, 0)
    coefficients = coefficients_of(given_)
    return coefficients.get("l1", 0) * np.sign(tensor) + 2 * coefficients.get("l2", 0) * tensor


def column(weights, array):
    return weights.reshape(-1, *[1] * (array.ndim - 1))


def test_every_score_has_a_case():
    """The scores "log" and "gaussian_nll" have their tests below."""
    assert set(TABLE) == {*SCORES, "log", "gaussian_nll"}


@pytest.mark.parametrize("score", SCORES)
@settings(deadline=None, max_examples=10)
@given(
    rank=st.integers(1, 3),
    n_samples=st.integers(1, 7),
    weighted=st.booleans(),
    penalty=PENALTIES,
    opset=st.integers(13, 21),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_value_agrees_with_numpy(linear, run, score, rank, n_samples, weighted, penalty, opset, dtype, seed):
    assume(rank < 3 or score not in JOINT)
    options, value, _ = SCORES[score]
    rng = np.random.default_rng(seed)
    model = linear(rank, opset, dtype)
    x = rng.normal(size=(n_samples, 4)).astype(dtype)
    output = run(model, {"X": x})["Y"]
    feeds = {"X": x, "label": draw(score, output.shape, rng).astype(dtype)}
    weights = rng.uniform(0, 3, size=n_samples)
    if weighted:
        feeds["w"] = weights.astype(dtype)
    with_loss = add_loss_output(
        model, score, weight_name="w" if weighted else None, penalty=penalty, **options
    )
    found = run(with_loss, feeds)
    f, y = output.astype(np.float64), feeds["label"].astype(np.float64)
    per_element = value(y, f) * (column(weights, f) if weighted else 1)
    expected = per_element.sum() + penalty_value(penalty, {**weights_of(model), "X": x.astype(np.float64)})
    assert list(found) == ["loss", "Y"]
    assert found["loss"].shape == (1, 1)
    assert found["loss"].dtype == dtype
    np.testing.assert_array_equal(found["Y"], output)
    rtol = 1e-4 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(found["loss"].item(), expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("score", SCORES)
@settings(deadline=None, max_examples=4)
@given(
    rank=st.integers(1, 3),
    weighted=st.booleans(),
    penalty=PENALTIES,
    opset=st.integers(13, 21),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_gradient_agrees_with_numpy(linear, run, score, rank, weighted, penalty, opset, dtype, seed):
    assume(rank < 3 or score not in JOINT)
    options, _, slope = SCORES[score]
    rng = np.random.default_rng(seed)
    model = linear(rank, opset, dtype)
    x = rng.normal(size=(5, 4)).astype(dtype)
    output = run(model, {"X": x})["Y"]
    feeds = {"X": x, "label": draw(score, output.shape, rng).astype(dtype)}
    weights = rng.uniform(0, 3, size=5)
    if weighted:
        feeds["w"] = weights.astype(dtype)
    with_loss = add_loss_output(
        model, score, weight_name="w" if weighted else None, penalty=penalty, **options
    )
    label = ["label", "w"] if weighted else "label"
    derivative = onnx_derivative(
        with_loss, weights=["W"], options=DerivativeOptions.Loss, loss="loss", label=label
    )
    tensors = weights_of(model)
    found = run(derivative, {**feeds, "W": tensors["W"].astype(dtype)})
    at_output = slope(feeds["label"].astype(np.float64), output.astype(np.float64))
    if weighted:
        at_output = at_output * column(weights, at_output)
    at_sum = at_output.sum(axis=2) if rank == 3 else at_output.reshape(5, -1)
    wide = x.astype(np.float64)
    tolerance = 1e-4 if dtype == np.float32 else 1e-9
    expected = wide.T @ at_sum + penalty_slope(penalty, "W", tensors["W"])
    np.testing.assert_allclose(found["W_grad"], expected, rtol=tolerance, atol=tolerance)
    expected = at_sum @ tensors["W"].T + penalty_slope(penalty, "X", wide)
    np.testing.assert_allclose(found["X_grad"], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("shape", "body", "axis"),
    [("N, 4, H, V", "Y = Conv(X, w)", 1), ("N, T, 4", "Y = MatMul(X, m)", 2)],
    ids=["pixels", "tokens"],
)
def test_losses_over_classes_compare_those_of_an_element(run, weighted, shape, body, axis):
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[{shape.replace("4", "3")}] X) => (float[{shape}] Y)
        {{ {body} }}"""
    )
    name, size = ("w", (4, 3, 1, 1)) if axis == 1 else ("m", (3, 4))
    weight = rng.normal(size=size).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    x = rng.normal(size=(5, 3, 2, 6) if axis == 1 else (5, 7, 3)).astype(np.float32)
    output = run(model, {"X": x})["Y"]
    label = np.moveaxis(
        np.eye(4, dtype=np.float32)[rng.integers(4, size=np.delete(output.shape, axis))], -1, axis
    )
    feeds = {"X": x, "label": label}
    share = rng.uniform(0, 3, size=5).astype(np.float32)
    if weighted:
        feeds["share"] = share
    loss = losses.CrossEntropy(label_smoothing=0.2)
    with_loss = add_loss_output(model, loss, weight_name="share" if weighted else None)
    factor = share.reshape(-1, *[1] * (output.ndim - 1)) if weighted else np.ones((1,) * output.ndim)
    target = 0.8 * label + 0.05
    expected = -(factor * target * log_softmax(output.astype(float), axis=axis)).sum()
    np.testing.assert_allclose(run(with_loss, feeds)["loss"], [[expected]], rtol=1e-5)
    names = ["label", "share"] if weighted else "label"
    derivative = onnx_derivative(with_loss, options=DerivativeOptions.Loss, loss="loss", label=names)
    slope = np.moveaxis(factor * (softmax(output.astype(float), axis=axis) - target), axis, -1).reshape(-1, 4)
    inputs = np.moveaxis(x, axis, -1).reshape(-1, 3)
    wide = slope.T @ inputs if axis == 1 else inputs.T @ slope
    found = run(derivative, {**feeds, name: weight})[f"{name}_grad"]
    np.testing.assert_allclose(found, wide.reshape(size), rtol=1e-4, atol=1e-5)


def test_losses_over_classes_need_the_axis_of_the_classes(linear):
    with pytest.raises(GraphError, match=r"Output 'Y' has shape .* the axis of the classes.* is not known"):
        add_loss_output(linear(3), "multiclass_hinge")


@pytest.mark.parametrize("n_targets", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_gaussian_nll_agrees_with_numpy(run, n_targets, weighted):
    rng = np.random.default_rng(0)
    f, y = rng.normal(size=(6, 2 * n_targets)), rng.normal(size=(6, n_targets))
    w = rng.uniform(0, 3, size=6)
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (double[N, {2 * n_targets}] X) => (double[N, {2 * n_targets}] Y) {{ Y = Identity(X) }}"""
    )
    with_loss = add_loss_output(model, "gaussian_nll", weight_name="w" if weighted else None)
    assert [d.dim_param or d.dim_value for d in with_loss.graph.input[1].type.tensor_type.shape.dim] == [
        "N", n_targets,
    ]  # fmt: skip
    feeds = {"X": f, "label": y} | ({"w": w} if weighted else {})
    m, s = f[:, :n_targets], f[:, n_targets:]
    share = w[:, None] if weighted else 1
    expected = (share * (s + (m - y) ** 2 / np.exp(s)) / 2).sum()
    np.testing.assert_allclose(run(with_loss, feeds)["loss"], [[expected]], rtol=1e-12)
    label = ["label", "w"] if weighted else "label"
    derivative = onnx_derivative(with_loss, options=DerivativeOptions.Loss, loss="loss", label=label)
    slopes = np.hstack([(m - y) / np.exp(s), (1 - (m - y) ** 2 / np.exp(s)) / 2])
    np.testing.assert_allclose(run(derivative, feeds)["X_grad"], share * slopes, rtol=1e-10)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_gaussian_nll_takes_tables_of_even_width(linear, rank):
    with pytest.raises(GraphError, match=r"GaussianNLL\(\) takes a table of 2 columns for each target"):
        add_loss_output(linear(rank), "gaussian_nll")


def probabilities(opset=17, dtype="float"):
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        classify ({dtype}[N, 2] P) => ({dtype}[N, 2] Q) {{ Q = Identity(P) }}"""
    )


def log_losses(p, y, eps):
    clipped = np.clip(p, eps, 1 - eps)
    second = clipped[:, 1] / clipped.sum(axis=1)
    return -(1 - y) * np.log(1 - second) - y * np.log(second)


@settings(deadline=None, max_examples=40)
@given(
    n_samples=st.integers(1, 8),
    weighted=st.booleans(),
    opset_and_dtype=st.one_of(
        st.tuples(st.integers(9, 21), st.just(np.float32)),
        st.tuples(st.integers(12, 21), st.just(np.float64)),  # before, onnxruntime has no Clip in float64
    ),
    eps=st.sampled_from([None, 1e-6, 0.01, 0.3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_log_score_agrees_with_numpy(run, n_samples, weighted, opset_and_dtype, eps, seed):
    opset, dtype = opset_and_dtype
    rng = np.random.default_rng(seed)
    second = rng.choice([0.0, 1.0, rng.uniform(), rng.uniform()], size=n_samples)
    total = rng.choice([1.0, 0.8], size=(n_samples, 1))  # rows of any sum are normalised
    p = (total * np.column_stack([1 - second, second])).astype(dtype)
    y = rng.integers(2, size=n_samples)
    weights = rng.integers(0, 4, size=n_samples) + (np.arange(n_samples) == 0)
    feeds = {"P": p, "label": y.reshape(-1, 1)}
    if weighted:
        feeds["w"] = weights.astype(dtype)
    options = {} if eps is None else {"eps": eps}
    model = probabilities(opset, "float" if dtype == np.float32 else "double")
    with_loss = add_loss_output(model, "log", weight_name="w" if weighted else None, **options)
    label = with_loss.graph.input[1].type.tensor_type
    assert label.elem_type == onnx.TensorProto.INT64
    assert [d.dim_param or d.dim_value for d in label.shape.dim] == ["N", 1]
    # a mean in which a weight w counts a sample w times
    each = np.repeat(log_losses(p.astype(np.float64), y, eps or 1e-6), weights if weighted else 1)
    rtol = 1e-5 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(run(with_loss, feeds)["loss"], [[each.mean()]], rtol=rtol, atol=1e-6)


def test_log_score_has_the_gradient_of_a_mean(run):
    model = probabilities()
    with_loss = add_loss_output(model, "log", weight_name="w")
    derivative = onnx_derivative(with_loss, options=DerivativeOptions.Loss, loss="loss", label=["label", "w"])
    p, y = np.array([[0.3, 0.7], [0.9, 0.1], [0.5, 0.5], [1.0, 0.0]]), np.array([1, 1, 0, 1])
    w = np.array([1.0, 2.0, 0.0, 3.0])
    feeds = {"P": p.astype(np.float32), "label": y[:, None], "w": w.astype(np.float32)}
    # of -log(p_y / (p_0 + p_1)), where nothing is clipped
    expected = (1 / p.sum(axis=1, keepdims=True) - np.eye(2)[y] / np.maximum(p, 1e-9)) * w[:, None] / w.sum()
    expected[3] = 0  # no slope of a clipped value
    np.testing.assert_allclose(run(derivative, feeds)["P_grad"], expected, rtol=1e-4, atol=1e-5)


def test_log_score_of_certain_but_wrong_probabilities_is_finite(run):
    # 1 - 1e-12 is 1 in float32: log(1 - p) would be infinite
    p = np.array([[1, 0], [0, 1]], np.float32)
    with_loss = add_loss_output(probabilities(), "log", eps=1e-12)
    value = run(with_loss, {"P": p, "label": np.array([[1], [1]])})["loss"]
    np.testing.assert_allclose(value, [[-np.log(1e-12) / 2]], rtol=1e-5)


def test_weights_do_not_broadcast_over_samples(linear, run):
    # a [N] weight times a [N, 1] loss would be a [N, N] matrix
    model = linear(1)
    x = np.zeros((3, 4), np.float32)
    output = run(model, {"X": x})["Y"]
    feeds = {"X": x, "label": output - np.float32(1), "w": np.array([1, 10, 100], np.float32)}
    np.testing.assert_allclose(
        run(add_loss_output(model, weight_name="w"), feeds)["loss"], [[111]], rtol=1e-6
    )


def test_a_step_along_the_gradient_of_l1_reduces_the_loss(linear, run):
    model = linear()
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    with_loss = add_loss_output(model, "l1")
    derivative = onnx_derivative(with_loss, options=DerivativeOptions.Loss, loss="loss", label="label")
    tensors = {name: array.astype(np.float32) for name, array in weights_of(model).items() if name != "axes"}
    feeds = {"X": x, "label": np.ones((20, 3), np.float32), **tensors}
    before = run(derivative, feeds)
    for name in tensors:
        feeds[name] = tensors[name] - 1e-3 * before[f"{name}_grad"]
    assert run(derivative, feeds)["loss"].item() < before["loss"].item()


@pytest.mark.parametrize("score", ["l1", "hinge", "log_loss", "quantile"])
def test_float16_is_summed_in_float32(linear, run, score):
    # 40,000 elements of loss 2 and more: float16 ends at 65,504
    model = linear(2, 17, np.float16)
    n = 40_000 // 3
    feeds = {"X": np.zeros((n, 4), np.float16), "label": np.full((n, 3), -4, np.float16)}
    loss = run(add_loss_output(model, score), feeds)["loss"]
    output = run(model, {"X": feeds["X"][:1]})["Y"].astype(np.float64)
    _, value, _ = {**SCORES, "quantile": ({}, lambda y, f: abs(y - f) / 2, None)}[score]
    assert loss.dtype == np.float32
    np.testing.assert_allclose(loss.item(), n * value(-4.0, output).sum(), rtol=1e-4)


def test_loss_objects_are_scores(linear, run):
    model = linear()
    feeds = {"X": np.ones((2, 4), np.float32), "label": np.zeros((2, 3), np.float32)}
    by_object = run(add_loss_output(model, losses.Huber(epsilon=0.3)), feeds)["loss"]
    np.testing.assert_array_equal(by_object, run(add_loss_output(model, "huber", epsilon=0.3), feeds)["loss"])


def test_inputs_and_outputs_are_in_order(linear):
    with_loss = add_loss_output(
        linear(3), loss_name="cost", label_name="target", weight_name="sample_weight", penalty={"X": 1}
    )
    described = {
        value.name: (
            value.type.tensor_type.elem_type,
            [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim],
        )
        for value in (*with_loss.graph.input, *with_loss.graph.output)
    }
    assert list(described) == ["X", "target", "sample_weight", "cost", "Y"]
    assert described["target"] == (onnx.TensorProto.FLOAT, ["N", 3, 2])
    assert described["sample_weight"] == (onnx.TensorProto.FLOAT, ["N"])
    assert described["cost"] == (onnx.TensorProto.FLOAT, [1, 1])


def described_model(linear):
    model = linear()
    model.ir_version = 7
    model.producer_name, model.producer_version, model.model_version = "acme", "1.2", 3
    model.domain, model.doc_string = "org.acme", "A model."
    model.graph.doc_string, model.graph.name = "A graph.", "acme_graph"
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    onnx.helper.set_model_props(model, {"b": "1", "a": "2"})
    return model


def test_metadata_of_the_model_is_kept(linear):
    model = described_model(linear)
    with_loss = add_loss_output(model)
    for field in (
        "ir_version",
        "producer_name",
        "producer_version",
        "model_version",
        "domain",
        "doc_string",
        "opset_import",
    ):
        assert getattr(with_loss, field) == getattr(model, field), field
    assert {entry.key: entry.value for entry in with_loss.metadata_props} == {"a": "2", "b": "1"}
    assert with_loss.graph.name == "acme_graph"
    assert with_loss.graph.doc_string == "A graph."
    assert {
        entry.name: onnx.numpy_helper.to_array(entry).tolist() for entry in with_loss.graph.initializer
    } == {
        entry.name: onnx.numpy_helper.to_array(entry).tolist()
        for entry in model.graph.initializer
        if entry.name != "axes"  # no node of this one reads it
    }


def test_the_given_model_is_not_changed(linear):
    model = described_model(linear)
    before = model.SerializeToString(deterministic=True)
    add_loss_output(model, "elastic", weight_name="w", penalty={"W": 1})
    assert model.SerializeToString(deterministic=True) == before


def test_constants_of_the_loss_are_no_initializers(linear):
    # an initializer of a real type counts as a weight
    with_loss = add_loss_output(linear(), "elastic", weight_name="w", penalty={"W": {"l1": 1, "l2": 2}})
    assert [entry.name for entry in with_loss.graph.initializer] == ["W", "b"]
    lifted = lower_for_training(to_ir(with_loss)).graph.initializers.values()
    assert {value.name for value in lifted if FROZEN not in value.metadata_props} == {"W", "b"}


def test_a_loss_can_be_added_to_a_graph_that_has_one(linear, run):
    once = add_loss_output(linear(), "elastic", l1_weight=0.25)
    twice = add_loss_output(once, "elastic", "loss2", "label2", output_index="Y", l1_weight=0.75)
    feeds = {"X": np.ones((2, 4), np.float32), "label2": np.zeros((2, 3), np.float32)}
    feeds["label"] = feeds["label2"]
    expected = run(
        add_loss_output(linear(), "elastic", l1_weight=0.75), {k: feeds[k] for k in ("X", "label")}
    )
    np.testing.assert_array_equal(run(twice, feeds)["loss2"], expected["loss"])


INNER = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N, 1] x, bool c) => (float[N, 1] y, float[N, 1] z)
    <float[1] loss_Sub = {1}, float[1] loss_Constant = {2}>
    {
        label = Add(x, loss_Sub)
        loss = Mul(label, loss_Constant)
        y = If(c) <then_branch = t () => (float[N, 1] w) { w = Neg(label) },
                   else_branch = e () => (float[N, 1] v) { v = Exp(loss) }>
        z = Neg(loss)
    }"""


@pytest.mark.parametrize("condition", [True, False])
def test_inner_tensors_make_room_for_new_names(run, condition):
    model = onnx.parser.parse_model(INNER)
    with_loss = add_loss_output(model, weight_name="w", output_index="y")
    feeds = {"x": np.ones((2, 1), np.float32), "c": np.array(condition)}
    expected = run(model, feeds)["y"]
    feeds |= {"label": np.zeros((2, 1), np.float32), "w": np.array([1, 2], np.float32)}
    found = run(with_loss, feeds)
    np.testing.assert_array_equal(found["y"], expected)
    np.testing.assert_allclose(found["loss"].item(), (expected[:, 0] ** 2 * [1, 2]).sum(), rtol=1e-6)
    names = [name for node in with_loss.graph.node for name in node.output]
    assert len(names) == len(set(names))
    node_names = [node.name for node in with_loss.graph.node if node.name]
    assert len(node_names) == len(set(node_names))


@pytest.mark.parametrize("output_index", [1, -1, np.int64(1), "z"])
def test_outputs_are_chosen_by_position_or_name(run, output_index):
    model = onnx.parser.parse_model(INNER)
    with_loss = add_loss_output(model, output_index=output_index)
    assert [value.name for value in with_loss.graph.output] == ["loss", "z"]
    feeds = {"x": np.ones((2, 1), np.float32), "c": np.array(True), "label": np.zeros((2, 1), np.float32)}
    np.testing.assert_allclose(run(with_loss, feeds)["loss"], [[32]])


def test_converted_classifiers_are_scored(run):
    # a ZipMap in the graph, the labels in an output that is called label, opset 9
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    y = (x.sum(axis=1) > 0.3).astype(np.int64)
    classifier = LogisticRegression().fit(x, y)
    model = skl2onnx.to_onnx(classifier, x[:1])
    with_loss = add_loss_output(model, "log", output_index=1)
    expected = -np.log(classifier.predict_proba(x.astype(np.float64))[np.arange(40), y]).mean()
    np.testing.assert_allclose(run(with_loss, {"X": x, "label": y[:, None]})["loss"], [[expected]], rtol=1e-5)


def test_operators_without_gradient_are_rewritten(run):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1]>
        g (float[N, 2] x) => (float[N, 1] y)
        { y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0], intercepts = [3.0]> (x) }"""
    )
    with_loss = add_loss_output(model, penalty={"coef": 10})
    assert {node.domain for node in with_loss.graph.node} == {""}
    assert [(entry.domain, entry.version) for entry in with_loss.opset_import] == [
        ("", 17),
        ("ai.onnx.ml", 1),
    ]
    feeds = {"x": np.ones((2, 2), np.float32), "label": np.zeros((2, 1), np.float32)}
    np.testing.assert_allclose(run(with_loss, feeds)["loss"], [[2 * 36 + 50]])


TWO_OUTPUTS = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N, 2] x) => (float[N, 2] y, int64[N, 2] k, float s, float[N, 2] u)
    { y = Identity(x) k = Cast<to = 7>(x) s = ReduceSum<keepdims = 0>(x) u = Neg(x) }"""


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"score_name": "Squared_Error"},
            ParameterError,
            r"'Squared_Error' is not known: .*Did you mean 'squared_error'\?$",
        ),
        ({"score_name": "mse"}, ParameterError, "'absolute_error', .*'huber', .*'log', .*'quantile'"),
        ({"score_name": None}, ParameterTypeError, "score_name=None"),
        ({"epsilon": 1}, ParameterTypeError, r"\['epsilon'\] .*'squared_error': it accepts none"),
        (
            {"score_name": "elastic", "l1": 1},
            ParameterTypeError,
            r"\['l1'\] .*it accepts \['l1_weight', 'l2_weight'\]",
        ),
        ({"score_name": losses.Hinge(), "eps": 1}, ParameterTypeError, r"Hinge\(\): it accepts none"),
        ({"score_name": "log", "eps": 0.5}, ParameterError, "eps=0.5"),
        ({"score_name": "log", "eps": 0}, ParameterError, "eps=0 "),
        ({"score_name": "log", "eps": "1"}, ParameterTypeError, "eps='1'"),
        ({"score_name": "huber", "epsilon": -1}, ParameterError, "epsilon=-1"),
        ({"output_index": None}, ParameterError, r"4 outputs, \['y', 'k', 's', 'u'\]: output_index must"),
        ({"output_index": 4}, ParameterError, r"output_index=4 is out of range: .*\['y', 'k', 's', 'u'\]"),
        ({"output_index": -5}, ParameterError, "output_index=-5 is out of range"),
        ({"output_index": "x"}, ParameterError, r"output_index='x' is no output of the model: it has \['y'"),
        ({"output_index": 1.0}, ParameterTypeError, "output_index=1.0"),
        ({"output_index": True}, ParameterTypeError, "output_index=True"),
        ({"output_index": ["y"]}, ParameterTypeError, r"output_index=\['y'\]"),
        (
            {"output_index": "k"},
            GraphError,
            "Output 'k' has type .*INT64.*: a loss needs a tensor of float16",
        ),
        ({"output_index": "s"}, GraphError, "Output 's' is a scalar"),
        ({"label_name": "x"}, ParameterError, "label_name='x' is not accepted: an input, an output or"),
        ({"loss_name": "y"}, ParameterError, "loss_name='y' is not accepted"),
        ({"weight_name": "label"}, ParameterError, "weight_name='label' .* label_name has the same"),
        ({"label_name": ""}, ParameterTypeError, "label_name=''"),
        ({"loss_name": 3}, ParameterTypeError, "loss_name=3"),
        ({"penalty": {"w": 1}}, ParameterError, r"penalty names 'w': .*\['x'\]"),
        ({"penalty": {}}, ParameterError, "must name a tensor"),
        ({"penalty": 0.1}, ParameterTypeError, "penalty=0.1 .* must be a dict"),
        ({"penalty": {"x": 0}}, ParameterError, "The coefficients of the penalty of tensor 'x' are 0"),
        ({"penalty": {"x": {}}}, ParameterError, "The coefficients of the penalty of tensor 'x' are 0"),
        ({"penalty": {"x": {"l1": 0.0, "l2": None}}}, ParameterError, "are 0: l1 or l2 must differ from 0"),
        ({"penalty": {"x": {"L1": 1}}}, ParameterError, r"'x' has keys \['L1'\]"),
        ({"penalty": {"x": float("nan")}}, ParameterError, "'x' is nan: it must be finite"),
        ({"penalty": {"x": "1"}}, ParameterTypeError, "'x' is '1': it must be a number"),
    ],
)
def test_refusals_name_the_argument(arguments, error, message):
    model = onnx.parser.parse_model(TWO_OUTPUTS)
    with pytest.raises(error, match=message):
        add_loss_output(model, **{"output_index": 0, **arguments})


def test_other_objects_than_models_are_refused():
    with pytest.raises(ParameterTypeError, match=r"onx must be an onnx.ModelProto, not bytes"):
        add_loss_output(b"")


@pytest.mark.parametrize(("shape", "rank"), [("N, 3", 2), ("N", 1), ("N, 2, 1", 3)])
def test_log_needs_two_columns(shape, rank):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[{shape}] x) => (float[{shape}] y) {{ y = Exp(x) }}"""
    )
    with pytest.raises(GraphError, match=r"Output 'y' has shape .*two columns of probabilities"):
        add_loss_output(model, "log")


@pytest.mark.parametrize(("opset", "expected"), [(8, 18), (12, 18), (13, 13), (21, 21), (23, 21)])
def test_opsets_out_of_the_range_are_converted(linear, run, opset, expected):
    model = linear()
    model.opset_import[0].version = opset
    with_loss = add_loss_output(model)
    assert [(entry.domain, entry.version) for entry in with_loss.opset_import] == [("", expected)]
    feeds = {"X": np.ones((2, 4), np.float32), "label": np.zeros((2, 3), np.float32)}
    np.testing.assert_array_equal(
        run(with_loss, feeds)["loss"], run(add_loss_output(linear()), feeds)["loss"]
    )


def test_missing_output_shapes_are_inferred(linear, run):
    model = linear()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    feeds = {"X": np.ones((2, 4), np.float32), "label": np.zeros((2, 3), np.float32)}
    expected = run(add_loss_output(linear()), feeds)["loss"]
    np.testing.assert_array_equal(run(add_loss_output(model), feeds)["loss"], expected)


def test_log_scores_an_output_of_unknown_rank(run):
    """It takes two columns of probabilities, for any declared shape of the output."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18, "own": 1]>'
        "g (float[N, 2] X, int64[R] shape) => (float[N, 2] Y) { Y = Reshape(X, shape) }"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    probabilities = np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
    feeds = {"X": probabilities, "shape": np.array([2, 2]), "label": np.array([[1], [0]])}
    found = run(add_loss_output(model, "log"), feeds)["loss"]
    np.testing.assert_allclose(found, -(np.log(0.75) + np.log(0.5)) / 2, rtol=1e-6)


def test_a_penalty_of_the_distance_from_the_values_of_the_graph():
    """Value and derivative at other weights, against numpy; the copy of the values is no initializer."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        line (double[N, 2] x) => (double[N, 1] y)
        <double[2, 1] coef = {1, 2}> { y = MatMul(x, coef) }""")
    penalty = {"coef": Penalty(l1=0.3, l2=2.0, from_start=True)}
    graph = add_loss_output(model, penalty=penalty)
    assert [entry.name for entry in graph.graph.initializer if entry.data_type == 11] == ["coef"]
    derived = onnx_derivative(
        graph, weights=["coef"], inputs=[], options=DerivativeOptions.Loss, loss="loss", label="label"
    )
    x, w = np.array([[1.0, -1.0]]), np.array([[1.5], [1.0]])
    feeds = {"x": x, "label": np.zeros((1, 1)), "coef": w}
    loss, slope = onnxruntime.InferenceSession(derived.SerializeToString()).run(None, feeds)
    d = w - [[1.0], [2.0]]
    np.testing.assert_allclose(loss, 0.25 + 0.3 * np.abs(d).sum() + (d**2).sum(), rtol=1e-14)
    np.testing.assert_allclose(slope, 2 * 0.5 * x.T + 0.3 * np.sign(d) + 2 * d, rtol=1e-14)
    with pytest.raises(ParameterError, match="of 'x' is not accepted: an input has no first value"):
        add_loss_output(model, penalty={"x": Penalty(l2=1.0, from_start=True)})


def test_a_penalty_of_groups_and_its_derivative():
    """Against numpy, at a group of zeros too, where the derivative of the norm is taken as 0."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        line (float[N, 3] x) => (float[N, 2] y)
        <float[2, 3] coef = {1, 0, 2, 3, 0, 0}> { y = Gemm<transB = 1>(x, coef) }""")
    graph = add_loss_output(model, penalty={"coef": Penalty(l1=0.3, l2=2.0, groups=True)})
    derived = onnx_derivative(
        graph, weights=["coef"], inputs=[], options=DerivativeOptions.Loss, loss="loss", label="label"
    )
    w = np.array([[1, 0, 2], [3, 0, 0]], np.float32)
    feeds = {"x": np.zeros((1, 3), np.float32), "label": np.zeros((1, 2), np.float32), "coef": w}
    loss, slope = onnxruntime.InferenceSession(derived.SerializeToString()).run(None, feeds)
    norms = np.array([np.sqrt(10), 1, 2])
    np.testing.assert_allclose(loss, 0.3 * np.sqrt(2) * (np.sqrt(10) + 2) + (w**2).sum(), rtol=1e-6)
    np.testing.assert_allclose(slope, 0.3 * np.sqrt(2) * w / norms + 2 * w, rtol=1e-6)
    wide = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        product (float[N, 3] x, float[3, M] w) => (float[N, M] y) { y = MatMul(x, w) }""")
    with pytest.raises(ParameterError, match="of 'w' needs a tensor of known shape"):
        add_loss_output(wide, penalty={"w": Penalty(l1=1.0, groups=True)})
