"""The judge of the backend node tests, for the tests of this folder."""

import importlib.util
import sys
from pathlib import Path

import pytest


def _judge():
    """Import ``judge.py``, which is in no package."""
    if "judge" not in sys.modules:
        spec = importlib.util.spec_from_file_location("judge", Path(__file__).with_name("judge.py"))
        sys.modules["judge"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["judge"])
    return sys.modules["judge"]


def pytest_generate_tests(metafunc):
    """Run a test that takes ``operator`` for every operator of the table."""
    if "operator" in metafunc.fixturenames:
        rows = _judge().read_table()[1].values()
        metafunc.parametrize("operator", sorted({row.operator for row in rows}))


@pytest.fixture(scope="session", name="judge")
def judge_fixture():
    """Return the module ``judge.py``."""
    return _judge()


@pytest.fixture(scope="session")
def node_tests(judge):
    """Return onnx's backend node tests by operator."""
    found = {}
    for test in judge.node_tests():
        found.setdefault(judge.operator_of(test), []).append(test)
    return found
