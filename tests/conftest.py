"""What tests of all rooms share."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _load(name: str) -> ModuleType:
    """Import a module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``sklearn_case`` for every estimator in ``sklearn_cases.py``."""
    if "sklearn_case" in metafunc.fixturenames:
        cases = (sys.modules.get("sklearn_cases") or _load("sklearn_cases")).CASES
        metafunc.parametrize("sklearn_case", cases, ids=[case.name for case in cases])
