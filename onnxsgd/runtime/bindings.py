"""Native types of the runtime, common to all its editions."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from onnxsgd.runtime.editions import load_runtime

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Device", "OrtValue", "OrtValueVector", "runtime_bindings"]


class Device(Protocol):
    """An ``OrtDevice``."""

    def device_type(self) -> int:
        """Return the number of its kind."""


class OrtValue(Protocol):
    """A tensor of the runtime, as its bindings have it."""

    def shape(self) -> list[int]:
        """Return its size along each axis."""

    def element_type(self) -> int:
        """Return the number of its ONNX type."""

    def data_type(self) -> str:
        """Return the name of its type."""

    def device_name(self) -> str:
        """Return the name of its device."""

    def numpy(self) -> np.ndarray:
        """Return it as an array."""


class OrtValueVector(Protocol):
    """A vector of tensors of the runtime."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> OrtValue: ...

    def __iter__(self) -> Iterator[OrtValue]: ...

    def push_back(self, value: OrtValue) -> None:
        """Append a tensor."""

    def reserve(self, size: int) -> None:
        """Reserve memory for so many tensors."""


@cache
def runtime_bindings() -> Any:
    """Return the module that holds ``OrtValue``, ``OrtValueVector``, ``OrtDevice`` and ``RunOptions``.

    Raises
    ------
    MissingRuntimeError
        If no onnxruntime is installed, or only parts of several.
    """
    load_runtime()
    return importlib.import_module("onnxruntime.capi._pybind_state")
