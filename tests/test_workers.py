"""Estimators in threads and worker processes: the numbers of the sequence, no hang, few threads.

``tests/hostile/workers.py`` makes the calls; see there.
"""

import os
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxsgd import OnnxSGDClassifier

SCRIPT = Path(__file__).parent / "hostile" / "workers.py"
#: As long as a loaded machine may take.
PATIENCE = 480

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def run(*arguments):
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        capture_output=True, text=True, check=False, timeout=PATIENCE, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_threads_get_the_numbers_of_the_sequence():
    assert run("threads").startswith("threads: the numbers of the sequence")


@needs_fork
def test_forked_workers_get_the_numbers_of_the_sequence():
    """Also where other threads compile and hold locks at the moment of a fork."""
    found = run("fork", "--forks", "6")
    assert "fork: the numbers of the sequence" in found
    assert "6 forks while other threads train: the numbers" in found


def test_workers_of_joblib_get_the_numbers_of_the_sequence():
    assert run("loky").startswith("loky: the numbers of the sequence")


@needs_fork
@pytest.mark.long
def test_all_kinds_of_workers_get_the_numbers_of_the_sequence():
    found = run()
    assert found.count("the numbers of the sequence") + found.count("is not installed") == 12


def test_a_worker_compiles_a_structure_once():
    """Candidates of a search share compiled steps, as their reports tell; strengths are inputs of a step.

    Larger ones would replace the first weights, and predict for that.
    """
    X, y = load_iris(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    fits = [
        joblib.delayed(OnnxSGDClassifier(model, alpha=alpha, max_iter=2, tol=None).fit)(X, y)
        for alpha in np.geomspace(1e-5, 1e-2, 12)
    ]
    learners = joblib.Parallel(n_jobs=2, batch_size=1)(fits)
    reports = [learner.fit_report_ for learner in learners]
    assert sum("differentiate" in report.seconds for report in reports) <= 2
    # the first fit of each worker, and the first one of the template of the structure
    assert sum(report.cache_misses > 0 for report in reports) <= 4
    assert all(report.cache_hits > 0 for report in reports if not report.cache_misses)


def test_a_kind_that_does_not_exist_is_an_error():
    """So that the tests above run what they name."""
    with pytest.raises(AssertionError, match=r"unknown: \['fork_'\]"):
        run("fork_")
