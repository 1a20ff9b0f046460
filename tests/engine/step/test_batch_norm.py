"""BatchNormalization in the training step: statistics of the rows that are no padding, as in torch."""

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from onnxsgd.engine.step.step_spec import StepSpec
from onnxsgd.engine.step.training_step import build_step
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.exceptions import UnsupportedError
from onnxsgd.graph.model import to_ir
from onnxsgd.losses import CrossEntropy
from onnxsgd.optimizers import SGD

#: Numbers of float32: the attributes of an operator are no others.
EPSILON, MOMENTUM = 2.0**-10, 0.75
#: A convolution, a layer over its channels, a layer over columns.
NETWORK = """
<ir_version: 9, opset_import: ["" : 18]>
network (double[N, 2, 4, 4] X) => (double[N, 3] Y) <int64[2] flat = {0, -1}> {
    a = Conv(X, K, k)
    b = BatchNormalization<epsilon = EPS, momentum = MOM>(a, s1, t1, m1, v1)
    c = Tanh(b)
    d = Reshape(c, flat)
    e = Gemm(d, W, w)
    f = BatchNormalization<epsilon = EPS, momentum = MOM>(e, s2, t2, m2, v2)
    g = Tanh(f)
    Y = Gemm(g, V, v)
}
""".replace("EPS", str(EPSILON)).replace("MOM", str(MOMENTUM))
SHAPES = {
    "K": (3, 2, 3, 3), "k": (3,), "s1": (3,), "t1": (3,), "m1": (3,), "v1": (3,), "W": (12, 4), "w": (4,),
    "s2": (4,), "t2": (4,), "m2": (4,), "v2": (4,), "V": (4, 3), "v": (3,),
}  # fmt: skip
STATISTICS = ("m1", "v1", "m2", "v2")
WEIGHTS = tuple(name for name in SHAPES if name not in STATISTICS)
RNG = np.random.default_rng(0)
#: Variances are positive.
TENSORS = {name: np.abs(RNG.normal(size=shape)) for name, shape in SHAPES.items()}
X, LABELS = RNG.normal(size=(14, 2, 4, 4)), np.arange(14) % 3
RATE, ROWS = 0.1, 5


def parse(text, **tensors):
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in tensors.items())
    return to_ir(onnx.shape_inference.infer_shapes(proto))


def make_spec(batch_size, **more):
    settings = {
        "weights": WEIGHTS, "penalised": frozenset(), "loss": CrossEntropy(), "optimizer": SGD(), "l1": False,
        "l2": False, "average": False, "batch_size": batch_size, "n_outputs": 3, "engine": "portable",
        "statistics": STATISTICS,
    }  # fmt: skip
    return StepSpec(**settings | more)


class Steps:
    """Updates by the compiled graph, run by the reference evaluator of onnx in float64."""

    def __init__(self, batch_size=ROWS, **more):
        self.step = build_step(parse(NETWORK, **TENSORS), make_spec(batch_size, **more), with_rows=False)
        self.run = ReferenceEvaluator(onnx.load_from_string(self.step.model))
        self.tensors = {(name, WEIGHT): array for name, array in TENSORS.items()}
        self.batch_size = batch_size

    def update(self, x, labels, weight=None):
        """Make an update; a short batch is filled up with rows of weight zero."""
        n_missing = self.batch_size - len(x)
        weight = np.ones(len(x)) if weight is None else weight
        share = np.concatenate([weight / weight.sum(), np.zeros(n_missing)])[:, None]
        step = self.step
        data = {
            "X": np.concatenate([x, 1e6 * np.ones((n_missing, *x.shape[1:]))]),
            step.target: np.eye(3)[np.concatenate([labels, np.zeros(n_missing, int)])],
            step.sample_weight: share,
            step.gradient_weight: -RATE * share,
        }
        old = {before: self.tensors[key] for key, (before, _) in step.tensors.items()}
        names = [value.name for value in self.run.proto_.graph.output]
        found = dict(zip(names, self.run.run(None, {**data, **old}), strict=True))
        self.tensors = {key: found[after] for key, (_, after) in step.tensors.items()}

    def __getitem__(self, name):
        return self.tensors[name, WEIGHT]


def test_thirty_updates_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="the comparison with torch needs torch")
    tensors = {name: torch.tensor(array, requires_grad=name in WEIGHTS) for name, array in TENSORS.items()}
    optimizer = torch.optim.SGD([tensors[name] for name in WEIGHTS], lr=RATE)

    def norm(x, number):
        running = tensors[f"m{number}"], tensors[f"v{number}"]
        scale, shift = tensors[f"s{number}"], tensors[f"t{number}"]
        return torch.nn.functional.batch_norm(x, *running, scale, shift, True, 1 - MOMENTUM, EPSILON)

    def scores(x):
        maps = torch.tanh(norm(torch.nn.functional.conv2d(x, tensors["K"], tensors["k"]), 1))
        return (
            torch.tanh(norm(maps.flatten(1) @ tensors["W"] + tensors["w"], 2)) @ tensors["V"] + tensors["v"]
        )

    steps = Steps()
    for update in range(30):
        rows = slice(*(ROWS * (update % 3) + np.array([0, ROWS])))
        steps.update(X[rows], LABELS[rows])
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(scores(torch.tensor(X[rows])), torch.tensor(LABELS[rows]))
        loss.backward()
        optimizer.step()
    for name in SHAPES:
        np.testing.assert_allclose(steps[name], tensors[name].detach().numpy(), rtol=1e-8, atol=1e-8)
        # the mean of a batch takes the intercepts before a layer away
        assert name in ("k", "w") or np.abs(steps[name] - TENSORS[name]).max() > 1e-3


def test_statistics_move_towards_those_of_the_batch():
    """Written out: the mean of all places of a channel, and the variance with the divisor n - 1."""
    steps = Steps()
    steps.update(X[:4], LABELS[:4])
    windows = np.lib.stride_tricks.sliding_window_view(X[:4], (3, 3), axis=(2, 3))
    maps = np.einsum("nchwij,ocij->onhw", windows, TENSORS["K"]).reshape(3, -1) + TENSORS["k"][:, None]
    for name, batch in (("m1", maps.mean(axis=1)), ("v1", maps.var(axis=1, ddof=1))):
        expected = MOMENTUM * TENSORS[name] + (1 - MOMENTUM) * batch
        np.testing.assert_allclose(steps[name], expected, rtol=1e-12)


def test_rows_of_weight_zero_change_nothing():
    one, other = Steps(4), Steps(9)
    for steps in (one, other):
        steps.update(X[:4], LABELS[:4])
    for name in SHAPES:
        np.testing.assert_allclose(other[name], one[name], rtol=1e-12, atol=1e-14)


def test_weights_of_samples_do_not_enter_the_statistics():
    one, other = Steps(4), Steps(4)
    one.update(X[:4], LABELS[:4])
    other.update(X[:4], LABELS[:4], weight=np.array([1.0, 5.0, 0.2, 1.0]))
    for name in STATISTICS:
        np.testing.assert_allclose(other[name], one[name], rtol=1e-12)
    assert np.abs(other["V"] - one["V"]).max() > 1e-3


def test_a_single_row_is_normalised_by_the_running_statistics():
    """A row has a variance over the places of the image, and none over one number."""
    steps, frozen = Steps(), Steps(statistics=("m1", "v1"))
    steps.update(X[:1], LABELS[:1])
    frozen.update(X[:1], LABELS[:1])
    for name in ("m2", "v2"):
        np.testing.assert_array_equal(steps[name], TENSORS[name])
        assert np.abs(steps[name.replace("2", "1")] - TENSORS[name.replace("2", "1")]).max() > 1e-3
    for name in WEIGHTS:
        np.testing.assert_allclose(steps[name], frozen[name], rtol=1e-10, atol=1e-14)


def test_averages_of_the_statistics_go_with_those_of_the_weights():
    step = build_step(parse(NETWORK, **TENSORS), make_spec(ROWS, average=True), with_rows=False)
    assert {key for key in step.tensors if key[1] == "average"} == {(name, "average") for name in SHAPES}


def test_several_rows_of_a_sample_are_padding_together():
    """A sequence whose steps are the rows of a table: [n, 3, 2] becomes [3 n, 2]."""
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[N, 3, 2] X) => (float[N, 1] Y) <int64[2] rows = {-1, 2}, int64[2] table = {-1, 6}> {
        a = Reshape(X, rows)
        b = BatchNormalization(a, s, t, m, v)
        c = Reshape(b, table)
        Y = MatMul(c, W)
    }"""
    ones = {"s": np.ones(2), "t": np.zeros(2), "m": np.zeros(2), "v": np.ones(2), "W": np.ones((6, 1))}
    model = parse(text, **{name: array.astype(np.float32) for name, array in ones.items()})
    spec = make_spec(4, weights=("W",), n_outputs=1, statistics=("m", "v"))
    step = build_step(model, spec, with_rows=False)
    x = RNG.normal(size=(4, 3, 2)).astype(np.float32)
    weight = np.array([[0.5], [0.5], [0], [0]], np.float32)
    feeds = {
        "X": x, step.target: np.ones((4, 1), np.float32), step.sample_weight: weight,
        step.gradient_weight: weight, "W": ones["W"].astype(np.float32), "m": np.zeros(2, np.float32),
        "v": np.ones(2, np.float32),
    }  # fmt: skip
    run = ReferenceEvaluator(onnx.load_from_string(step.model))
    (mean,) = run.run([step.tensors["m", WEIGHT][1]], feeds)
    np.testing.assert_allclose(mean, 0.1 * x[:2].reshape(6, 2).mean(axis=0), rtol=1e-5)


def test_unknown_rows_are_refused():
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[N, 2] X, int64[1] count) => (float[N, 1] Y) <int64[1] two = {2}> {
        sizes = Concat<axis = 0>(count, two)
        a = Reshape(X, sizes)
        b = BatchNormalization(a, s, t, m, v)
        Y = MatMul(b, W)
    }"""
    tensors = {name: np.ones(2, np.float32) for name in "stmv"} | {"W": np.ones((2, 1), np.float32)}
    spec = make_spec(4, weights=("W",), n_outputs=1, statistics=("m", "v"))
    with pytest.raises(UnsupportedError, match="'b' cannot train: its input has the shape .*'frozen'"):
        build_step(parse(text, **tensors), spec)
