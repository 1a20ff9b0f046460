"""An exported training step trains as the estimator does, in any runtime."""

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from sklearn.datasets import make_classification, make_regression
from sklearn.exceptions import NotFittedError
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.adapters import LoRA
from onnxsgd.exceptions import ParameterError, UnsupportedError
from onnxsgd.losses import CrossEntropy, Quantile
from onnxsgd.penalties import Penalty
from onnxsgd.schedules import ByEpoch, Constant, CosineRestarts, OneCycle, Step, WarmUp

_EXAMPLES = Path(__file__).parents[3] / "examples"

_X, _Y = make_regression(50, 6, n_targets=2, noise=1.0, random_state=0)
_X, _Y = _X.astype(np.float32), (_Y / _Y.std()).astype(np.float32)
_Z = make_classification(50, 6, n_informative=4, n_redundant=0, n_classes=3, random_state=0)[1]
_SOFT = (0.1 + 0.7 * np.eye(3)[_Z]).astype(np.float32)


@pytest.fixture(scope="module")
def example():
    """The example that trains with numpy and a runtime alone, as a module."""
    spec = importlib.util.spec_from_file_location("train_without", _EXAMPLES / "train_without_onnxsgd.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _mlp():
    network = MLPRegressor(
        hidden_layer_sizes=(5,), solver="lbfgs", tol=0.01, alpha=1.0, activation="tanh", random_state=0
    )
    return make_pipeline(StandardScaler(), network).fit(_X, _Y)


_CASES = {
    "sgd": (OnnxSGDRegressor(), _Y),
    "one row a batch": (OnnxSGDRegressor(batch_size=1, learning_rate="invscaling", eta0=0.001), _Y),
    "nesterov, mlp": (
        lambda: OnnxSGDRegressor(_mlp(), learning_rate="invscaling", momentum=0.9, nesterov=True),
        _Y,
    ),
    "auto, mlp": (lambda: OnnxSGDRegressor(_mlp()), _Y),
    "adapters": (
        lambda: OnnxSGDRegressor(
            _mlp(),
            adapter=LoRA(2, targets="*"),
            learning_rate="invscaling",
            optimizer="adam",
            learning_rate_multipliers={"*.lora_B": 4.0},
        ),
        _Y,
    ),
    "auto, adapters": (lambda: OnnxSGDRegressor(_mlp(), adapter=LoRA(2, targets="*")), _Y),
    "auto, targets of two scales": (OnnxSGDRegressor(), _Y * np.float32([1.0, 1e4])),
    "auto, one target": (OnnxSGDRegressor(), 1e3 * _Y[:, 0]),
    "auto, elasticnet": (OnnxSGDRegressor(penalty="elasticnet", alpha=0.01), _Y),
    "adam, elasticnet": (
        OnnxSGDRegressor(learning_rate="invscaling", optimizer="adam", penalty="elasticnet", alpha=0.01),
        _Y,
    ),
    "adamw, huber": (
        OnnxSGDRegressor(learning_rate="invscaling", optimizer="adamw", loss="huber", alpha=0.01),
        _Y,
    ),
    "l1": (OnnxSGDRegressor(penalty="l1", alpha=0.05), _Y),
    "limits": (
        lambda: OnnxSGDRegressor(_mlp(), learning_rate="invscaling", max_grad_norm=0.1, max_grad_value=0.05),
        _Y,
    ),
    "multipliers": (
        lambda: OnnxSGDRegressor(
            _mlp(),
            learning_rate="invscaling",
            learning_rate_multipliers={"*_0": 0.5, "intercepts_1": 0},
            momentum=0.9,
            max_grad_norm=0.5,
        ),
        _Y,
    ),
    "multipliers, adam, l1": (
        OnnxSGDRegressor(
            learning_rate="constant",
            optimizer="adam",
            penalty="l1",
            alpha=0.05,
            learning_rate_multipliers={"coef": 0.5, "intercept": {"multiplier": 2.0, "from_epoch": 2}},
        ),
        _Y,
    ),
    "auto, multipliers": (OnnxSGDRegressor(learning_rate_multipliers={"coef": 0.5}), _Y),
    "limit, adam": (
        OnnxSGDRegressor(learning_rate="constant", optimizer="adam", max_grad_norm=0.1, penalty="elasticnet"),
        _Y,
    ),
    "penalties by name, mlp": (
        lambda: OnnxSGDRegressor(
            _mlp(),
            penalty={"coefs_0": Penalty(l1=0.02, l2=0.1), "*": Penalty(l1=0.003)},
            learning_rate="invscaling",
            optimizer="adamw",
        ),
        _Y,
    ),
    "auto, penalties by name, mlp": (
        lambda: OnnxSGDRegressor(_mlp(), penalty={"coefs_0": "l1", "*": 0.1}),
        _Y,
    ),
    "distance from the start, mlp": (
        lambda: OnnxSGDRegressor(_mlp(), penalty="l2_sp", alpha=0.5, learning_rate="invscaling"),
        _Y,
    ),
    "auto, distance from the start, mlp": (
        lambda: OnnxSGDRegressor(_mlp(), penalty=Penalty(l1=0.01, l2=0.5, from_start=True)),
        _Y,
    ),
    "means and variances": (OnnxSGDRegressor(loss="gaussian_nll", dtype="float64"), _Y),
    "quantiles": (OnnxSGDRegressor(loss=Quantile([0.25, 0.75])), _Y[:, 1]),
    "means and variances, mlp": (
        lambda: OnnxSGDRegressor(_mlp(), loss="gaussian_nll", learning_rate="constant", eta0=1e-3),
        _Y,
    ),
    "groups, mlp": (
        lambda: OnnxSGDRegressor(_mlp(), penalty="group_lasso", alpha=0.02, learning_rate="invscaling"),
        _Y,
    ),
    "auto, groups": (
        OnnxSGDRegressor(penalty=Penalty(l1=0.05, l2=0.01, groups=True)),
        _Y * np.float32([1.0, 1e3]),
    ),
    "average": (OnnxSGDRegressor(average=6), _Y),
    "exponential average": (OnnxSGDRegressor(average=0.9, learning_rate="constant"), _Y),
    "auto, exponential average, mlp": (lambda: OnnxSGDRegressor(_mlp(), average=0.9), _Y),
    "one output": (OnnxSGDRegressor(learning_rate="adaptive"), _Y[:, 0]),
    "step": (OnnxSGDRegressor(learning_rate=Step(0.01, 0.3, every=3)), _Y),
    "cosine with restarts": (
        OnnxSGDRegressor(
            learning_rate=CosineRestarts(0.01, n_cycles=2, growth=1, n_updates=14), optimizer="adam"
        ),
        _Y,
    ),
    "one cycle": (OnnxSGDRegressor(learning_rate=OneCycle(0.05, n_updates=15), momentum=0.5), _Y),
    "warm-up, by epoch": (
        OnnxSGDRegressor(learning_rate=ByEpoch(WarmUp("adaptive", 2), 3), optimizer="adam", eta0=0.02),
        _Y,
    ),
    "optimal": (OnnxSGDClassifier(learning_rate="optimal", alpha=0.01), _Z),
    "two classes": (OnnxSGDClassifier(), np.where(_Z > 0, "yes", "no")),
    "smooth labels": (OnnxSGDClassifier(loss=CrossEntropy(label_smoothing=0.2)), _Z),
    "probabilities": (OnnxSGDClassifier(loss=CrossEntropy(soft=True), learning_rate="constant"), _SOFT),
    "signs": (OnnxSGDClassifier(loss="hinge", learning_rate="constant"), _Z),
    "signs, one column": (OnnxSGDClassifier(loss="modified_huber"), _Z > 0),
}


def _stepped(t):
    return 0.1 if t < 5 else 0.01


def _target(step, estimator, y):
    if isinstance(estimator, OnnxSGDClassifier) and y.ndim == 1:
        return step.encode(y.tolist())
    copies = step.manifest["target"].get("copies", 1)
    return np.tile(y.reshape(len(y), -1), (1, copies))


@pytest.mark.parametrize("name", _CASES)
def test_trains_as_the_estimator_does(name, example, tmp_path):
    """The same batches give the same losses and weights: in two more epochs with a short last batch."""
    estimator, y = _CASES[name]
    estimator = estimator() if callable(estimator) else estimator
    estimator.set_params(shuffle=False, random_state=0, tol=None)
    if estimator.batch_size != 1:
        # "auto" makes batches of 8 of so few rows
        estimator.set_params(batch_size=8 if estimator.learning_rate == "auto" else 16)
    if isinstance(estimator, OnnxSGDClassifier):
        estimator.set_params(classes=np.unique(y) if y.ndim == 1 else np.arange(y.shape[1]))
    weight = np.linspace(0.5, 2.0, len(_X))
    estimator.partial_fit(_X, y, sample_weight=weight)
    step = example.TrainingStep(estimator.export_training_step(tmp_path / "step.onnx"))
    (feature,) = step.manifest["features"]
    losses = []
    for _ in range(2):
        estimator.partial_fit(_X, y, sample_weight=weight)
        target, rows = _target(step, estimator, y), np.arange(len(_X))
        losses.append(step.epoch({feature["input"]: _X}, target, rows, weight) + step.penalty())
    # float32 sums, in the order of another engine
    np.testing.assert_allclose(losses, estimator.loss_curve_[1:], rtol=2e-6)
    assert step.weights().keys() == estimator._state.weights().keys()
    for tensor in step.manifest["tensors"]:
        key = tensor.get("name") or tensor["of"], tensor.get("kind", "weight")
        expected = estimator._state.tensors[key]
        np.testing.assert_allclose(step.tensors[tensor["input"]], expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "changed",
    [{"optimizer": "adam"}, {"average": True}, {"average": 0.9}, {"learning_rate": "constant", "eta0": 0.02}],
)
def test_changed_parameters_act_as_in_the_next_call(changed, example, tmp_path):
    settings = {"learning_rate": "invscaling", "eta0": 0.05, "batch_size": 20, "shuffle": False}
    estimator = OnnxSGDRegressor(random_state=0, **settings).partial_fit(_X, _Y)
    estimator.set_params(**changed)
    before = estimator._state.eta, estimator._state.optimizer, sorted(estimator._state.tensors)
    step = example.TrainingStep(estimator.export_training_step(tmp_path / "step.onnx"))
    assert (estimator._state.eta, estimator._state.optimizer, sorted(estimator._state.tensors)) == before
    step.epoch({step.manifest["features"][0]["input"]: _X}, _Y, np.arange(len(_X)), np.ones(len(_X)))
    estimator.partial_fit(_X, _Y)
    for tensor in step.manifest["tensors"]:
        key = tensor.get("name") or tensor["of"], tensor.get("kind", "weight")
        expected = estimator._state.tensors[key]
        np.testing.assert_allclose(step.tensors[tensor["input"]], expected, rtol=1e-4, atol=1e-6)


def test_slots_and_averages_that_began_later_count_from_there(example, tmp_path):
    """An optimizer and an average that were named after three updates: their numbers begin at t = 3."""
    estimator = OnnxSGDRegressor(learning_rate="constant", momentum=0.9, shuffle=False, batch_size=64)
    for _ in range(3):
        estimator.partial_fit(_X, _Y)
    estimator.set_params(optimizer="adam", momentum=0.0, average=True).partial_fit(_X, _Y)
    assert estimator.t_ == 4
    step = example.TrainingStep(estimator.export_training_step(tmp_path / "step.onnx"))
    for _ in range(3):
        estimator.partial_fit(_X, _Y)
        step.epoch({step.manifest["features"][0]["input"]: _X}, _Y, np.arange(len(_X)), np.ones(len(_X)))
    for tensor in step.manifest["tensors"]:
        key = tensor.get("name") or tensor["of"], tensor.get("kind", "weight")
        expected = estimator._state.tensors[key]
        np.testing.assert_allclose(step.tensors[tensor["input"]], expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rate", "tolerance"), [({"learning_rate": "constant"}, 2e-6), ({"learning_rate": "auto"}, 0.02)]
)
def test_further_data(rate, tolerance, example, tmp_path):
    """Data move the scales of the estimator, under "auto", and not those of the file."""
    rng = np.random.default_rng(0)
    X = rng.normal(1.0, 1.0, (800, 6)).astype(np.float32)
    y = (X @ rng.normal(size=6) + rng.normal(size=800)).astype(np.float32)
    estimator = OnnxSGDRegressor(shuffle=False, batch_size=8, random_state=0, **rate)
    estimator.partial_fit(X[:400], y[:400])
    step = example.TrainingStep(estimator.export_training_step(tmp_path / "step.onnx"))
    losses = []
    for start in range(400, 800, 100):
        rows = slice(start, start + 100)
        estimator.partial_fit(X[rows], y[rows])
        losses.append(
            step.epoch({"X": X[rows]}, y[rows, None], np.arange(100), np.ones(100)) + step.penalty()
        )
    np.testing.assert_allclose(losses, estimator.loss_curve_[1:], rtol=tolerance)


def test_a_convolution_trains_as_the_estimator_does(example, tmp_path):
    """Images of three channels of different scales, in two groups of filters and in one."""
    images = np.random.default_rng(0).normal(1.0, 1.0, (48, 4, 5, 5)) * np.reshape(
        [1e-2, 1, 10, 1e3], (4, 1, 1)
    )
    images, y = images.astype(np.float32), images[:, 3, 2, 2] + images[:, 1, 1, 1]
    graph = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 4, 5, 5] x) => (float[N, 1] y) '
        "{ p = Conv <group = 2> (x, f)  q = Conv (x, g)  r = Add (p, q)  s = Flatten (r) "
        " y = Gemm (s, w, b) }"
    )
    rng, shapes = np.random.default_rng(1), {"f": (2, 2, 3, 3), "g": (2, 4, 3, 3), "w": (18, 1), "b": (1,)}
    graph.graph.initializer.extend(
        onnx.numpy_helper.from_array(rng.normal(0, 0.1, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    )
    estimator = OnnxSGDRegressor(graph, batch_size=8, shuffle=False, tol=None, random_state=0)
    estimator.partial_fit(images, y)
    step = example.TrainingStep(estimator.export_training_step(tmp_path / "step.onnx"))
    losses = []
    for _ in range(2):
        estimator.partial_fit(images, y)
        losses.append(step.epoch({"x": images}, y[:, None], np.arange(48), np.ones(48)) + step.penalty())
    np.testing.assert_allclose(losses, estimator.loss_curve_[1:], rtol=1e-5)
    for name, weight in estimator.get_weights().items():
        np.testing.assert_allclose(step.weights()[name], weight, rtol=1e-4, atol=1e-4 * np.abs(weight).max())


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An estimator with a frozen part, and the folder with its step."""
    folder = tmp_path_factory.mktemp("step")
    estimator = OnnxSGDRegressor(
        _mlp(), learning_rate="invscaling", optimizer="adam", batch_size=8, trainable=["coefs_1"]
    )
    estimator.partial_fit(_X, _Y)
    estimator.export_training_step(folder / "step.onnx")
    return estimator, folder


def test_the_graph_is_standard(exported):
    """A runtime that knows nothing of Microsoft's operators, or of this package, reads it."""
    model = onnx.load(exported[1] / "step.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} <= {""}


def test_the_manifest_names_every_input_and_output(exported):
    """The manifest lists every input of the graph, with its shape."""
    _, folder = exported
    manifest = json.loads((folder / "step.json").read_text())
    listed = [
        *manifest["features"], *manifest["tensors"],
        *(manifest[name] for name in ("target", "sample_weight", "gradient_weight")),
        *(number for number in manifest["numbers"] if "input" in number),
    ]  # fmt: skip
    session = onnxruntime.InferenceSession(folder / manifest["model"], providers=["CPUExecutionProvider"])
    assert {entry["input"]: entry["shape"] for entry in listed} == {
        value.name: value.shape for value in session.get_inputs()
    }
    outputs = [manifest["loss"]["output"], *(tensor["output"] for tensor in manifest["tensors"])]
    assert sorted(outputs) == sorted(value.name for value in session.get_outputs())
    # a Float32Array of JavaScript, or a tensor of the runtime, needs aligned data
    assert all(tensor["offset"] % 64 == 0 for tensor in manifest["tensors"])


def test_takes_the_features_of_the_estimator(exported):
    """The frozen part is in the graph: features are raw, not scaled."""
    estimator, folder = exported
    (feature,) = json.loads((folder / "step.json").read_text())["features"]
    assert feature["shape"] == [8, estimator.n_features_in_]


def test_starts_from_the_present_weights(exported, example):
    """Training continues, it does not restart."""
    estimator, folder = exported
    weights = example.TrainingStep(folder / "step.json").weights()
    np.testing.assert_array_equal(weights["coefs_1"], estimator.get_weights()["coefs_1"])


def test_runs_without_this_package(example, tmp_path):
    """The example, given its files, imports nothing of onnxsgd."""
    example.make_files(tmp_path)
    script = (
        f"import runpy, sys; sys.modules['onnxsgd'] = None; sys.argv = ['train', {str(tmp_path)!r}];"
        f"runpy.run_path({example.__file__!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the same losses" in done.stdout


def test_refuses_an_invalid_export(tmp_path):
    """An estimator that is not fitted, and a file name with another suffix."""
    with pytest.raises(NotFittedError):
        OnnxSGDRegressor().export_training_step(tmp_path / "step.onnx")
    fitted = OnnxSGDRegressor().partial_fit(_X, _Y)
    with pytest.raises(ParameterError, match=r"'step.json' is not accepted: it must end in '.onnx'"):
        fitted.export_training_step("step.json")


@pytest.mark.parametrize(
    "rate",
    [_stepped, "reduce_on_plateau", WarmUp("reduce_on_plateau", 3), WarmUp(_stepped, 9)],
    ids=["function", "plateaus", "plateaus behind a rise", "function behind a rise"],
)
def test_a_rate_without_a_formula_is_left_to_the_reader(rate, tmp_path):
    """A function with a branch, or a rate that follows the losses, is named, not exported wrongly."""
    fitted = OnnxSGDRegressor(learning_rate=rate).partial_fit(_X, _Y)
    manifest = json.loads(fitted.export_training_step(tmp_path / "step.onnx").read_text())
    numbers = {number["name"]: number for number in manifest["numbers"]}
    assert numbers["eta"]["formula"] is None
    assert numbers["eta"]["schedule"].startswith(("FunctionSchedule(", "ReduceOnPlateau(", "WarmUp("))
    assert numbers["t"]["start"] == fitted.t_


@dataclass(frozen=True)
class _Halved(Constant):
    """A rate with a branch, which is no formula."""

    def rate(self, t, eta):
        return self.eta0 if t < 5 else self.eta0 / 2


def test_a_schedule_without_a_formula_says_so(tmp_path):
    fitted = OnnxSGDRegressor(learning_rate=_Halved(0.1)).partial_fit(_X, _Y)
    with pytest.raises(UnsupportedError, match=r"_Halved\(eta0=0.1\) has no formula.*has_formula = False"):
        fitted.export_training_step(tmp_path / "step.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_node_gets_the_same_losses(tmp_path):
    """Node continues to train the digits classifier of the example."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    # the runtime unpacks to hundreds of megabytes: once, not once a run
    folder = Path(tempfile.gettempdir(), "onnxsgd-node")
    folder.mkdir(exist_ok=True)
    for name in ("package.json", ".npmrc", "train.mjs", "training_step.mjs"):
        shutil.copy(_EXAMPLES / "node" / name, folder)
    install = ["npm", "install", "--no-package-lock", "--loglevel=error"]
    installed = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install onnxruntime-node: {installed.stderr.strip()[-200:]}")
    export = [sys.executable, str(_EXAMPLES / "node" / "export_digits.py"), str(tmp_path)]
    subprocess.run(export, check=True, capture_output=True)
    train = ["node", "train.mjs", str(tmp_path)]
    done = subprocess.run(train, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the same losses" in done.stdout
