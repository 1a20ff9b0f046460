"""Ctrl-C at any moment leaves an estimator as it was, or fitted so far; .ci/long tries thousands of moments."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))
import interrupts  # noqa: E402

sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("name", interrupts.CASES)
def test_interrupts_leave_a_whole_estimator(name):
    """At some lines of the package; see interrupts.py."""
    assert interrupts.sweep(name, 6) == []
