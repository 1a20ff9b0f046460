"""Features: the user's X as one array for each input of the graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import onnx_ir as ir
from scipy import sparse
from sklearn.utils.validation import assert_all_finite, check_array, validate_data

from onnxsgd.data.columns import NUMBERS, column_kinds, column_names, is_mapping, with_numbers
from onnxsgd.data.masks import are_all
from onnxsgd.data.refusals import check_indices, naming, refuse_mask
from onnxsgd.data.row_tables import Converted, is_mapped, row_blocks
from onnxsgd.data.sequences import find_mask
from onnxsgd.exceptions import GraphError, ParameterError

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

__all__ = [
    "Features",
    "TableInput",
    "check_X",
    "check_axes",
    "check_strings",
    "fills_gaps",
    "is_plain_array",
    "n_rows",
    "read_features",
    "take_rows",
    "takes_strings",
]

#: One array for each input of a graph; the first dimension counts the samples.
Features = dict[str, Any]


@naming("X")
def check_X(
    estimator: BaseEstimator,
    X: Any,
    *,
    reset: bool,
    by_name: bool = False,
    allow_nan: bool = False,
    any_length: bool = False,
    inputs: Sequence[ir.Value] | None = None,
) -> Any:
    """Return `X` after scikit-learn's validation.

    Numeric data become an array, or a CSR matrix, of the same type; a dict of arrays, and a frame with
    columns that are not numeric, are returned unchanged. Whether the numbers of a large array, or of one for
    a graph, are finite is left to :func:`read_features`.

    Parameters
    ----------
    estimator : estimator
        Its numbers and names of features are set, or compared with those of `X`.
    X : object
        The user's data.
    reset : bool
        Whether they are set.
    by_name : bool
        Whether the columns of a frame are looked up by their names, in any order.
    allow_nan : bool
        Whether NaN may denote a missing value.
    any_length : bool
        Whether arrays may have another length of their second axis than the training data.
    inputs : sequence of ir.Value or None
        The inputs of the user's graph, of which errors speak; None: the model is no graph.
    """
    if type(X) is np.memmap:
        X = np.asarray(X)
    # numbers of a large array, and of those for a graph, are looked at once, for the type of the graph
    is_read = inputs is not None or _stays(X)
    if _is_plain(X, (2,)) and (is_read or _is_finite(X)) and _has_known_columns(estimator, X, reset):
        return X
    refuse_mask(X, "X")
    if sparse.issparse(X):
        check_indices(X, "X")
    if is_mapping(X):
        return _check_mapping(estimator, X, reset)
    if column_names(X) is not None:
        X = with_numbers(X)
        _refuse_no_rows(X)
        if by_name:
            return X
        if not NUMBERS.issuperset(column_kinds(X).values()):
            validate_data(estimator, X, reset=reset, skip_check_array=True)
            return X
        if math.prod(X.shape) * _REAL[0].itemsize > _CONVERTED_BYTES and _stays(table := np.asarray(X)):
            validate_data(estimator, X, reset=reset, skip_check_array=True)
            return table
    _refuse_dictionaries(X)
    if inputs is not None:
        _refuse_no_table(X, inputs)
    rules: Any = {
        "accept_sparse": "csr", "dtype": "numeric", "order": None if _stays(X) else "C", "allow_nd": True,
        "ensure_all_finite": "allow-nan" if allow_nan else True,
    }  # fmt: skip
    if any_length:
        return check_array(X, estimator=estimator, input_name="X", **rules)
    return validate_data(estimator, X, reset=reset, **rules)


def _refuse_no_rows(frame: Any) -> None:
    """Refuse a frame without rows, of which scikit-learn's validation may see the names alone."""
    if not len(frame):
        raise ParameterError(
            f"X is not accepted: Found array with 0 sample(s) (shape={tuple(frame.shape)}) while a minimum "
            "of 1 is required."
        )


def _refuse_dictionaries(X: object) -> None:
    """Refuse a dictionary for each sample: scikit-learn's error speaks of the number of axes."""
    if isinstance(X, list | tuple) and len(X) and isinstance(X[0], Mapping):
        raise ParameterError(
            "X holds a dictionary for each sample: let a DictVectorizer or a FeatureHasher make columns of "
            "them before this estimator, in a pipeline of scikit-learn."
        )


def _refuse_no_table(X: Any, inputs: Sequence[ir.Value]) -> None:
    """Refuse data of fewer axes than samples have: scikit-learn's error has many lines."""
    try:
        shape = np.shape(X)
    except ValueError:
        # lists of different lengths, which have errors of their own
        return
    if sparse.issparse(X) or len(shape) > 1 or not inputs:
        return
    mask = find_mask(inputs)
    value = next(value for value in inputs if value is not mask)
    found = f"has shape {shape}" if shape else "is None" if X is None else f"is of type {type(X).__name__}"
    raise GraphError(
        f"X {found}: it must have an axis of samples and one at least of their elements; input "
        f"{value.name!r} of the graph takes {_wanted(value)}."
    )


def check_axes(X: Any, inputs: Sequence[ir.Value]) -> None:
    """Refuse another shape than the only input of a graph takes, if that is no table.

    scikit-learn would count its second axis, of images the channels, and call them features.

    Parameters
    ----------
    X : object
        The user's data of a later call.
    inputs : sequence of ir.Value
        The inputs of the graph.

    Raises
    ------
    GraphError
        If the shape is another one.
    """
    if len(inputs) != 1 or inputs[0].shape is None or len(inputs[0].shape) < 3:
        return
    try:
        shape = np.shape(X)
    except ValueError:
        # lists of different lengths, which have errors of their own
        return
    if len(shape) > 1:
        _refuse_other_shape(shape, inputs[0])


def _refuse_other_shape(shape: tuple[int, ...], value: ir.Value) -> None:
    """Refuse data of a shape that an input of a graph does not take."""
    wanted = [] if value.shape is None else list(value.shape)
    sizes = zip(wanted[1:], shape[1:], strict=False)
    fits = len(shape) == len(wanted) and all(have == want for want, have in sizes if isinstance(want, int))
    if wanted and not fits:
        raise GraphError(
            f"X has shape {tuple(shape)}; input {value.name!r} of the graph takes {_wanted(value)}."
        )


def _wanted(value: ir.Value) -> tuple[int | str, ...] | str:
    """Return the shape of an input for messages."""
    if value.shape is None:
        return "any shape"
    return tuple(size if isinstance(size, int) else "any" for size in value.shape)


_REAL = (np.dtype(np.float32), np.dtype(np.float64))
#: Numbers up to which to count the finite ones takes less time than to find both extremes.
_FEW = 100_000
#: The most bytes of an array of real numbers that are converted at once; rows of larger ones are converted
#: when they are taken: a bound of memory.
_CONVERTED_BYTES = 1 << 24
#: The bytes of a part in which the smallest and the largest number are looked for: less than a cache.
_LOOKED_AT = 1 << 18


def is_plain_array(array: Any, ranks: Collection[int]) -> TypeGuard[np.ndarray]:
    """Tell whether scikit-learn's validation would return `array` itself: one look for the common case.

    True for finite numbers in a contiguous array of numpy's own class, of one of these ranks.
    """
    return _is_plain(array, ranks) and _is_finite(array)


def _is_plain(array: Any, ranks: Collection[int]) -> TypeGuard[np.ndarray]:
    """Tell the same of an array whose numbers are finite."""
    if type(array) is not np.ndarray or array.dtype not in _REAL or array.ndim not in ranks:
        return False
    return bool(array.size and (array.flags.c_contiguous or _stays(array)))


def _stays(array: object) -> bool:
    """Tell whether an array is too large for a copy in another type or order.

    One in memory whose rows are not contiguous is copied: to take rows of columns costs ten times the time.
    """
    if not isinstance(array, np.ndarray) or array.dtype not in _REAL or array.nbytes <= _CONVERTED_BYTES:
        return False
    return bool(array.flags.c_contiguous) or is_mapped(array)


def _is_finite(array: np.ndarray) -> bool:
    """Tell whether all numbers are finite: NaN is the smallest and the largest one of its array."""
    if array.size <= _FEW:
        return are_all(np.isfinite(array))
    # no product with itself: it takes less time, but the threads of BLAS may wait 16 ms for a busy core
    with np.errstate(invalid="ignore"):
        return all(map(math.isfinite, _extremes(array)))


def _extremes(array: np.ndarray) -> list[Any]:
    """Return the smallest and the largest number of an array, of a large one in one pass; NaN if any is."""
    if array.nbytes <= _CONVERTED_BYTES:
        return [array.min(), array.max()]
    # the order of the memory, which may be that of a file
    table = array.T if array.flags.f_contiguous else array
    table = table.reshape(-1) if table.flags.c_contiguous else table
    size = max(1, _LOOKED_AT // max(1, table.nbytes // len(table)))
    found = np.array(
        [(part.min(), part.max()) for part in (table[rows] for rows in row_blocks(len(table), size))]
    )
    return [found[:, 0].min(), found[:, 1].max()]


def _has_known_columns(estimator: Any, X: np.ndarray, reset: bool) -> bool:
    """Set the number of columns, or tell whether it is that of the training data, without names."""
    if reset:
        vars(estimator).pop("feature_names_in_", None)
        estimator.n_features_in_ = X.shape[1]
        return True
    known = vars(estimator)
    return known.get("n_features_in_") == X.shape[1] and "feature_names_in_" not in known


@dataclass(frozen=True)
class TableInput:
    """The only input of a graph that takes a table of real numbers.

    Attributes
    ----------
    name : str
        Its name.
    dtype : dtype
        The type of its elements.
    n_columns : int or None
        The number of its columns; None: it takes any.
    """

    name: str
    dtype: np.dtype[Any]
    n_columns: int | None

    @classmethod
    def of(cls, inputs: Sequence[ir.Value]) -> TableInput | None:
        """Return the only one of some inputs if it takes tables, else None."""
        if len(inputs) != 1 or inputs[0].shape is None or inputs[0].dtype is None:
            return None
        (value,), n_columns = inputs, list(inputs[0].shape)[1:]
        if len(n_columns) != 1 or value.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            return None
        known = n_columns[0]
        return cls(str(value.name), value.dtype.numpy(), known if isinstance(known, int) else None)

    def read(self, X: np.ndarray) -> np.ndarray | None:
        """Return a table in the type of the input if nothing about it can be refused; None otherwise.

        The case: an array of numpy's own class, of two axes, contiguous, not large, and finite in that type.
        """
        fits = self.n_columns in (None, X.shape[1]) and X.size and X.flags.c_contiguous
        if not fits or X.dtype not in _REAL or X.nbytes > _CONVERTED_BYTES:
            return None
        if X.dtype == self.dtype:
            table = X
        else:
            with np.errstate(over="ignore"):
                table = X.astype(self.dtype)
        return table if _is_finite(table) else None


def takes_strings(inputs: Iterable[ir.Value]) -> bool:
    """Tell whether an input of a graph is of strings."""
    return any(value.dtype == ir.DataType.STRING for value in inputs)


@naming("X")
def check_strings(estimator: BaseEstimator, X: Any, *, reset: bool, by_name: bool = False) -> Any:
    """Return `X` for a graph that takes strings: a dict of arrays, a frame, or an array of objects.

    Parameters
    ----------
    estimator, X, reset, by_name : objects
        As in :func:`check_X`.

    Raises
    ------
    ParameterError
        If `X` is one string, a frame without rows, or has one column with an entry that is not a string.
    """
    if is_mapping(X):
        return _check_mapping(estimator, X, reset)
    if column_names(X) is not None:
        _refuse_no_rows(X)
        if not by_name:
            validate_data(estimator, X, reset=reset, skip_check_array=True)
        return X
    if isinstance(X, str | bytes) or sparse.issparse(X) or np.ndim(X) == 0:
        raise ParameterError(f"X is a {type(X).__name__}: it must be a list, an array or a frame of strings.")
    if reset:
        for name in ("n_features_in_", "feature_names_in_"):
            vars(estimator).pop(name, None)
    array = np.asarray(X, dtype=object)
    if array.size == len(array):
        _check_column(array.ravel())
    return array


def _check_column(column: np.ndarray) -> None:
    """Refuse a missing string, which the runtime would read as "None" or "nan", and numbers."""
    for row, entry in enumerate(column):
        if not isinstance(entry, str):
            raise ParameterError(f"X holds {entry!r} in row {row}, where the graph takes strings.")


def fills_gaps(graph: ir.Graph) -> bool:
    """Tell whether a graph has operators that replace NaN."""
    return any(node.op_type in ("Imputer", "IsNaN") for node in graph)


def read_features(X: Any, checked: Any, inputs: Sequence[ir.Value], *, allow_nan: bool = False) -> Features:
    """Return one array for each input of a graph, of the input's type.

    Parameters
    ----------
    X : object
        The user's data.
    checked : object
        The same, from :func:`check_X`.
    inputs : sequence of ir.Value
        The inputs of the graph.
    allow_nan : bool
        Whether NaN may denote a missing value.

    Raises
    ------
    GraphError
        If the data do not fit the inputs.
    ParameterError
        If samples have no element at all.
    """
    features = _one_for_each(X, checked, inputs, allow_nan)
    # a recurrent operator of the runtime ends the process; one input of several may be empty, such as a cache
    if all(0 in array.shape[1:] for array in features.values()):
        name, array = next(iter(features.items()))
        raise ParameterError(
            f"X has shape {tuple(array.shape)} for input {name!r} of the graph: each sample has one element "
            "at least."
        )
    return features


def _one_for_each(X: Any, checked: Any, inputs: Sequence[ir.Value], allow_nan: bool) -> Features:
    """Return one array for each input of a graph."""
    if is_mapping(checked):
        # sizes first: a mask is not made for an array of a wrong one
        known = [value for value in inputs if str(value.name) in checked]
        features = {str(value.name): _cast(checked[str(value.name)], value, allow_nan) for value in known}
        _check_names(checked, inputs)
        return features
    if len(inputs) == 1 and not _is_column_of(X, inputs[0]):
        table = checked if column_names(checked) is None else np.asarray(checked)
        return {str(inputs[0].name): _cast(table, inputs[0], allow_nan)}
    if column_names(X) is not None:
        _check_names(X, inputs)
        return {str(value.name): _cast(_column(X[value.name]), value, allow_nan) for value in inputs}
    if getattr(checked, "ndim", 0) == 2 and checked.shape[1] == len(inputs):
        columns = checked.tocsc() if sparse.issparse(checked) else checked
        return {
            str(value.name): _cast(_column(columns[:, i]), value, allow_nan) for i, value in enumerate(inputs)
        }
    names = [value.name for value in inputs]
    raise GraphError(
        f"the graph has {len(inputs)} inputs, {names}: X must be a dict of arrays or a data frame with these "
        "names."
    )


def _is_column_of(X: object, value: ir.Value) -> bool:
    """Tell whether an input of a graph is one of several columns of a frame, as others are dropped."""
    names = column_names(X)
    return (
        names is not None
        and len(names) > 1
        and str(value.name) in names
        and value.shape is not None
        and (tuple(value.shape)[1:] == (1,))
    )


def n_rows(features: Features) -> int:
    """Return the number of samples."""
    return int(next(iter(features.values())).shape[0])


def take_rows(features: Features, rows: np.ndarray | slice) -> Features:
    """Return the given samples."""
    return {name: array[rows] for name, array in features.items()}


def _check_mapping(estimator: BaseEstimator, X: Mapping[str, Any], reset: bool) -> dict[str, np.ndarray]:
    arrays = {str(name): _entry(f"X[{name!r}]", array) for name, array in X.items()}
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not arrays or len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ParameterError(f"X has arrays of these lengths: {lengths}; they must be equal and above 0.")
    if reset:
        for name in ("n_features_in_", "feature_names_in_"):
            vars(estimator).pop(name, None)
    return arrays


def _entry(name: str, array: object) -> np.ndarray:
    """Return an entry of a dictionary as an array."""
    if sparse.issparse(array):
        raise ParameterError(
            f"{name} is sparse, and entries of a dictionary are arrays: call toarray() of it."
        )
    return naming(name)(np.asarray)(array)


def _check_names(X: object, inputs: Sequence[ir.Value]) -> None:
    names = column_names(X) or []
    missing = [value.name for value in inputs if value.name not in names]
    if missing:
        raise GraphError(f"X lacks {missing}, which the graph has as inputs; X has {names}.")


def _column(column: Any) -> np.ndarray:
    array = column.toarray().ravel() if sparse.issparse(column) else np.asarray(column)
    return array.reshape(-1, 1)


def _cast(array: Any, value: ir.Value, allow_nan: bool) -> Any:
    """Return `array` in the type of the input `value`; check its shape and its numbers."""
    shape = [] if value.shape is None else list(value.shape)
    if shape and array.ndim == 1 and len(shape) == 2:
        array = array.reshape(-1, 1)
    elif len(shape) == 1 and array.ndim == 2 and array.shape[1] == 1:
        array = array.reshape(-1)
    _refuse_other_shape(array.shape, value)
    if value.dtype is None or value.dtype == ir.DataType.STRING:
        return np.asarray(array, dtype=object)
    dtype = value.dtype.numpy()
    if _stays(array) and np.dtype(dtype).kind == "f":
        return _kept(array, np.dtype(dtype), value, allow_nan)
    cast = _convert(array, np.dtype(dtype), str(value.name))
    if cast.dtype.kind == "f" and not _is_finite(_values(cast)):
        _refuse_infinite(_values(cast), value, allow_nan)
    return _canonical(cast) if sparse.issparse(cast) else np.ascontiguousarray(cast)


def _kept(array: np.ndarray, dtype: np.dtype[Any], value: ir.Value, allow_nan: bool) -> Any:
    """Return a large array in the type of the input `value`, as it is or row by row; check its numbers."""
    with np.errstate(over="ignore"):
        extremes = np.array(_extremes(array)).astype(dtype)
    table = array if array.dtype == dtype and array.flags.c_contiguous else Converted(array, dtype)
    if not np.isfinite(extremes).all():
        # one block with such a number tells as much as all rows
        for start in range(0, len(array), _CHECKED_ROWS):
            with np.errstate(over="ignore"):
                _refuse_infinite(table[start : start + _CHECKED_ROWS], value, allow_nan)
    return table


#: Rows of a block that is searched for a number that is not finite.
_CHECKED_ROWS = 4096


def _refuse_infinite(values: np.ndarray, value: ir.Value, allow_nan: bool) -> None:
    """Refuse numbers that are not finite, NaN unless it may denote a missing value."""
    try:
        assert_all_finite(values, allow_nan=allow_nan, input_name="X")
    except ValueError as error:
        raise ParameterError(f"{error} (Input {value.name!r} of the graph.)") from None


def _canonical(table: Any) -> Any:
    """Return a CSR table with at most one entry for each place, and none that is zero."""
    if table.has_canonical_format and table.data.all():
        return table
    table = table.copy()
    table.sum_duplicates()
    table.eliminate_zeros()
    return table


def _convert(array: Any, dtype: np.dtype[np.generic], name: str) -> Any:
    if dtype.kind in "iu" and array.dtype.kind in "fiu" and not np.can_cast(array.dtype, dtype):
        _check_range(_values(array), dtype, name)
    try:
        with np.errstate(over="ignore"):
            return array.astype(dtype, copy=False)
    except (TypeError, ValueError) as error:
        raise ParameterError(
            f"X cannot be converted to {dtype!r}, the type of input {name!r} of the graph: {error}"
        ) from None


def _check_range(values: np.ndarray, dtype: np.dtype[Any], name: str) -> None:
    """Refuse numbers that would change in an integer type, such as pixels from 0 to 1."""
    limits = np.iinfo(dtype)
    # bounds of 64 bits are infinite in float16
    with np.errstate(over="ignore"):
        is_inside = np.all((values >= limits.min) & (values <= limits.max))
    if not is_inside:
        raise ParameterError(
            f"X has values that {dtype!r}, the type of input {name!r} of the graph, does not hold: they must "
            f"be numbers from {limits.min} to {limits.max}."
        )
    if values.dtype.kind != "f" or (is_whole := values == np.trunc(values)).all():
        return
    raise ParameterError(
        f"X has values such as {values[~is_whole][0]:g}, and input {name!r} of the graph takes {dtype!r}: "
        f"they must be whole numbers from {limits.min} to {limits.max}."
    )


def _values(array: Any) -> np.ndarray:
    return array.data if sparse.issparse(array) else array
