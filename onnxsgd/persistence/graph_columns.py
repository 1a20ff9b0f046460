"""Serialized graphs by columns: what is alike in all nodes lies side by side, where zlib finds it.

The graph of a large pipeline has the same few nodes for one column of the data after another. Between what
they have in common, protobuf's form has names and sizes. Here each field of each type of message is a column.
Texts and numbers that the estimator has too, of which the graph was made, are replaced by their places there.

The form is a sequence of columns, each a key, a length, and its bytes. Those of the first keys are::

    1, 2, 3           texts (see ``text_patterns``)
    4                 kinds of messages: the number of fields, and their tags
    5, 6, 7           words (see ``equal_words``)
    8                 bytes of which no words can be made

Each further column holds the values of one field of one type of message: steps from one whole number to the
next, places of texts, or steps of sizes; that of a type itself holds the kinds of its messages.
"""

from __future__ import annotations

import functools

import numpy as np

from onnxsgd.persistence.equal_words import read_words, write_words
from onnxsgd.persistence.known_values import KnownValues
from onnxsgd.persistence.message_fields import (
    INSIDE,
    INT64,
    NUMBER_TYPE,
    OPERATOR,
    SIZES,
    column_of,
    fields_of,
    parts_of,
)
from onnxsgd.persistence.text_patterns import ExpectedTexts, TextWriter, read_texts
from onnxsgd.persistence.varints import read_varint, read_varints, signed, unsigned, varint, varints

__all__ = ["from_columns", "to_columns"]

#: The first keys of columns that are of no field, in their order, and the first one of those of fields.
_TEXTS, _KINDS, _WORDS, _BYTES, _FIELDS = 1, 4, 5, 8, 9
#: Whole numbers of tensors, and their bytes; the number of values that all have.
_INTEGERS, _LONG, _ALL = ("integers", 0), 8, 1 << 64
#: The deepest nesting of messages.
_DEEPEST = 60
#: The most fields of messages, and bytes of columns without words: reading takes some microseconds for each.
_MOST_FIELDS, _LONGEST = 1 << 18, 1 << 20
_DAMAGED = (ValueError, IndexError, KeyError, StopIteration)


def to_columns(content: bytes, known: KnownValues) -> bytes | None:
    """Return a serialized model by columns; None: it is in a form of protobuf that these cannot hold."""
    try:
        columns = _Writer(known).columns(content)
        return columns if from_columns(columns, known, len(content)) == content else None
    except _DAMAGED:
        return None


def from_columns(columns: bytes, known: KnownValues, most: int) -> bytes:
    """Return the serialized model that :func:`to_columns` was given, of at most `most` bytes.

    Raises
    ------
    ValueError
        If the columns are damaged, or `known` is another one.
    """
    try:
        return _Reader(columns, known, most).message("model", 0)
    except _DAMAGED as error:
        raise ValueError(f"a graph in it is damaged: {error!r:.60}") from error


class _Writer:
    def __init__(self, known: KnownValues) -> None:
        self._known = known
        self._fields: dict[int, list[int]] = {}
        self._kinds: dict[tuple[int, ...], int] = {}
        self._layout = functools.cache(parts_of)
        self._texts, self._expected = TextWriter(known.texts), ExpectedTexts()
        self._last: dict[int, int] = {}
        self._words, self._bytes = bytearray(), bytearray()

    def columns(self, content: bytes) -> bytes:
        """Return the columns of a model."""
        self._add(content, "model", 0)
        kinds = varints(number for kind in self._kinds for number in (len(kind), *kind))
        words = write_words(bytes(self._words), self._known.words)
        parts = {
            **dict(enumerate([*self._texts.parts(), kinds, *words, bytes(self._bytes)], _TEXTS)),
            **{key + _FIELDS: varints(column) for key, column in sorted(self._fields.items())},
        }
        return b"".join(varints([key, len(part)]) + part for key, part in parts.items() if part)

    def _add(self, content: bytes, name: str, depth: int) -> None:
        """Add a message of a type."""
        _check_depth(depth)
        fields = list(fields_of(content))
        tags = tuple(tag for tag, _ in fields)
        alike = self._kinds.setdefault(tags, len(self._kinds))
        self._column(name, 0).append(alike)
        operator = dict(fields).get(OPERATOR) if name == "node" else None
        if isinstance(operator, bytes):
            alike = self._text(name, OPERATOR, operator, (0, OPERATOR, 0))
        has_integers = name == "tensor" and (NUMBER_TYPE, INT64) in fields
        for (_, value), (tag, number, kind) in zip(fields, self._layout(name, tags), strict=True):
            if isinstance(value, int):
                self._integer(name, tag, value)
            elif kind == "word":
                self._words += value
            elif kind == "message":
                self._add(value, INSIDE[name][tag >> 3], depth + 1)
            elif kind == "numbers":
                self._integer(name, tag, len(value))
                self._numbers(value, has_integers)
            elif kind == "text":
                self._text(name, tag, value, (alike, tag, number))

    def _column(self, name: str, tag: int) -> list[int]:
        return self._fields.setdefault(column_of(name, tag), [])

    def _integer(self, name: str, tag: int, value: int) -> None:
        key = column_of(name, tag)
        # of 64 bits, as negative ones are written
        step = (value - self._last.get(key, 0) + _ALL // 2) % _ALL - _ALL // 2
        self._column(name, tag).append(unsigned(step))
        self._last[key] = value

    def _numbers(self, value: bytes, has_integers: bool) -> None:
        if has_integers and len(value) % _LONG == 0:
            for integer in np.frombuffer(value, "<u8").tolist():
                self._integer(*_INTEGERS, integer)
        elif len(value) % 4:
            self._bytes += value
        else:
            self._words += value

    def _text(self, name: str, tag: int, text: bytes, where: tuple[int, int, int]) -> int:
        place = self._texts.place(text)
        self._column(name, tag).append(self._expected.step(where, place))
        return place


class _Reader:
    def __init__(self, columns: bytes, known: KnownValues, most: int) -> None:
        parts = _parts_of(columns)
        first = [parts.pop(key, b"") for key in range(_TEXTS, _FIELDS)]
        self._fields = {key - _FIELDS: iter(read_varints(part)) for key, part in parts.items()}
        self._texts, self._expected = read_texts(first[: _KINDS - 1], known.texts, most), ExpectedTexts()
        self._layout = functools.cache(parts_of)
        numbers = iter(read_varints(first[_KINDS - 1]))
        self._kinds = [(*[next(numbers) for _ in range(size)],) for size in numbers]
        words, odd = read_words(first[_WORDS - 1 : _BYTES - 1], known.words, most), first[_BYTES - 1]
        self._parts = {_WORDS: memoryview(words), _BYTES: memoryview(odd)}
        self._taken = dict.fromkeys(self._parts, 0)
        self._last: dict[int, int] = {}
        # one limit for all messages: each of those around one could be as large
        self._most_bytes, self._most_fields = most, _MOST_FIELDS

    def message(self, name: str, depth: int) -> bytes:
        """Return the next message of a type."""
        _check_depth(depth)
        found, alike = bytearray(), self._next(name, 0)
        tags = self._kinds[alike]
        self._count_fields(len(tags) + 1)
        if name == "node" and OPERATOR in tags:
            alike = self._text(name, OPERATOR, (0, OPERATOR, 0))
        has_integers = False
        for tag, number, kind in self._layout(name, tags):
            value, head, is_message = b"", varint(tag), kind == "message"
            if kind == "integer":
                integer = self._integer(name, tag)
                has_integers = has_integers or (name, tag, integer) == ("tensor", NUMBER_TYPE, INT64)
                head += varint(integer)
            elif kind == "word":
                head += self._take(SIZES[tag & 7])
            else:
                if is_message:
                    value = self.message(INSIDE[name][tag >> 3], depth + 1)
                elif kind == "numbers":
                    value = self._numbers(self._integer(name, tag), has_integers)
                elif kind == "operator":
                    value = self._texts[alike]
                else:
                    value = self._texts[self._text(name, tag, (alike, tag, number))]
                head += varint(len(value))
            found += head
            found += value
            # those of a message inside are counted there
            self._most_bytes -= len(head) if is_message else len(head) + len(value)
            if self._most_bytes < 0:
                raise ValueError("more bytes than allowed")
        return bytes(found)

    def _count_fields(self, n_fields: int) -> None:
        self._most_fields -= n_fields
        if self._most_fields < 0:
            raise ValueError("more fields than allowed")

    def _next(self, name: str, tag: int) -> int:
        return next(self._fields[column_of(name, tag)])

    def _integer(self, name: str, tag: int) -> int:
        key = column_of(name, tag)
        self._last[key] = integer = (self._last.get(key, 0) + signed(self._next(name, tag))) % _ALL
        return integer

    def _numbers(self, size: int, has_integers: bool) -> bytes:
        if not has_integers or size % _LONG:
            return self._take(size)
        self._count_fields(size // _LONG)
        return np.array([self._integer(*_INTEGERS) for _ in range(size // _LONG)], "<u8").tobytes()

    def _take(self, size: int) -> bytes:
        """Return the next bytes of numbers."""
        part = _BYTES if size % 4 else _WORDS
        start = self._taken[part]
        self._taken[part] = end = start + size
        if end > len(self._parts[part]):
            raise ValueError(f"{size} bytes of numbers that are not there")
        return bytes(self._parts[part][start:end])

    def _text(self, name: str, tag: int, where: tuple[int, int, int]) -> int:
        """Return the place of the next text."""
        place = self._expected.place(where, self._next(name, tag))
        if place < 0:
            raise ValueError(f"text {place}")
        return place


def _parts_of(columns: bytes) -> dict[int, bytes]:
    """Return the columns by key."""
    parts, at, n_bytes = dict[int, bytes](), 0, 0
    while at < len(columns):
        start = at
        key, at = read_varint(columns, at)
        size, at = read_varint(columns, at)
        parts[key] = columns[at : at + size]
        n_bytes += at - start + (not _WORDS <= key <= _BYTES) * size
        at += size
        if n_bytes > _LONGEST:
            raise ValueError(f"more than {_LONGEST} bytes of texts and fields")
    return parts


def _check_depth(depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError(f"messages nested {_DEEPEST} deep")
