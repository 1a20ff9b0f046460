"""Sessions of the runtime: which device, how many threads."""

from __future__ import annotations

import os
import re
from typing import Any

from onnxsgd._runtime import load_runtime
from onnxsgd.exceptions import MissingRuntimeError, ParameterError

__all__ = ["check_device", "make_session", "resolve_threads"]

#: Up to this many multiplications a step, a second thread costs more than it brings.
_SINGLE_THREAD_WORK = 20_000_000


def check_device(device: str) -> str:
    """Return `device` if it is a name that is accepted, "cpu" being the only one so far.

    Raises
    ------
    ParameterError
        If `device` is not accepted.
    MissingRuntimeError
        If it names a GPU.
    """
    if device == "cpu":
        return device
    if isinstance(device, str) and re.fullmatch(r"cuda(:\d+)?", device):
        raise MissingRuntimeError(
            f"device={device!r}: training on a GPU is not available in this version; use device='cpu'."
        )
    raise ParameterError(f"device={device!r} is not accepted: it must be 'cpu'.")


def resolve_threads(n_threads: int | None, work: int) -> int:
    """Return how many threads a session uses for its operators.

    Parameters
    ----------
    n_threads : int or None
        A number, or None to choose: one thread for a small step, all available cores for a large one,
        within what ``OMP_NUM_THREADS`` allows. joblib sets that in worker processes of its default backend;
        in workers of the others, which are told nothing, it is one thread.
    work : int
        Multiplications in one run.
    """
    if n_threads is not None:
        return n_threads
    if work <= _SINGLE_THREAD_WORK:
        return 1
    import joblib
    from joblib.parallel import get_active_backend

    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdigit():
        return max(1, min(joblib.cpu_count(), int(limit)))
    is_worker = bool(get_active_backend()[0].nesting_level)
    return 1 if is_worker else joblib.cpu_count()


def make_session(model: bytes, n_threads: int) -> Any:
    """Return an ``onnxruntime.InferenceSession`` on the CPU.

    Raises
    ------
    MissingRuntimeError
        If there is no onnxruntime, or parts of several.
    """
    onnxruntime = load_runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    # Errors only: the optimiser warns about each constant it cannot fold.
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
