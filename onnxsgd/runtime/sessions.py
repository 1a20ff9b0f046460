"""Sessions of the runtime: devices, threads, sharing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from onnxsgd._library_errors import reason, run_error
from onnxsgd.exceptions import ParameterError, UnsupportedError
from onnxsgd.runtime.editions import load_runtime
from onnxsgd.runtime.session_cache import CompiledCache, compiled

__all__ = [
    "HOST",
    "Device",
    "check_device",
    "hold",
    "make_session",
    "on_gpus",
    "open_session",
    "resolve_threads",
    "shared",
]

T = TypeVar("T")

#: The sessions on GPUs: fewer of them, as each takes some of a GPU's memory.
on_gpus = CompiledCache(max_size=16)

#: Up to this many multiplications a step, a second thread costs more than it saves.
_SINGLE_THREAD_WORK = 20_000_000


@dataclass(frozen=True)
class Device:
    """The device of a session.

    Attributes
    ----------
    kind : {"cpu", "cuda"}
        Its kind.
    index : int
        Its number among several of that kind.
    """

    kind: str
    index: int = 0

    @property
    def is_cuda(self) -> bool:
        """True for a GPU."""
        return self.kind == "cuda"

    @property
    def keeps_data(self) -> bool:
        """True if the data of a fit are resident on it, so that no step waits for them."""
        return self.is_cuda

    def __str__(self) -> str:
        return f"cuda:{self.index}" if self.is_cuda else self.kind


HOST = Device("cpu")


def check_device(device: str) -> Device:
    """Return the device of that name, if the runtime can use it.

    Parameters
    ----------
    device : str
        "cpu", "cuda" or "cuda:1"; "cuda" is "cuda:0".

    Raises
    ------
    ParameterError
        If the name is none of these.
    MissingRuntimeError
        If it names a GPU, and the installed runtime does not support GPUs or cannot use that one.
    """
    named = re.fullmatch(r"cuda(?::(\d{1,9}))?", device) if isinstance(device, str) else None
    if device != HOST.kind and named is None:
        raise ParameterError(
            f"device={device!r} is not accepted: it must be 'cpu', 'cuda', or 'cuda:1' for the second GPU."
        )
    if named is None:
        return HOST
    from onnxsgd.runtime.cuda import check_cuda

    index = int(named[1] or 0)
    check_cuda(index)
    return Device("cuda", index)


def hold(device: Device) -> AbstractContextManager[Any]:
    """Return the context manager for work on a device: on a GPU, a lock for one thread at a time.

    While the runtime records the work of one thread there, it cannot work for another one.
    """
    if not device.is_cuda:
        return nullcontext()
    from onnxsgd.runtime.cuda import LOCK

    return LOCK


def shared(key: Hashable, device: Device, build: Callable[[], T], nbytes: int = 0) -> T:
    """Return an object compiled for a device; see :meth:`onnxsgd.runtime.session_cache.CompiledCache.get`."""
    cache = on_gpus if device.is_cuda else compiled
    # entries dropped from the cache free memory there
    with hold(device):
        return cache.get(key, build, nbytes)


def resolve_threads(n_threads: int | None, work: int) -> int:
    """Return the number of threads of a session.

    Parameters
    ----------
    n_threads : int or None
        A number, or None to choose: one thread for a small step, all available cores for a large one, at
        most ``OMP_NUM_THREADS``. joblib sets that variable in worker processes of its default backend; in
        workers of other backends it is one thread.
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


def open_session(model: bytes, options: Any, **placement: Any) -> Any:
    """Return an ``onnxruntime.InferenceSession`` with faulty graph optimizers disabled.

    GatherToSliceFusion, up to onnxruntime 1.24 at least, removes a Range that one Gather reads, even if it is
    an output of the graph, which is then missing. MatmulTransposeFusion, in 1.19, makes an operator without a
    float64 kernel; a second attempt disables it. Each exception can go when no supported version needs it.
    """
    onnxruntime = load_runtime()

    def start(*disabled: str) -> Any:
        return onnxruntime.InferenceSession(model, options, **placement, disabled_optimizers=disabled)

    try:
        return start("GatherToSliceFusion")
    except Exception as error:
        if "FusedMatMul" not in str(error):
            raise
    return start("GatherToSliceFusion", "MatmulTransposeFusion")
