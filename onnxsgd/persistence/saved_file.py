"""Files of JSON and tensors, in the format of safetensors, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onnxsgd._files import path_of, write_whole
from onnxsgd._library_errors import reason
from onnxsgd._version import __version__
from onnxsgd.exceptions import OnnxSGDError, ParameterError

__all__ = ["FORMAT", "DamagedFileError", "read_file", "write_file"]

#: The number of the format written.
FORMAT = 1
#: The entries of the header of safetensors that hold the JSON, and the digest of JSON and tensors.
_ENTRY, _DIGEST = "onnxsgd", "sha256"

_Read = TypeVar("_Read")


class DamagedFileError(ParameterError):
    """A file that is none of those written here, or no longer."""


def write_file(
    path: str | os.PathLike[str], content: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> None:
    """Write a file under its name once it is whole and on the disk; until then a file of this name stays.

    Parameters
    ----------
    path : str or path-like
        The file.
    content : dict
        Values of JSON, which a format number and the version of this package precede.
    tensors : dict of ndarray
        Arrays of numbers of at most eight bytes.

    Raises
    ------
    OSError
        If it cannot be written. No part of it is left.
    """
    text = json.dumps({"format": FORMAT, "version": __version__, **content}, allow_nan=False)
    # safetensors writes the memory of an array, whatever its order
    held = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    metadata = {_ENTRY: text, _DIGEST: _digest(text, held)}
    write_whole({path_of(path): partial(_fill, held, metadata)})


def _fill(tensors: dict[str, np.ndarray], metadata: dict[str, str], name: str) -> None:
    """Write the file `name`."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(tensors, name, metadata=metadata)
    except SafetensorError as error:
        raise OSError(f"{reason(error)}.") from error


def read_file(
    path: str | os.PathLike[str],
    read: Callable[[dict[str, Any], dict[str, np.ndarray]], _Read],
) -> _Read:
    """Return what `read` makes of the JSON and the tensors of a file.

    Errors of `read` that values of other kinds, sizes and names cause are those of a damaged file.

    Raises
    ------
    OSError
        If the file cannot be opened.
    DamagedFileError
        If it is no such file, or a damaged one.
    ParameterError
        If it is of a newer format.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import load

    shown = f"The file {os.fspath(path)!r}"
    if not Path(path).is_file():
        # pipes and devices would never end
        kind = "is no regular file" if Path(path).exists() else "does not exist"
        raise FileNotFoundError(f"{shown} {kind}.")
    # safe_open calls a file that may not be read a missing one
    Path(path).open("rb").close()
    try:
        with safe_open(os.fspath(path), framework="numpy") as opened:
            metadata = opened.metadata() or {}
            text, content = metadata[_ENTRY], json.loads(metadata[_ENTRY])
            written, version = content["format"], content["version"]
            if type(written) is not int or written < 1:
                raise ValueError(f"its format is {written!r:.40}")
            if written > FORMAT:
                raise ParameterError(
                    f"{shown} has format {written}, of onnxsgd {version}; onnxsgd {__version__} reads "
                    f"formats up to {FORMAT}: install that version, or a newer one."
                )
        # not from the map of safe_open, which ends the process if the file is made shorter meanwhile
        tensors = load(Path(path).read_bytes())
        if _digest(text, tensors) != metadata[_DIGEST]:
            raise ValueError("its contents do not have the digest that it states")
        return read(content, tensors)
    except OnnxSGDError:
        raise
    except (*_DAMAGE, SafetensorError) as error:
        is_key = isinstance(error, KeyError) and len(error.args) == 1
        said = f"an entry {error.args[0]!r:.60} is unknown or missing" if is_key else reason(error)
        raise DamagedFileError(f"{shown} is no file of est.save, or a damaged one: {said}.") from error


#: The errors of values of other kinds, sizes and names than those written.
_DAMAGE = (
    ArithmeticError, AttributeError, DecodeError, LookupError, MemoryError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip


def _digest(text: str, tensors: Mapping[str, np.ndarray]) -> str:
    """Return a digest of all numbers and names of a file."""
    digest = hashlib.sha256(text.encode())
    for name, array in sorted(tensors.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
