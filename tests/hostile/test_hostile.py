"""Hostile input ends no process, and is refused by errors of ours; .ci/long runs thousands of cases."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent
#: Kinds of cases with their numbers, 1,000 together; each bomb once.
CASES = {"graphs": 110, "parameters": 400, "data": 208, "weights": 120, "bombs": 62, "files": 100}


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(CASES))
def test_hostile_input_does_no_harm(kind):
    """Some cases of each kind; see harness.py."""
    command = [sys.executable, str(FOLDER / "harness.py"), "--kind", kind, "--cases", str(CASES[kind])]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_cases_follow_from_their_number(monkeypatch):
    """So that a finding can be run again."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import seed_models
    from mutations import mutate

    content = seed_models._model(*seed_models.TEXTS["mlp"]).SerializeToString()
    cases = [[mutate(content, np.random.default_rng([0, i])) for i in range(30)] for _ in range(2)]
    assert cases[0] == cases[1]
    assert len(set(cases[0])) > 25


def _raises(error):
    def call():
        raise error

    return call


def _fills(array):
    array[0] = 1.0


def _warns():
    import warnings

    for _ in range(20):
        warnings.warn("once more", stacklevel=1)


def test_rules_find_each_fault(monkeypatch):
    """A harness without rules would find nothing."""
    monkeypatch.syspath_prepend(str(FOLDER))
    from rules import Trial, faults

    array = np.zeros(3)
    found = {
        "foreign error": Trial("", _raises(KeyError("a key that no one knows of"))),
        "accident": Trial("", lambda: float("a text that is no number")),
        "long message": Trial("", _raises(ValueError("x" * 2000))),
        "names none of": Trial("", _raises(ValueError("This is not accepted at all.")), names=("alpha",)),
        "20 warnings": Trial("", _warns),
        "an argument was changed": Trial("", lambda: _fills(array), given=(array,)),
        "not finite": Trial("", lambda: np.array([np.nan]), is_finite=True),
        "accepted, though": Trial("", lambda: 1, is_legal=False),
        "refused, though": Trial("", _raises(ValueError("This is not accepted at all.")), is_legal=True),
        "took": Trial("", lambda: sum(range(100_000)), seconds=0.0),
        "MiB": Trial("", lambda: np.ones(1 << 22), growth=1 << 20),
    }
    for fault, trial in found.items():
        assert any(fault in text for text in faults(trial)), fault
    assert not list(faults(Trial("", lambda: np.ones(3), given=(array,), is_finite=True, is_legal=True)))
