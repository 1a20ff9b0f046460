"""Parameters of losses, optimizers, schedules and penalties, in the form of scikit-learn's estimators."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Iterable
from copy import deepcopy
from numbers import Integral, Real
from typing import Any, NoReturn, Self

import numpy as np

from onnxsgd.exceptions import ParameterError, ParameterTypeError

__all__ = [
    "RefusedChange", "Settable", "as_float", "check_count", "check_flag", "check_number", "did_you_mean",
]  # fmt: skip

#: Larger counts are no floats, and no lengths of arrays.
_LARGEST = 2**63 - 1


def did_you_mean(given: object, legal: Iterable[object]) -> str:
    """Return a sentence with the legal name nearest to a string, in letters of any case; empty if none is."""
    names = {name.lower(): name for name in legal if isinstance(name, str)}
    close = difflib.get_close_matches(given.lower(), names, n=1) if isinstance(given, str) else []
    return f" Did you mean {names[close[0]]!r}?" if close else ""


class Settable:
    """Base class of objects whose parameters searches and ``set_params`` of an estimator reach.

    Parameters are the arguments of the constructor, each kept in an attribute of its name.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        Parameters
        ----------
        deep : bool, default=True
            Whether to return the parameters of parameters too, their names behind two underscores.
        """
        own = {name: getattr(self, name) for name in _names(type(self))}
        inner = {name: value for name, value in own.items() if deep and isinstance(value, Settable)}
        return own | {
            f"{name}__{key}": item
            for name, value in inner.items()
            for key, item in value.get_params().items()
        }

    def set_params(self, **params: object) -> Self:
        """Change parameters in place; none is changed if one is refused.

        Returns
        -------
        self : object
            The same object.

        Raises
        ------
        ParameterError
            If a name is unknown, or a value is not accepted.
        """
        self.check_names(params)
        names = _names(type(self))
        own = {name: value for name, value in params.items() if name in names}
        # the constructor checks the values, and converts them
        fresh = type(self)(**{**self.get_params(deep=False), **own})
        for name in {key.partition("__")[0] for key in params if key not in own}:
            inner = getattr(fresh, name)
            changes = {
                key.removeprefix(f"{name}__"): params[key] for key in params if key.startswith(f"{name}__")
            }
            if not isinstance(inner, Settable):
                raise ParameterError(f"{sorted(changes)} are no parameters of {name}={inner!r}: it has none.")
            inner.set_params(**changes)
        self.__dict__.update(fresh.__dict__)
        return self

    def check_names(self, params: Iterable[str]) -> None:
        """Refuse names of parameters that this object does not have."""
        names = _names(type(self))
        unknown = sorted({name.partition("__")[0] for name in params} - set(names))
        if unknown:
            legal = f"it has {names}" if names else "it has none"
            raise ParameterError(f"{unknown} are no parameters of {type(self).__name__}: {legal}.")


class RefusedChange(Settable):
    """A parameter of an estimator after a change that it does not accept, which the next ``fit`` refuses.

    A search sets parameters outside of the part of a candidate that may fail: an error there would end all of
    it. Until then a fitted estimator predicts as before: all else is that of the parameter before.

    Parameters
    ----------
    given : Settable
        The parameter before.
    changes : dict
        The new values of its parameters, by name.
    """

    def __init__(self, given: Settable, changes: dict[str, object]) -> None:
        self.given, self.changes = given, changes

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the constructor; if `deep`, those of the parameter, with the changes."""
        return self.given.get_params() | self.changes if deep else super().get_params(deep=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "given":
            # looked for by pickle and copy, before there is anything
            raise AttributeError(name)
        return getattr(self.given, name)

    def __repr__(self) -> str:
        return f"{self.given!r} with {self.changes}"

    def refuse(self) -> NoReturn:
        """Raise the error of the change."""
        deepcopy(self.given).set_params(**self.changes)
        raise ParameterError(f"{self!r} is not accepted.")

    @classmethod
    def changed(cls, given: Settable, changes: dict[str, object]) -> Settable:
        """Return a parameter with changed values of its parameters: itself, or one of this class.

        Raises
        ------
        ParameterError
            If the parameter has no such names.
        """
        before = given if isinstance(given, RefusedChange) else cls(given, {})
        changes = {**before.changes, **changes}
        before.given.check_names(changes)
        try:
            return before.given.set_params(**changes)
        except (ParameterError, ParameterTypeError):
            return cls(before.given, changes)


def _names(cls: type) -> list[str]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, found in inspect.signature(cls).parameters.items() if found.kind in named]


def check_number(
    name: str,
    value: object,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
) -> None:
    """Refuse a value that is no finite number between these bounds."""
    bounds = {">=": least, ">": above, "<": below, "<=": most}
    legal = " and ".join(f"{sign} {bound:g}" for sign, bound in bounds.items() if math.isfinite(bound))
    message = f"{name}={value!r:.100} is not accepted: it must be a finite number {legal}".rstrip() + "."
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        raise ParameterTypeError(message)
    number = as_float(value)
    if not (math.isfinite(number) and least <= number <= most and above < number < below):
        raise ParameterError(message)


def check_count(name: str, value: int, *, least: int = 1, most: int = _LARGEST) -> None:
    """Refuse a value that is no whole number between these bounds."""
    legal = f">= {least} and < 2^63" if most == _LARGEST else f"from {least} to {most:,}"
    message = f"{name}={value!r:.100} is not accepted: it must be a whole number {legal}."
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ParameterTypeError(message)
    if not least <= value <= most:
        raise ParameterError(message)


def check_flag(name: str, value: object) -> None:
    """Refuse a value that is neither True nor False."""
    if not isinstance(value, bool | np.bool_):
        raise ParameterTypeError(f"{name}={value!r:.100} is not accepted: it must be True or False.")


def as_float(value: Real) -> float:
    """Return a number as a float; an integer beyond the largest float is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
