"""Formulas of Python functions of numbers, as text that other languages read too."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

__all__ = ["Formula", "read_formula", "to_text"]

#: The text of numpy functions; the operators are those that Python and JavaScript share.
_OPERATORS = {np.add: "+", np.subtract: "-", np.multiply: "*", np.divide: "/", np.power: "**"}
_FUNCTIONS = {
    np.minimum: "min",
    np.maximum: "max",
    np.floor: "floor",
    np.sqrt: "sqrt",
    np.exp: "exp",
    np.log: "log",
    np.cos: "cos",
}


class Formula(NDArrayOperatorsMixin):
    """A symbolic number: arithmetic on it records the expression.

    The text is made of names, numbers, ``+ - * / **``, parentheses, and the functions ``min``, ``max``,
    ``floor``, ``sqrt``, ``exp``, ``log`` and ``cos``. A comparison, and with it a branch, raises TypeError:
    it has no formula.

    Parameters
    ----------
    text : str
        A name, a number, or an expression in parentheses.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __array_ufunc__(self, function: np.ufunc, method: str, *operands: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            return NotImplemented
        if function is np.floor_divide:
            return np.floor(np.divide(*operands))
        if function in _OPERATORS:
            return Formula(f"({f' {_OPERATORS[function]} '.join(map(_as_operand, operands))})")
        if function in _FUNCTIONS:
            return Formula(f"{_FUNCTIONS[function]}({', '.join(map(to_text, operands))})")
        return NotImplemented

    def __bool__(self) -> NoReturn:
        raise TypeError("a formula is neither true nor false")


def read_formula(function: Callable[..., object], *names: str) -> str | None:
    """Return the formula of `function` in the variables `names`; None if it has none.

    Examples
    --------
    >>> read_formula(lambda t: 0.5 / t**0.25, "t")
    '0.5 / (t ** 0.25)'
    """
    try:
        value = function(*map(Formula, names))
    except Exception:
        # A user's function may raise anything when its argument is symbolic.
        return None
    return to_text(value) if isinstance(value, Formula | Real) else None


def to_text(value: Formula | Real | float) -> str:
    """Return a formula, or a number, as text without parentheses around the whole."""
    text = _as_operand(value)
    return text[1:-1] if text.startswith("(") and _closes_at(text) == len(text) - 1 else text


def _as_operand(value: Formula | Real | float) -> str:
    return value.text if isinstance(value, Formula) else repr(float(value))


def _closes_at(text: str) -> int:
    """Return the position of the parenthesis that closes the first one of `text`."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position
    raise AssertionError(f"{text!r} is not balanced")
