"""GPUs: a check that the runtime can use one, and sessions that never fall back to the CPU.

onnxruntime falls back to the CPU, with no more than a line in its log, if a GPU cannot be used. So one small
session is made first, once for each GPU, and the providers of every session are checked.
"""

from __future__ import annotations

import ctypes
import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from onnx import TensorProto, helper

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import EngineError, MissingRuntimeError, OnnxSGDError
from onnxsgd.runtime.bindings import runtime_bindings
from onnxsgd.runtime.editions import EDITIONS, install_command, load_runtime
from onnxsgd.runtime.forks import new_lock
from onnxsgd.runtime.providers import CPU, CUDA

__all__ = [
    "LOCK", "Mode", "check_cuda", "explained", "make_cuda_session", "make_step_session", "runtime_errors",
]  # fmt: skip

#: Held by the thread that works on a GPU. While the runtime records a CUDA graph, no other thread of the
#: process may allocate or copy there.
LOCK = new_lock()

#: Modes of the training step on a GPU: recorded once and replayed, operator by operator, or with some
#: operators on the CPU because the runtime has no GPU kernels for them.
Mode = Literal["recorded", "stepwise", "mixed"]

_LIBRARY = {"nt": "onnxruntime_providers_cuda.dll"}.get(os.name, "libonnxruntime_providers_cuda.so")


def check_cuda(index: int) -> None:
    """Refuse a GPU that the runtime cannot use.

    Raises
    ------
    MissingRuntimeError
        With the reason that the runtime gives, and the command to install an edition that works.
    """
    runtime = load_runtime()
    if CUDA not in runtime.get_available_providers():
        raise MissingRuntimeError(
            f"device='cuda' needs an edition of onnxruntime for GPUs; the installed one, version "
            f"{runtime.__version__}, computes on the CPU alone. Install the other: {install_command('gpu')}. "
            "Or use device='cpu'."
        )
    against = _reason_against(index, os.getpid())
    if against is not None:
        raise MissingRuntimeError(
            f"device='cuda:{index}' cannot be used: onnxruntime {runtime.__version__} did not start on it "
            f"({against}). It needs an NVIDIA GPU of that number with its driver, and the libraries of CUDA "
            f"and cuDNN, which come with: {EDITIONS['gpu'].install_command()}. Or use device='cpu'."
        )


@cache
def _reason_against(index: int, process: int) -> str | None:
    """Return the reason why the runtime cannot use a GPU, None if it can; computed once in a process."""
    printed = io.StringIO()
    with LOCK, redirect_stdout(printed):
        if hasattr(load_runtime(), "preload_dlls"):
            load_runtime().preload_dlls()
        try:
            session = _new_session(_small_graph(), index)
            session.run(None, {"x": np.ones(1, np.float32)})
        except EngineError:
            return _library_problem() or _last_line(printed.getvalue()) or "it gives no reason"
        except runtime_errors() as error:
            return reason(error)
    return None


def _small_graph() -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "small", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return model.SerializeToString()


def _library_problem() -> str | None:
    """Return the error of loading the library of the provider, None if it loads."""
    try:
        ctypes.CDLL(str(Path(str(load_runtime().__file__)).parent / "capi" / _LIBRARY))
    except OSError as error:
        return str(error)
    return None


def _last_line(text: str) -> str:
    """Return the last line with text; the runtime prints messages in frames."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" *\t\r")]
    return lines[-1] if lines else ""


def make_cuda_session(model: bytes, index: int) -> Any:
    """Return a session on a GPU; operators without a kernel there run on the CPU.

    Raises
    ------
    EngineError
        If the runtime cannot make it, or not on the GPU.
    """
    with LOCK, explained(f"cuda:{index}", "a graph"):
        return _new_session(model, index)


def make_step_session(model: bytes, index: int, *, recordable: bool) -> tuple[Any, Mode]:
    """Return a session of training steps on a GPU, and its mode.

    Parameters
    ----------
    model : bytes
        The graph.
    index : int
        The number of the GPU.
    recordable : bool
        Whether this graph may be recorded and replayed.

    Warns
    -----
    UserWarning
        If some operators have no kernel on the GPU.

    Raises
    ------
    EngineError
        If the runtime cannot make it, or not on the GPU.
    """
    with LOCK:
        for mode in ("recorded", "stepwise") if recordable else ("stepwise",):
            try:
                session = _new_session(model, index, record=mode == "recorded", alone=mode == "stepwise")
            except runtime_errors():
                # this mode does not fit the graph; the last attempt below reports other errors
                continue
            if _reads_from_host(session):
                break
            return session, mode
        with explained(f"cuda:{index}", "the training step"):
            session = _new_session(model, index, tell=True)
    warnings.warn(
        f"device='cuda:{index}': a part of the training step runs on the CPU, as the runtime has no kernels "
        f"for it on the GPU{_operators_on_host(session)}. Each step waits for copies between the two.",
        stacklevel=2,
    )
    return session, "mixed"


def _new_session(
    model: bytes, index: int, *, record: bool = False, alone: bool = False, tell: bool = False
) -> Any:
    """Return a session on a GPU; with `alone` one without operators on the CPU."""
    runtime = load_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # attempts may fail silently; otherwise errors only
    options.log_severity_level = 4 if record or alone else 3
    if alone:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if tell:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    settings = {
        "device_id": str(index), "enable_cuda_graph": str(int(record)),
        # one stream: runs are in order, as the host does not wait between them
        "use_ep_level_unified_stream": "1",
        # products of float32 in float32, as on the CPU
        "use_tf32": "0",
        # the arena takes no more memory than is used: the data need the rest
        "arena_extend_strategy": "kSameAsRequested",
        # steps are unrolled: an exhaustive search for each convolution would take longer than training
        "cudnn_conv_algo_search": "HEURISTIC",
    }  # fmt: skip
    session = runtime.InferenceSession(
        model, options, providers=[(CUDA, settings), *([] if alone else [CPU])], enable_fallback=0
    )
    if CUDA not in session.get_providers():
        raise EngineError(f"The runtime put a session on {session.get_providers()} and not on the GPU.")
    # no fallback at run time either: an operator that fails there is an error
    session.disable_fallback()
    return session


def _reads_from_host(session: Any) -> bool:
    """Tell whether an input is read on the CPU: a recording would copy it there once, and never again.

    Older versions of the runtime do not report this; for them the answer is no.
    """
    ask = getattr(session, "get_input_memory_infos", None)
    names = [info.name.lower() for info in ask()] if ask else []
    return any("cpu" in name or "pinned" in name for name in names)


def _operators_on_host(session: Any) -> str:
    """Return the operators that run on the CPU, as far as the runtime reports them."""
    ask = getattr(session, "get_provider_graph_assignment_info", None)
    parts = [part for part in ask() if part.ep_name == CPU] if ask else []
    operators = sorted({node.op_type for part in parts for node in part.get_nodes()})
    return f": {', '.join(operators)}" if operators else ""


@contextmanager
def explained(device: str, contents: str) -> Iterator[None]:
    """Turn errors of the runtime into an EngineError.

    Parameters
    ----------
    device : str
        The device.
    contents : str
        The objects that take memory there, for the message.
    """
    try:
        yield
    except OnnxSGDError:
        # explained already
        raise
    except runtime_errors() as error:
        text, lowered = reason(error), str(error).lower()
        if "out of memory" in lowered or "allocate memory" in lowered or "alloc_failed" in lowered:
            raise EngineError(
                f"The memory of {device} does not hold {contents}. Train on a part of the data at a time "
                f"with partial_fit, take a smaller batch_size, or use device='cpu'. The runtime says: {text}."
            ) from error
        raise EngineError(f"The runtime failed on {device}, with {contents}: {text}.") from error


@cache
def runtime_errors() -> tuple[type[Exception], ...]:
    """Return the classes of errors that the runtime raises: its own have no common base class."""
    found = vars(runtime_bindings()).values()
    own = (kind for kind in found if isinstance(kind, type) and issubclass(kind, Exception))
    return (RuntimeError, ValueError, *own)
