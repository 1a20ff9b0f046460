"""Import of the runtime without torch.

The training edition imports torch, if it finds it, for a class of its own that this package does not use: two
seconds and 190 MB in each process of a search.
"""

from __future__ import annotations

import importlib.abc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["hidden_torch"]


class _NoTorch(importlib.abc.MetaPathFinder):
    """A finder that finds no torch in one thread."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname.partition(".")[0] == "torch" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{fullname} is hidden while the runtime is imported", name=fullname)


@contextmanager
def hidden_torch() -> Iterator[None]:
    """Make ``import torch`` fail in this thread as if it were not installed, unless it is imported already.

    ``onnxruntime.training.ORTModule`` is then missing, and ``onnxruntime.training.ortmodule`` can be imported
    afterwards.
    """
    finder = _NoTorch()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
