"""Messages of onnx, onnx_ir and onnxruntime, as one short sentence.

Some of these messages hold whole graphs, source paths and stack traces. No other module reads them.
"""

from __future__ import annotations

import re

from onnxsgd.exceptions import EngineError

__all__ = ["INDEX", "guard_name", "reason", "run_error", "short_name"]

#: Enough for the place and the cause, which come first.
_LONGEST = 300

#: The characters of a message that are read: prefixes take some, and names in a model may be very long.
_READ = 10 * _LONGEST

#: Prefixes that name the origin of an error in a library: source file, function, error code.
_NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : "
    r"|\[(?:Shape|Type)InferenceError\] "
    r"|Inference error\(s\): "
    r"|(?:/|[A-Z]:\\)\S+\.(?:cc|h|cpp):\d+ "
    r"|\S*onnxruntime::\S+\([^)]*\) (?:const )?"
)


#: The name of a Gather that fails on purpose, in a message with its index.
_GUARD = re.compile(r"Name:'guard: (.*?) :guard'.*? idx=(\d+)", re.DOTALL)

#: The place of the index in the sentence of such a node.
INDEX = "<index>"

#: The longest name of a node in a sentence.
_NAME = 60

#: A tensor for which no memory is left, behind the operator that makes it, the innermost one.
_NO_MEMORY = re.compile(
    r".*running (\w+) node\. Name:'(.*?)' .*?(?:Failed to allocate memory for requested buffer of size (\d+)"
    r"|bad_alloc)",
    re.DOTALL,
)

#: The packages whose code raises errors of the runtime; its own in C++ has no frames.
_OURS = frozenset({"onnxruntime", "onnxsgd", "onnx", "numpy"})


def reason(error: BaseException, *, n_lines: int | None = None) -> str:
    """Return the message of an error on one line of at most a few hundred characters.

    Parameters
    ----------
    error : BaseException
        The error.
    n_lines : int or None
        The number of its lines to use; None: all.
    """
    message = str(error).strip()[:_READ]
    if guarded := _GUARD.search(message):
        return guarded[1].replace(INDEX, f"{int(guarded[2]):,}", 1)
    if no_memory := _NO_MEMORY.match(message):
        operator, name, size = no_memory.groups()
        needed = f"{int(size):,} bytes, " if size else ""
        return f"{short_name(operator, name)} needs {needed}more memory than is left"
    lines = message.splitlines()[:n_lines]
    text = " ".join(_NOISE.sub("", "\n".join(lines)).split()).rstrip(". ")
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST].rstrip()} ..."
    return text or type(error).__name__


def guard_name(sentence: str) -> str:
    """Return the name of a Gather that fails on purpose, whose error becomes a sentence.

    Parameters
    ----------
    sentence : str
        The sentence without its full stop. The index that is refused replaces :data:`INDEX`.
    """
    return f"guard: {sentence} :guard"


def short_name(operator: str, name: str) -> str:
    """Return a node as messages name it, without the rest of a very long name."""
    return f"{operator} {name[:_NAME]!r}"


def run_error(error: BaseException) -> EngineError:
    """Return the error to raise when onnxruntime fails on a graph.

    An error of other code that ran meanwhile, such as that of a handler of signals that ends a call after a
    time, is raised as it is.
    """
    if _is_of_others(error):
        raise error
    if _UNKNOWN in str(error):
        return EngineError(
            "X has a category that a OneHotEncoder in the model was not fitted on: fit it on all categories, "
            "or with handle_unknown='ignore'."
        )
    return EngineError(f"onnxruntime cannot run the graph: {reason(error)}.")


#: A phrase of the error of a OneHotEncoder.
_UNKNOWN = "Unknown Category and zeros"


def _is_of_others(error: BaseException) -> bool:
    """Tell whether neither this package nor the runtime, or what they call, raised an error."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    module = "onnxruntime" if place is None else str(place.tb_frame.f_globals.get("__name__"))
    return module.partition(".")[0] not in _OURS
