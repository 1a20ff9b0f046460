"""Locks and caches in the child process of a fork."""

import os
import threading

import pytest

from onnxsgd.runtime.forks import call_in_child, new_lock

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def outcome_in_child(function):
    """Return what a function returns in a child process: True, False, or None after an error."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = 0 if function() else 1
        finally:
            os._exit(status)
    return {0: True, 1: False}.get(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def test_a_lock_that_another_thread_holds_is_free_in_a_child():
    lock, held, go = new_lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            go.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    assert not lock.acquire(blocking=False)
    assert outcome_in_child(lambda: lock.acquire(blocking=False))
    assert not lock.acquire(blocking=False)
    go.set()
    thread.join(10)


def test_a_thread_that_forks_keeps_its_locks():
    lock = new_lock()

    def release():
        lock.release()
        return not lock._is_owned()

    with lock:
        assert outcome_in_child(release)
        assert lock._is_owned()


def test_methods_are_called_in_children_while_their_object_exists():
    class Counter:
        n_calls = 0

        def count(self):
            Counter.n_calls += 1

    counter = Counter()
    call_in_child(counter.count)
    assert outcome_in_child(lambda: Counter.n_calls == 1)
    del counter
    assert outcome_in_child(lambda: Counter.n_calls == 0)
    assert Counter.n_calls == 0
