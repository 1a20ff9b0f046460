"""The classes whose objects a file names: losses, penalties, optimizers, schedules, adapters."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from onnxsgd import adapters, losses, optimizers, penalties, schedules
from onnxsgd._settable import Settable

__all__ = ["class_of", "name_of"]

_MODULES: tuple[ModuleType, ...] = (adapters, losses, optimizers, penalties, schedules)


def class_of(name: str) -> type[Settable]:
    """Return a class by its name in a file, such as ``losses.Huber``; a KeyError if there is none."""
    return _classes()[name]


def name_of(cls: type) -> str | None:
    """Return the name of a class in a file; None for those of others."""
    return next((name for name, known in _classes().items() if known is cls), None)


@cache
def _classes() -> dict[str, type[Settable]]:
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": found
        for module in _MODULES
        for name in module.__all__
        if isinstance(found := getattr(module, name), type) and issubclass(found, Settable)
    }
