"""Folders of checkpoints: the last two are kept, the last whole one is read."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from onnxsgd.exceptions import ParameterError
from onnxsgd.persistence.saved_file import DamagedFileError

__all__ = ["last_files", "next_file", "read_last", "remove_older"]

_PREFIX, _SUFFIX = "checkpoint-", ".onnxsgd"
_NAME = re.compile(rf"{_PREFIX}([0-9]{{6,}}){re.escape(_SUFFIX)}")

_Read = TypeVar("_Read")


def next_file(folder: Path) -> Path:
    """Return the path of the next checkpoint of a folder."""
    last = next(iter(last_files(folder)), None)
    number = 1 + (0 if last is None else _number_of(last.name))
    return folder / f"{_PREFIX}{number:06d}{_SUFFIX}"


def _number_of(name: str) -> int:
    return int(name[len(_PREFIX) : -len(_SUFFIX)])


def last_files(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the last one first; none if there is no folder.

    Raises
    ------
    ParameterError
        If it is a file.
    OSError
        If it cannot be listed: it may have checkpoints.
    """
    try:
        names = os.listdir(folder)
    except NotADirectoryError:
        raise ParameterError(f"checkpoint={os.fspath(folder)!r} is a file: it must name a folder.") from None
    except FileNotFoundError:
        return []
    found = sorted((name for name in names if _NAME.fullmatch(name)), key=_number_of, reverse=True)
    return [folder / name for name in found]


def read_last(folder: Path, read: Callable[[Path], _Read]) -> _Read | None:
    """Return what `read` makes of the last checkpoint that is whole; None: there is no file.

    Raises
    ------
    DamagedFileError, OSError
        If all of them are damaged, or cannot be read: that of the oldest one. If the folder cannot be listed.
    """
    files = last_files(folder)
    for number, path in enumerate(files):
        try:
            return read(path)
        except (DamagedFileError, OSError) as error:
            if number == len(files) - 1:
                raise
            warnings.warn(
                f"{str(error).rstrip('.')}. Training continues from the checkpoint before.", stacklevel=4
            )
    return None


def remove_older(folder: Path, n_kept: int = 2) -> None:
    """Remove all checkpoints but the last ones: two, as the last one may be damaged."""
    for path in last_files(folder)[n_kept:]:
        with suppress(OSError):
            path.unlink()
