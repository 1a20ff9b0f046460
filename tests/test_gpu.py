"""Training on a GPU: the numbers of the CPU, and an error without a GPU."""

import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from warnings import catch_warnings

import ml_dtypes
import numpy as np
import onnx
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.adapters import LoRA
from onnxsgd.engine.step import cuda_blocks as blocks
from onnxsgd.engine.step import cuda_graph_operators as recordable
from onnxsgd.exceptions import ConvergenceError, EngineError, MissingRuntimeError, UnsupportedError
from onnxsgd.losses import CLASSIFICATION_LOSSES, REGRESSION_LOSSES, CrossEntropy, Quantile
from onnxsgd.optimizers import OPTIMIZERS
from onnxsgd.penalties import PENALTIES
from onnxsgd.runtime import cuda
from onnxsgd.runtime.cache import cache
from onnxsgd.runtime.device import check_device
from onnxsgd.runtime.providers import CUDA


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return StandardScaler().fit_transform(X).astype(np.float32), ((y - y.mean()) / y.std()).astype(np.float32)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return (X / 16).astype(np.float32), y


@pytest.fixture(scope="module")
def mlp(diabetes):
    """A network after a short training: a graph with the same initial weights on every device."""
    import skl2onnx

    with catch_warnings(action="ignore"):
        fitted = MLPRegressor(hidden_layer_sizes=(32, 16), max_iter=1, random_state=0).fit(*diabetes)
    return skl2onnx.to_onnx(fitted, diabetes[0][:1], target_opset=18)


@pytest.fixture
def sessions(monkeypatch):
    """The sessions of training steps that a test makes, with their modes."""
    made, make = [], blocks.make_step_session

    def remember(*args, **more):
        made.append(make(*args, **more))
        return made[-1]

    cache.clear()
    monkeypatch.setattr(blocks, "make_step_session", remember)
    return made


def assert_close(found, wanted, rtol=1e-4):
    for name, array in wanted.get_weights().items():
        np.testing.assert_allclose(
            found.get_weights()[name], array, rtol=rtol, atol=rtol * np.abs(array).max(), err_msg=name
        )
    np.testing.assert_allclose(found.loss_curve_, wanted.loss_curve_, rtol=rtol)
    assert found.t_ == wanted.t_


def test_it_trains_on_a_gpu_or_not_at_all(diabetes, sessions):
    """On no machine does a request for a GPU train on the CPU."""
    model = OnnxSGDRegressor(device="cuda", max_iter=1, tol=None)
    with suppress(MissingRuntimeError):
        check_device("cuda")
        model.fit(*diabetes)
        assert sessions
        assert all(CUDA in session.get_providers() for session, _ in sessions)
        return
    with pytest.raises(MissingRuntimeError, match="onnxruntime-gpu"):
        model.fit(*diabetes)
    assert not sessions
    assert not hasattr(model, "coef_")


def test_it_is_refused_in_a_child_process_too(diabetes):
    """The runtime may print messages; the error is ours, and the exit status is one."""
    code = (
        "import numpy as np; from onnxsgd import OnnxSGDRegressor;"
        "OnnxSGDRegressor(device='cuda:99').fit(np.eye(4), np.arange(4))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 1
    assert "MissingRuntimeError: device='cuda" in run.stderr
    assert run.stdout == ""


@pytest.mark.gpu
@pytest.mark.parametrize(
    "params",
    [
        {"learning_rate": "invscaling", "momentum": 0.0},
        {"learning_rate": "invscaling", "momentum": 0.9},
        {"learning_rate": "invscaling", "momentum": 0.9, "nesterov": True},
        {"learning_rate": "invscaling", "optimizer": "adam", "eta0": 1e-3},
        {"learning_rate": "invscaling", "optimizer": "adamw", "eta0": 1e-3},
        {"average": 10, "penalty": "elasticnet", "alpha": 1e-3},
        {"penalty": "l1", "alpha": 1e-2},
        {"penalty": None, "loss": "huber"},
        {"batch_size": 1, "max_iter": 2},
        {"batch_size": 5, "learning_rate": "constant", "eta0": 1e-3},
        {"batch_size": 1000, "max_iter": 30},
        {"loss": "absolute_error", "learning_rate": "adaptive", "eta0": 1e-3},
    ],
    ids=str,
)
def test_the_numbers_are_those_of_the_cpu(diabetes, mlp, params, sessions):
    """Ten epochs: recordings of the first ones are replayed in the others."""
    weight = np.random.RandomState(0).uniform(0.1, 2, len(diabetes[0]))
    settings = {"max_iter": 10, "tol": None, "random_state": 0, "engine": "portable"} | params
    trained = {
        device: OnnxSGDRegressor(mlp, device=device, **settings).fit(*diabetes, sample_weight=weight)
        for device in ("cpu", "cuda")
    }
    assert_close(trained["cuda"], trained["cpu"])
    assert sessions
    assert {mode for _, mode in sessions} == {"recorded"}


@pytest.mark.gpu
def test_a_replay_gives_the_numbers_of_a_run(diabetes, mlp, monkeypatch):
    """A replay that reads or writes other memory than its recorded run would fail here."""
    settings = {
        "max_iter": 40,
        "tol": None,
        "random_state": 0,
        "learning_rate": "invscaling",
        "optimizer": "adam",
        "batch_size": 10,
    }
    replayed = OnnxSGDRegressor(mlp, device="cuda", **settings).fit(*diabetes)
    monkeypatch.setattr(blocks, "_WORTH_RECORDING", 10**9)
    run = OnnxSGDRegressor(mlp, device="cuda", **settings).fit(*diabetes)
    for name, array in run.get_weights().items():
        np.testing.assert_array_equal(replayed.get_weights()[name], array)
    assert replayed.loss_curve_ == run.loss_curve_


@pytest.mark.gpu
def test_fits_of_one_structure_share_sessions_and_not_recordings(diabetes, mlp, sessions):
    """Each has its own buffers: a recording of the first must not be replayed for the others."""
    X, y = diabetes
    settings = {"max_iter": 10, "tol": None, "random_state": 0, "device": "cuda"}
    first = OnnxSGDRegressor(mlp, **settings).fit(X, y)
    made = len(sessions)
    other = OnnxSGDRegressor(mlp, **settings).fit(-X[:400], y[:400])
    again = OnnxSGDRegressor(mlp, **settings).fit(X, y)
    assert len(sessions) == made
    for name, array in first.get_weights().items():
        np.testing.assert_array_equal(again.get_weights()[name], array)
        assert not np.array_equal(other.get_weights()[name], array)


@pytest.mark.gpu
def test_sessions_are_renewed_and_train_on(diabetes, monkeypatch):
    monkeypatch.setattr(blocks, "_MOST_RECORDINGS", 4)
    models = [OnnxSGDRegressor(max_iter=20, tol=None, random_state=0, device="cuda") for _ in range(8)]
    for model in models:
        model.fit(*diabetes)
        np.testing.assert_array_equal(model.coef_, models[0].coef_)


@pytest.mark.gpu
def test_operators_that_are_not_recorded_run_on_the_gpu(diabetes, mlp, monkeypatch, sessions):
    monkeypatch.setattr(recordable, "_can_record", lambda node: False)
    settings = {"max_iter": 5, "tol": None, "random_state": 0, "engine": "portable"}
    found = OnnxSGDRegressor(mlp, device="cuda", **settings).fit(*diabetes)
    assert {mode for _, mode in sessions} == {"stepwise"}
    assert_close(found, OnnxSGDRegressor(mlp, **settings).fit(*diabetes))


def _with(operator):
    """Return a network with an operator in its middle."""
    text = f"""<ir_version: 9, opset_import: ["" : 18]> g (float[N, 10] X) => (float[N, 1] Y) {{
        a = MatMul(X, W) h = {operator} Y = MatMul(h, V) }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.RandomState(0)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name)
        for name, shape in (("W", (10, 8)), ("V", (8, 1)))
    )
    return model


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:device='cuda.*a part of the training step runs on the CPU")
@pytest.mark.parametrize(
    "operator",
    [
        "Relu(a)", "Tanh(a)", "Sigmoid(a)", "Elu(a)", "LeakyRelu(a)", "Softplus(a)", "Erf(a)", "Softmax(a)",
        "Mish(a)", "Celu(a)", "Selu(a)", "HardSwish(a)", "Sinh(a)", "Atan(a)", "Gelu(a)",
        "LpNormalization(a)", "LogSoftmax(a)",
    ],
)  # fmt: skip
def test_operators_with_and_without_kernels_give_the_numbers_of_the_cpu(diabetes, operator):
    """Those without are computed on the CPU, with a warning; weights there must not be stale."""
    model = _with(operator)
    if operator == "Gelu(a)":
        model.opset_import[0].version = 20
    settings = {"max_iter": 5, "tol": None, "random_state": 0, "engine": "portable"}
    found = OnnxSGDRegressor(model, device="cuda", **settings).fit(*diabetes)
    assert_close(found, OnnxSGDRegressor(model, **settings).fit(*diabetes))


@pytest.mark.gpu
def test_a_convolutional_classifier(digits):
    X, y = digits[0].reshape(-1, 1, 8, 8), digits[1]
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[N, 1, 8, 8] X) => (float[N, 10] Y) {
        c = Conv <pads = [1, 1, 1, 1]> (X, K, k) r = Relu(c)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r) f = Flatten(p) Y = Gemm(f, W, b) }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.RandomState(0)
    shapes = {"K": (8, 1, 3, 3), "k": (8,), "W": (128, 10), "b": (10,)}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(rng.normal(0, 0.2, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    )
    settings = {
        "max_iter": 8, "tol": None, "random_state": 0, "eta0": 0.1, "learning_rate": "constant",
        "engine": "portable",
    }  # fmt: skip
    found = OnnxSGDClassifier(model, device="cuda", **settings).fit(X, y)
    assert_close(found, OnnxSGDClassifier(model, **settings).fit(X, y), rtol=1e-3)
    assert found.score(X, y) > 0.9


@pytest.mark.gpu
def test_early_stopping_and_a_frozen_part(digits):
    X, y = digits
    with catch_warnings(action="ignore"):
        backbone = MLPClassifier((32,), max_iter=20, random_state=0).fit(X, y)
    settings = {
        "head": "linear", "early_stopping": True, "max_iter": 30, "random_state": 0,
        "learning_rate": "invscaling", "eta0": 0.1,
        "engine": "portable", "tol": None,
    }  # fmt: skip
    trained = {
        device: OnnxSGDClassifier(backbone, device=device, **settings).fit(X, y) for device in ("cpu", "cuda")
    }
    assert_close(trained["cuda"], trained["cpu"], rtol=1e-3)
    np.testing.assert_allclose(
        trained["cuda"].validation_scores_, trained["cpu"].validation_scores_, atol=0.02
    )


@pytest.mark.gpu
def test_training_continues_in_parts_and_on_another_machine(diabetes):
    """Training begun on a GPU continues there, and on the CPU of another machine."""
    X, y = diabetes
    trained = {}
    for device in ("cpu", "cuda"):
        model = OnnxSGDRegressor(
            learning_rate="invscaling", optimizer="adam", max_iter=3, tol=None, random_state=0, device=device
        )
        model.fit(X, y)
        for start in range(0, 400, 50):
            model.partial_fit(X[start : start + 50], y[start : start + 50])
        model = pickle.loads(pickle.dumps(model)).set_params(device="cpu")
        trained[device] = model.partial_fit(X, y)
    assert_close(trained["cuda"], trained["cpu"])


@pytest.mark.gpu
def test_a_grid_search_gives_the_result_of_the_cpu():
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X).astype(np.float32)
    model = OnnxSGDClassifier(
        learning_rate="constant", max_iter=10, tol=None, random_state=0, engine="portable"
    )
    grid = {"alpha": [1e-4, 1e-2, 1.0], "eta0": [1e-3, 1e-1]}
    search = {
        device: GridSearchCV(clone(model).set_params(device=device), grid, cv=3).fit(X, y)
        for device in ("cpu", "cuda")
    }
    for key in ("mean_test_score", "std_test_score"):
        np.testing.assert_allclose(
            search["cuda"].cv_results_[key], search["cpu"].cv_results_[key], atol=0.006
        )


@pytest.mark.gpu
def test_threads_take_turns(diabetes, mlp):
    """Work of one thread must not invalidate another's recording, nor mix their numbers."""
    settings = {"max_iter": 20, "tol": None, "device": "cuda"}
    wanted = [OnnxSGDRegressor(mlp, random_state=seed, **settings).fit(*diabetes) for seed in range(4)]
    found = [OnnxSGDRegressor(mlp, random_state=seed, **settings) for seed in range(4)]
    threads = [threading.Thread(target=model.fit, args=diabetes) for model in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for model, same in zip(found, wanted, strict=True):
        for name, array in same.get_weights().items():
            np.testing.assert_array_equal(model.get_weights()[name], array)


TANH = "Z = Gemm(X, W, b)  H = Tanh(Z)  Y = Gemm(H, V, c)"


def half_graph(kind, hidden, nodes=TANH):
    """Return a network of one hidden layer with tensors of 16 bits, for ten features."""
    onx = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({kind}[N, 10] X) => ({kind}[N, 1] Y) {{ {nodes} }}""")
    draw = np.random.RandomState(0)
    for name, shape in {"W": (10, hidden), "b": (hidden,), "V": (hidden, 1), "c": (1,)}.items():
        array = (0.3 * draw.randn(*shape)).astype(ml_dtypes.bfloat16).astype(np.float32)
        made = array.astype(np.float16 if kind == "float16" else ml_dtypes.bfloat16)
        onx.graph.initializer.append(onnx.numpy_helper.from_array(made, name))
    return onx


def torch_half(onx, kind, X, y, *, rate, epochs, rows, clip):
    """Return weights, scale and updates of torch on the GPU: a copy in 16 bits, weights in float32, Adam."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch cannot use the GPU")
    dtype = getattr(torch, kind)
    start = {t.name: onnx.numpy_helper.to_array(t).astype(np.float32) for t in onx.graph.initializer}
    masters = {name: torch.tensor(a, device="cuda", requires_grad=True) for name, a in start.items()}
    optimizer = torch.optim.Adam(masters.values(), lr=rate)
    scaler = torch.amp.GradScaler("cuda", enabled=kind == "float16")
    inputs = torch.tensor(X, device="cuda").to(dtype)
    target = torch.tensor(y[:, None], device="cuda")
    for _ in range(epochs):
        for first in range(0, len(X), rows):
            at = slice(first, first + rows)
            copies = {name: w.detach().to(dtype).requires_grad_() for name, w in masters.items()}
            hidden = torch.tanh(torch.addmm(copies["b"], inputs[at], copies["W"]))
            raw = torch.addmm(copies["c"], hidden, copies["V"]).float()
            scaler.scale(((raw - target[at]) ** 2).mean() / 2).backward()
            for name, copy in copies.items():
                masters[name].grad = copy.grad.float()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(list(masters.values()), clip)
            scaler.step(optimizer)
            scaler.update()
    weights = {name: tensor.detach().cpu().numpy() for name, tensor in masters.items()}
    (state,) = {int(state["step"]) for state in optimizer.state.values()}
    return weights, scaler.get_scale(), state


@pytest.mark.gpu
@pytest.mark.parametrize("unit", [0.1, 100.0])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_graph_of_16_bits_trains_in_them_as_in_torch(kind, unit, diabetes, sessions):
    """Large targets overflow float16 at the first scale: the same updates are skipped."""
    X, y = diabetes[0], (unit * diabetes[1]).astype(np.float32)
    onx = half_graph(kind, 32)
    settings = {"rate": 0.01, "epochs": 10, "rows": 34, "clip": 5.0}
    wanted, scale, n_updates = torch_half(onx, kind, X, y, **settings)
    model = OnnxSGDRegressor(
        onx, optimizer="adam", learning_rate="constant", eta0=0.01, max_iter=10, batch_size=34, tol=None,
        max_grad_norm=5.0, shuffle=False, penalty=None, device="cuda",
    ).fit(X, y)  # fmt: skip
    assert sessions
    assert model.t_ == n_updates
    if kind == "float16":
        assert model._state.tensors["", "loss_scale"] == scale
        assert (n_updates < 130) == (unit > 1)
    # Adam moves a weight by up to 1.3 in 130 updates; other kernels round in another order. With rounding by
    # numpy the differences are 3e-4 and 3e-3; those from float32 are up to 0.12
    tolerance = 5e-3 if kind == "float16" else 0.02
    for name, array in wanted.items():
        found = model.get_weights()[name]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, array, rtol=0, atol=tolerance, err_msg=name)
    single = OnnxSGDRegressor(
        onx, optimizer="adam", learning_rate="constant", eta0=0.01, max_iter=10, batch_size=34, tol=None,
        max_grad_norm=5.0, shuffle=False, penalty=None, device="cuda", dtype="float32",
    ).fit(X, y)  # fmt: skip
    # it did compute in 16 bits
    assert any((single.get_weights()[name] != array).any() for name, array in model.get_weights().items())


RELU = "Z = Gemm(X, W, b)  H = Relu(Z)  Y = Gemm(H, V, c)"
NORM = "Z = Gemm(X, W, b)  H = LogSoftmax(Z)  Y = Gemm(H, V, c)"


@pytest.mark.gpu
@pytest.mark.parametrize("nodes", [RELU, NORM])
@pytest.mark.parametrize("learning_rate", ["constant", "auto"])
def test_operators_without_kernels_for_bfloat16(nodes, learning_rate, diabetes, sessions):
    """Comparisons and LogSoftmax have none; on the CPU the graph trains in float32."""
    settings = {
        "learning_rate": learning_rate, "eta0": 1e-3 if learning_rate == "constant" else None, "max_iter": 10,
        "tol": None, "random_state": 0, "batch_size": 32,
    }  # fmt: skip
    onx = half_graph("bfloat16", 32, nodes)
    found = OnnxSGDRegressor(onx, device="cuda", **settings).fit(*diabetes)
    assert "recorded" in {mode for _, mode in sessions}
    wanted = OnnxSGDRegressor(onx, **settings).fit(*diabetes)
    # with rounding by numpy the predictions differ by 5e-3 for a constant rate, and by 0.06 for "auto", whose
    # rates follow the losses; the scores by 2e-4 and 2e-3
    atol = 0.02 if learning_rate == "constant" else 0.3
    np.testing.assert_allclose(found.predict(diabetes[0]), wanted.predict(diabetes[0]), atol=atol)
    np.testing.assert_allclose(found.score(*diabetes), wanted.score(*diabetes), atol=0.02)


def network(text, **shapes):
    """Return a graph with weights of the given shapes, and with the arrays that are given instead."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    draw = np.random.RandomState(0)
    for name, shape in shapes.items():
        array = draw.normal(0, 0.3, shape).astype(np.float32) if isinstance(shape, tuple) else shape
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


DENSE = network(
    "g (float[N, 10] X) => (float[N, 2] Y) { a = Gemm(X, W, b) h = Relu(a) Y = Gemm(h, V, c) }",
    W=(10, 16), b=(16,), V=(16, 2), c=(2,),
)  # fmt: skip
DROPOUT = network(
    """g (float[N, 10] X) => (float[N, 2] Y) {
    a = Gemm(X, W, b) h = Relu(a) d = Dropout(h, p) Y = Gemm(d, V, c) }""",
    W=(10, 16), b=(16,), V=(16, 2), c=(2,), p=np.array(0.5, np.float32),
)  # fmt: skip
EMBEDDING = network(
    """g (int64[N, T] X) => (float[N, 2] Y) {
    e = Gather(E, X) q = MatMul(e, Q) k = Transpose <perm = [0, 2, 1]> (e) s = MatMul(q, k)
    p = Softmax(s) o = MatMul(p, e) n = LayerNormalization(o, g, h) a = ReduceMean <keepdims = 0> (n, axes)
    Y = Gemm(a, V, c) }""",
    E=(20, 6), Q=(6, 6), g=(6,), h=(6,), V=(6, 2), c=(2,), axes=np.array([1]),
)  # fmt: skip
IMAGES = network(
    """g (float[N, 1, 8, 8] X) => (float[N, 10] Y) {
    c = Conv <pads = [1, 1, 1, 1]> (X, K, k) n = BatchNormalization(c, s, t, m, v) r = Relu(n)
    p = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (r) f = Flatten(p) Y = Gemm(f, W, b) }""",
    K=(4, 1, 3, 3), k=(4,), s=(4,), t=(4,), m=(4,), v=np.ones(4, np.float32), W=(64, 10), b=(10,),
)  # fmt: skip
PIXELS = network(
    """g (float[N, 1, 8, 8] X) => (float[N, 3, 8, 8] Y) {
    c = Conv <pads = [1, 1, 1, 1]> (X, K, k) r = Relu(c)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    t = ConvTranspose <strides = [2, 2], kernel_shape = [2, 2]> (p, T, u) j = Concat <axis = 1> (t, r)
    Y = Conv <pads = [1, 1, 1, 1]> (j, Q, q) }""",
    K=(4, 1, 3, 3), k=(4,), T=(4, 4, 2, 2), u=(4,), Q=(3, 8, 3, 3), q=(3,),
)  # fmt: skip

OPTIONS = {
    **{f"loss {name}": {"loss": name} for name in REGRESSION_LOSSES},
    **{f"optimizer {name}": {"optimizer": name, "eta0": 1e-3} for name in OPTIMIZERS},
    **{f"penalty {name}": {"penalty": name, "alpha": 1e-2} for name in PENALTIES},
    "average": {"average": 0.9},
    "max_grad_norm": {"max_grad_norm": 0.1},
    "max_grad_value": {"max_grad_value": 0.01},
    "accumulation": {"gradient_accumulation_steps": 4},
    "multipliers": {"learning_rate_multipliers": {"W": 0.1}},
    "adapter": {"adapter": LoRA(rank=2)},
    "float64": {"dtype": "float64"},
}


def assert_alike(estimator, model, data, rtol=1e-3, **params):
    settings = {
        "learning_rate": "constant", "eta0": 1e-2, "max_iter": 4, "tol": None, "random_state": 0,
        "batch_size": 32, "engine": "portable",
    } | params  # fmt: skip
    found, wanted = (estimator(model, device=device, **settings).fit(*data) for device in ("cuda", "cpu"))
    assert_close(found, wanted, rtol=rtol)


@pytest.mark.gpu
@pytest.mark.parametrize("option", OPTIONS)
def test_options_give_the_numbers_of_the_cpu(option, diabetes):
    X, y = diabetes
    is_positive = option.split()[-1] in ("gamma", "poisson", "tweedie")
    y = np.exp(0.3 * y) if is_positive else y
    is_pair = option.endswith(("gaussian_nll", "quantile"))
    params = {"loss": Quantile((0.1, 0.9))} if option.endswith("quantile") else OPTIONS[option]
    assert_alike(OnnxSGDRegressor, DENSE, (X, y if is_pair else np.c_[y, y[::-1]]), **params)


@pytest.mark.gpu
@pytest.mark.parametrize("loss", CLASSIFICATION_LOSSES)
@pytest.mark.parametrize("n_classes", [2, 10])
def test_losses_of_classes_give_the_numbers_of_the_cpu(loss, n_classes, digits):
    X, y = digits[0][:600], digits[1][:600] % n_classes
    model = network(
        f"g (float[N, 64] X) => (float[N, {n_classes}] Y) {{ Y = Gemm(X, V, c) }}",
        V=(64, n_classes), c=(n_classes,),
    )  # fmt: skip
    assert_alike(OnnxSGDClassifier, model, (X, y), loss=loss)


@pytest.mark.gpu
def test_networks_give_the_numbers_of_the_cpu(diabetes, digits):
    draw = np.random.RandomState(0)
    images, labels = digits[0][:600].reshape(-1, 1, 8, 8), digits[1][:600]
    classes = (images[:, 0] * 2.9).astype(int)
    classes[:, 0] = -1
    pairs = np.c_[diabetes[1], diabetes[1][::-1]]
    tokens = [draw.randint(0, 20, n) for n in draw.randint(2, 9, len(pairs))]
    assert_alike(OnnxSGDRegressor, DROPOUT, (diabetes[0], pairs))
    assert_alike(OnnxSGDRegressor, EMBEDDING, (tokens, pairs))
    assert_alike(OnnxSGDClassifier, IMAGES, (images, labels))
    assert_alike(OnnxSGDClassifier, IMAGES, (images, labels), batch_norm="train")
    assert_alike(OnnxSGDClassifier, PIXELS, (images, classes), loss=CrossEntropy(ignore_index=-1))


@pytest.mark.gpu
def test_a_target_of_many_rows(diabetes):
    """Its rows are converted when they are taken."""
    X, y = np.tile(diabetes[0], (700, 1))[:300_000], np.tile(diabetes[1], 700)[:300_000]
    assert_alike(OnnxSGDRegressor, None, (X, y.astype(float)), batch_size=4096, max_iter=2)


@pytest.mark.gpu
@pytest.mark.parametrize("model", [None, "mlp"])
def test_automatic_rates_reach_the_loss_of_the_cpu(model, diabetes, mlp):
    settings = {"max_iter": 60, "tol": None, "random_state": 0}
    found, wanted = (
        OnnxSGDRegressor(model and mlp, device=device, **settings).fit(*diabetes)
        for device in ("cuda", "cpu")
    )
    np.testing.assert_allclose(found.score(*diabetes), wanted.score(*diabetes), atol=0.02)


@pytest.mark.gpu
def test_a_loss_that_is_not_finite(diabetes, mlp):
    model = OnnxSGDRegressor(mlp, learning_rate="constant", eta0=50.0, max_iter=50, device="cuda")
    with pytest.raises(ConvergenceError, match="no longer finite at update"):
        model.fit(*diabetes)
    assert all(np.isfinite(array).all() for array in model.get_weights().values())


@pytest.mark.gpu
def test_data_that_a_gpu_does_not_support_are_refused(diabetes):
    X, y = diabetes
    with pytest.raises(UnsupportedError, match="sparse"):
        OnnxSGDRegressor(device="cuda").fit(sparse.csr_matrix(X), y)
    with pytest.raises(MissingRuntimeError, match="device='cuda:99' cannot be used"):
        OnnxSGDRegressor(device="cuda:99").fit(X, y)


@pytest.mark.gpu
def test_missing_memory_is_reported_in_bytes(diabetes, monkeypatch):
    """The data are small; the other tensors need more memory than any GPU has."""
    place = "onnxsgd.engine.step.device_loop._place"
    original = cuda.load_runtime().OrtValue.ortvalue_from_shape_and_type
    monkeypatch.setattr(
        place, lambda array, device: original([1 << 41], np.float32, device.kind, device.index)
    )
    with pytest.raises(EngineError, match=r"cuda:0 does not hold the data of this fit \([\d,]+ bytes\)"):
        OnnxSGDRegressor(device="cuda").fit(*diabetes)


@pytest.mark.gpu
def test_the_second_gpu(diabetes, mlp):
    try:
        check_device("cuda:1")
    except MissingRuntimeError as error:
        pytest.skip(f"needs two GPUs: {error}")
    settings = {"max_iter": 10, "tol": None, "random_state": 0}
    found = OnnxSGDRegressor(mlp, device="cuda:1", **settings).fit(*diabetes)
    wanted = OnnxSGDRegressor(mlp, device="cuda:0", **settings).fit(*diabetes)
    assert_close(found, wanted)


@pytest.mark.gpu
@pytest.mark.slow
def test_many_epochs_take_no_more_memory_than_a_few(mlp):
    """Nothing is allocated while it trains."""
    rng = np.random.RandomState(0)
    X, y = rng.normal(size=(20_000, 10)).astype(np.float32), rng.normal(size=20_000).astype(np.float32)
    used = []
    for max_iter in (5, 5, 100):
        OnnxSGDRegressor(mlp, max_iter=max_iter, tol=None, device="cuda").fit(X, y)
        used.append(_memory_in_use())
    assert used[2] <= used[1] + 2


def _memory_in_use():
    """Return the MiB in use on the first GPU."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
