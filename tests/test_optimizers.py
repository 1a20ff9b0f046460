"""Update rules against numpy in float64 and against torch, on the same gradients."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy_training import OPTIMIZERS as PLAIN
from onnxscript import GraphBuilder

from onnxsgd import optimizers
from onnxsgd.engine.step.update import RATE_SCALE, build_update, state_names
from onnxsgd.exceptions import OnnxSGDError
from onnxsgd.graph.model import to_proto
from onnxsgd.optimizers._group_steps import shrink_groups

with np.load(Path(__file__).parent / "data" / "optimizers.npz") as _file:
    REFERENCE = dict(_file)
CASES = {
    "adam": (optimizers.Adam(), 0.0),
    "adam_l2": (optimizers.Adam(), 0.1),
    "adamw": (optimizers.AdamW(), 0.1),
    "sgd": (optimizers.SGD(), 0.0),
    "sgd_momentum": (optimizers.SGD(momentum=0.9), 0.1),
    "sgd_nesterov": (optimizers.SGD(momentum=0.9, nesterov=True), 0.1),
    "sgd_torch_momentum": (optimizers.SGD(momentum=0.9, convention="torch"), 0.1),
    "sgd_torch_nesterov": (optimizers.SGD(momentum=0.9, nesterov=True, convention="torch"), 0.1),
    "adam_amsgrad": (optimizers.Adam(amsgrad=True), 0.0),
    "adamw_amsgrad": (optimizers.AdamW(amsgrad=True), 0.1),
    "rmsprop": (optimizers.RMSProp(), 0.1),
    "adagrad": (optimizers.Adagrad(), 0.1),
    "lion": (optimizers.Lion(), 0.0),
    "lion_decay": (optimizers.Lion(), 0.1),
}
#: References at a constant rate, of which both conventions of momentum are the same.
CONSTANT = ("sgd_momentum", "sgd_nesterov")


def slot_shapes(optimizer, shape, rates):
    """`rates`: the shape of the factors of the rates, None without any."""
    names = state_names(optimizer, l1=False, average=False, rate_scale=rates is not None)
    blocks = rates or (1,) * len(shape)
    return {
        name: blocks if name == RATE_SCALE else optimizer.slot_shape(name, shape, blocks) for name in names
    }


def update_session(optimizer, shape, dtype, penalised=True, further=(), rates=None, norm_axes=()):
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="update")
    type_ = ir.TensorType(dtype)

    def add_input(name, shape):
        value = ir.Value(name=name, type=type_, shape=ir.Shape(shape))
        graph.inputs.append(value)
        return value

    weight, gradient = add_input("weight", shape), add_input("gradient", shape)
    shapes = slot_shapes(optimizer, shape, rates)
    states = {name: add_input(name, slot_shape) for name, slot_shape in shapes.items()}
    names = [*optimizer.scalars(np.ones(1), np.ones(1), 0.0), *further]
    scalars = {name: add_input(f"scalar_{name}", ()) for name in names}
    new, new_states = build_update(
        GraphBuilder(graph).op, optimizer, weight, gradient, states, scalars,
        l2=penalised, norm_axes=norm_axes,
    )  # fmt: skip
    graph.outputs.extend([new, *(new_states[name] for name in states)])
    model = to_proto(ir.Model(graph, ir_version=9))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    ), list(states)


def run_updates(optimizer, start, gradients, rates, l2, dtype, penalised=True, units=None, **further):
    """Return the weights after each update.

    `units`: factors of the rates; `further`: numbers that are not the optimizer's.
    """
    weight = start.astype(dtype)
    element = ir.DataType.from_numpy(np.dtype(dtype))
    blocks = None if units is None else units.shape
    session, names = update_session(optimizer, weight.shape, element, penalised, further, blocks)
    shapes = slot_shapes(optimizer, weight.shape, blocks)
    states = {name: np.zeros(shapes[name], dtype) for name in names}
    if units is not None:
        states[RATE_SCALE] = units.astype(dtype)
    weights = []
    for t, (gradient, eta) in enumerate(zip(gradients.astype(dtype), rates, strict=True), start=1):
        scalars = {**optimizer.scalars(np.array(t), np.array(eta), l2), **further}
        scale = dtype(-eta if optimizer.takes_scaled_gradient else 1.0)
        feeds = {"weight": weight, "gradient": gradient * scale, **states}
        feeds.update({f"scalar_{name}": np.array(value, dtype) for name, value in scalars.items()})
        weight, *new = session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
        states = dict(zip(names, new, strict=True))
        weights.append(weight)
    return weights


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-12)])
def test_200_steps_equal_those_of_torch_and_optax(case, dtype, tolerance):
    optimizer, l2 = CASES[case]
    gradients, rates = REFERENCE["gradients"], REFERENCE["rates"]
    rates = rates[:1].repeat(len(rates)) if case in CONSTANT else rates
    weight = run_updates(optimizer, REFERENCE["start"], gradients, rates, l2, dtype)[-1]
    assert np.abs(REFERENCE[case] - REFERENCE["start"]).max() > 0.1
    np.testing.assert_allclose(weight, REFERENCE[case], rtol=tolerance, atol=tolerance)


#: Of each row of OPTIMIZERS: further settings of its class, beside the defaults.
NAMED = {
    "sgd": [
        {},
        {"momentum": 0.7},
        {"momentum": 0.7, "nesterov": True},
        {"momentum": 0.7, "convention": "torch"},
        {"momentum": 0.7, "nesterov": True, "convention": "torch"},
    ],
    "adam": [{}, {"beta_1": 0.6, "beta_2": 0.8, "epsilon": 0.05}, {"amsgrad": True, "beta_2": 0.3}],
    "adamw": [{}, {"beta_1": 0.6, "beta_2": 0.8, "epsilon": 0.05}, {"amsgrad": True, "beta_2": 0.3}],
    "rmsprop": [{}, {"rho": 0.5, "epsilon": 0.1}],
    "adagrad": [{}, {"epsilon": 0.1}],
    "lion": [{}, {"beta_1": 0.6, "beta_2": 0.8}],
    "block_adam": [
        {},
        {"beta_1": 0.6, "beta_2": 0.8},
        {"steering": 0.3},
        {"steering": 0.3, "with_penalties": True},
        {"steering": 0.3, "with_sizes": True},
        {"steering": 0.3, "rest": 0.4},
        {"steering": 0.3, "rest": 0.4, "square_rest": 1.5},
    ],
}
NAMED_CASES = [
    pytest.param(name, options, id="-".join([name, *options])) for name in NAMED for options in NAMED[name]
]


def test_every_optimizer_has_a_case():
    assert set(optimizers.OPTIMIZERS) == set(NAMED) == set(PLAIN)


@pytest.mark.parametrize(("name", "options"), NAMED_CASES)
@pytest.mark.parametrize("l2", [0.0, 0.3, 40.0])
def test_updates_agree_with_numpy(name, options, l2):
    """Six updates at falling rates; the strongest decay would take more than the weight."""
    rng = np.random.default_rng(1)
    start, gradients = rng.normal(size=(3, 2)), rng.normal(size=(6, 3, 2))
    rates = 0.1 / np.arange(1.0, 7)
    optimizer = type(optimizers.OPTIMIZERS[name](0.0, False))(**options)
    plain, expected = PLAIN[name](**options), start
    weights = run_updates(optimizer, start, gradients, rates, l2, np.float64)
    for t, (weight, gradient, eta) in enumerate(zip(weights, gradients, rates, strict=True), start=1):
        expected = plain(expected, gradient, t, eta, l2)
        np.testing.assert_allclose(weight, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("name", "options"), NAMED_CASES)
def test_an_intercept_does_not_decay(name, options):
    start, gradients = np.ones((1, 2)), np.random.default_rng(2).normal(size=(3, 1, 2))
    optimizer = type(optimizers.OPTIMIZERS[name](0.0, False))(**options)
    free, bound = (
        run_updates(optimizer, start, gradients, [0.1] * 3, l2, np.float64, penalised=False)
        for l2 in (0.0, 5.0)
    )
    np.testing.assert_array_equal(bound, free)


@pytest.mark.parametrize(("steering", "with_penalties"), [(0.0, False), (0.3, False), (0.3, True)])
def test_a_proximal_optimizer_applies_the_l1_penalty(steering, with_penalties):
    """At the end of 40 updates towards a sparse solution some weights are exactly zero, in both."""
    rng = np.random.default_rng(3)
    start, noise = rng.normal(size=(4, 3)), 0.01 * rng.normal(size=(40, 4, 3))
    options = {"steering": steering, "with_penalties": with_penalties}
    plain, expected = PLAIN["block_adam"](**options), start
    optimizer = optimizers.BlockAdam(**options)
    weights = run_updates(optimizer, start, noise, [0.05] * 40, 0.002, np.float64, l1=0.006)
    for t, (weight, gradient) in enumerate(zip(weights, noise, strict=True), start=1):
        expected = plain(expected, gradient, t, 0.05, 0.002, 0.006)
        np.testing.assert_allclose(weight, expected, rtol=1e-11, atol=1e-13)
    assert 0 < np.count_nonzero(expected) < 12


@pytest.mark.parametrize(("steering", "with_penalties"), [(0.0, False), (0.3, False), (0.3, True)])
@pytest.mark.parametrize("axis", [0, 1])
def test_outputs_with_units_of_their_own_are_updated_alone(axis, steering, with_penalties):
    """As if the weights of each output were a tensor, with a second moment and a unit of its rate."""
    rng = np.random.default_rng(4)
    start, gradients = rng.normal(size=(4, 3)), rng.normal(size=(30, 4, 3)) * [1e-3, 1.0, 1e4]
    units = np.array([1e-3, 1.0, 1e4])
    shape = (3, 1) if axis == 0 else (1, 3)
    given, moved = (start.T, gradients.transpose(0, 2, 1)) if axis == 0 else (start, gradients)
    options = {"steering": steering, "with_penalties": with_penalties}
    optimizer = optimizers.BlockAdam(**options)
    weights = run_updates(optimizer, given, moved, [0.05] * 30, 0.01, np.float64, units=units.reshape(shape))
    last = weights[-1].T if axis == 0 else weights[-1]
    for column, unit in enumerate(units):
        plain, expected = PLAIN["block_adam"](**options), start[:, column]
        for t, gradient in enumerate(gradients[:, :, column], start=1):
            expected = plain(expected, gradient, t, 0.05 * unit, 0.01)
        np.testing.assert_allclose(last[:, column], expected, rtol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("steering", [0.0, 0.1])
def test_a_gradient_of_zeros_moves_nothing(steering, dtype):
    """Penalties neither: their rate is that of the gradient."""
    start = np.ones((2, 2))
    optimizer = optimizers.BlockAdam(steering=steering)
    for l2, further in [(0.0, {}), (1e-4, {"l1": 1e-4})]:
        (weight,) = run_updates(optimizer, start, np.zeros((1, 2, 2)), [0.1], l2, dtype, **further)
        np.testing.assert_array_equal(weight, start)


@pytest.mark.parametrize(
    ("sign", "bound", "with_sizes"), [(1.0, 4.0, False), (1.0, 10.0, True), (-1.0, 0.03, False)]
)
def test_a_steered_rate_stays_within_its_bounds(sign, bound, with_sizes):
    """Gradients of one direction lead to the longest step, those that turn at each update to the shortest."""
    gradients = np.array([sign**t * np.ones((1, 2)) for t in range(400)])
    optimizer = optimizers.BlockAdam(0.0, 0.0, steering=0.1, with_sizes=with_sizes)
    weights = run_updates(optimizer, np.zeros((1, 2)), gradients, [0.01] * 400, 0.0, np.float64)
    np.testing.assert_allclose(np.abs(weights[-1] - weights[-2]), 0.01 * bound)


@pytest.mark.parametrize("norm_axes", [(), (1,)])
def test_a_steered_rate_does_not_grow_at_the_minimum_of_a_penalised_loss(norm_axes):
    """The gradient of the loss keeps its direction there: by its angle alone the rate is the largest."""
    rng, minimum = np.random.default_rng(5), np.array([[2.0, -1.0], [0.0, 0.0], [0.5, 1.5]])
    norms = np.linalg.norm(minimum, axis=1, keepdims=True) / np.sqrt(2.0) if norm_axes else np.abs(minimum)
    of_l1 = np.divide(minimum, norms, out=np.zeros((3, 2)), where=norms > 0)
    gradients = -0.4 * minimum - 0.3 * of_l1 + 0.5 * rng.normal(size=(500, 3, 2))

    def factor(*, with_penalties):
        optimizer = optimizers.BlockAdam(steering=0.1, with_penalties=with_penalties)
        states = {name: np.zeros(shape) for name, shape in slot_shapes(optimizer, (3, 2), None).items()}
        session, names = update_session(
            optimizer, (3, 2), ir.DataType.DOUBLE, further={"l1": 0.3}, norm_axes=norm_axes
        )
        for t, gradient in enumerate(gradients, start=1):
            scalars = {**optimizer.scalars(np.array(t), np.array(0.1), 0.4), "l1": 0.3}
            feeds = {f"scalar_{name}": np.array(value, np.float64) for name, value in scalars.items()}
            _, *new = session.run(None, {"weight": minimum, "gradient": gradient, **states, **feeds})
            states = dict(zip(names, new, strict=True))
        return np.exp(states["log_factor"].item())

    assert factor(with_penalties=False) > 3.0
    assert factor(with_penalties=True) < 0.5


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (optimizers.SGD, {"momentum": 1.0}),
        (optimizers.SGD, {"momentum": -0.1}),
        (optimizers.Adam, {"beta_1": 1.0}),
        (optimizers.Adam, {"beta_2": -1.0}),
        (optimizers.AdamW, {"epsilon": 0.0}),
        (optimizers.BlockAdam, {"beta_2": 1.0}),
        (optimizers.BlockAdam, {"rest": 1.0}),
        (optimizers.BlockAdam, {"square_rest": 0.0}),
        (optimizers.BlockAdam, {"inertia": 1.5}),
        (optimizers.BlockAdam, {"beta_1": 1.0}),
        (optimizers.RMSProp, {"rho": 1.0}),
        (optimizers.Adagrad, {"epsilon": 0.0}),
        (optimizers.Lion, {"beta_2": 1.0}),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(cls, options):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        cls(**options)


@pytest.mark.parametrize(
    "option",
    [{"with_penalties": True}, {"with_sizes": True}, {"rest": 0.1}, {"square_rest": 1.0}, {"inertia": 0.3}],
    ids=str,
)
def test_options_of_an_angle_that_steers_nothing_are_refused(option):
    ((name, value),) = option.items()
    with pytest.raises(OnnxSGDError, match=f"{name}={value} has no effect with steering=0"):
        optimizers.BlockAdam(**option)


def test_a_momentum_that_would_be_ignored_is_refused():
    ahead = optimizers.SGD(nesterov=True)
    for arguments in [
        ("adam", 0.9, False), (optimizers.SGD(), 0.9, False), ("sgd", 0.0, True), (ahead, 0.0, False)
    ]:  # fmt: skip
        with pytest.raises(OnnxSGDError, match="no effect"):
            optimizers.make_optimizer(*arguments)


def test_unknown_optimizers_are_refused():
    with pytest.raises(ValueError, match="'lions'.*adamw.*lion"):
        optimizers.make_optimizer("lions", 0.0, False)
    with pytest.raises(ValueError, match="convention='keras'.*'sklearn' or 'torch'"):
        optimizers.SGD(0.9, convention="keras")
    with pytest.raises(TypeError, match="42"):
        optimizers.make_optimizer(42, 0.0, False)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("is_even", [True, False])
def test_a_proximal_step_of_groups_is_the_minimum(is_even, dtype):
    """Norms by bisection in float64, with rates within a group that differ by a factor of up to 10,000."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(2000, 5)) * 10 ** rng.uniform(-3, 2, size=(2000, 1))
    most = np.abs(weight).mean(axis=1)[:, None] * 10 ** rng.uniform(-3, 3, size=(2000, 1))
    most = most if is_even else most * 10 ** rng.uniform(-2, 2, size=(2000, 5))
    weight[0] = 0.0
    most[1] = 0.0
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="shrink")
    type_ = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))
    operands = [
        ir.Value(name=name, type=type_, shape=ir.Shape(array.shape))
        for name, array in (("weight", weight), ("most", most))
    ]
    graph.inputs.extend(operands)
    graph.outputs.append(shrink_groups(GraphBuilder(graph).op, *operands, [1], is_even=is_even))
    graph.outputs[0].name = "result"
    session = onnxruntime.InferenceSession(to_proto(ir.Model(graph, ir_version=9)).SerializeToString())
    (result,) = session.run(None, {"weight": weight.astype(dtype), "most": most.astype(dtype)})
    weight, most = weight.astype(dtype).astype(float), most.astype(dtype).astype(float) + np.zeros((1, 5))
    with np.errstate(divide="ignore", invalid="ignore"):
        is_zero = ~(np.square(weight / most).sum(axis=1) > 1)
    low, high = np.zeros(2000), np.linalg.norm(weight, axis=1)
    for _ in range(200):
        middle = (low + high) / 2
        is_low = np.square(weight / np.maximum(most + middle[:, None], 1e-100)).sum(axis=1) > 1
        low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
    norm = np.where(is_zero, 0.0, low)[:, None]
    expected = weight * norm / np.maximum(norm + most, 1e-100)
    near = np.abs(np.square(weight / np.maximum(most, 1e-100)).sum(axis=1) - 1) < 1e-5
    assert 100 < is_zero.sum() < 1900
    np.testing.assert_array_equal((result == 0).all(axis=1)[~near], is_zero[~near])
    size = np.linalg.norm(weight, axis=1, keepdims=True) + 1e-100
    np.testing.assert_allclose(result / size, expected / size, atol=3e-6 if dtype == np.float32 else 1e-7)
    assert (result[1] == weight[1]).all()
