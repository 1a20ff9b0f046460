"""Estimators that several threads share; tests/hostile/interleavings.py has random calls."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path

import numpy as np
import pytest

from onnxsgd import OnnxSGDRegressor, load
from onnxsgd.estimators.shared import ATTEMPT, lock_of
from onnxsgd.exceptions import ParameterError

X = np.random.RandomState(0).normal(size=(64, 3)).astype(np.float32)
Y = X @ [1.0, 2.0, 3.0]
SCRIPT = Path(__file__).parents[1] / "hostile" / "interleavings.py"


def learner():
    return OnnxSGDRegressor(
        max_iter=2, tol=None, learning_rate="constant", eta0=0.01, random_state=0, warm_start=True
    )


@contextmanager
def training(estimator, error=None):
    """A fit in another thread, which has made updates and waits for its last batch."""
    waiting, go = threading.Event(), threading.Event()

    def batches():
        for _ in range(3):
            yield X, Y
        waiting.set()
        assert go.wait(30)
        if error is not None:
            raise error
        yield X, Y

    def fit():
        with suppress(ZeroDivisionError):
            estimator.set_params(max_iter=1).fit(batches())

    thread = threading.Thread(target=fit)
    thread.start()
    assert waiting.wait(30)
    try:
        yield
    finally:
        go.set()
        thread.join(30)
        assert not thread.is_alive()


def test_others_see_the_weights_before_a_call_that_trains():
    estimator = learner().fit(X, Y)
    before, weights, n = estimator.predict(X), estimator.get_weights(), len(estimator.loss_curve_)
    with training(estimator):
        np.testing.assert_array_equal(estimator.predict(X), before)
        np.testing.assert_array_equal(estimator.get_weights()["coef"], weights["coef"])
        for found in (pickle.loads(pickle.dumps(estimator)), copy(estimator)):
            np.testing.assert_array_equal(found.predict(X), before)
            assert found.n_iter_ == len(found.loss_curve_) == n
            assert ATTEMPT not in vars(found)
    assert not np.array_equal(estimator.predict(X), before)


def test_an_estimator_in_its_first_fit_is_not_fitted():
    estimator = learner()
    with training(estimator), pytest.raises(ValueError, match="not fitted"):
        estimator.predict(X)
    assert estimator.predict(X).shape == (64,)


def test_a_second_call_waits_for_the_first():
    estimator, alone = learner().fit(X, Y), learner().fit(X, Y)
    done = []
    with training(estimator):
        second = threading.Thread(target=lambda: done.append(estimator.partial_fit(X, Y)))
        second.start()
        second.join(0.2)
        assert not done
    second.join(30)
    alone.set_params(max_iter=1).fit([(X, Y)] * 4).partial_fit(X, Y)
    np.testing.assert_array_equal(estimator.predict(X), alone.predict(X))


def test_an_error_leaves_no_lock():
    estimator = learner().fit(X, Y)
    with training(estimator, ZeroDivisionError()):
        pass
    assert ATTEMPT not in vars(estimator)
    thread = threading.Thread(target=lambda: estimator.partial_fit(X, Y))
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_process_has_an_estimator_as_an_interrupted_fit_leaves_it():
    estimator = learner().fit(X, Y)
    with training(estimator):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                estimator.predict(X)
                is_whole = estimator.t_ == estimator._state.t and ATTEMPT not in vars(estimator)
                before = estimator.t_
                status = 0 if is_whole and estimator.partial_fit(X, Y).t_ == before + 2 else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def assert_agrees(estimator, t):
    """Assert that counts, histories and weights are those of one state, after `t` updates."""
    assert estimator.t_ == estimator._state.t == t
    assert estimator.n_iter_ == len(estimator.loss_curve_) == len(estimator.learning_rates_)
    (weight,) = (array for array in estimator.get_weights().values() if array.size == 3)
    np.testing.assert_array_equal(estimator.coef_, weight.ravel())
    np.testing.assert_allclose(estimator.predict(X), X @ estimator.coef_ + estimator.intercept_, rtol=1e-4)


@pytest.mark.parametrize("is_first", [True, False])
def test_loaders_save_the_last_whole_state(is_first, tmp_path):
    estimator, found = learner(), []
    if not is_first:
        # the next fit counts its own updates
        estimator.fit(X, Y)

    def batches():
        for number in range(5):
            if number == 3:
                estimator.save(tmp_path / "saved")
                found.extend(
                    [load(tmp_path / "saved"), copy(estimator), pickle.loads(pickle.dumps(estimator))]
                )
            yield X[:32], Y[:32]

    estimator.set_params(max_iter=1).fit(batches())
    for duplicate in found:
        assert_agrees(duplicate, 3)
    assert_agrees(estimator, 5)


@pytest.mark.parametrize("is_first", [True, False])
def test_loaders_save_the_weights_before_a_call_without_an_update(is_first, tmp_path):
    estimator = learner()
    if not is_first:
        estimator.fit(X, Y)
        before = estimator.coef_

    def batches():
        estimator.save(tmp_path / "saved")
        yield X, Y

    estimator.set_params(max_iter=1).fit(batches())
    saved = load(tmp_path / "saved")
    if is_first:
        assert not hasattr(saved, "t_")
        assert_agrees(saved.fit(X, Y), 2)
    else:
        assert_agrees(saved, 4)
        np.testing.assert_array_equal(saved.coef_, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="of the main thread")
def test_handlers_of_signals_save_the_last_whole_state(tmp_path):
    estimator = learner().fit(X, Y).set_params(max_iter=10**6)

    def save_and_stop(number, frame):
        if ATTEMPT not in vars(estimator) or copy(estimator).n_iter_ <= 2:
            # the fit has not begun, or made no epoch yet
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            return
        estimator.save(tmp_path / "saved")
        raise ZeroDivisionError

    former = signal.signal(signal.SIGALRM, save_and_stop)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(ZeroDivisionError):
            estimator.fit(X, Y)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    saved = load(tmp_path / "saved")
    assert_agrees(saved, 2 * saved.n_iter_)
    # the fit keeps further updates, of the call of the runtime that was interrupted
    assert saved.t_ <= estimator.t_


def test_copies_have_histories_of_their_own():
    estimator = learner().fit(X, Y)
    duplicate = copy(estimator)
    estimator.partial_fit(X, Y)
    assert len(duplicate.loss_curve_) == duplicate.n_iter_ == estimator.n_iter_ - 1


def test_copies_have_random_numbers_of_their_own():
    """Training a copy does not change what the original draws, and both draw the same."""
    estimator, alone = learner().fit(X, Y), learner().fit(X, Y)
    duplicate = copy(estimator)
    for _ in range(2):
        duplicate.partial_fit(X, Y)
    for trained in (estimator, alone):
        for _ in range(2):
            trained.partial_fit(X, Y)
    np.testing.assert_array_equal(estimator.predict(X), alone.predict(X))
    np.testing.assert_array_equal(duplicate.predict(X), alone.predict(X))


def test_a_lock_is_none_of_the_attributes():
    estimator = learner()
    assert lock_of(estimator) is lock_of(estimator)
    assert lock_of(estimator) is not lock_of(copy(estimator))
    assert "RLock" not in repr(vars(estimator.fit(X, Y)))


def test_random_calls_of_threads():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--cases", "20"], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 interleavings" in done.stdout


@pytest.mark.parametrize(
    "call",
    [
        lambda estimator: estimator.fit(X, Y),
        lambda estimator: estimator.partial_fit(X, Y),
        lambda estimator: estimator.set_weights(estimator.get_weights()),
    ],
)
def test_a_call_that_trains_refuses_others_inside(call):
    """One took the updates of the other, and t_ and loss_curve_ did not agree."""

    class Loader:
        def __iter__(self):
            yield X, Y
            yield X, Y
            call(estimator)

    estimator, same = learner(), learner()
    with pytest.raises(ParameterError, match="is being trained"):
        estimator.fit(Loader())
    assert estimator.t_ > 0
    call(copy(estimator))
    assert estimator.set_params(warm_start=False).fit(X, Y).t_ == same.fit(X, Y).t_
    np.testing.assert_array_equal(estimator.coef_, same.coef_)
