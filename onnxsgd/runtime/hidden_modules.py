"""Imports of libraries without the frameworks that they load if they find them.

The training edition of the runtime imports torch for a class of its own that this package does not use; skops
imports every module of scikit-learn, and so torch, dask and cupy. Each takes two seconds and 190 MB in every
process of a search. It can go when neither does so any longer.
"""

from __future__ import annotations

import importlib.abc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["hidden_modules"]


class _Hidden(importlib.abc.MetaPathFinder):
    """A finder that finds some modules, and those inside them, in one thread no longer."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._thread = threading.get_ident()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        is_hidden = any(f"{fullname}.".startswith(f"{name}.") for name in self._names)
        if is_hidden and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{fullname} is hidden while a library is imported", name=fullname)


@contextmanager
def hidden_modules(*names: str) -> Iterator[None]:
    """Make the import of modules fail in this thread, unless they are imported already.

    It fails as if they were not installed, and succeeds afterwards. Without torch,
    ``onnxruntime.training.ORTModule`` is missing; ``onnxruntime.training.ortmodule`` can be imported later.
    """
    finder = _Hidden(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
