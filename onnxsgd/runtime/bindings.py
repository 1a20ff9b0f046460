"""The types of the runtime that every edition of it has."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from onnxsgd.runtime.editions import load_runtime

__all__ = ["runtime_bindings"]


@cache
def runtime_bindings() -> Any:
    """Return the module that holds ``OrtValue``, ``OrtValueVector``, ``OrtDevice`` and ``RunOptions``.

    Raises
    ------
    MissingRuntimeError
        If no onnxruntime is installed, or parts of several.
    """
    load_runtime()
    return importlib.import_module("onnxruntime.capi._pybind_state")
