"""Rows of Parquet, CSV and Arrow files in record batches of pyarrow, a few megabytes at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxsgd._cached_property import cached_property
from onnxsgd._library_errors import reason
from onnxsgd.data.refusals import naming
from onnxsgd.exceptions import MissingRuntimeError, ParameterError

if TYPE_CHECKING:
    import pyarrow

__all__ = ["DatasetRows", "FileRows", "StoredRows", "arrow", "rows_of_path"]

#: The bytes of a batch of rows: a bound of memory.
_BATCH_BYTES = 1 << 22


def arrow() -> Any:
    """Return pyarrow, with its readers of files.

    Raises
    ------
    MissingRuntimeError
        If it, or pandas, is not installed.
    """
    try:
        import pandas  # noqa: F401
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.dataset
        import pyarrow.parquet
    except ImportError as error:
        raise MissingRuntimeError(
            f"The files of X are read by pyarrow and pandas ({error}): pip install 'onnxsgd[files]'."
        ) from None
    return pyarrow


class StoredRows(ABC):
    """Rows that are stored in files.

    Attributes
    ----------
    schema : pyarrow.Schema
        The names and types of their columns.
    """

    schema: pyarrow.Schema

    def types(self, name: str) -> list[pyarrow.DataType]:
        """Return the types that a column has in the files."""
        return [self.schema.field(name).type]

    @abstractmethod
    def batches(self, names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        """Yield record batches with some columns, in the order of the rows."""


class DatasetRows(StoredRows):
    """The rows of a dataset of pyarrow, or of a scanner, which has some of its rows and columns.

    Parameters
    ----------
    source : pyarrow.dataset.Dataset or pyarrow.dataset.Scanner
        The dataset.
    """

    def __init__(self, source: pyarrow.dataset.Dataset | pyarrow.dataset.Scanner) -> None:
        self._source, self._is_scanner = source, not hasattr(source, "scanner")
        self.schema = source.projected_schema if self._is_scanner else source.schema

    def batches(self, names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        """Yield record batches; those of a scanner have all of its columns."""
        if self._is_scanner:
            yield from self._source.to_batches()
            return
        dataset = arrow().dataset
        is_parquet = getattr(getattr(self._source, "format", None), "default_extname", "") == "parquet"
        options = {"batch_size": _batch_rows(names), "batch_readahead": 1, "fragment_readahead": 1}
        if is_parquet:
            # batches that are read in advance stay in memory until their file ends
            options["fragment_scan_options"] = dataset.ParquetFragmentScanOptions(pre_buffer=False)
        yield from self._source.scanner(columns=list(names), **options).to_batches()


class FileRows(StoredRows):
    """The rows of files of one format, one file after the other.

    Parameters
    ----------
    files : sequence of pathlib.Path
        The files; columns and types are those of the first one.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self.schema = self._read_schema(files[0])

    def types(self, name: str) -> list[pyarrow.DataType]:
        """Return the types that a column has in the files.

        Raises
        ------
        ParameterError
            If a file lacks it.
        """
        for file, schema in zip(self._files, self._schemas, strict=True):
            if name not in schema.names:
                first = str(self._files[0])
                raise ParameterError(
                    f"The file {str(file)!r} of X lacks the column {name!r}, which {first!r} has."
                )
        return [schema.field(name).type for schema in self._schemas]

    def batches(self, names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        """Yield record batches of each file."""
        for file in self._files:
            try:
                yield from self._batches_of(file, names)
            except (arrow().ArrowException, OSError) as error:
                raise _unreadable(file, error) from error

    @cached_property
    def _schemas(self) -> list[pyarrow.Schema]:
        return [self.schema, *map(self._read_schema, self._files[1:])]

    def _read_schema(self, file: Path) -> pyarrow.Schema:
        try:
            return self._schema_of(file)
        except (arrow().ArrowException, OSError) as error:
            raise _unreadable(file, error) from error

    @abstractmethod
    def _schema_of(self, file: Path) -> pyarrow.Schema:
        """Return the names and types of the columns of a file."""

    @abstractmethod
    def _batches_of(self, file: Path, names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        """Yield the record batches of a file."""


class _ParquetRows(FileRows):
    """The rows of Parquet files."""

    def _schema_of(self, file: Path) -> Any:
        return arrow().parquet.read_schema(file)

    def _batches_of(self, file: Path, names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        # batches that are read in advance stay in memory until the file ends
        with arrow().parquet.ParquetFile(file, pre_buffer=False) as opened:
            yield from opened.iter_batches(_batch_rows(names), columns=list(names))


class _ArrowRows(FileRows):
    """The rows of Arrow files, which are Feather files of version 2."""

    def _schema_of(self, file: Path) -> Any:
        with arrow().memory_map(str(file)) as opened:
            return arrow().ipc.open_file(opened).schema

    def _batches_of(self, file: Path, names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        n_rows = _batch_rows(names)
        with arrow().memory_map(str(file)) as opened:
            stored = arrow().ipc.open_file(opened)
            for number in range(stored.num_record_batches):
                batch = stored.get_batch(number).select(list(names))
                for start in range(0, len(batch), n_rows):
                    yield batch.slice(start, n_rows)


class _CsvRows(FileRows):
    """The rows of CSV files with a line of names.

    Parameters
    ----------
    files : sequence of pathlib.Path
        The files.
    delimiter : str
        The character between two entries.
    labels : sequence of str
        The columns whose whole numbers are classes. Other columns of whole numbers may have any numbers below
        the first block, from which pyarrow takes the types.
    """

    def __init__(self, files: Sequence[Path], delimiter: str, labels: Sequence[str]) -> None:
        self._delimiter, self._labels, self._types = delimiter, labels, dict[str, Any]()
        super().__init__(files)
        self._types = {field.name: _csv_type(field, field.name in labels) for field in self.schema}
        self.schema = self._read_schema(files[0])

    def _schema_of(self, file: Path) -> Any:
        with self._open(file) as opened:
            return opened.schema

    def _batches_of(self, file: Path, names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        with self._open(file, names) as opened:
            for batch in opened:
                yield self._without_empty_labels(batch)

    def _without_empty_labels(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """Return a batch whose labels without a text are missing, as in columns of numbers."""
        for name in set(self._labels).intersection(batch.schema.names):
            number = batch.schema.get_field_index(name)
            column = batch.column(number)
            if arrow().types.is_string(column.type):
                compute = arrow().compute
                missing = arrow().scalar(None, column.type)
                present = compute.if_else(compute.equal(column, ""), missing, column)
                batch = batch.set_column(number, batch.schema.field(number), present)
        return batch

    def _open(self, file: Path, names: Sequence[str] = ()) -> Any:
        csv = arrow().csv
        return csv.open_csv(
            str(file),
            read_options=csv.ReadOptions(use_threads=False),
            parse_options=csv.ParseOptions(delimiter=self._delimiter),
            convert_options=csv.ConvertOptions(include_columns=list(names), column_types=self._types),
        )


def _csv_type(field: pyarrow.Field, is_label: bool) -> pyarrow.DataType:
    """Return the type of a column of CSV, which may have any numbers below the first block, or labels."""
    types = arrow().types
    if is_label:
        return arrow().string() if types.is_temporal(field.type) else field.type
    is_open = types.is_integer(field.type) or types.is_null(field.type)
    return arrow().float64() if is_open else field.type


def _unreadable(file: Path, error: Exception) -> ParameterError:
    """Return the error for a file that a library cannot read."""
    return ParameterError(f"The file {str(file)!r} of X cannot be read: {reason(error)}.")


def _batch_rows(names: Sequence[str]) -> int:
    """Return the rows of a batch of columns of real numbers."""
    return max(1, _BATCH_BYTES // (8 * max(1, len(names))))


#: The ends of the names of files that are read, each with its format: a class, or the delimiter of CSV.
_FORMATS: dict[str, Any] = {
    ".parquet": _ParquetRows, ".arrow": _ArrowRows, ".feather": _ArrowRows,
    ".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t",
}  # fmt: skip


@naming("X")
def rows_of_path(path: Path, labels: Sequence[str]) -> FileRows:
    """Return the rows of a file, or of all files in a folder in the order of their names.

    Parameters
    ----------
    path : pathlib.Path
        The file or folder.
    labels : sequence of str
        The columns whose whole numbers are classes.

    Raises
    ------
    ParameterError
        If there is none, or it has another format.
    """
    if not path.exists():
        raise ParameterError(
            f"X is the path {str(path)!r}, where there is no file and no folder. (Texts are given as a list "
            "of strings.)"
        )
    if not path.is_file() and not path.is_dir():
        raise ParameterError(f"X is the path {str(path)!r}, which is no file and no folder.")
    files = _files_in(path) if path.is_dir() else [path]
    ends = sorted({_end_of(file) for file in files})
    if len(ends) != 1 or ends[0] not in _FORMATS:
        found = f"the folder {str(path)!r} of files that end in {ends}" if path.is_dir() else f"{str(path)!r}"
        raise ParameterError(
            f"X is {found}: it must be a file, or a folder of files, of one of the formats {list(_FORMATS)}; "
            "others through pyarrow.dataset.dataset."
        )
    form = _FORMATS[ends[0]]
    return _CsvRows(files, form, labels) if isinstance(form, str) else form(files)


def _files_in(folder: Path) -> list[Path]:
    """Return the files in a folder, and in folders inside, without hidden ones."""
    found = []
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if any(part[0] in "._" for part in parts) or not file.is_file():
            continue
        partition = next((part for part in parts[:-1] if "=" in part), None)
        if partition is not None:
            raise ParameterError(
                f"X is the folder {str(folder)!r}, in which folders such as {partition!r} hold a column: "
                "give pyarrow.dataset.dataset(path, partitioning='hive')."
            )
        found.append(file)
    return found


def _end_of(path: Path) -> str:
    """Return the end of the name of a file."""
    compressed = "".join(path.suffixes[-2:]).lower()
    return compressed if compressed in _FORMATS else path.suffix.lower()
