"""Fixtures of all tests."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state

from onnxsgd.exceptions import OnnxSGDError
from onnxsgd.gradient.native.builder import is_available
from onnxsgd.runtime.device import check_device


def _load(name: str) -> ModuleType:
    """Import a module of this folder, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(X).astype(np.float32), y


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return StandardScaler().fit_transform(X).astype(np.float32), (y - y.mean()) / y.std()


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(X).astype(np.float32), y


@pytest.fixture(scope="module")
def _generators(request: pytest.FixtureRequest) -> list[tuple[Any, Any]]:
    """Return the generators of a module, and their states after its import."""
    values = list(vars(request.module).values())
    generators = [value for value in values if isinstance(value, np.random.Generator)]
    found = [value._bit_generator for value in values if isinstance(value, np.random.RandomState)]
    return [(bits, bits.state) for bits in found + [value.bit_generator for value in generators]]


@pytest.fixture(autouse=True)
def _no_idle_processes():
    """End the processes of joblib after each test that has started some.

    They end by themselves after 300 idle seconds, and a call of the same moment waits for them for good: the
    next test that has some then hangs.
    """
    yield
    pool = sys.modules.get("joblib.externals.loky.reusable_executor")
    if pool is not None and pool._executor is not None:
        pool._executor.shutdown(wait=True, kill_workers=True)
        pool._executor = None


@pytest.fixture(autouse=True)
def _same_draws(_generators: list[tuple[Any, Any]]) -> None:
    """Give each test the draws that it has alone, not those that are left by the tests before it.

    Estimators without a ``random_state`` draw from the global generator of numpy.
    """
    check_random_state(None).seed(0)
    for bits, state in _generators:
        bits.state = state


def pytest_configure(config: pytest.Config) -> None:
    """Give each of several workers one thread for linear algebra, before they start.

    Threads of BLAS wait for each other in a loop: with as many workers as cores, tests take 4 times as long.
    """
    if config.getoption("numprocesses", None):
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(name, "1")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``sklearn_case`` for every estimator in ``sklearn_cases.py``."""
    if "sklearn_case" in metafunc.fixturenames:
        cases = (sys.modules.get("sklearn_cases") or _load("sklearn_cases")).CASES
        metafunc.parametrize("sklearn_case", cases, ids=[case.name for case in cases])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests without their runtime or device."""
    _skip_gpu(items)
    _skip_native(items)


def _skip_gpu(items: list[pytest.Item]) -> None:
    """Skip tests that need a GPU where none can be used."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    try:
        check_device("cuda")
    except OnnxSGDError as error:
        reason = str(error).partition(". ")[0]
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {reason}"))


def _skip_native(items: list[pytest.Item]) -> None:
    """Skip tests that need the training edition of onnxruntime where another one is installed."""
    if is_available():
        return
    skip = pytest.mark.skip(reason="needs onnxruntime-training, and another onnxruntime is installed")
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        asked_for = any(isinstance(value, str) and value == "onnxruntime-training" for value in parameters)
        if asked_for or item.get_closest_marker("native"):
            item.add_marker(skip)
