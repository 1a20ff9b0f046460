"""Fits in several processes: the weights of one process, the same bits again, and nothing left."""

import os
import pickle
import signal
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor, load
from onnxsgd.adapters import LoRA
from onnxsgd.exceptions import ConvergenceError, ParameterError
from onnxsgd.persistence.small_form import from_small_form
from onnxsgd.runtime.device import Device
from onnxsgd.sharding import process_rounds
from onnxsgd.sharding.process_rounds import process_runners
from onnxsgd.sharding.worker_process import idle_workers

pytestmark = pytest.mark.filterwarnings("ignore:Maximum number of iteration")

X, Y = load_digits(n_class=5, return_X_y=True)
X, Y = X[:300] / 16, Y[:300]
WEIGHT = np.random.default_rng(0).uniform(0.2, 3, len(Y))
COMMON = {"max_iter": 4, "tol": None, "random_state": 0, "batch_size": 32, "dtype": "float64"}
NAMED = {"learning_rate": "constant", "eta0": 0.05}
#: Settings whose updates or data differ in kind.
SETTINGS = {
    "auto": {},
    "sgd": NAMED,
    "momentum": {**NAMED, "momentum": 0.9, "nesterov": True, "learning_rate": "invscaling"},
    "adam, averaged": {**NAMED, "optimizer": "adam", "eta0": 0.01, "average": 5},
    "adamw, elasticnet": {**NAMED, "optimizer": "adamw", "penalty": "elasticnet", "alpha": 0.01},
    "l1": {**NAMED, "penalty": "l1", "alpha": 0.01},
    "limits": {**NAMED, "max_grad_norm": 0.1, "max_grad_value": 0.05},
    "not shuffled": {**NAMED, "shuffle": False, "batch_size": 100},
    "early stopping": {**NAMED, "early_stopping": True},
    "auto, early stopping": {"early_stopping": True},
    "adaptive": {**NAMED, "learning_rate": "adaptive", "tol": 1e-3},
    "multipliers": NAMED,
    "balanced": {**NAMED, "class_weight": "balanced"},
    "huge batches": {**NAMED, "batch_size": 1000},
}


class Here:
    """An engine that runs each task at once, in this process."""

    def source(self, value):
        return pickle.loads(pickle.dumps(value))

    def submit(self, function, *arguments):
        return pickle.loads(pickle.dumps(function(*arguments)))

    def release(self, handles):
        pass

    def results(self, handles):
        return list(handles)


@pytest.fixture
def in_parts(monkeypatch):
    """Divide each batch into three parts, without processes."""

    def runners(n_jobs, program, batches, state, max_iter, opened):
        return process_runners(Here(), 3, program, batches, state)

    monkeypatch.setattr(process_rounds, "runners_in_processes", runners)
    monkeypatch.setattr("onnxsgd.runtime.cores.count_cores", lambda: 8)


@pytest.fixture
def in_processes(monkeypatch):
    """Use processes at any size."""
    monkeypatch.setattr(process_rounds, "choose_processes", lambda n_jobs, *_: (n_jobs, "asked for"))
    monkeypatch.setattr("onnxsgd.runtime.cores.count_cores", lambda: 8)


@pytest.fixture(scope="module")
def network():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = MLPClassifier((12,), max_iter=1, learning_rate_init=1e-9, random_state=0).fit(X, Y)
    # clones train it further too
    return FrozenEstimator(fitted)


def assert_same(found, expected, tolerance=1e-10):
    given = expected.get_weights()
    for name, array in found.get_weights().items():
        np.testing.assert_allclose(array, given[name], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found.loss_curve_, expected.loss_curve_, rtol=tolerance)
    assert (found.t_, found.n_iter_) == (expected.t_, expected.n_iter_)


@pytest.mark.parametrize("model", ["linear", "network"])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_weights_are_those_of_one_process(in_parts, network, name, model):
    settings = dict(SETTINGS[name])
    if name == "multipliers":
        settings["learning_rate_multipliers"] = {"coef" if model == "linear" else "coefs_0": 0.1}
    one = OnnxSGDClassifier(None if model == "linear" else network, **{**COMMON, **settings})
    several = clone(one).set_params(n_jobs=3)
    assert_same(several.fit(X, Y, WEIGHT), one.fit(X, Y, WEIGHT))


@pytest.mark.parametrize("parameters", [{}, {**NAMED, "eta0": 0.01, "loss": "huber"}])
def test_regressions_of_several_targets_too(in_parts, parameters):
    targets = np.column_stack([Y, X[:, 20] * 3 - 1])
    model = MLPRegressor(hidden_layer_sizes=(8,), max_iter=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = FrozenEstimator(model.fit(X, targets))
    one = OnnxSGDRegressor(model, **{**COMMON, **parameters})
    assert_same(clone(one).set_params(n_jobs=2).fit(X, targets), one.fit(X, targets))


def test_frozen_layers_and_adapters_too(in_parts, network):
    for parameters in ({"trainable": ["coefs_1"]}, {"adapter": LoRA(2)}):
        one = OnnxSGDClassifier(network, **{**COMMON, **NAMED, **parameters})
        assert_same(clone(one).set_params(n_jobs=2).fit(X, Y), one.fit(X, Y))


def test_processes_have_the_weights_of_one_and_the_same_bits_again(in_processes, network):
    one = OnnxSGDClassifier(network, **COMMON).fit(X, Y)
    several = clone(one).set_params(n_jobs=2).fit(X, Y)
    again = clone(several).fit(X, Y)
    assert_same(several, one)
    for name, array in several.get_weights().items():
        np.testing.assert_array_equal(again.get_weights()[name], array)
    in_single = clone(one).set_params(dtype="float32", n_jobs=2).fit(X, Y)
    assert_same(in_single, clone(one).set_params(dtype="float32").fit(X, Y), 1e-4)


@pytest.mark.slow
def test_a_killed_worker_changes_no_bit(in_processes, network):
    estimator = OnnxSGDClassifier(network, **{**COMMON, **NAMED}, n_jobs=2)
    expected = clone(estimator).fit(X, Y).get_weights()
    pids = [worker.pid for worker in idle_workers.workers]
    assert len(pids) >= 2
    rates = iter(range(10**6))

    def rate(t):
        # in the rounds of the second epoch
        if next(rates) == 12:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        return 0.05

    found = clone(estimator).set_params(learning_rate=rate, eta0=None).fit(X, Y).get_weights()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.fixture(name="folders")
def _folders(monkeypatch):
    """Return the list of the folders that fits of this process make."""
    made, make = list[Path](), tempfile.mkdtemp

    def recorded(*arguments, **options):
        made.append(Path(make(*arguments, **options)))
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", recorded)
    return made


@pytest.mark.slow
def test_errors_leave_neither_memory_nor_processes(in_processes, network, folders):
    idle_workers.end()
    diverging = OnnxSGDClassifier(
        network, **{**COMMON, "dtype": "float32"}, learning_rate="constant", eta0=1e30
    )
    with pytest.raises(ConvergenceError):
        clone(diverging).set_params(n_jobs=2).fit(X, Y)
    assert folders
    assert not any(map(Path.exists, folders))
    assert not idle_workers.workers
    calls = iter(range(10**6))

    def rate(t):
        if next(calls) > 20:
            raise KeyboardInterrupt
        return 0.01

    stopped = OnnxSGDClassifier(network, **COMMON, learning_rate=rate, n_jobs=2)
    with pytest.warns(match="interrupted by user"):
        stopped.fit(X, Y)
    assert stopped.t_ > 0
    assert folders
    assert not any(map(Path.exists, folders))


def test_without_room_a_fit_has_one_process(in_processes, network, monkeypatch, caplog):
    monkeypatch.setattr("onnxsgd.sharding.shared_values._SHARE", 0.0)
    with caplog.at_level("INFO", "onnxsgd.processes"):
        fitted = OnnxSGDClassifier(network, **COMMON, n_jobs=2).fit(X, Y)
    assert "1: memory or processes cannot be had" in caplog.text
    assert_same(fitted, OnnxSGDClassifier(network, **COMMON).fit(X, Y))


def test_checkpoints_continue_with_any_number_of_processes(in_parts, network, tmp_path):
    whole = OnnxSGDClassifier(network, **{**COMMON, **NAMED}).fit(X, Y)
    estimator = OnnxSGDClassifier(
        network, **{**COMMON, **NAMED}, n_jobs=2, checkpoint=tmp_path, checkpoint_every={"updates": 3}
    )
    calls = iter(range(10**6))

    def stop(*arguments):
        if next(calls) == 15:
            raise KeyboardInterrupt

    from onnxsgd.sharding import rounds

    with pytest.MonkeyPatch.context() as patched:
        gradient = rounds.GradientRounds._gradient
        patched.setattr(rounds.GradientRounds, "_gradient", lambda *a: (stop(), gradient(*a))[1])
        with pytest.warns(match="interrupted"):
            estimator.fit(X, Y)
    assert 0 < estimator.t_ < whole.t_
    resumed = clone(estimator).set_params(n_jobs=None)
    resumed._is_clone = False
    resumed.fit(X, Y, resume=True)
    assert_same(resumed, whole)


def test_the_parameter_is_kept_and_refused_by_name(network, tmp_path):
    estimator = OnnxSGDClassifier(network, **COMMON, n_jobs=-1)
    assert clone(estimator).n_jobs == pickle.loads(pickle.dumps(estimator)).n_jobs == -1
    estimator.fit(X, Y).save(tmp_path / "model.onnxsgd")
    assert load(tmp_path / "model.onnxsgd").n_jobs == -1
    state = from_small_form(estimator.__getstate__())
    del state["n_jobs"]
    old = object.__new__(OnnxSGDClassifier)
    old.__setstate__(state)
    assert old.n_jobs is None
    for value in (0, 1.5, "all", True, [2]):
        with pytest.raises(ParameterError, match="n_jobs"):
            OnnxSGDClassifier(network, n_jobs=value).fit(X, Y)


def test_several_processes_on_a_gpu_are_refused(network, monkeypatch):
    monkeypatch.setattr("onnxsgd.estimators.base.check_device", lambda name: Device("cuda", 0))
    with pytest.raises(ParameterError, match=r"n_jobs=-1 is not accepted with device='cuda'"):
        OnnxSGDClassifier(network, device="cuda", n_jobs=-1).fit(X, Y)


def test_calls_without_processes_say_so(network, caplog):
    with caplog.at_level("INFO", "onnxsgd.processes"):
        OnnxSGDClassifier(network, **COMMON, n_jobs=2).partial_fit(X, Y)
        assert "only fits on all of the data have several" in caplog.text
        caplog.clear()
        OnnxSGDClassifier(network, **COMMON, n_jobs=2).fit([(X[:100], Y[:100]), (X[100:], Y[100:])])
        assert "only fits on all of the data have several" in caplog.text
        caplog.clear()
        OnnxSGDClassifier(network, **COMMON).fit(X, Y)
        assert not caplog.text


@pytest.mark.slow
def test_searches_in_processes_have_one_process_for_each_fit(in_processes, network):
    estimator = OnnxSGDClassifier(network, **COMMON, n_jobs=2)
    grid = {"alpha": [1e-4, 1e-2]}
    expected = GridSearchCV(clone(estimator).set_params(n_jobs=None), grid, cv=2).fit(X, Y)
    found = GridSearchCV(estimator, grid, cv=2, n_jobs=2).fit(X, Y)
    scores = "mean_test_score"
    np.testing.assert_allclose(found.cv_results_[scores], expected.cv_results_[scores], atol=1e-6)
