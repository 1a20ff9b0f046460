"""Fits keep to the formula of memory; .ci/long runs all cases, with more rows."""

import sys
from pathlib import Path

import pytest

from onnxsgd import OnnxSGDClassifier

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit and the peak are those of Linux")
#: Copies of so many rows, as float32, exceed the formula.
_ROWS = 800_000


@pytest.fixture
def limits(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import memory_limits

    return memory_limits


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "fortran",
        "early stopping, float64, auto",
        "strings, balanced",
        "by blocks",
        "by blocks, from the disk",
    ],
)
def test_fits_keep_to_the_formula(name, limits):
    child = limits.run_child(name, _ROWS, is_limited=True)
    assert child.returncode == 0, child.stderr[-2000:]


def test_all_settings_are_known(limits):
    """Those of the data, and parameters of the estimators."""
    used = {key for case in limits.CASES.values() for key in case} - set(limits._OWN)
    assert used <= set(OnnxSGDClassifier().get_params())
