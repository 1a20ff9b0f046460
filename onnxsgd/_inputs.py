"""What a user hands over as X, as one array for each input of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from scipy import sparse
from sklearn.utils.validation import validate_data

from onnxsgd.exceptions import GraphError, ParameterError

__all__ = ["Features", "check_X", "n_rows", "read_features", "take_rows"]

#: One array for each input of a graph; the first dimension counts the samples.
Features = dict[str, Any]


def check_X(estimator: Any, X: Any, *, reset: bool) -> Any:
    """Return `X` validated as scikit-learn does it.

    Numeric data become an array, or a CSR matrix, of their own type; a dict of arrays, and a frame with
    columns that are not numeric, stay what they are.
    """
    if isinstance(X, Mapping) and not sparse.issparse(X):
        return _check_mapping(X)
    if _is_mixed_frame(X):
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        return X
    return validate_data(
        estimator, X, reset=reset, accept_sparse="csr", dtype="numeric", order="C", allow_nd=True
    )


def read_features(X: Any, checked: Any, inputs: Sequence[ir.Value]) -> Features:
    """Return one array for each input of a graph, of the input's type.

    Parameters
    ----------
    X : object
        What the user handed over.
    checked : object
        The same, from :func:`check_X`.
    inputs : sequence of ir.Value
        The inputs of the graph.

    Raises
    ------
    GraphError
        If the data do not fit the inputs.
    """
    if isinstance(checked, Mapping):
        _check_names(list(checked), inputs)
        return {str(value.name): _cast(checked[str(value.name)], value) for value in inputs}
    if len(inputs) == 1:
        return {str(inputs[0].name): _cast(checked, inputs[0])}
    if hasattr(X, "columns"):
        _check_names([str(name) for name in X.columns], inputs)
        return {str(value.name): _cast(_column(X[value.name]), value) for value in inputs}
    if getattr(checked, "ndim", 0) == 2 and checked.shape[1] == len(inputs):
        columns = checked.tocsc() if sparse.issparse(checked) else checked
        return {str(value.name): _cast(_column(columns[:, i]), value) for i, value in enumerate(inputs)}
    names = [value.name for value in inputs]
    raise GraphError(
        f"the graph has {len(inputs)} inputs, {names}: X must be a dict of arrays or a data frame with these "
        "names."
    )


def n_rows(features: Features) -> int:
    """Return the number of samples."""
    return int(next(iter(features.values())).shape[0])


def take_rows(features: Features, rows: Any) -> Features:
    """Return the given samples."""
    return {name: array[rows] for name, array in features.items()}


def _check_mapping(X: Mapping[str, Any]) -> dict[str, np.ndarray]:
    arrays = {str(name): np.asarray(array) for name, array in X.items()}
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not arrays or len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ParameterError(f"X has arrays of these lengths: {lengths}; they must be equal and above 0.")
    return arrays


def _check_names(names: list[str], inputs: Sequence[ir.Value]) -> None:
    missing = [value.name for value in inputs if value.name not in names]
    if missing:
        raise GraphError(f"X lacks {missing}, which the graph has as inputs; X has {names}.")


def _is_mixed_frame(X: Any) -> bool:
    """Tell whether `X` is a frame with columns that no numeric array can hold."""
    if not hasattr(X, "columns") or not hasattr(X, "dtypes"):
        return False
    dtypes = getattr(X.dtypes, "values", X.dtypes)
    return any(getattr(dtype, "kind", "f") in "OSU" or "tr" in str(dtype).lower() for dtype in dtypes)


def _column(column: Any) -> np.ndarray:
    array = column.toarray().ravel() if sparse.issparse(column) else np.asarray(column)
    return array.reshape(-1, 1)


def _cast(array: Any, value: ir.Value) -> Any:
    """Return `array` in the type of the input `value`, after a look at its shape."""
    shape = [] if value.shape is None else list(value.shape)
    if shape and array.ndim == 1 and len(shape) == 2:
        array = array.reshape(-1, 1)
    sizes = zip(shape[1:], array.shape[1:], strict=False)
    fits = len(shape) == array.ndim and all(have == want for want, have in sizes if isinstance(want, int))
    if shape and not fits:
        wanted = [size if isinstance(size, int) else "any" for size in shape]
        raise GraphError(
            f"X has shape {tuple(array.shape)}; input {value.name!r} of the graph takes {tuple(wanted)}."
        )
    if value.dtype is None or value.dtype == ir.DataType.STRING:
        return np.asarray(array, dtype=object)
    dtype = value.dtype.numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype, copy=False)
    if cast.dtype.kind == "f" and cast is not array and not np.isfinite(_values(cast)).all():
        raise ParameterError(
            f"Input X contains NaN, infinity or a value too large for {np.dtype(dtype)!r}, the type of input "
            f"{value.name!r}."
        )
    return cast if sparse.issparse(cast) else np.ascontiguousarray(cast)


def _values(array: Any) -> np.ndarray:
    return array.data if sparse.issparse(array) else array
