"""The script that tries the claims of the table of alternatives runs, and says what is not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def tried(library, *claims):
    script = ROOT / "benchmarks" / "alternatives.py"
    command = [sys.executable, str(script), "--library", library, "--claim", *claims]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip().splitlines()


def test_claims_that_hold_and_one_with_nothing_to_call():
    title, *cells = tried("ours", "return_onnx", "stream", "new_network")
    assert title.startswith("ours: onnxsgd ")
    assert [cell.rpartition(": ")[2] for cell in cells] == ["yes", "yes", "nothing to call"]


def test_an_exception_is_a_no_with_its_name():
    _, cell = tried("scikit_learn", "continue_linear")
    assert "no: AttributeError: 'LogisticRegression' object has no attribute 'partial_fit'" in cell
