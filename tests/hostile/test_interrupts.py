"""Ctrl-C at any moment leaves an estimator as it was, or fitted so far; .ci/long tries thousands of moments."""

import contextlib
import random
import sys
from pathlib import Path

import numpy as np
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


def _moments_in(files, case, folder):
    """Return the numbers of the lines of some files in a call that compiles nothing."""
    for _ in range(2):
        model = case.make(folder)
        with interrupts.Moments() as every:
            interrupts._quietly(case, model, folder)
    return [number for number, (path, _) in enumerate(every.places, 1) if path.endswith(files)]


def _weights_in_numpy(n_updates):
    """Return the coefficients and the intercept after so many updates of the case "steps"."""
    w, b, eta, alpha = np.zeros(4), 0.0, 0.05, 1e-4
    for number in range(n_updates):
        rows = slice(10 * (number % 6), 10 * (number % 6) + 10)
        residual = interrupts.X[rows] @ w + b - interrupts.Y[rows]
        w, b = w - eta * (interrupts.X[rows].T @ residual / 10 + alpha * w), b - eta * residual.mean()
    return np.append(w, b)


def test_weights_are_those_of_the_updates_counted(tmp_path):
    """At lines of the runner and the buffers of 18 updates, against numpy."""
    case, found = interrupts.CASES["steps"], set()
    numbers = _moments_in(("single_step.py", "buffers.py"), case, tmp_path)
    for number in random.Random(0).sample(numbers[20:], 90):
        model = case.make(tmp_path)
        with contextlib.suppress(KeyboardInterrupt), interrupts.Moments((number,)):
            interrupts._quietly(case, model, tmp_path)
        if hasattr(model, "coef_"):
            found.add(model.t_)
            weights = np.append(model.coef_, model.intercept_)
            np.testing.assert_allclose(weights, _weights_in_numpy(model.t_), rtol=1e-9, atol=1e-12)
            assert model.n_iter_ == len(model.loss_curve_) == model.t_ // 6
    assert len(found) > 6


@pytest.mark.parametrize("name", ["part, named", "again"])
def test_interrupts_leave_no_recording(name, tmp_path):
    """At all lines at which one begins or ends; later calls would take their decisions for known."""
    case = interrupts.CASES[name]
    numbers = _moments_in(("stages.py", "fit_report.py"), case, tmp_path)
    checker = interrupts.Checker(case)
    found = [interrupts.interrupt(case, checker, (n,)) for n in numbers[:25] + numbers[-25:]]
    assert set(found) <= {"before", "fitted", "whole"}


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


# a signal within a callback of the garbage collector, as hypothesis has one, is dropped and reported
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["auto", "network", "batches, auto"])
def test_signals_leave_a_whole_estimator(name):
    """Ctrl-C at random times, while the runtime computes too."""
    assert interrupts.signals(name, 4) == []
