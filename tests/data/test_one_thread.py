"""BLAS takes one thread within a context, and as many as before after it."""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from onnxsgd import OnnxSGDClassifier, OnnxSGDRegressor
from onnxsgd.data import evidence, preconditioner
from onnxsgd.data import one_thread as one_thread_module
from onnxsgd.data.one_thread import one_thread


def threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_one_thread():
    with threadpool_limits(2, user_api="blas"):
        with one_thread():
            assert threads() == {1}
        assert threads() == {2}


@pytest.mark.parametrize(
    ("shape", "is_limited"),
    [((5000, 16), False), ((400, 24), False), ((24, 400), False), ((600, 24), True), ((30, 25), True)],
)
def test_small_matrices_need_no_limit(shape, is_limited):
    """BLAS starts no threads for them."""
    with threadpool_limits(2, user_api="blas"), one_thread(*shape):
        assert threads() == ({1} if is_limited else {2})


def test_a_small_fit_looks_for_no_libraries(monkeypatch):
    """To find those that are loaded takes several times as long as the rest of the preparation."""
    monkeypatch.setattr(one_thread_module, "_controller", None)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 20))
    OnnxSGDRegressor(random_state=0).fit(X, X[:, 0] + rng.normal(size=200))
    OnnxSGDClassifier(random_state=0).fit(X[:60, :10], X[:60, 0] > 0)
    with pytest.raises(TypeError, match="NoneType"):
        OnnxSGDRegressor(random_state=0).fit(rng.normal(size=(200, 40)), X[:, 0])


def test_contexts_of_several_threads_end_in_any_order():
    """The limit is that of the process; the second one to enter finds it at one."""
    is_in, may_leave = threading.Event(), threading.Event()

    def other():
        with one_thread():
            is_in.set()
            may_leave.wait()

    before, first = threads(), threading.Thread(target=other)
    first.start()
    is_in.wait()
    with one_thread():
        may_leave.set()
        first.join()
        assert threads() == {1}
    assert threads() == before


def test_matrices_of_a_fit_are_factored_in_one_thread(monkeypatch):
    found, eigh = [], np.linalg.eigh

    def counted(matrix):
        found.append(threads())
        return eigh(matrix)

    monkeypatch.setattr(np.linalg, "eigh", counted)
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(300, 40))
    table, target = factors @ rng.normal(size=(40, 40)), factors @ rng.normal(size=(40, 1))
    given = table, target, np.ones(300), table.mean(axis=0)
    with threadpool_limits(2, user_api="blas"):
        assert preconditioner.preconditioner(*given, table.std(axis=0), 0.0) is not None
        noise = rng.normal(size=(300, 1))
        given = table, noise, np.ones(300), table.mean(axis=0), 1.0 / table.std(axis=0)
        assert evidence.noisy_ridge(*given, are_labels=False) is not None
    assert found == [{1}, {1}]
