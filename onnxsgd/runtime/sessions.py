"""Sessions of the runtime: which device, how many threads."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from onnxsgd._library_errors import reason, run_error
from onnxsgd.exceptions import ParameterError, UnsupportedError
from onnxsgd.runtime.cache import CompiledCache, compiled
from onnxsgd.runtime.editions import load_runtime

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

#: What is compiled for GPUs: fewer things, as each takes some of a GPU's memory.
on_gpus = CompiledCache(max_size=16)

#: Up to this many multiplications a step, a second thread costs more than it brings.
_SINGLE_THREAD_WORK = 20_000_000


@dataclass(frozen=True)
class Device:
    """Where sessions compute.

    Attributes
    ----------
    kind : {"cpu", "cuda"}
        What it is.
    index : int
        Which one of several.
    """

    kind: str
    index: int = 0

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU."""
        return self.kind == "cuda"

    @property
    def keeps_data(self) -> bool:
        """Whether the data of a fit stay on it, so that no step waits for them."""
        return self.is_cuda

    def __str__(self) -> str:
        return f"cuda:{self.index}" if self.is_cuda else self.kind


HOST = Device("cpu")


def check_device(device: str) -> Device:
    """Return the device of that name, after a look whether the runtime can use it.

    Parameters
    ----------
    device : str
        "cpu", "cuda" or "cuda:1"; "cuda" is "cuda:0".

    Raises
    ------
    ParameterError
        If the name is none of these.
    MissingRuntimeError
        If it names a GPU, and the installed runtime knows none, or cannot use that one.
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
    """Return what must be entered to work on a device: on a GPU, one thread at a time does.

    While the runtime records what a thread does there, it cannot do anything for another one.
    """
    if not device.is_cuda:
        return nullcontext()
    from onnxsgd.runtime.cuda import LOCK

    return LOCK


def shared(key: Hashable, device: Device, build: Callable[[], T], nbytes: int = 0) -> T:
    """Return what was compiled for a device; see :meth:`onnxsgd.runtime.cache.CompiledCache.get`."""
    cache = on_gpus if device.is_cuda else compiled
    # what is dropped for it frees memory there
    with hold(device):
        return cache.get(key, build, nbytes)


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


def make_session(model: bytes, n_threads: int, device: Device = HOST) -> Any:
    """Return an ``onnxruntime.InferenceSession``.

    Parameters
    ----------
    model : bytes
        The graph.
    n_threads : int
        Threads for what is computed on the CPU.
    device : Device
        Where it computes. On a GPU, operators that the runtime has no kernel for are left to the CPU.

    Raises
    ------
    MissingRuntimeError
        If there is no onnxruntime, or parts of several.
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
        # a class of the runtime's, which is no subclass of NotImplementedError
        if type(error).__name__ != "NotImplemented":
            raise run_error(error) from error
        raise UnsupportedError(f"The runtime lacks an operator of the graph: {reason(error)}.") from error


def open_session(model: bytes, options: Any, **placement: Any) -> Any:
    """Return an ``onnxruntime.InferenceSession`` whose optimizer is kept from its faults.

    GatherToSliceFusion, up to onnxruntime 1.24 at least, takes away a Range that one Gather reads, also where
    the graph returns it: the output is missing then. MatmulTransposeFusion, in 1.19, makes an operator that
    has no float64 kernel; it is left out in a second attempt. Each can go when no supported version does it.
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
