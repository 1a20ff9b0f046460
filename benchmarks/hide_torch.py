"""A finder that hides torch from a process that measures imports.

onnxruntime-training imports torch, if it finds it, which takes longer than everything else; the package never
needs it, and its users need not have it.
"""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any

__all__ = ["hide_torch"]


class _NoTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"{fullname} is hidden", name=fullname)


def hide_torch() -> None:
    """Make ``import torch`` fail from now on, as if it were not installed."""
    sys.meta_path.insert(0, _NoTorch())
