"""Act when another package is imported, and not import it for that."""

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
    """Call `act` once `name`, a package, is imported: at once if it is, otherwise right after.

    Parameters
    ----------
    name : str
        A package at the top level.
    act : callable
        Takes nothing.
    """
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Watch(name, act))


class _Watch(MetaPathFinder):
    """Lets the other finders find the package, and adds a last step to its loading."""

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
