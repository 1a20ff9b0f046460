"""Sessions of the runtime, and their threads."""

from __future__ import annotations

import os
import sys
from numbers import Integral
from typing import Any

from onnxsgd._library_errors import reason, run_error
from onnxsgd.exceptions import ParameterError, UnsupportedError
from onnxsgd.graph.loading.computed_sizes import with_guards
from onnxsgd.runtime.device import HOST, Device
from onnxsgd.runtime.editions import load_runtime
from onnxsgd.runtime.events import decided
from onnxsgd.runtime.stages import stage

__all__ = ["MOST_THREADS", "make_session", "open_session", "resolve_threads"]

#: The most threads of a session: the runtime makes as many as it is told, and does not answer for thousands.
MOST_THREADS = 1024
#: Up to this many multiplications a step, a second thread costs more than it saves.
#: ``benchmarks/constants.py`` compares one thread with two, on an idle machine.
_SINGLE_THREAD_WORK = 20_000_000


def resolve_threads(n_threads: int | None, work: int) -> int:
    """Return the number of threads of a session, the one that calls it included.

    Parameters
    ----------
    n_threads : int or None
        A number, or None to choose: one thread for a small step, all available cores for a large one.
    work : int
        Multiplications in one run.

    Raises
    ------
    ParameterError
        If it is no number of threads: the runtime would make any number of them, and not answer.
    """
    if n_threads is not None:
        if not isinstance(n_threads, Integral) or not 1 <= n_threads <= MOST_THREADS:
            raise ParameterError(
                f"n_threads={n_threads!r:.100} is not accepted: it must be a whole number from 1 to "
                f"{MOST_THREADS}, or None."
            )
        return _reported(int(n_threads), "named")
    if work <= _SINGLE_THREAD_WORK:
        return _reported(1, "a run is short")
    return _reported(*_share_of_cores())


def _share_of_cores() -> tuple[int, str]:
    """Return the cores that this process, or this thread of joblib, has for itself, and the reason.

    Those of its affinity and of the limits of its container, at most ``OMP_NUM_THREADS``, which joblib, dask
    and others set in their worker processes. Without it, a worker of joblib, multiprocessing or dask has one:
    the number of the others is unknown.
    """
    import joblib

    # a list has a number for each level of nested loops
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if limit.isdigit():
        return max(1, min(joblib.cpu_count(), int(limit))), f"cores, and OMP_NUM_THREADS={limit}"
    if _is_in_worker():
        return 1, "a worker has its share of the cores"
    return joblib.cpu_count(), "the cores of the process"


def _is_in_worker() -> bool:
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


def _reported(n_threads: int, reason: str) -> int:
    """Return a number of threads, and report it."""
    decided("threads", "%d: %s", n_threads, reason)
    return n_threads


@stage("compile").of
def make_session(model: bytes, n_threads: int, device: Device = HOST) -> Any:
    """Return an ``onnxruntime.InferenceSession``.

    Parameters
    ----------
    model : bytes
        The graph.
    n_threads : int
        Threads of operators on the CPU.
    device : Device
        The device. On a GPU, operators without a kernel there run on the CPU.

    Raises
    ------
    MissingRuntimeError
        If no onnxruntime is installed, or only parts of several.
    EngineError
        If the runtime cannot load the graph, or did not put the session on the GPU.
    UnsupportedError
        If the runtime has no kernel for an operator, or none for its types.
    """
    if device.is_cuda:
        from onnxsgd.runtime.cuda import make_cuda_session

        return make_cuda_session(model, device.index)
    onnxruntime = load_runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    # Errors only: the optimiser warns about each constant it cannot fold.
    options.log_severity_level = 3
    try:
        return open_session(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # a class of the runtime, not a subclass of NotImplementedError
        if type(error).__name__ != "NotImplemented":
            raise run_error(error) from error
        raise UnsupportedError(f"The runtime lacks an operator of the graph: {reason(error)}.") from error


#: Graph optimizers of onnxruntime 1.19 that make invalid nodes, by a phrase of the error that follows.
_FAULTY = {"FusedMatMul": "MatmulTransposeFusion", "(QuantizeLinear)": "QDQPropagationTransformer"}


def open_session(model: bytes, options: Any, **placement: Any) -> Any:
    """Return an ``onnxruntime.InferenceSession`` with faulty graph optimizers disabled.

    GatherToSliceFusion, up to onnxruntime 1.24 at least, removes a Range that one Gather reads, even if it is
    an output of the graph, which is then missing. Two others are disabled in a second attempt: in 1.19,
    MatmulTransposeFusion makes an operator without a float64 kernel, and QDQPropagationTransformer quantizes
    to int32 behind a Reshape of an int32 bias. Each exception can go when no supported version needs it.
    """
    onnxruntime = load_runtime()
    if placement["providers"][0] == "CPUExecutionProvider":
        # a Gather on a GPU does not fail
        model = with_guards(model)
    disabled = ["GatherToSliceFusion"]
    while True:
        try:
            return onnxruntime.InferenceSession(model, options, **placement, disabled_optimizers=disabled)
        except Exception as error:
            named = {optimizer for phrase, optimizer in _FAULTY.items() if phrase in str(error)}
            if not named.difference(disabled):
                raise
            disabled.extend(named.difference(disabled))
