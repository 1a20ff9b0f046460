"""Unusual data: checks before libraries read them, and errors that name the argument."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import chain
from typing import ParamSpec, TypeVar

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_consistent_length

from onnxsgd._library_errors import reason
from onnxsgd.exceptions import OnnxSGDError, ParameterError, ParameterTypeError

__all__ = [
    "as_target", "check_indices", "check_lengths", "naming", "naming_validation", "number_of_axes",
    "refuse_mask",
]  # fmt: skip

_Given = ParamSpec("_Given")
_Read = TypeVar("_Read")

#: Words of messages of scikit-learn that say which data are meant; such messages are kept.
_CLEAR = re.compile(r"\b([Ff]eatures?|samples|labels?|classes|y_true)\b")
#: The array that scikit-learn shows in some messages.
_NUMBERS = re.compile(r":?\s*array=.*?(?=\.\s+[A-Z])|\n[\[<].*", re.DOTALL)
#: The longest message that is kept: those of scikit-learn about labels may hold all of them.
_LONGEST = 600


def naming(argument: str) -> Callable[[Callable[_Given, _Read]], Callable[_Given, _Read]]:
    """Return a decorator for a function that reads an argument of users, which its refusals then name.

    Conversions by numpy, pandas and scikit-learn raise errors of any kind and without the argument's name,
    such as "float() argument must be a string or a real number, not 'set'". Clear messages stay.

    Parameters
    ----------
    argument : str
        The name of the argument.
    """
    named = re.compile(rf"\b{argument}\b")

    def decorate(read: Callable[_Given, _Read]) -> Callable[_Given, _Read]:
        @wraps(read)
        def checked(*args: _Given.args, **kwargs: _Given.kwargs) -> _Read:
            try:
                return read(*args, **kwargs)
            except OnnxSGDError:
                raise
            except (TypeError, ValueError) as error:
                text = " ".join(_NUMBERS.sub("", str(error)).split())
                is_clear = named.search(text) or _CLEAR.search(text)
                if is_clear and len(text) <= _LONGEST and not _NUMBERS.search(str(error)):
                    raise
                kind = ParameterTypeError if isinstance(error, TypeError) else ParameterError
                raise kind(f"{argument} is not accepted: {text.rstrip('.')}.") from error
            except Exception as error:
                # objects of users raise any error when they are converted
                cause = f"{type(error).__name__}: {reason(error)}" if str(error) else type(error).__name__
                raise ParameterError(f"{argument} cannot be read as an array: {cause}.") from error

        return checked

    return decorate


@contextmanager
def naming_validation() -> Iterator[None]:
    """Let errors about `X` and `y` say that those of the validation data are meant."""
    try:
        yield
    except (OnnxSGDError, TypeError, ValueError) as error:
        text = str(error)
        if not re.search(r"\b[Xy]_val\b", text):
            error.args = (f"In the validation data, X_val and y_val: {text}",)
        raise


def refuse_mask(array: object, argument: str) -> None:
    """Refuse an array with masked elements: conversions would take the numbers under the mask.

    Raises
    ------
    ParameterError
        If it has some; it names the argument.
    """
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise ParameterError(
            f"{argument} has masked elements: give an array without a mask, such as array.filled(0), or the "
            "rows without them."
        )


def check_indices(table: sparse.spmatrix, argument: str) -> None:
    """Refuse a sparse matrix whose indices were changed so that they leave it: conversions read any memory.

    Raises
    ------
    ParameterError
        It names the argument.
    """
    if table.format in ("csr", "csc", "bsr"):
        is_valid = _are_inside(table)
    elif table.format == "coo":
        sizes = zip(table.coords, table.shape, strict=True)
        is_valid = all(_are_below(axis, size) for axis, size in sizes)
    elif table.format == "lil":
        is_valid = _lists_are_inside(table)
    else:
        # dictionaries and diagonals, which scipy checks in Python
        is_valid = True
    if not is_valid:
        raise ParameterError(
            f"{argument} is a sparse {table.format} matrix of shape {table.shape} whose indices are not "
            "inside it: build it again from its entries."
        )


def _are_inside(table: sparse.spmatrix) -> bool:
    """Tell whether pointers and indices of a compressed matrix are inside it."""
    pointers, indices = table.indptr, table.indices
    rows, columns = (
        n // block for n, block in zip(table.shape, getattr(table, "blocksize", (1, 1)), strict=True)
    )
    major, minor = (columns, rows) if table.format == "csc" else (rows, columns)
    if len(pointers) != major + 1 or pointers[0] != 0 or pointers[-1] > min(len(indices), len(table.data)):
        return False
    return bool((pointers[1:] >= pointers[:-1]).all()) and _are_below(indices, minor)


def _lists_are_inside(table: sparse.lil_matrix) -> bool:
    """Tell whether the columns in the lists of a matrix are inside it, with a value each."""
    if list(map(len, table.rows)) != list(map(len, table.data)):
        return False
    columns = list(chain.from_iterable(table.rows))
    try:
        return _are_below(np.fromiter(columns, np.int64, len(columns)), table.shape[1])
    except (TypeError, ValueError, OverflowError):
        # no whole numbers
        return False


def _are_below(indices: np.ndarray, size: int) -> bool:
    return not len(indices) or (indices.min() >= 0 and indices.max() < size)


def check_lengths(X: object, y: object) -> None:
    """Refuse targets of another number than the samples before they are read: a view may have any length."""
    if type(X) is type(y) is np.ndarray and X.ndim and y.ndim and len(X) == len(y):
        # the common case: one look
        return
    if all(isinstance(shape := getattr(data, "shape", ()), tuple) and shape for data in (X, y)):
        check_consistent_length(X, y)


@naming("y")
def as_target(y: object) -> np.ndarray:
    """Return targets that nothing has checked yet as an array."""
    return np.asarray(y)


def number_of_axes(y: object) -> int:
    """Return the number of axes of targets that nothing has checked yet."""
    return as_target(y).ndim
