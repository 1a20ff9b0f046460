"""Callbacks on the import of a package (keeps our own import fast)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

__all__ = ["when_imported"]


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Call `act` once the package `name` is imported: now if it is already, otherwise right after its import.

    Parameters
    ----------
    name : str
        A top-level package.
    act : callable
        Takes no arguments.
    """
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Watch(name, act))


class _Watch(MetaPathFinder):
    """A finder that delegates to the others and adds a last step to the loading of one package."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: Any) -> None:
        load = loader.exec_module

        def load_and_act(module: ModuleType) -> None:
            loader.exec_module = load
            load(module)
            self._act()

        loader.exec_module = load_and_act
