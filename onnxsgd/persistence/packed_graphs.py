"""Serialized graphs in few bytes: small ones by zlib alone, larger ones by columns before it."""

from __future__ import annotations

import hashlib
import zlib

from onnxsgd.exceptions import ParameterError
from onnxsgd.persistence.compression import LARGEST, compressed, decompressed
from onnxsgd.persistence.graph_columns import from_columns, to_columns
from onnxsgd.persistence.known_values import KnownValues
from onnxsgd.runtime.cache import cached

__all__ = ["needs_values", "packed", "unpacked"]

#: The first bytes of columns, alone and with known values: no serialized model begins so. Four bytes of a
#: checksum follow.
_ALONE, _WITH_VALUES, _START = b"C", b"K", 5
#: The fewest bytes of a graph that is written by columns: below, columns take longer to read and save little.
_LEAST = 4096
#: The most bytes of a graph that is written by columns, further ones for each byte of known numbers, and the
#: most of these: places in known numbers are of any length in few bytes.
_MOST, _PER_BYTE, _FURTHER = 1 << 22, 16, 1 << 24


def packed(content: bytes, known: KnownValues) -> bytes:
    """Return a serialized model in fewer bytes, if it is not too large."""
    if _LEAST <= len(content) <= _most(known):
        key = "packed graph", hashlib.sha256(content).digest(), known.digest()
        columns = cached(key, lambda: _by_columns(content, known), len(content))
        if columns is not None:
            return columns
    return compressed(content) if len(content) <= LARGEST else content


def unpacked(saved: bytes, known: KnownValues) -> bytes:
    """Return the serialized model that :func:`packed` was given.

    Raises
    ------
    ValueError
        If the bytes are damaged.
    ParameterError
        If `known` is another one.
    """
    if saved[:1] == _ALONE:
        return _of_columns(saved, KnownValues())
    if not needs_values(saved):
        return decompressed(saved)
    try:
        return _of_columns(saved, known)
    except ValueError as error:
        raise ParameterError(
            "model has other arrays than it had when the estimator was saved: read it with the same version "
            f"of scikit-learn ({error})."
        ) from error


def needs_values(saved: bytes) -> bool:
    """Tell whether bytes of :func:`packed` need known values."""
    return saved[:1] == _WITH_VALUES


def _most(known: KnownValues) -> int:
    return _MOST + min(_PER_BYTE * known.nbytes, _FURTHER)


def _by_columns(content: bytes, known: KnownValues) -> bytes | None:
    columns = to_columns(content, known)
    if columns is None:
        return None
    return (_WITH_VALUES if known.arrays else _ALONE) + _checksum(content) + compressed(columns)


def _of_columns(saved: bytes, known: KnownValues) -> bytes:
    # places of words take twice their bytes at most
    columns = decompressed(saved[_START:], most=3 * _most(known))
    content = from_columns(columns, known, _most(known))
    if _checksum(content) != saved[1:_START]:
        raise ValueError("a graph in it is damaged: its checksum is another one")
    return content


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(4, "little")
