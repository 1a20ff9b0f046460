"""The recipe for Ray: fits over its tasks, on a local cluster."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from serial_executor import SerialExecutor
from sklearn.datasets import load_diabetes, load_digits

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.distributed import fit_shards
from onnxsgd.exceptions import ParameterError, WorkersLostError

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'onnxsgd[recipes]'")

RECIPES = str(Path(__file__).parents[2] / "docs" / "recipes")
# the fits are short
pytestmark = pytest.mark.filterwarnings("ignore:sync_every=4 leaves:sklearn.exceptions.ConvergenceWarning")

X, Y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)[:400]
Y = Y[:400]
X_REAL, Y_REAL = load_diabetes(return_X_y=True)
Y_REAL = (Y_REAL - Y_REAL.mean()) / Y_REAL.std()
NAMED = {"learning_rate": "constant", "eta0": 0.05, "max_iter": 2, "tol": None, "random_state": 0}
CLASSIFIER = OnnxSGDClassifier, {**NAMED, "batch_size": 50}, X, Y
REGRESSOR = (
    OnnxSGDRegressor,
    {"max_iter": 2, "tol": None, "random_state": 0, "batch_size": 50},
    X_REAL,
    Y_REAL,
)


@pytest.fixture(scope="module")
def cluster():
    """Connect to two worker processes."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


@pytest.fixture
def recipe(monkeypatch):
    """Import the recipe, which is a file of the documentation."""
    monkeypatch.syspath_prepend(RECIPES)
    import ray_executor

    yield ray_executor
    del sys.modules["ray_executor"]


def pieces_of(X, y, n_pieces=3):
    """Return even pieces, whose rows are alike."""
    return [(X[number::n_pieces], y[number::n_pieces]) for number in range(n_pieces)]


def trained(case, executor, sync_every, **options):
    make, settings, X, y = case
    pieces = [executor.source(piece) for piece in pieces_of(X, y)]
    return fit_shards(make(**settings, **options), pieces, executor, sync_every=sync_every)


def assert_same(first, second):
    for mine, others in zip(first.get_weights().values(), second.get_weights().values(), strict=True):
        assert np.array_equal(mine, others)
    assert np.array_equal(first.loss_curve_, second.loss_curve_)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("sync_every", [1, 4])
@pytest.mark.parametrize("case", [CLASSIFIER, REGRESSOR], ids=["classifier", "regressor"])
def test_weights_are_those_of_one_process(case, sync_every, recipe):
    on_ray = trained(case, recipe.RayExecutor(), sync_every)
    assert_same(on_ray, trained(case, SerialExecutor(), sync_every))


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_changes_no_bit(recipe, tmp_path):
    marker = tmp_path / "killed"

    class Killing(recipe.RayExecutor):
        def submit(self, function, *arguments):
            def kill_once(*arguments):
                if not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments)

            is_round = function.__name__ == "local_updates"
            return super().submit(kill_once if is_round else function, *arguments)

    on_ray = trained(CLASSIFIER, Killing(), 4)
    assert marker.exists()
    assert_same(on_ray, trained(CLASSIFIER, SerialExecutor(), 4))


@pytest.mark.usefixtures("cluster")
def test_pieces_of_tasks_and_validation(recipe):
    """Pieces may be references of Ray; tasks score the validation data."""

    def options(executor):
        return {"pieces_val": [executor.source((X[:100], Y[:100]))], "sync_every": 4}

    executor, serial = recipe.RayExecutor(), SerialExecutor()
    refs = [ray.put(piece) for piece in pieces_of(X, Y)]
    on_ray = fit_shards(OnnxSGDClassifier(**NAMED), refs, executor, **options(executor))
    sources = [serial.source(piece) for piece in pieces_of(X, Y)]
    assert_same(on_ray, fit_shards(OnnxSGDClassifier(**NAMED), sources, serial, **options(serial)))
    assert len(on_ray.validation_scores_) == 2


@pytest.mark.usefixtures("cluster")
def test_released_results_are_forgotten(recipe):
    executor = recipe.RayExecutor()
    value = executor.source(1)
    task = executor.submit(int, value)
    executor.release([value])
    assert executor.results([task]) == [1]
    executor.release([task])
    assert value.ref is None
    assert task.ref is None


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("y", "kind", "message"),
    [
        # in the last piece: the client checks the first rows
        (np.append(Y_REAL[:-2], [np.nan, 0.0]), ValueError, "Input y contains NaN"),
        (Y_REAL[:-1], ParameterError, "148 rows of X, 147 rows of y"),
    ],
    ids=["nan", "lengths"],
)
def test_errors_of_tasks_are_raised_as_on_one_machine(y, kind, message, recipe):
    case = (*REGRESSOR[:3], y)
    with pytest.raises(kind, match=message) as here:
        trained(case, SerialExecutor(), 4)
    with pytest.raises(kind, match=message) as there:
        trained(case, recipe.RayExecutor(), 4)
    assert type(there.value) is type(here.value)
    assert str(there.value) == str(here.value)


def test_no_worker_is_left(recipe):
    ray.shutdown()
    ray.init(num_cpus=0, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        with pytest.raises(WorkersLostError, match="Ray has had no CPU for 1 seconds"):
            trained(CLASSIFIER, recipe.RayExecutor(timeout=1.0), 4)
    finally:
        ray.shutdown()
