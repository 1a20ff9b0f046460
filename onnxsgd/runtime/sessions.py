"""Sessions of the runtime, and their threads."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from onnxsgd._library_errors import reason, run_error
from onnxsgd.exceptions import ParameterError, UnsupportedError
from onnxsgd.graph.loading.computed_sizes import with_guards
from onnxsgd.runtime.cores import share_of_cores
from onnxsgd.runtime.device import HOST, Device
from onnxsgd.runtime.editions import load_runtime, runtime_version
from onnxsgd.runtime.events import decided
from onnxsgd.runtime.stages import stage

__all__ = ["MOST_THREADS", "has_several_threads", "make_session", "open_session", "resolve_threads"]

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
    if not has_several_threads(work):
        return _reported(1, "a run is short")
    return _reported(*share_of_cores())


def has_several_threads(work: int) -> bool:
    """Tell whether a run of so many multiplications has all available cores, if no number is named."""
    return work > _SINGLE_THREAD_WORK


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
    # nothing but the end of the process: errors are raised, and the optimiser warns about each constant that
    # it cannot fold
    options.log_severity_level = 4
    try:
        return open_session(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # a class of the runtime, not a subclass of NotImplementedError
        if type(error).__name__ != "NotImplemented":
            raise run_error(error) from error
        raise UnsupportedError(f"The runtime lacks an operator of the graph: {reason(error)}.") from error


#: Graph optimizers of onnxruntime that make invalid nodes, by a phrase of the error that follows.
_FAULTY = {
    "FusedMatMul": "MatmulTransposeFusion",
    "(QuantizeLinear)": "QDQPropagationTransformer",
    "/QuickGeluFusion/": "QuickGeluFusion",
    "/LayerNormFusion/": "LayerNormFusion",
}


def open_session(model: bytes, options: Any, **placement: Any) -> Any:
    """Return an ``onnxruntime.InferenceSession`` with faulty graph optimizers disabled.

    GatherToSliceFusion, up to onnxruntime 1.24 at least, removes a Range that one Gather reads, even if it is
    an output of the graph, which is then missing. SimplifiedLayerNormFusion of 1.19 makes an operator of
    float64 tensors that fails when it runs. Others are disabled in a second attempt: MatmulTransposeFusion
    and LayerNormFusion of 1.19, and QuickGeluFusion up to 1.24 at least, make operators without a float64
    kernel, and QDQPropagationTransformer of 1.19 quantizes to int32 behind a Reshape of an int32 bias. Each
    exception can go when no supported version needs it.
    """
    onnxruntime = load_runtime()
    if placement["providers"][0] == "CPUExecutionProvider":
        # a Gather on a GPU does not fail
        model = with_guards(model)
    disabled = ["GatherToSliceFusion"]
    if runtime_version() < (1, 20):
        disabled.append("SimplifiedLayerNormFusion")
    while True:
        try:
            return onnxruntime.InferenceSession(model, options, **placement, disabled_optimizers=disabled)
        except Exception as error:
            named = {optimizer for phrase, optimizer in _FAULTY.items() if phrase in str(error)}
            if not named.difference(disabled):
                raise
            disabled.extend(named.difference(disabled))
