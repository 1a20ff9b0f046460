"""Files of adapters, in the format of onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from onnxsgd._files import path_of, write_whole
from onnxsgd._library_errors import reason
from onnxsgd.exceptions import MissingRuntimeError
from onnxsgd.runtime.editions import load_runtime

__all__ = ["write_adapter"]

#: The versions that a file records; this package gives them no meaning.
_VERSION = 1


def write_adapter(path: str | os.PathLike[str], tensors: Mapping[str, tuple[np.ndarray, int]]) -> None:
    """Write the file that ``RunOptions.add_active_adapter`` of onnxruntime feeds to a session.

    Parameters
    ----------
    path : str or path-like
        The file.
    tensors : mapping of str to (ndarray, int)
        The values of inputs, with the numbers of their ONNX types.

    Raises
    ------
    MissingRuntimeError
        If the installed onnxruntime has no such files: those before 1.20.
    OSError
        If the file cannot be written. An earlier one stays.
    """
    # annotations of the runtime lack these names in some editions
    runtime: Any = load_runtime()
    if not hasattr(runtime, "AdapterFormat"):
        raise MissingRuntimeError(
            f"Files of adapters need onnxruntime 1.20 or later, and {runtime.__version__} is installed. "
            "to_onnx() merges adapters into a graph that every version runs."
        )
    adapter = runtime.AdapterFormat()
    adapter.set_adapter_version(_VERSION)
    adapter.set_model_version(_VERSION)
    adapter.set_parameters({name: _ort_value(runtime, *held) for name, held in tensors.items()})
    write_whole({path_of(path): partial(_export, adapter)})


def _export(adapter: Any, name: str) -> None:
    """Let the runtime write the file `name`."""
    try:
        adapter.export_adapter(name)
    except RuntimeError as error:
        raise OSError(f"{reason(error)}.") from error


def _ort_value(runtime: Any, array: np.ndarray, element_type: int) -> Any:
    array = np.ascontiguousarray(array)
    if array.dtype.kind in "f":
        return runtime.OrtValue.ortvalue_from_numpy(array)
    # numpy has no bfloat16 of its own
    return runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), element_type)
