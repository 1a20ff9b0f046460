"""Ctrl-C at any moment leaves an estimator as it was, or fitted so far; .ci/long tries thousands of moments."""

import sys
from pathlib import Path

import pytest

from onnxsgd import OnnxSGDRegressor

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
import failing_objects  # noqa: E402
import interrupts  # noqa: E402

sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("name", interrupts.CASES)
def test_interrupts_leave_a_whole_estimator(name):
    """At some lines of the package; see interrupts.py."""
    assert interrupts.sweep(name, 4) == []


def test_a_second_interrupt_leaves_a_whole_estimator_too():
    """Also one that comes while the first is handled."""
    case = interrupts.CASES["early stopping"]
    (first, *_), n = interrupts.moments_of(case, 2, seed=3)
    checker, outcomes = interrupts.Checker(case), []
    for first in range(n // 2, n, n // 6):
        outcomes += [interrupts.interrupt(case, checker, (first, first + later)) for later in (1, 4, 15, 60)]
    assert set(outcomes) <= {"before", "fitted", "whole"}


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("name", failing_objects.FAILING)
def test_objects_of_users_that_raise_leave_a_whole_estimator(name, error):
    """Losses, schedules, sources of batches, arrays, callbacks, at each of their calls."""
    if name.startswith("callback") and not hasattr(OnnxSGDRegressor, "set_callbacks"):
        pytest.skip("scikit-learn has callbacks from 1.9 on")
    assert failing_objects.fail(name, error) == []


@pytest.mark.parametrize("name", ["auto", "network", "batches, auto"])
def test_signals_leave_a_whole_estimator(name):
    """Ctrl-C at random times, while the runtime computes too."""
    assert interrupts.signals(name, 4) == []
