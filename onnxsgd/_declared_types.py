"""Values of a file compared with the types that the code declares for them."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np

__all__ = ["Accepted", "Count", "Finite", "check_attributes", "check_fields", "check_table"]

#: The largest whole number: counts are added and multiplied, in 64 bits.
_LARGEST = 2**53


@dataclass(frozen=True)
class Accepted:
    """The accepted values of a type, for ``Annotated[type, Accepted(...)]``.

    Attributes
    ----------
    name : str
        Names them in an error.
    holds : callable
        Tells whether a value of the type is one of them.
    """

    name: str
    holds: Callable[[Any], bool]

    def __repr__(self) -> str:
        return self.name


#: A whole number that counts something, and a number.
Count = Annotated[int, Accepted("a count", lambda value: value >= 0)]
Finite = Annotated[float, Accepted("a finite number", lambda value: bool(np.isfinite(value)))]


def check_fields(holder: object) -> None:
    """Refuse an object of a dataclass with a field of another type than it declares.

    Raises
    ------
    TypeError
        It names the field, its value and its type.
    """
    check_attributes(vars(holder), _hints(type(holder)))


def check_attributes(values: Mapping[str, object], hints: Mapping[str, object]) -> None:
    """Refuse values of other types than those of the same names in `hints`; others are not looked at.

    Raises
    ------
    TypeError
        It names the value and its type.
    """
    for name, hint in hints.items():
        if name in values:
            _check(values[name], hint, name)


def check_table(values: object, form: type, place: str) -> None:
    """Refuse a dictionary that has other entries than a form, or an entry of another type.

    Parameters
    ----------
    values : dict
        The entries; those whose type is a form too are dictionaries.
    form : type
        A ``TypedDict``, or a dataclass with a field for each entry; those with a default may be missing.
    place : str
        The name of `values` in an error.

    Raises
    ------
    TypeError
        It names the entry, its value and its type.
    """
    if not isinstance(values, dict):
        raise TypeError(f"{place} is {_shown(values)}, not a table")
    hints = _hints(form)
    missing = sorted(hints.keys() - values.keys() - _with_default(form))
    unknown = sorted(map(str, values.keys() - hints.keys()))
    if missing or unknown:
        wrong = f"lacks {missing}" if missing else f"has {unknown}"
        raise TypeError(f"{place} {wrong:.200}: its entries are {sorted(hints)}")
    for name, value in values.items():
        hint, inner = hints[name], _form_in(hints[name])
        if inner is None or (value is None and inner is not hint):
            _check(value, hint, f"{place}.{name}")
        else:
            check_table(value, inner, f"{place}.{name}")


def _shown(value: object) -> str:
    """Return the beginning of a value in one line."""
    return " ".join(repr(value).split())[:100]


def _hints(form: type) -> dict[str, Any]:
    return get_type_hints(form, include_extras=True)


def _with_default(form: type) -> set[str]:
    """Return the entries that a form does not need: fields of a dataclass that have a default."""
    known = fields(form) if is_dataclass(form) else ()
    return {field.name for field in known if field.default is not MISSING}


def _form_in(hint: object) -> type | None:
    """Return the form that a type is, or may be; None: it is another one."""
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next((part for part in options if is_typeddict(part) or is_dataclass(part)), None)


def _check(value: object, hint: Any, place: str) -> None:
    if not _fits(value, hint):
        declared = f"of type {hint.__name__ if type(hint) is type else hint}"
        if get_origin(hint) is Annotated:
            declared = hint.__metadata__[0].name
        raise TypeError(f"{place} is {_shown(value)}, not {declared}")


def _fits(value: object, hint: Any) -> bool:
    """Tell whether a value is of a type; types of other forms than those of plain values are not compared."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        return _fits(value, inner[0]) and all(accepted.holds(value) for accepted in inner[1:])
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
    if inner[0] is float:
        # one of each class: the curves of long streams have many entries
        value = {type(entry): entry for entry in value}.values()
    return all(_fits(entry, inner[0]) for entry in value)
