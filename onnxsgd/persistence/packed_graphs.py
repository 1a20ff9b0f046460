"""Serialized graphs in few bytes: small ones by zlib alone, larger ones by columns before it."""

from __future__ import annotations

import hashlib
import zlib

from onnxsgd.exceptions import ParameterError
from onnxsgd.persistence.compression import LARGEST, compressed, decompressed
from onnxsgd.persistence.graph_columns import from_columns, to_columns
from onnxsgd.persistence.known_values import KnownValues
from onnxsgd.runtime.cache import cached

__all__ = ["packed", "unpacked"]

#: The first byte of columns: no serialized model begins with it. Four bytes of a checksum follow.
_COLUMNS, _START = b"C", 5
#: The fewest bytes of a graph that is written by columns: below, columns take longer to read and save little.
_LEAST = 4096
#: The most bytes of a graph that is written by columns, and further ones for each byte of known numbers.
_MOST, _PER_BYTE = 1 << 22, 16


def packed(content: bytes, known: KnownValues) -> bytes:
    """Return a serialized model in fewer bytes, if it is not too large."""
    if _LEAST <= len(content) <= _most(known):
        key = "packed graph", hashlib.sha256(content).digest(), known.digest()
        columns = cached(key, lambda: _by_columns(content, known))
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
    if saved[:1] != _COLUMNS:
        return decompressed(saved)
    key = "unpacked graph", hashlib.sha256(saved).digest(), known.digest()
    return cached(key, lambda: _of_columns(saved, known), _PER_BYTE * len(saved))


def _most(known: KnownValues) -> int:
    return _MOST + _PER_BYTE * known.nbytes


def _by_columns(content: bytes, known: KnownValues) -> bytes | None:
    columns = to_columns(content, known)
    return None if columns is None else _COLUMNS + _checksum(content) + compressed(columns)


def _of_columns(saved: bytes, known: KnownValues) -> bytes:
    most = _most(known)
    # places of words take twice their bytes at most
    columns = decompressed(saved[_START:], most=3 * most)
    try:
        content = from_columns(columns, known, most)
        if _checksum(content) != saved[1:_START]:
            raise ValueError("another checksum")
    except ValueError as error:
        if not known.arrays:
            raise
        raise ParameterError(
            "model has other arrays than it had when the estimator was saved: read it with the same version of "
            f"scikit-learn ({error})."
        ) from error
    return content


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(4, "little")
