"""Estimators in threads and worker processes of all kinds: ``python tests/hostile/workers.py [KIND ...]``.

Each kind makes the same calls as the sequence, and must get the same numbers, bit for bit, with no more threads
than the share of cores of a worker. ``--forks N`` makes so many forks while two threads compile and train. What
hangs prints its stacks and ends.
"""

import argparse
import faulthandler
import importlib
import math
import multiprocessing
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from scipy import sparse
from scipy.linalg.blas import dgemm
from sklearn.datasets import load_diabetes, load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.gradient.native.builder import is_available
from onnxsgd.runtime.cache import cache
from onnxsgd.runtime.editions import load_runtime
from onnxsgd.runtime.sessions import resolve_threads

#: Seconds after which a process has hung.
PATIENCE = 40
N_WORKERS = 2
_MANY_MULTIPLICATIONS = 10**9
_LARGE = {"data": "wide", "hidden": 900, "batch_size": 128}
_DONE = []


def calls() -> list[dict[str, Any]]:
    """Return the arguments of different calls."""
    named = {"learning_rate": "constant", "eta0": 1e-3}
    kinds: list[dict[str, Any]] = [
        {"data": "iris"},
        {"data": "iris", "hidden": 8},
        {"data": "iris", "hidden": 8, "optimizer": "adam", "batch_size": 8, **named},
        {"data": "iris", "early_stopping": True, "dtype": "float64"},
        {"data": "diabetes", "average": True, **named},
        {"data": "sparse"},
        # its step and its predictions would take all cores
        {**_LARGE, "n_threads": 1},
        {**_LARGE, "n_threads": 2},
    ]
    if is_available():
        kinds.append({"data": "iris", "hidden": 8, "engine": "onnxruntime-training"})
    return [{**kind, "random_state": 0} for kind in kinds]


def _data(name: str) -> tuple[Any, np.ndarray]:
    if name == "wide":
        draw = np.random.RandomState(0)
        return draw.normal(size=(256, 90)).astype(np.float32), draw.randint(0, 2, 256)
    X, y = load_iris(return_X_y=True) if name == "iris" else load_diabetes(return_X_y=True)
    return (sparse.csr_matrix(X * (X > 0)), y) if name == "sparse" else (X, y)


def call(data: str, hidden: int | None = None, **parameters: Any) -> list[np.ndarray]:
    """Fit, go on with parts, predict, and return all numbers."""
    X, y = _data(data)
    is_classifier = data in ("iris", "wide")
    model = None
    if hidden is not None:
        inside = MLPClassifier((hidden,), random_state=0)
        inside.partial_fit(X[:6], np.arange(6) % len(np.unique(y)), classes=np.unique(y))
        # BLAS rounds by the number of its threads, which workers limit
        draw = np.random.RandomState(1)
        inside.coefs_ = [draw.normal(size=array.shape, scale=0.1) for array in inside.coefs_]
        inside.intercepts_ = [np.zeros_like(array) for array in inside.intercepts_]
        model = FrozenEstimator(inside)
    cls = OnnxSGDClassifier if is_classifier else OnnxSGDRegressor
    learner = cls(model, max_iter=3, tol=None, **parameters).fit(X, y)
    if not learner.early_stopping:
        for start in range(0, 120, 40):
            learner.partial_fit(X[start : start + 40], y[start : start + 40])
    return [*learner.get_weights().values(), learner.predict(X), np.array(learner.loss_curve_)]


def n_tasks() -> int:
    """Return the number of threads of this process, those of libraries included."""
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0


def start_threads_of_libraries() -> None:
    """Start the threads of BLAS and of the import of onnxruntime, which would be counted as those of a fit."""
    load_runtime()
    square = np.ones((400, 400))
    (square @ square).sum()
    dgemm(1.0, square, square)


def checked(arguments: dict[str, Any]) -> tuple[list[np.ndarray], int, int]:
    """Make a call in a worker process; return its numbers, the threads of a large step, and further ones."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    start_threads_of_libraries()
    before = n_tasks()
    numbers = call(**{**arguments, "n_threads": arguments.get("n_threads", 1)})
    further = n_tasks() - before
    threads = resolve_threads(None, _MANY_MULTIPLICATIONS)
    if threads == 1 and arguments.get("n_threads", 1) == 1 and not _DONE:
        call(**_LARGE, n_threads=None, random_state=0)
        further = n_tasks() - before
        _DONE.append(True)
    cache.clear()
    faulthandler.cancel_dump_traceback_later()
    return numbers, threads, further


def in_thread(arguments: dict[str, Any]) -> tuple[list[np.ndarray], int, int]:
    """Make a call in a thread, among others."""
    return call(**{**arguments, "n_threads": arguments.get("n_threads", 1)}), 1, 0


def _pool(method: str, arguments: Iterable[Any]) -> list[Any]:
    with multiprocessing.get_context(method).Pool(N_WORKERS) as pool:
        # a pool waits for ever for a worker that has ended
        return pool.map_async(checked, arguments, chunksize=1).get(2 * PATIENCE)


def _executor(method: str, arguments: Iterable[Any]) -> list[Any]:
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(N_WORKERS, mp_context=context) as executor:
        return list(executor.map(checked, arguments))


def _threads(arguments: Iterable[Any]) -> list[Any]:
    # equal calls at once share what is compiled
    with ThreadPoolExecutor(8) as executor:
        return [*executor.map(in_thread, [*arguments, *arguments])][len(calls()) :]


def _joblib(backend: str, arguments: Iterable[Any]) -> list[Any]:
    function = in_thread if backend == "threading" else checked
    arguments = [*arguments]
    with joblib.parallel_config(backend=backend, n_jobs=N_WORKERS):
        return joblib.Parallel()(joblib.delayed(function)(each) for each in arguments)


def in_engine(arguments: dict[str, Any]) -> tuple[list[np.ndarray], int, int]:
    """Make a call in a worker of an engine, which starts and ends threads of its own meanwhile."""
    numbers, threads, _ = checked(arguments)
    return numbers, threads, 0


def _dask(arguments: Iterable[Any]) -> list[Any]:
    import distributed

    workers = {"n_workers": N_WORKERS, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**workers) as cluster, distributed.Client(cluster) as client:
        return client.gather(client.map(in_engine, [*arguments]))


def _ray(arguments: Iterable[Any]) -> list[Any]:
    import ray

    ray.init(num_cpus=N_WORKERS, include_dashboard=False, log_to_driver=False)
    try:
        return ray.get([ray.remote(in_engine).remote(each) for each in arguments])
    finally:
        ray.shutdown()


KINDS: dict[str, Callable[[Iterable[Any]], list[Any]]] = {
    "threads": _threads,
    "joblib threading": partial(_joblib, "threading"),
    "fork": partial(_pool, "fork"),
    "fork executor": partial(_executor, "fork"),
    "joblib multiprocessing": partial(_joblib, "multiprocessing"),
    "spawn": partial(_pool, "spawn"),
    "forkserver executor": partial(_executor, "forkserver"),
    "spawn executor": partial(_executor, "spawn"),
    "loky": partial(_joblib, "loky"),
    "dask": _dask,
    "ray": _ray,
}
#: The packages of kinds that the project does not need.
ENGINES = {"dask": "distributed", "ray": "ray"}


def run(kind: str, sequence: list[list[np.ndarray]]) -> None:
    """Make all calls in workers of a kind; compare."""
    all_calls = calls()
    for number, (found, threads, further) in enumerate(KINDS[kind](all_calls)):
        for array, expected in zip(found, sequence[number], strict=True):
            np.testing.assert_array_equal(array, expected, err_msg=f"{kind}, {all_calls[number]}")
        named = all_calls[number].get("n_threads", 1)
        assert threads <= max(1, joblib.cpu_count() // N_WORKERS), f"{kind}: a share of {threads} cores"
        # each session has its own
        assert further % max(1, named - 1) == 0, f"{kind}: {further} further threads, n_threads={named}"
        assert named > 1 or further <= 0, f"{kind}: {further} further threads, {all_calls[number]}"


def search(backend: str) -> None:
    """Compare a search in workers with one in sequence."""
    X, y = load_iris(return_X_y=True)
    learner = OnnxSGDClassifier(max_iter=5, tol=None, random_state=0)
    grid = {"alpha": [1e-4, 1e-2], "loss": ["log_loss", "hinge"]}
    expected = GridSearchCV(learner, grid, cv=3).fit(X, y)
    with joblib.parallel_config(backend=backend):
        found = GridSearchCV(learner, grid, cv=3, n_jobs=N_WORKERS).fit(X, y)
    np.testing.assert_array_equal(
        found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], err_msg=backend
    )
    np.testing.assert_array_equal(found.predict(X), expected.predict(X), err_msg=backend)


def fork_while_others_train(n_forks: int, sequence: list[list[np.ndarray]]) -> None:
    """Fork again and again while two threads compile and train; each child makes a call."""
    small = [(each, numbers) for each, numbers in zip(calls(), sequence, strict=True) if "hidden" in each]
    small = [(each, numbers) for each, numbers in small if each["data"] == "iris"]
    draw, stop = np.random.RandomState(0), threading.Event()

    def train(number: int) -> None:
        while not stop.is_set():
            cache.clear()
            call(**small[number][0])

    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(n_forks):
            time.sleep(draw.uniform(0.0, 0.1))
            arguments, expected = small[number % len(small)]
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    faulthandler.dump_traceback_later(PATIENCE, exit=True)
                    found = call(**arguments)
                    status = 0 if all(map(np.array_equal, found, expected)) else 3
                finally:
                    os._exit(status)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert status == 0, f"fork {number}: the child ended with {status}"
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _end() -> None:
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)


def main() -> None:
    """Parse the command line; run the kinds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {[*KINDS, 'searches']}; default: all")
    parser.add_argument("--forks", type=int, default=0)
    arguments = parser.parse_args()
    unknown = set(arguments.kinds) - {*KINDS, "searches"}
    if unknown:
        parser.error(f"unknown: {sorted(unknown)}")
    kinds = arguments.kinds or ([] if arguments.forks else [*KINDS, "searches"])
    for kind in [kind for kind in kinds if kind in ENGINES and find_spec(ENGINES[kind]) is None]:
        print(f"{kind}: is not installed")
        kinds.remove(kind)
    warnings.simplefilter("ignore")
    # threads take turns more often
    sys.setswitchinterval(1e-4)
    # no timer of faulthandler: one in the parent process makes that of a child wait for ever
    end = threading.Timer(max(600, 2 * arguments.forks), _end)
    end.daemon = True
    end.start()
    sequence = [call(**{**each, "n_threads": each.get("n_threads", 1)}) for each in calls()]
    for kind in kinds:
        begin = time.monotonic()
        if kind == "searches":
            for backend in ("threading", "multiprocessing", "loky"):
                search(backend)
        else:
            run(kind, sequence)
        print(f"{kind}: the numbers of the sequence, {math.ceil(time.monotonic() - begin)} s", flush=True)
    if arguments.forks:
        fork_while_others_train(arguments.forks, sequence)
        print(f"{arguments.forks} forks while other threads train: the numbers of the sequence")


if __name__ == "__main__":
    # functions of a script are pickled by value, those of a module by name
    sys.path.insert(0, str(Path(__file__).parent))
    importlib.import_module("workers").main()
