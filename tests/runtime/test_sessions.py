"""Sessions of the runtime: threads."""

from onnxsgd.runtime.sessions import resolve_threads


def test_threads_follow_the_work_and_the_limit_of_joblib(monkeypatch):
    assert resolve_threads(3, 1) == 3
    assert resolve_threads(None, 1_000) == 1
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert resolve_threads(None, 10**9) == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert resolve_threads(None, 10**9) == 2
