"""The choice between one process and several, by the sizes of models, batches and data."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier
from onnxsgd.sharding import process_choice, process_rounds
from onnxsgd.sharding.process_choice import choose_processes

X = np.random.default_rng(0).standard_normal((40, 784), np.float32)
Y = np.arange(40) % 10


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch):
    monkeypatch.setattr("onnxsgd.runtime.cores.count_cores", lambda: 16)
    monkeypatch.setattr(process_choice, "count_cores", lambda: 16)


@pytest.fixture
def chosen(monkeypatch):
    """Return a function that returns the choice for a fit on as many copies of the rows as asked for."""

    def found(model, batch_size, n_rows=10**6, max_iter=1000, n_jobs=2, X=X, y=Y, **parameters):
        made = []

        def keep(n_jobs, program, batches, _):
            rows = np.broadcast_to(batches.target[:1], (n_rows, *batches.target.shape[1:]))
            large = replace(batches, target=rows, batch_size=batch_size)
            made.append(choose_processes(n_jobs, program, large, max_iter))
            return 1, "left out"

        monkeypatch.setattr(process_rounds, "choose_processes", keep)
        settings = {"learning_rate": "constant", "max_iter": 1, "tol": None, "random_state": 0} | parameters
        OnnxSGDClassifier(model, batch_size=batch_size, n_jobs=n_jobs, **settings).fit(X, y)
        return made[0]

    return found


@pytest.fixture(scope="module")
def perceptron():
    with pytest.warns(match="iterations"):
        return MLPClassifier((512, 512), max_iter=1, learning_rate_init=1e-9, random_state=0).fit(X, Y)


def test_processes_need_long_updates(chosen, perceptron):
    """Measured on two cores, 784-512-512-10, processes to one thread: 0.92 at 256 rows, 1.45 at 1,024."""
    one_thread = {"n_threads": 1}
    assert chosen(perceptron, 32, **one_thread) == (1, "an update is short")
    assert chosen(perceptron, 256, **one_thread) == (1, "an update is short")
    assert chosen(perceptron, 1024, **one_thread) == (2, "updates are long")
    assert chosen(None, 4096, **one_thread) == (1, "an update is short")


def test_threads_are_preferred_where_they_are_as_fast(chosen, perceptron):
    assert chosen(perceptron, 1024) == chosen(perceptron, 4096) == (1, "its threads are as fast")
    assert chosen(perceptron, 32) == (1, "an update is short")


def test_few_updates_do_not_start_workers(chosen, perceptron):
    short = {"n_threads": 1, "n_rows": 10_000}
    assert chosen(perceptron, 1024, max_iter=1, **short) == (1, "the updates are few")
    # the fit may end long before
    assert chosen(perceptron, 1024, max_iter=1000, **short) == (1, "the updates are few")


def test_threads_of_processes_share_the_cores(chosen, perceptron):
    assert chosen(perceptron, 4096, n_jobs=16, n_threads=4)[0] == 4
    assert chosen(perceptron, 4096, n_jobs=16, n_threads=16) == (1, "n_threads=16 takes the cores")
    assert chosen(perceptron, 2, n_jobs=16, n_threads=1)[0] == 1


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"dropout": 0.5}, "masks of dropout"),
        ({"gradient_accumulation_steps": 2}, "gradients are accumulated"),
        ({"X": "sparse"}, "sparse data"),
        ({"X": "map"}, "only arrays in memory"),
    ],
)
def test_each_obstacle_is_named(chosen, perceptron, tmp_path, parameters, reason):
    if parameters.get("X") == "sparse":
        parameters = {"X": csr_array(X)}
    elif "X" in parameters:
        X.tofile(tmp_path / "rows")
        parameters = {"X": np.memmap(tmp_path / "rows", np.float32, "r", shape=X.shape)}
    model = perceptron
    if "dropout" in parameters:
        model = _with_dropout()
    n_processes, found = chosen(model, 1024, n_threads=1, **parameters)
    assert n_processes == 1
    assert reason in found


def _with_dropout():
    from onnx import numpy_helper, parser

    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> g (float[N, 784] X) => (float[N, 10] Y)
        <float R = {0.5}, bool T = {1}> { D, M = Dropout(X, R, T) Y = MatMul(D, W) }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((784, 10), np.float32), "W"))
    return model
