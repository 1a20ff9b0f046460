"""The cores that a process has for itself, and the processes that a fit may use."""

from __future__ import annotations

import os
import sys

__all__ = ["count_cores", "resolve_jobs", "share_of_cores"]


def count_cores() -> int:
    """Return the cores of the affinity of this process, and of the limits of its container."""
    import joblib

    count: int = joblib.cpu_count()
    return count


def share_of_cores() -> tuple[int, str]:
    """Return the cores that this process, or this thread of joblib, has for itself, and the reason.

    Those of its affinity and of the limits of its container, at most ``OMP_NUM_THREADS``, which joblib, dask
    and others set in their worker processes. Without it, a worker of joblib, multiprocessing or dask has one:
    the number of the others is unknown.
    """
    # a list has a number for each level of nested loops
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if limit.isdigit():
        return max(1, min(count_cores(), int(limit))), f"cores, and OMP_NUM_THREADS={limit}"
    if _is_worker():
        return 1, "a worker has its share of the cores"
    return count_cores(), "the cores of the process"


def resolve_jobs(n_jobs: int | None) -> int:
    """Return the number of processes of a fit, the number of cores at most.

    Parameters
    ----------
    n_jobs : int or None
        A number; a negative one counts back from all cores, -1; None: one, or the number of joblib's
        ``parallel_config`` for the workers of this machine. A worker has no processes of its own.
    """
    if n_jobs is None:
        n_jobs = _jobs_of_context()
    if n_jobs == 1 or _is_worker():
        return 1
    n_cores = count_cores()
    return min(n_cores, n_jobs) if n_jobs > 0 else max(1, n_cores + 1 + n_jobs)


def _jobs_of_context() -> int:
    """Return the number of jobs in the present context of joblib, 1 outside any."""
    from joblib import parallel

    backend, n_jobs = parallel.get_active_backend()
    # clusters have workers elsewhere
    here = parallel.LokyBackend, parallel.MultiprocessingBackend, parallel.ThreadingBackend
    return int(n_jobs) if n_jobs is not None and isinstance(backend, here) else 1


def _is_worker() -> bool:
    """Tell whether the call comes from a worker of joblib, of multiprocessing, or a task of dask.

    A worker of dask that was started without a nanny, or in threads of the client, is a process of its own,
    and has no limit in its environment.
    """
    import multiprocessing

    from joblib.parallel import get_active_backend

    if get_active_backend()[0].nesting_level or multiprocessing.parent_process() is not None:
        return True
    # not imported before: no worker of it runs here
    worker_module = sys.modules.get("distributed.worker")
    if worker_module is None:
        return False
    try:
        worker_module.get_worker()
    except ValueError:
        return False
    return True
