"""The command that writes the table of proven forms: one of its trials, in a child process."""

import subprocess
import sys
from pathlib import Path

import pytest

CODE = "import sys; sys.path.insert(0, sys.argv[1]); import sweep; print(sweep.attempt(tuple(sys.argv[2:])))"


@pytest.mark.native
def test_a_trial_of_a_proven_form_is_right():
    trial = [str(Path(__file__).parent), "Abs", "float32", "fixed", "outputs"]
    ran = subprocess.run([sys.executable, "-c", CODE, *trial], capture_output=True, text=True, check=False)
    assert ran.stdout.split()[-1:] == ["right"], ran.stderr
