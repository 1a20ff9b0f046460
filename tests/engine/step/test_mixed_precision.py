"""Updates in float16 and bfloat16 with weights in float32: numbers of torch, skipped updates, the loss scale.

On the CPU the runtime keeps float32 between the operators of such a graph and has no kernels of bfloat16. So
the blocks of most tests run in the reference evaluator of onnx, which rounds after each operator.
"""

import pickle
from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, load
from onnxsgd.engine.step import cuda_blocks
from onnxsgd.engine.step.cuda_graph_operators import is_recordable
from onnxsgd.engine.step.mixed_precision import (
    _BFLOAT16_KERNELS,
    GOOD_UPDATES,
    LOSS_SCALE,
    SCALER,
    widen_missing,
)
from onnxsgd.exceptions import ConvergenceError, EngineError, UnsupportedError
from onnxsgd.graph.model import subgraphs, to_ir, to_proto
from onnxsgd.losses import Loss
from onnxsgd.optimizers import OPTIMIZERS
from onnxsgd.runtime.cache import cache
from onnxsgd.runtime.device import Device

NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float": np.float32}
SHAPES = {"W": (4, 8), "b": (8,), "V": (8, 1), "c": (1,)}
NAMED = {
    "learning_rate": "constant", "eta0": 0.05, "max_iter": 3, "tol": None, "shuffle": False,
    "batch_size": 30, "penalty": None,
}  # fmt: skip
rng = np.random.RandomState(0)
X = rng.randn(150, 4).astype(np.float32)
Y = np.sin(X[:, 0]) + X[:, 1]


def graph(dtype, nodes="Z = Gemm(X, W, b)  H = Tanh(Z)  Y = Gemm(H, V, c)", shapes=SHAPES):
    onx = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({dtype}[N, 4] X) => ({dtype}[N, 1] Y) {{ {nodes} }}""")
    draw = np.random.RandomState(1)
    for name, shape in shapes.items():
        # numbers of 8 bits: every type holds them
        array = (draw.randn(*shape) * 0.5).astype(ml_dtypes.bfloat16).astype(NUMPY[dtype])
        onx.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return onx


class RoundingSession:
    """A session that runs each operator by numpy, and rounds its result to the type of the graph."""

    def __init__(self, model, n_threads):
        proto = onnx.load_from_string(model)
        self._evaluator = ReferenceEvaluator(proto)
        self._inputs = [
            SimpleNamespace(
                name=value.name,
                type={1: "tensor(float)", 6: "tensor(int32)", 7: "tensor(int64)"}[
                    value.type.tensor_type.elem_type
                ],
                shape=[d.dim_value or d.dim_param for d in value.type.tensor_type.shape.dim],
            )
            for value in proto.graph.input
        ]

    def get_inputs(self):
        return self._inputs

    def io_binding(self):
        given, wanted = {}, {}
        return SimpleNamespace(
            given=given, wanted=wanted, bind_ortvalue_input=given.__setitem__,
            bind_ortvalue_output=wanted.__setitem__, synchronize_outputs=lambda: None,
        )  # fmt: skip

    def run_with_iobinding(self, binding, options):
        feeds = {name: value.numpy() for name, value in binding.given.items()}
        with np.errstate(all="ignore"):
            found = self._evaluator.run(list(binding.wanted), feeds)
        for value, array in zip(binding.wanted.values(), found, strict=True):
            value.update_inplace(np.ascontiguousarray(array))


@pytest.fixture
def half(monkeypatch):
    """Train graphs of 16 bits in 16 bits, by the runtime on the CPU."""
    monkeypatch.setattr(Device, "keeps_data", True)
    monkeypatch.setattr(Device, "has_half_kernels", True)
    # sessions of other tests do not round, or do
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def rounding(half, monkeypatch):
    """Round after each operator."""
    monkeypatch.setattr(cuda_blocks, "make_session", RoundingSession)


def scaler_of(model):
    return model._state.tensors[SCALER, LOSS_SCALE].item(), model._state.tensors[SCALER, GOOD_UPDATES].item()


def torch_fit(
    kind, optimizer, y=Y, *, rate=0.05, epochs=3, clip=None, accumulated=1, l2=0.0, rows=30, interval=2000
):
    """Return weights, scale, good updates and the number of updates of torch, with a copy of 16 bits."""
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, kind)
    start = {t.name: onnx.numpy_helper.to_array(t) for t in graph(kind).graph.initializer}
    masters = {name: torch.tensor(a.astype(np.float32), requires_grad=True) for name, a in start.items()}
    updates = optimizer(torch, list(masters.values()), rate)
    scaler = torch.amp.GradScaler("cpu", enabled=kind == "float16", growth_interval=interval)
    inputs, target = torch.tensor(X).to(dtype), torch.tensor(y[:, None].astype(np.float32))
    n_made = 0
    for _ in range(epochs):
        for first in range(0, len(X), rows * accumulated):
            for part in range(accumulated):
                at = slice(first + part * rows, first + (part + 1) * rows)
                copies = {name: w.detach().to(dtype).requires_grad_() for name, w in masters.items()}
                hidden = torch.tanh(torch.addmm(copies["b"], inputs[at], copies["W"]))
                raw = torch.addmm(copies["c"], hidden, copies["V"]).float()
                loss = ((raw - target[at]) ** 2).mean() / 2 / accumulated
                scaler.scale(loss).backward()
                for name, copy in copies.items():
                    known = masters[name].grad
                    masters[name].grad = copy.grad.float() if known is None else known + copy.grad.float()
            scaler.unscale_(updates)
            if clip:
                torch.nn.utils.clip_grad_norm_(list(masters.values()), clip)
            for name in ("W", "V") if l2 else ():
                masters[name].grad += l2 * masters[name].detach()
            before = [w.detach().clone() for w in masters.values()]
            scaler.step(updates)
            scaler.update()
            moved = zip(before, masters.values(), strict=True)
            n_made += any(bool((a != b).any()) for a, b in moved)
            updates.zero_grad()
    numbers = (scaler.get_scale(), scaler._get_growth_tracker()) if kind == "float16" else None
    return {name: tensor.detach().numpy() for name, tensor in masters.items()}, numbers, n_made


def assert_close(found, wanted, atol):
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=atol, err_msg=name)


def sgd(torch, weights, rate):
    return torch.optim.SGD(weights, lr=rate)


CASES = {
    "sgd": ({}, sgd, {}),
    "momentum": ({"momentum": 0.9}, lambda t, w, rate: t.optim.SGD(w, lr=rate, momentum=0.9), {}),
    "adam": ({"optimizer": "adam"}, lambda t, w, rate: t.optim.Adam(w, lr=rate), {}),
    "clipped": ({"max_grad_norm": 0.5}, sgd, {"clip": 0.5}),
    "accumulated": ({"gradient_accumulation_steps": 5, "max_iter": 9}, sgd, {"accumulated": 5, "epochs": 9}),
    "l2": ({"penalty": "l2", "alpha": 0.1}, sgd, {"l2": 0.1}),
}  # fmt: skip


@pytest.mark.parametrize(("unit", "rate"), [(0.1, 0.05), (100.0, 1e-4)], ids=["small", "large"])
@pytest.mark.parametrize("case", CASES)
def test_float16_is_that_of_torch(case, unit, rate, rounding):
    """Large targets overflow at the first scale: the first updates are skipped, and t does not count them."""
    params, optimizer, more = CASES[case]
    # Adam moves weights by the rate, whatever the size of gradients
    y, rate = Y * unit, 0.01 if case == "adam" else rate
    wanted, numbers, n_made = torch_fit("float16", optimizer, y, rate=rate, **more)
    model = OnnxSGDRegressor(graph("float16"), **NAMED | params | {"eta0": rate}).fit(X, y)
    # gradients of float16 have 1e-3 of their size as a unit in the last place, and weights move by some 0.2
    assert_close(model.get_weights(), wanted, 4e-4)
    assert scaler_of(model) == numbers
    assert model.t_ == n_made
    assert (numbers[0] < 65536) == (unit > 1)
    assert {array.dtype for array in model.get_weights().values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("accumulated", [1, 5])
def test_many_updates_are_skipped_as_in_torch(accumulated, rounding, monkeypatch):
    """A scale that is doubled after three updates overflows again and again, within blocks and after them."""
    monkeypatch.setattr("onnxsgd.engine.step.mixed_precision._INTERVAL", 3.0)
    wanted, numbers, n_made = torch_fit(
        "float16", CASES["adam"][1], rate=0.01, epochs=4, rows=5, accumulated=accumulated, interval=3
    )
    params = NAMED | {"optimizer": "adam", "eta0": 0.01, "max_iter": 4, "batch_size": 5}
    model = OnnxSGDRegressor(graph("float16"), gradient_accumulation_steps=accumulated, **params).fit(X, Y)
    assert scaler_of(model) == numbers
    assert model.t_ == n_made < 0.95 * 120 / accumulated
    assert_close(model.get_weights(), wanted, 3e-3)


@pytest.mark.filterwarnings("ignore:Maximum number of iteration")
def test_skipped_updates_are_those_of_epochs_made_one_by_one(rounding, monkeypatch, capsys):
    """Windows of several epochs in one call, whose later epochs depend on skipped updates of earlier ones."""
    monkeypatch.setattr("onnxsgd.engine.step.mixed_precision._INTERVAL", 3.0)
    settings = {"random_state": 0, "max_iter": 60, "batch_size": 50, "average": 5, "alpha": 0.01}
    together, single = (
        OnnxSGDRegressor(graph("float16"), verbose=verbose, **settings).fit(X, Y) for verbose in (0, 1)
    )
    assert together.t_ == single.t_ < 0.95 * 3 * len(single.loss_curve_)
    np.testing.assert_allclose(together.learning_rates_, single.learning_rates_, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(together.loss_curve_, single.loss_curve_, rtol=1e-6)
    assert_close(together.get_weights(), single.get_weights(), 1e-6)


@pytest.mark.parametrize("case", ["sgd", "adam", "clipped", "accumulated"])
def test_bfloat16_is_that_of_torch_and_has_no_scale(case, rounding):
    params, optimizer, more = CASES[case]
    rate = 0.01 if case == "adam" else 0.05
    wanted, _, n_made = torch_fit("bfloat16", optimizer, rate=rate, **more)
    model = OnnxSGDRegressor(graph("bfloat16"), **NAMED | params | {"eta0": rate}).fit(X, Y)
    assert_close(model.get_weights(), wanted, 4e-3)
    assert model.t_ == n_made
    assert not any(owner == SCALER for owner, _ in model._state.tensors)


def whole(onx, y, epochs, scale, monkeypatch, **params):
    """Return an estimator after so many updates, each of all samples, from a first scale."""
    monkeypatch.setattr("onnxsgd.training.state.FIRST_SCALE", scale)
    settings = {"learning_rate": "invscaling", "eta0": 1e-3, "tol": None, "shuffle": False, "batch_size": 150}
    return OnnxSGDRegressor(onx, max_iter=epochs, random_state=0, **settings | params).fit(X, y)


@pytest.mark.parametrize(
    "params",
    [
        *({"optimizer": name} for name in OPTIMIZERS),
        {"momentum": 0.9, "penalty": "elasticnet", "alpha": 0.01, "average": 2},
        {"average": 0.9, "optimizer": "adam", "penalty": "l1", "alpha": 0.01},
        {"gradient_accumulation_steps": 3, "batch_size": 50, "average": 2, "penalty": "l1", "alpha": 0.01},
        {"max_grad_norm": 0.1, "max_grad_value": 0.05, "learning_rate_multipliers": {"W": 0.1, "b": 0.0}},
        {"loss": "huber", "learning_rate": "constant"},
    ],
    ids=str,
)
def test_a_skipped_update_is_none(params, rounding, monkeypatch):
    """Four updates after many skipped ones are four updates, bit for bit, with their rates and states."""
    params = {"penalty": None} | params
    n_skipped = 20 - whole(graph("float16"), Y, 20, 2.0**31, monkeypatch, **params).t_
    assert n_skipped > 8
    settled = whole(graph("float16"), Y, 4, 2.0 ** (31 - n_skipped), monkeypatch, **params)
    skipping = whole(graph("float16"), Y, 4 + n_skipped, 2.0**31, monkeypatch, **params)
    assert settled.t_ == skipping.t_ == 4
    np.testing.assert_array_equal(skipping.learning_rates_[-4:], settled.learning_rates_)
    np.testing.assert_array_equal(skipping.loss_curve_[-4:], settled.loss_curve_)
    assert skipping._state.l1_totals == settled._state.l1_totals
    assert skipping._state.missed == settled._state.missed
    assert skipping._state.tensors.keys() == settled._state.tensors.keys()
    for key, array in settled._state.tensors.items():
        np.testing.assert_array_equal(skipping._state.tensors[key], array, err_msg=str(key))
    assert scaler_of(skipping) == (2.0 ** (31 - n_skipped), 4)


def test_a_long_run_of_updates_doubles_the_scale(half):
    """After 2,000 of them, as in torch: 2,100 are 100 more."""
    model = OnnxSGDRegressor(graph("float16"), **NAMED | {"batch_size": 1, "max_iter": 14, "eta0": 1e-3})
    assert scaler_of(model.fit(X, Y)) == (131072, 100)
    assert model.t_ == 2100


def test_the_scale_is_a_state_of_the_estimator(rounding, tmp_path):
    """In streams, pickles and files it continues; a new fit begins anew, as states of optimizers do."""
    model = OnnxSGDRegressor(graph("float16"), **NAMED | {"eta0": 1e-4})
    model.fit(X, 100 * Y)
    scale, good = scaler_of(model)
    assert scale < 65536
    model.save(tmp_path / "model.zip")
    loaded = [pickle.loads(pickle.dumps(model)), load(tmp_path / "model.zip")]
    for each in (model, *loaded):
        each.partial_fit(X, 100 * Y)
        assert scaler_of(each) == (scale, good + 5)
        np.testing.assert_array_equal(each.predict(X), model.predict(X))
    assert scaler_of(model.fit(X, 100 * Y)) == (scale, good)


def test_gradients_that_are_finite_at_no_scale_are_an_error(rounding):
    """Otherwise all updates of a fit would be skipped without a word."""
    onx = graph("float16", "Z = Gemm(X, W, b)  R = Relu(Z)  S = Sqrt(R)  Y = Gemm(S, V, c)")
    model = OnnxSGDRegressor(onx, **NAMED | {"max_iter": 30})
    with pytest.raises(ConvergenceError, match=r"no longer finite at update 1\b"):
        model.fit(X, Y)
    assert model.t_ == 0


def test_files_keep_float16_and_the_exported_step_is_float32(rounding, tmp_path):
    model = OnnxSGDRegressor(graph("float16"), **NAMED | {"eta0": 1e-4}).fit(X, 100 * Y)
    for tensor in model.to_onnx().graph.initializer:
        rounded = model.get_weights()[tensor.name].astype(np.float16)
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), rounded)
    model.export_training_step(tmp_path / "step.onnx")
    step = onnx.load(tmp_path / "step.onnx")
    assert not [value.name for value in step.graph.input if "scale" in value.name]
    kinds = {value.type.tensor_type.elem_type for value in (*step.graph.input, *step.graph.output)}
    assert onnx.TensorProto.FLOAT16 not in kinds


@pytest.mark.filterwarnings("ignore:Maximum number of iteration")
@pytest.mark.parametrize("params", [{}, {"early_stopping": True}, {"average": 5}], ids=str)
def test_training_that_finds_its_rate(params, rounding):
    """Its windows, cuts and decays are those of float32, up to rounding, and skipped updates are few."""
    settings = {"random_state": 0, "max_iter": 30, "batch_size": 10} | params
    single = OnnxSGDRegressor(graph("float16"), dtype="float32", **settings).fit(X, 100 * Y)
    model = OnnxSGDRegressor(graph("float16"), **settings).fit(X, 100 * Y)
    assert scaler_of(model)[0] < 65536
    assert single.score(X, 100 * Y) > 0.9
    assert abs(model.score(X, 100 * Y) - single.score(X, 100 * Y)) < 0.02


def test_a_stream_that_finds_its_rate(rounding):
    model = OnnxSGDRegressor(graph("float16"), random_state=0)
    for _ in range(40):
        model.partial_fit(X, Y)
    assert model.score(X, Y) > 0.9


class OwnLoss(Loss):
    """A loss without a formula of its gradient: the whole is differentiated."""

    def value(self, op, y_true, raw_prediction):
        residual = op.Sub(raw_prediction, y_true)
        return op.Mul(op.Mul(residual, residual), 0.5)


def test_a_loss_without_a_gradient_is_scaled_too(rounding):
    settings = NAMED | {"eta0": 1e-4}
    known, own = (
        OnnxSGDRegressor(graph("float16"), loss=loss, **settings).fit(X, 100 * Y)
        for loss in ("squared_error", OwnLoss())
    )
    assert scaler_of(own) == scaler_of(known)
    assert own.t_ == known.t_ < 15
    assert_close(own.get_weights(), known.get_weights(), 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_classifier_of_a_deep_graph(dtype, rounding):
    """Normalisation by statistics of the batch, kept in float32, and Dropout, which draws."""
    nodes = """Z = Gemm(X, W, b)  N = BatchNormalization(Z, s, t, mean, var)  R = Relu(N)
        D = Dropout(R)  Y = Gemm(D, V, c)"""
    shapes = {"W": (4, 8), "b": (8,), "V": (8, 3), "c": (3,), "s": (8,), "t": (8,), "mean": (8,), "var": (8,)}
    onx = graph(dtype, nodes, shapes)
    onx.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 3
    for tensor in onx.graph.initializer:
        if tensor.name in ("var", "s"):
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ones(8, NUMPY[dtype]), tensor.name))
    labels = np.digitize(Y, [-0.5, 0.5])
    params = {"batch_norm": "train", "dropout": 0.1, "random_state": 0, "learning_rate": "constant"}
    model = OnnxSGDClassifier(onx, optimizer="adam", eta0=0.02, max_iter=15, tol=None, **params)
    model.fit(X, labels)
    assert model.score(X, labels) > 0.85
    mean = model.get_weights()["mean"]
    assert mean.dtype == np.float32
    # in 16 bits, small moves of statistics would be lost
    assert (mean != mean.astype(NUMPY[dtype]).astype(np.float32)).any()


def test_a_graph_that_is_partly_float32(rounding):
    """Parts behind casts, a frozen part before the trained one."""
    nodes = """Z = Gemm(X, W, b)  H = Tanh(Z)  S = Cast<to = 1>(H)  T = Mul(S, S)  U = Cast<to = 10>(T)
        Y = Gemm(U, V, c)"""
    settings = NAMED | {"trainable": ["V", "c"], "max_iter": 20}
    model = OnnxSGDRegressor(graph("float16", nodes), **settings).fit(X, Y)
    single = OnnxSGDRegressor(graph("float16", nodes), dtype="float32", **settings).fit(X, Y)
    assert_close(model.get_weights(), single.get_weights(), 2e-3)
    assert scaler_of(model)[1] == 100


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_on_the_cpu_training_is_in_float32(dtype, monkeypatch):
    monkeypatch.setattr(Device, "keeps_data", True)
    half, single = (
        OnnxSGDRegressor(graph(dtype), dtype=name, **NAMED).fit(X, Y) for name in (None, "float32")
    )
    for name, array in single.get_weights().items():
        np.testing.assert_array_equal(half.get_weights()[name], array)


def test_the_runtime_itself_trains_such_a_graph(half):
    """It keeps float32 between its operators of float16, and so gets nearly the numbers of float32."""
    settings = NAMED | {"optimizer": "adam", "eta0": 0.01, "max_iter": 10}
    model = OnnxSGDRegressor(graph("float16"), **settings).fit(X, Y)
    single = OnnxSGDRegressor(graph("float16"), dtype="float32", **settings).fit(X, Y)
    assert_close(model.get_weights(), single.get_weights(), 2e-3)
    assert scaler_of(model) == (65536, 50)


def test_small_images(rounding, monkeypatch):
    """Convolutions and pooling, whose gradients are products over the batch."""
    nodes = """S = Constant<value_ints = [-1, 1, 4, 4]>()  I = Reshape(X, S)
        Z = Conv<pads = [1, 1, 1, 1]>(I, W, b)  R = Relu(Z)
        P = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(R)  F = Flatten(P)  Y = Gemm(F, V, c)"""
    shapes = {"W": (3, 1, 3, 3), "b": (3,), "V": (12, 1), "c": (1,)}
    onx = graph("float16", nodes, shapes)
    onx.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 16
    images = np.random.RandomState(2).randn(60, 16).astype(np.float16)
    y = images[:, 5] - images[:, 10].astype(np.float32)
    # no update is skipped at this scale
    monkeypatch.setattr("onnxsgd.training.state.FIRST_SCALE", 256.0)
    settings = NAMED | {"max_iter": 10, "batch_size": 10}
    model = OnnxSGDRegressor(onx, **settings).fit(images, y)
    single = OnnxSGDRegressor(onx, dtype="float32", **settings).fit(images, y)
    assert scaler_of(model) == (256, 60)
    assert_close(model.get_weights(), single.get_weights(), 0.01)
    assert any((model.get_weights()[name] != a).any() for name, a in single.get_weights().items())


def test_operators_without_kernels_are_an_error_with_a_remedy(half):
    with pytest.raises(EngineError, match=r"lacks an operator.* in bfloat16 there: dtype='float32' trains"):
        OnnxSGDRegressor(graph("bfloat16"), **NAMED).fit(X, Y)
    OnnxSGDRegressor(graph("bfloat16"), dtype="float32", **NAMED).fit(X, Y)


@pytest.mark.parametrize("accumulated", [1, 3])
def test_a_gpu_may_record_the_steps(accumulated, rounding, monkeypatch):
    """Casts, the scale and skipped updates need nothing from the host."""
    found = []
    monkeypatch.setattr(cuda_blocks, "is_recordable", lambda model: found.append(is_recordable(model)))
    params = NAMED | {"optimizer": "adam", "max_grad_norm": 1.0, "average": 2, "max_iter": 1}
    OnnxSGDRegressor(graph("float16"), gradient_accumulation_steps=accumulated, **params).fit(X, Y)
    assert found
    assert all(found)


def test_another_end_of_the_frozen_part_is_refused(half, monkeypatch):
    """Its results are those of float32, and another tail would read tensors that nothing computes."""
    learner = OnnxSGDRegressor(graph("float16"), **NAMED).fit(X, Y)._learner
    other = replace(learner.half_precision.divided.split, features=("H",))
    monkeypatch.setitem(
        vars(learner.half_precision), "divided", replace(learner.half_precision.divided, split=other)
    )
    with pytest.raises(UnsupportedError, match=r"\['H'\] in float16, and at \['X'\].*dtype='float32'"):
        OnnxSGDRegressor(graph("float16"), **NAMED | {"eta0": 0.01}).fit(X, Y)


RELU = "Z = Gemm(X, W, b)  H = Relu(Z)  L = LeakyRelu(H)  S = LogSoftmax(L)  Y = Gemm(S, V, c)"


def test_operators_without_kernels_for_bfloat16_compute_in_float32_on_a_gpu(rounding, monkeypatch):
    """Their results are exact, or rounded as those of an operator in 16 bits are."""
    made = []

    class Counting(RoundingSession):
        def __init__(self, model, n_threads):
            made.append(onnx.shape_inference.infer_shapes(onnx.load_from_string(model), strict_mode=True))
            super().__init__(model, n_threads)

    monkeypatch.setattr(cuda_blocks, "make_session", Counting)
    found = []
    for on_gpu in (False, True):
        build = cuda_blocks.build_block
        monkeypatch.setattr(
            cuda_blocks,
            "build_block",
            lambda *args, on_gpu, now=on_gpu, build=build: build(*args, on_gpu=now),
        )
        cache.clear()
        model = OnnxSGDRegressor(graph("bfloat16", RELU), **NAMED | {"eta0": 1e-3}).fit(X, Y)
        found.append(model.get_weights())
        monkeypatch.setattr(cuda_blocks, "build_block", build)
    assert_close(found[1], found[0], 2e-3)
    narrow = [narrow_operators(proto) for proto in made]
    without = {"LeakyRelu", "LogSoftmax"}
    assert without & set.union(*narrow[: len(narrow) // 2]) == without
    assert not any(names - _BFLOAT16_KERNELS for names in narrow[len(narrow) // 2 :])


def test_operators_with_subgraphs_keep_the_types_of_these():
    """The inputs of a body have types of their own; operators without kernels inside of it are widened."""
    proto = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (bfloat16[3] X, bfloat16[5, 3] S) => (bfloat16[3] Y, bfloat16[5, 3] T) {
        Y, T = Scan <num_scan_inputs = 1, body = b (bfloat16[3] x, bfloat16[3] s)
        => (bfloat16[3] y, bfloat16[3] t) { a = Add(x, s) y = LeakyRelu(a) t = LeakyRelu(X) }> (X, S) }""")
    model = to_ir(onnx.shape_inference.infer_shapes(proto, strict_mode=True, check_type=True))
    widen_missing(model.graph)
    wide = to_proto(model)
    onnx.shape_inference.infer_shapes(wide, strict_mode=True, check_type=True)
    (body,) = subgraphs(wide.graph.node)
    widened = ["Cast", "LeakyRelu", "Cast"]
    assert [node.op_type for node in body.node] == ["Add", *widened, *widened]
    feeds = {
        name: rng.randn(*shape).astype(ml_dtypes.bfloat16) for name, shape in (("X", [3]), ("S", [5, 3]))
    }
    for found, wanted in zip(*(ReferenceEvaluator(p).run(None, feeds) for p in (wide, proto)), strict=True):
        np.testing.assert_allclose(found.astype(float), wanted.astype(float), rtol=0.01)


def narrow_operators(proto):
    """Return the operators that read bfloat16."""
    values = (*proto.graph.value_info, *proto.graph.input, *proto.graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    bfloat16 = onnx.TensorProto.BFLOAT16
    return {n.op_type for n in proto.graph.node if any(types.get(name) == bfloat16 for name in n.input)}
