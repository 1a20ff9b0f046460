"""The number of processes of a fit: joblib's conventions, contexts and workers."""

import joblib
import pytest

from onnxsgd.runtime import cores
from onnxsgd.runtime.cores import count_cores, resolve_jobs, share_of_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(joblib, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_numbers_count_as_in_joblib_up_to_the_cores():
    assert count_cores() == 8
    given = {None: 1, 1: 1, 2: 2, 8: 8, 100: 8, -1: 8, -2: 7, -8: 1, -100: 1}
    assert {n_jobs: resolve_jobs(n_jobs) for n_jobs in given} == given


@pytest.mark.parametrize("backend", ["loky", "threading", "multiprocessing"])
def test_none_is_the_number_of_joblibs_context(backend):
    with joblib.parallel_config(backend, n_jobs=3):
        assert (resolve_jobs(None), resolve_jobs(2)) == (3, 2)
    with joblib.parallel_config(backend, n_jobs=-1):
        assert resolve_jobs(None) == 8
    assert resolve_jobs(None) == 1


def test_the_workers_of_clusters_are_none_of_this_machine():
    class Cluster(joblib.parallel.ParallelBackendBase):
        def effective_n_jobs(self, n_jobs):
            return 64

        def submit(self, function, callback=None):
            raise NotImplementedError

        apply_async = submit

    joblib.register_parallel_backend("cluster of a test", Cluster)
    with joblib.parallel_config("cluster of a test", n_jobs=-1):
        assert (resolve_jobs(None), resolve_jobs(2)) == (1, 2)


def test_workers_have_no_processes_of_their_own(monkeypatch):
    found = joblib.Parallel(2, backend="threading")(joblib.delayed(resolve_jobs)(n) for n in (None, 4, -1))
    assert found == [1, 1, 1]
    monkeypatch.setattr(cores, "_is_worker", lambda: True)
    assert (resolve_jobs(-1), share_of_cores()[0]) == (1, 1)


def test_threads_are_limited_by_the_environment(monkeypatch):
    assert share_of_cores() == (8, "the cores of the process")
    for limit, expected in (("3", 3), ("3,1", 3), ("16", 8), ("0", 1), ("many", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", limit)
        assert share_of_cores()[0] == expected
        # the number of processes is another one
        assert resolve_jobs(-1) == 8
