"""Fields of the messages of a serialized model, as far as these are written by columns."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from onnxsgd.persistence.varints import read_varint

__all__ = [
    "INSIDE",
    "INT64",
    "NUMBER_TYPE",
    "OPERATOR",
    "SIZES",
    "column_of",
    "content_of",
    "fields_of",
    "parts_of",
]

#: For each type of message the fields that are messages, by their numbers in onnx.proto, and their types; the
#: order is part of the form.
INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 8: "operators", 14: "entry"},
    "graph": {1: "node", 5: "tensor", 11: "value", 12: "value", 13: "value", 16: "entry"},
    "node": {5: "attribute", 9: "entry"},
    "attribute": {5: "tensor", 6: "graph"},
    "tensor": {16: "entry"},
    "value": {2: "type", 4: "entry"},
    "type": {1: "tensor type"},
    "tensor type": {2: "shape"},
    "shape": {1: "dimension"},
    "dimension": {},
    "operators": {},
    "entry": {},
    # numbers of tensors
    "integers": {},
}
_TYPES = {name: number for number, name in enumerate(INSIDE)}
#: Wire types of protobuf, and the sizes of those that have no number or size of their own.
_INTEGER, _SIZED = 0, 2
SIZES = {1: 8, 5: 4}
#: The tags of a node's operator, and of the type of a tensor's numbers; that of whole ones.
OPERATOR, NUMBER_TYPE, INT64 = 4 << 3 | _SIZED, 2 << 3 | _INTEGER, 7
#: Fields of tensors that hold numbers.
_NUMBERS = frozenset({4, 5, 7, 9, 10, 11})


@functools.lru_cache(256)
def content_of(name: str, tag: int) -> str:
    """Return the content of a field of a type of message."""
    if tag & 7 == _INTEGER:
        return "integer"
    if tag & 7 != _SIZED:
        return "word"
    if tag >> 3 in INSIDE[name]:
        return "message"
    if name == "tensor" and tag >> 3 in _NUMBERS:
        return "numbers"
    return "operator" if (name, tag) == ("node", OPERATOR) else "text"


@functools.lru_cache(256)
def column_of(name: str, tag: int) -> int:
    """Return the number of the column of a field, or with tag 0 of the kinds of a type."""
    return _TYPES[name] + len(_TYPES) * tag


def fields_of(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the tags and values of the fields of a message.

    Raises
    ------
    ValueError, IndexError, KeyError
        If the bytes are none.
    """
    at = 0
    while at < len(content):
        tag, at = read_varint(content, at)
        wire = tag & 7
        if wire == _INTEGER:
            value, at = read_varint(content, at)
            yield tag, value
            continue
        if wire == _SIZED:
            size, at = read_varint(content, at)
        else:
            size = SIZES[wire]
        if at + size > len(content):
            raise ValueError("a field that ends after its message")
        yield tag, content[at : at + size]
        at += size


def parts_of(name: str, tags: Sequence[int]) -> list[tuple[int, int, str]]:
    """Return the tag of each field, its number in a row of equal ones, up to 3, and its content."""
    parts, last, number = [], 0, 0
    for tag in tags:
        number = min(number + 1, 3) if tag == last else 0
        last = tag
        parts.append((tag, number, content_of(name, tag)))
    return parts
