"""Mutated models end no process, and are refused by errors of ours; .ci/long runs thousands of them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent


@pytest.mark.slow
def test_mutated_models_do_no_harm():
    """Some cases from all kinds of models; see harness.py."""
    command = [sys.executable, str(FOLDER / "harness.py"), "--first", "100", "--cases", "40"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


def test_cases_follow_from_their_number(monkeypatch):
    """So that a finding can be run again."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import seed_models
    from mutations import mutate

    content = seed_models._model(*seed_models.TEXTS["mlp"]).SerializeToString()
    cases = [[mutate(content, np.random.default_rng([0, i])) for i in range(30)] for _ in range(2)]
    assert cases[0] == cases[1]
    assert len(set(cases[0])) > 25
