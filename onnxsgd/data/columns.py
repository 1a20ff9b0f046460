"""Tables with named columns: data frames of any library, and dictionaries of arrays."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import onnx_ir as ir
from scipy import sparse

from onnxsgd.data.refusals import naming
from onnxsgd.exceptions import GraphError, ParameterTypeError

__all__ = ["NUMBERS", "column_kinds", "column_names", "is_mapping", "refuse_unknown", "with_numbers"]

#: Kinds of arrays of numbers, after numpy's letters.
NUMBERS = frozenset("biuf")


def is_mapping(X: object) -> TypeGuard[Mapping[Any, Any]]:
    """Return whether `X` is a dictionary of arrays; some sparse matrices are mappings too."""
    return isinstance(X, Mapping) and not sparse.issparse(X)


def column_names(X: Any) -> list[str] | None:
    """Return the names of the columns, None if they have none.

    Raises
    ------
    ParameterTypeError
        If X is a lazy frame, which has no rows yet.
    """
    if is_mapping(X):
        return [str(name) for name in X]
    if type(X).__name__ == "LazyFrame":
        raise ParameterTypeError("X is a LazyFrame, whose rows are not computed yet: give X.collect().")
    is_frame = hasattr(X, "columns") and hasattr(X, "dtypes")
    return [str(name) for name in X.columns] if is_frame else None


def with_numbers(X: Any) -> Any:
    """Return a frame of pandas with types of numbers for its columns of objects that are all numbers.

    Rows that were joined or transposed have objects; scikit-learn takes them for numbers too. Other data are
    returned as they are.
    """
    if not hasattr(X, "infer_objects") or not hasattr(X, "columns") or not X.columns.is_unique:
        return X
    objects = X.columns[[str(dtype) == "object" for dtype in X.dtypes]]
    inferred = X[objects].infer_objects()
    numbers = [name for name in objects if inferred[name].dtype.kind in NUMBERS]
    if not numbers:
        return X
    made = X.copy(deep=False)
    made[numbers] = inferred[numbers]
    return made


def refuse_unknown(X: Mapping[Any, Any], inputs: Sequence[ir.Value]) -> None:
    """Refuse entries of a dictionary that no input of the graph takes, such as a mistyped mask.

    Raises
    ------
    GraphError
        If there are any; it names the nearest input.
    """
    names = [str(value.name) for value in inputs]
    unknown = [str(name) for name in X if str(name) not in names]
    if not unknown:
        return
    close = difflib.get_close_matches(unknown[0], names, n=1)
    nearest = f" Did you mean {close[0]!r}?" if close else ""
    raise GraphError(
        f"X has the entries {unknown}, which no input of the graph takes; these are {names}.{nearest}"
    )


@naming("X")
def column_kinds(X: Any) -> dict[str, str]:
    """Return numpy's letter for the kind of each column of a frame or of a dictionary; "O" for categories."""
    if is_mapping(X):
        return {str(name): np.asarray(array).dtype.kind for name, array in X.items()}
    dtypes = getattr(X.dtypes, "values", X.dtypes)
    return {str(name): _kind(X, name, dtype) for name, dtype in zip(X.columns, dtypes, strict=True)}


def _kind(X: Any, name: Any, dtype: Any) -> str:
    """Return the kind of one column: that of its type (pandas), or of an array of it (polars)."""
    return str(dtype.kind) if hasattr(dtype, "kind") else np.asarray(X[:1][name]).dtype.kind
