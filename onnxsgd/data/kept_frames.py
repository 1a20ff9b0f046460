"""Rows of a data frame as lists of plain values, which files without code can hold, and the frame of them."""

from __future__ import annotations

from typing import Any, TypedDict, TypeGuard

import numpy as np

__all__ = ["KeptFrame", "check_kept_frame", "frame_of", "is_kept_frame", "kept_frame"]

_POLARS, _PANDAS = "polars", "pandas"


class KeptFrame(TypedDict):
    """The library that makes a frame, and [name, type, values] for each column."""

    frame: str
    columns: list[list[Any]]


def kept_frame(frame: Any) -> KeptFrame:
    """Return the plain form of a frame; values other than texts, numbers and none become texts.

    That of a library other than polars is one of pandas.
    """
    library = _POLARS if type(frame).__module__.partition(".")[0] == _POLARS else _PANDAS
    names = frame.columns if library == _POLARS else frame.columns.tolist()
    columns = frame.iter_columns() if library == _POLARS else (column for _, column in frame.items())
    table = [
        [name, str(column.dtype), [_plain(value) for value in column.to_list()]]
        for name, column in zip(names, columns, strict=True)
    ]
    return {"frame": library, "columns": table}


def is_kept_frame(sample: object) -> TypeGuard[KeptFrame]:
    """Tell whether an object is the plain form of a frame."""
    return type(sample) is dict and sample.keys() == {"frame", "columns"}


def check_kept_frame(kept: KeptFrame) -> None:
    """Refuse a plain form that no frame has.

    Raises
    ------
    ValueError
        If it names another library, or its columns are no names, types and values of one length.
    """
    library, columns = kept["frame"], kept["columns"]
    are_columns = isinstance(columns, list) and all(
        isinstance(column, list) and len(column) == 3 and isinstance(column[1], str)
        and isinstance(column[2], list) and len(column[2]) == len(columns[0][2])
        and all(_is_plain(value) for value in column[2])
        for column in columns
    )  # fmt: skip
    if library not in (_POLARS, _PANDAS) or not are_columns:
        raise ValueError(f"the sample of texts is no frame: {kept!r:.60}")


def frame_of(kept: KeptFrame) -> Any:
    """Return the frame of a plain form; a column whose type its library does not make has another one."""
    # imported on use: they are the user's libraries
    if kept["frame"] == _POLARS:
        import polars

        return polars.DataFrame([_polars_column(*column) for column in kept["columns"]])
    import pandas

    names = [name for name, *_ in kept["columns"]]
    columns = [_pandas_column(kind, values) for _, kind, values in kept["columns"]]
    return pandas.DataFrame(dict(enumerate(columns))).set_axis(names, axis=1)


def _polars_column(name: str, kind: str, values: list[object]) -> Any:
    import polars

    dtype = getattr(polars, kind, None)
    is_type = isinstance(dtype, type) and issubclass(dtype, polars.DataType)
    return polars.Series(name, values, dtype=dtype if is_type else None, strict=False)


def _pandas_column(kind: str, values: list[object]) -> Any:
    import pandas

    try:
        return pandas.Series(values, dtype=kind)
    except (TypeError, ValueError, ImportError):
        return pandas.Series(values)


def _plain(value: object) -> object:
    """Return a value as JSON has it: a text, a number, a truth value or None."""
    value = value.item() if isinstance(value, np.generic) else value
    if _is_plain(value):
        return value
    # pandas has marks of its own for missing values
    return None if type(value).__name__ in ("NAType", "NaTType") else str(value)


def _is_plain(value: object) -> bool:
    return value is None or type(value) in (str, bool, int, float)
