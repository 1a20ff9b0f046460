"""Errors of the libraries below, as one short sentence.

onnx, onnx_ir and onnxruntime print whole graphs, paths of their source files and stack traces in some of
their messages. Nothing else here reads such a message.
"""

from __future__ import annotations

import re

from onnxsgd.exceptions import EngineError

__all__ = ["reason", "run_error"]

#: More says no more: the place and the cause come first.
_LONGEST = 300

#: Openings that say where in a library an error was raised: its source file, its function, an error code.
_NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : "
    r"|\[(?:Shape|Type)InferenceError\] "
    r"|Inference error\(s\): "
    r"|(?:/|[A-Z]:\\)\S+\.(?:cc|h|cpp):\d+ "
    r"|\S*onnxruntime::\S+\([^)]*\) (?:const )?"
)


def reason(error: BaseException, *, n_lines: int | None = None) -> str:
    """Return the message of an error on one line of at most a few hundred characters.

    Parameters
    ----------
    error : BaseException
        The error.
    n_lines : int or None
        How many of its lines count; None: all.
    """
    lines = str(error).strip().splitlines()[:n_lines]
    text = " ".join(_NOISE.sub("", "\n".join(lines)).split()).rstrip(". ")
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST].rstrip()} ..."
    return text or type(error).__name__


def run_error(error: BaseException) -> EngineError:
    """Return the error to raise where onnxruntime fails on a graph."""
    return EngineError(f"onnxruntime cannot run the graph: {reason(error)}.")
