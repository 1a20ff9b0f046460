"""Values of a file compared with the types that the code declares for them."""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

__all__ = ["check_attributes", "check_fields"]

#: The largest whole number: counts are added and multiplied, in 64 bits.
_LARGEST = 2**53


def check_fields(holder: object) -> None:
    """Refuse an object of a dataclass with a field of another type than it declares.

    Raises
    ------
    TypeError
        It names the field, its value and its type.
    """
    check_attributes(vars(holder), get_type_hints(type(holder)))


def check_attributes(values: Mapping[str, object], hints: Mapping[str, object]) -> None:
    """Refuse values of other types than those of the same names in `hints`; others are not looked at.

    Raises
    ------
    TypeError
        It names the value and its type.
    """
    for name, hint in hints.items():
        if name in values and not _fits(values[name], hint):
            declared = hint.__name__ if type(hint) is type else hint
            raise TypeError(f"{name} is {values[name]!r:.100}, not of type {declared}")


def _fits(value: object, hint: object) -> bool:
    """Tell whether a value is of a type; types of other forms than those of plain values are not compared."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        return any(_fits(value, option) for option in inner)
    if isinstance(value, bool | np.bool_):
        return hint in (bool, Any)
    if hint is int:
        return isinstance(value, int | np.integer) and bool(-_LARGEST <= value <= _LARGEST)
    if hint is float:
        return isinstance(value, int | float | np.integer | np.floating)
    if hint is None:
        return value is None
    if hint is Any or not isinstance(kind, type):
        return True
    return isinstance(value, kind) and (not inner or _holds(value, kind, inner))


def _holds(value: object, kind: type, inner: tuple[object, ...]) -> bool:
    """Tell whether the entries of a collection are of its types."""
    if isinstance(value, Mapping):
        return all(_fits(key, inner[0]) and _fits(entry, inner[1]) for key, entry in value.items())
    if not isinstance(value, Collection):
        return True
    if kind is tuple and inner[-1] is not Ellipsis:
        return len(value) == len(inner) and all(map(_fits, value, inner))
    return all(_fits(entry, inner[0]) for entry in value)
