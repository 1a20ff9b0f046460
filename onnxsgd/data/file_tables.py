"""Tables of files, as memory maps: Parquet, CSV, Arrow datasets, arrays of HDF5 and Zarr."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, cast

import numpy as np

from onnxsgd.data.columns import NUMBERS
from onnxsgd.data.file_formats import DatasetRows, StoredRows, arrow, rows_of_path
from onnxsgd.data.refusals import naming
from onnxsgd.exceptions import ParameterError, ParameterTypeError

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from numpy.typing import ArrayLike

__all__ = ["is_file_table", "read_file_table"]

#: The bytes of a block that is read and written at once: a bound of memory.
_BLOCK_BYTES = 1 << 22
#: The most names of targets; longer lists are labels.
_MOST_NAMES = 10_000


def is_file_table(X: object) -> bool:
    """Tell whether `X` is a path, a dataset of pyarrow, or numbers in an array of a file, as of HDF5 or Zarr.

    Arrays of files are known by an attribute for their chunks; arrays of dask have it too, and are none.
    """
    if isinstance(X, np.ndarray):
        return False
    if isinstance(X, str | os.PathLike) or _is_dataset(X):
        return True
    has_numbers = getattr(getattr(X, "dtype", None), "kind", "") in NUMBERS
    is_array = has_numbers and isinstance(getattr(X, "shape", None), tuple) and hasattr(X, "__getitem__")
    return is_array and hasattr(X, "chunks") and not hasattr(X, "__dask_graph__")


def read_file_table(
    X: object, y: object, sample_weight: object, columns: Sequence[str] | None, *, is_regression: bool
) -> tuple[Any, Any, Any]:
    """Return the rows of files as a table, with targets and weights from their columns.

    The rows are written once to a temporary file, which is read as a memory map. It has no name, so that
    nothing of it is left when the process ends, however that happens.

    Parameters
    ----------
    X : path, pyarrow.dataset.Dataset, pyarrow.dataset.Scanner or array of a file
        The files; see :func:`is_file_table`.
    y : str, list of str, array-like or None
        The targets, or the names of their columns.
    sample_weight : str, array-like or None
        The weights of the samples, or the name of their column.
    columns : sequence of str or None
        The names of the features; None: all columns but those of targets and weights.
    is_regression : bool
        Whether whole numbers in a target of a CSV file are real numbers.

    Returns
    -------
    DataFrame or ndarray
        The table, in float32 or float64; with names if the files have some.
    object
        The targets.
    object
        The weights.

    Raises
    ------
    ParameterError
        If a path or a column is missing, or a column holds no numbers.
    MissingRuntimeError
        If pyarrow or pandas is not installed.
    OSError
        If the folder for temporary files is full.
    """
    if isinstance(X, str | os.PathLike):
        if not os.fspath(X):
            raise ParameterError(f"X is the path {X!r}, which names no file and no folder.")
        rows = rows_of_path(Path(X).expanduser(), () if is_regression else _names(y))
        return _Columns(rows, y, sample_weight, columns).read()
    if _is_dataset(X):
        return _Columns(DatasetRows(X), y, sample_weight, columns).read()
    stored = cast(_StoredArray, X)
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if isinstance(value, str):
            raise ParameterError(
                f"{name}={value!r} names a column, and X is an array of a file, without names: give an array."
            )
    if not stored.shape:
        raise ParameterError("X has shape (): it must have an axis of samples.")
    return _mapped(tuple(stored.shape), _stored(stored.dtype), _slices(stored)), y, sample_weight


class _StoredArray(Protocol):
    """An array of a file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: object

    def __getitem__(self, rows: slice, /) -> ArrayLike: ...


def _is_dataset(X: object) -> TypeGuard[pyarrow.dataset.Dataset | pyarrow.dataset.Scanner]:
    """Tell whether `X` is a dataset of pyarrow, or some rows and columns of one, without an import of it."""
    names = ((base.__module__, base.__name__) for base in type(X).__mro__)
    return any(name in (("pyarrow._dataset", "Dataset"), ("pyarrow._dataset", "Scanner")) for name in names)


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the real type that holds all numbers of another one."""
    return np.dtype(np.float32) if np.can_cast(np.dtype(dtype), np.float32) else np.dtype(np.float64)


def _mapped(shape: tuple[int, ...], dtype: np.dtype[Any], blocks: Iterable[np.ndarray]) -> np.ndarray:
    """Return blocks of rows as a memory map of a temporary file; the first size of the shape may be -1."""
    folder, n_rows = tempfile.gettempdir(), 0
    with tempfile.TemporaryFile(prefix="onnxsgd-") as file:
        try:
            for block in blocks:
                n_rows += len(block)
                file.write(np.ascontiguousarray(block, dtype).data)
            file.flush()
        except OSError as error:
            raise OSError(
                error.errno,
                f"The rows of X do not fit into the folder for temporary files after {file.tell()} bytes: "
                f"the environment variable TMPDIR names another one ({error.strerror})",
                folder,
            ) from error
        if not n_rows or 0 in shape[1:]:
            raise ParameterError(
                f"X has shape {(n_rows, *shape[1:])}: it must have one row and column at least."
            )
        return np.asarray(np.memmap(file, dtype, "r", shape=(n_rows, *shape[1:])))


def _slices(X: _StoredArray) -> Iterator[np.ndarray]:
    """Yield the rows of an array of a file, whole chunks where they are small."""
    n_rows = max(1, _BLOCK_BYTES // max(1, X.dtype.itemsize * int(np.prod(X.shape[1:], dtype=np.int64))))
    chunks = X.chunks
    chunk = chunks[0] if isinstance(chunks, tuple) and isinstance(chunks[0], int) else 1
    n_rows = max(chunk, n_rows // chunk * chunk)
    for start in range(0, X.shape[0], n_rows):
        yield _rows(X, slice(start, start + n_rows))


@naming("X")
def _rows(X: _StoredArray, rows: slice) -> np.ndarray:
    """Return some rows of an array of a file."""
    return np.asarray(X[rows])


def _names(y: object) -> tuple[str, ...]:
    """Return the names of columns, if there are any: in a list, an array, or an index of pandas."""
    if isinstance(y, str):
        return (y,)
    # no copy of all labels
    is_short = getattr(y, "size", _MOST_NAMES + 1) <= _MOST_NAMES
    names = y.tolist() if hasattr(y, "tolist") and is_short else y
    if not isinstance(names, list | tuple) or len(names) > _MOST_NAMES:
        return ()
    return tuple(names) if set(map(type, names)) == {str} else ()


@naming("X")
def _index_columns(schema: pyarrow.Schema) -> set[str]:
    """Return the columns that are the index of the frame of pandas that was written."""
    metadata = schema.pandas_metadata
    names = metadata.get("index_columns") if isinstance(metadata, dict) else None
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _joined(name: str, parts: list[np.ndarray]) -> np.ndarray:
    """Return the values of a column of targets or weights."""
    if len({part.dtype.kind == "O" for part in parts}) > 1:
        raise ParameterError(f"Column {name!r} of X has numbers in some files and texts in others.")
    return np.concatenate(parts)


class _Columns:
    """The columns of files: features, targets, weights.

    Parameters
    ----------
    rows : StoredRows
        The files.
    y, sample_weight, columns : objects
        As in :func:`read_file_table`.
    """

    def __init__(
        self, rows: StoredRows, y: object, sample_weight: object, columns: Sequence[str] | None
    ) -> None:
        self._arrow, self._rows, self._schema = arrow(), rows, rows.schema
        self._y, self._weight = y, sample_weight
        known = self._schema.names
        targets = _names(y)
        # a list of labels is none of names
        self._targets = targets if isinstance(y, str) or not set(known).isdisjoint(targets) else ()
        self._weights = _names(sample_weight) if isinstance(sample_weight, str) else ()
        taken = {*self._targets, *self._weights}
        left_out = taken | _index_columns(self._schema)
        self._features = list(columns) if columns is not None else [n for n in known if n not in left_out]
        for argument, names in (
            ("y", self._targets),
            ("sample_weight", self._weights),
            ("X", self._features),
        ):
            self._require(argument, names)
        if not self._features:
            raise ParameterError(f"X has the columns {known}, and no features beside {sorted(taken)}.")
        for name in taken:
            rows.types(name)
        self.dtype = np.result_type(np.float32, *(self._stored(name) for name in self._features))

    def _require(self, argument: str, names: Sequence[str]) -> None:
        """Refuse names of columns that are missing, or that are there twice."""
        known = self._schema.names
        for name in names:
            if known.count(name) != 1:
                found = "two columns of this name" if name in known else f"the columns {known}"
                raise ParameterError(f"{argument} is taken from the column {name!r}, and X has {found}.")

    def _stored(self, name: str) -> np.dtype[Any]:
        """Return the real type that holds the numbers of a column."""
        types, found = self._arrow.types, [np.dtype(np.float32).str]
        for kind in self._rows.types(name):
            if types.is_decimal(kind) or types.is_null(kind):
                found.append("f8")
            elif types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
                found.append(_stored(np.dtype(kind.to_pandas_dtype())).str)
            else:
                raise ParameterTypeError(
                    f"X has the column {name!r} of type {kind}, and features are numbers: encode it in "
                    "another file, or leave it out, pyarrow.dataset.dataset(path).scanner(columns=[...])."
                )
        return np.result_type(*found)

    def read(self) -> tuple[pandas.DataFrame, Any, Any]:
        """Return the features as a frame over a memory map, the targets and the weights."""
        import pandas

        found: dict[str, list[np.ndarray]] = {name: [] for name in (*self._targets, *self._weights)}
        table = _mapped((-1, len(self._features)), self.dtype, self._blocks(found))
        features = pandas.DataFrame(table, columns=self._features, copy=False)
        columns = {name: _joined(name, parts) for name, parts in found.items()}
        y, weight = self._y, self._weight
        if isinstance(y, str):
            y = columns[y]
        elif self._targets:
            y = np.column_stack([columns[name] for name in self._targets])
        return features, y, columns[weight] if isinstance(weight, str) else weight

    def _blocks(self, found: dict[str, list[np.ndarray]]) -> Iterator[np.ndarray]:
        """Yield the features of blocks of rows; add the other columns to those found."""
        batches = self._rows.batches(list(dict.fromkeys([*self._features, *found])))
        while (block := self._next(batches, found)) is not None:
            yield block

    @naming("X")
    def _next(
        self, batches: Iterator[pyarrow.RecordBatch], found: dict[str, list[np.ndarray]]
    ) -> np.ndarray | None:
        """Return the features of the next batch, and add its other columns to those found; None: the end."""
        batch = next(batches, None)
        if batch is None:
            return None
        for name, parts in found.items():
            column = batch.column(name)
            values = self._values(column)
            if column.null_count and values.dtype.kind == "O":
                raise ParameterError(
                    f"Column {name!r} of X has missing entries, and is no column of numbers."
                )
            parts.append(values)
        block = np.empty((batch.num_rows, len(self._features)), self.dtype)
        for place, name in enumerate(self._features):
            block[:, place] = self._numbers(batch.column(name))
        return block

    def _numbers(self, column: pyarrow.Array) -> np.ndarray:
        """Return a column of features; missing values are NaN."""
        real = column.cast(self._arrow.from_numpy_dtype(self.dtype), safe=False)
        return real.to_numpy(zero_copy_only=False)

    def _values(self, column: pyarrow.Array) -> np.ndarray:
        """Return a column of targets or weights; texts that are equal share one object."""
        types = self._arrow.types
        if types.is_string(column.type) or types.is_large_string(column.type):
            column = column.dictionary_encode()
        if types.is_dictionary(column.type) and not column.null_count:
            return column.dictionary.to_numpy(zero_copy_only=False)[column.indices.to_numpy()]
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if types.is_decimal(column.type):
            column = column.cast(self._arrow.float64())
        return column.to_numpy(zero_copy_only=False)
