"""Serialized graphs by columns: what is alike in all nodes lies side by side, where zlib finds it.

The graph of a large pipeline has the same few nodes for one column of the data after another. Between what
they have in common, protobuf's form has names and sizes. Here each field of each type of message is a column.
Texts and numbers that the estimator has too, of which the graph was made, are replaced by their places there.

The form is a sequence of columns, each a key, a length, and its bytes. Those of the first keys are::

    1, 2, 3           texts (see ``text_patterns``)
    4                 kinds of messages: the number of fields, and their tags
    5, 6, 7           words (see ``equal_words``)
    8                 bytes of which no words can be made

Others are those of the field of a type of message: the steps from one whole number to the next, places of
texts, steps of numbers of bytes; and of the type itself: kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from onnxsgd.persistence.equal_words import read_words, write_words
from onnxsgd.persistence.known_values import KnownValues
from onnxsgd.persistence.text_patterns import TextWriter, read_texts
from onnxsgd.persistence.varints import read_varint, read_varints, signed, unsigned, varints

__all__ = ["from_columns", "to_columns"]

#: For each type of message the fields that are messages, by their numbers in onnx.proto, and their types; the
#: order is part of the form.
_INSIDE: dict[str, dict[int, str]] = {
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
_TYPES = {name: number for number, name in enumerate(_INSIDE)}
#: Fields of tensors that hold numbers; the tag of their type; that of those of int64, and their bytes.
_NUMBERS = frozenset({4, 5, 7, 9, 10, 11})
_NUMBER_TYPE, _INT64, _LONG = 2 << 3, 7, 8
#: Wire types of protobuf, and the sizes of those that have no number or size of their own.
_NUMBER, _SIZED = 0, 2
_SIZES = {1: 8, 5: 4}
#: The tag of a node's operator.
_OPERATOR = 4 << 3 | _SIZED
#: The first keys of columns that are of no field, in their order, and the first one of those of fields.
_TEXTS, _KINDS, _WORDS, _BYTES, _FIELDS = 1, 4, 5, 8, 9
#: The deepest nesting of messages.
_DEEPEST = 60
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
        self._texts, self._expected = TextWriter(known.texts), _Expected()
        self._last: dict[int, int] = {}
        self._words, self._bytes = bytearray(), bytearray()

    def columns(self, content: bytes) -> bytes:
        """Return the columns of a model."""
        self._add(content, "model", 0)
        kinds = varints(number for kind in self._kinds for number in (len(kind), *kind))
        words = write_words(bytes(self._words), self._known.words)
        parts = {
            **dict(enumerate([*self._texts.parts(), kinds, *words, bytes(self._bytes)], _TEXTS)),
            **{key: varints(column) for key, column in sorted(self._fields.items())},
        }
        return b"".join(varints([key, len(part)]) + part for key, part in parts.items() if part)

    def _add(self, content: bytes, name: str, depth: int) -> None:
        """Add a message of a type."""
        _check_depth(depth)
        fields = list(_fields_of(content))
        tags = tuple(tag for tag, _ in fields)
        alike = self._kinds.setdefault(tags, len(self._kinds))
        self._column(name, 0).append(alike)
        for tag, value in fields:
            if (name, tag) == ("node", _OPERATOR):
                alike = self._text(name, tag, value, (0, tag, 0))
        whole = name == "tensor" and (_NUMBER_TYPE, _INT64) in fields
        for (tag, value), where in zip(fields, _places(alike, tags)):
            if isinstance(value, int):
                self._number(name, tag, value)
            elif tag & 7 != _SIZED:
                self._words += value
            elif tag >> 3 in _INSIDE[name]:
                self._add(value, _INSIDE[name][tag >> 3], depth + 1)
            elif name == "tensor" and tag >> 3 in _NUMBERS:
                self._number(name, tag, len(value))
                if whole and len(value) % _LONG == 0:
                    for integer in np.frombuffer(value, "<u8").tolist():
                        self._number("integers", 0, integer)
                else:
                    part = self._bytes if len(value) % 4 else self._words
                    part += value
            elif (name, tag) != ("node", _OPERATOR):
                self._text(name, tag, value, where)

    def _text(self, name: str, tag: int, text: bytes, where: tuple[int, int, int]) -> int:
        place = self._texts.place(text)
        self._column(name, tag).append(self._expected.step(where, place))
        return place

    def _number(self, name: str, tag: int, value: int) -> None:
        key = _key(name, tag)
        # of 64 bits, as negative ones are written
        step = (value - self._last.get(key, 0) + (1 << 63)) % (1 << 64) - (1 << 63)
        self._column(name, tag).append(unsigned(step))
        self._last[key] = value

    def _column(self, name: str, tag: int) -> list[int]:
        return self._fields.setdefault(_key(name, tag), [])


class _Reader:
    def __init__(self, columns: bytes, known: KnownValues, most: int) -> None:
        parts, at = dict[int, bytes](), 0
        while at < len(columns):
            key, at = read_varint(columns, at)
            size, at = read_varint(columns, at)
            parts[key] = columns[at : at + size]
            at += size
        first = [parts.pop(key, b"") for key in range(_TEXTS, _FIELDS)]
        self._fields = {key: iter(read_varints(part)) for key, part in parts.items()}
        self._texts, self._expected = read_texts(first[: _KINDS - 1], known.texts, most), _Expected()
        numbers = iter(read_varints(first[_KINDS - 1]))
        self._kinds = [[next(numbers) for _ in range(size)] for size in numbers]
        words, odd = read_words(first[_WORDS - 1 : _BYTES - 1], known.words, most), first[_BYTES - 1]
        self._numbers = {_WORDS: memoryview(words), _BYTES: memoryview(odd)}
        self._taken = dict.fromkeys(self._numbers, 0)
        self._last: dict[int, int] = {}
        self._most = most

    def message(self, name: str, depth: int) -> bytes:
        """Return the next message of a type."""
        _check_depth(depth)
        inside, found = _INSIDE[name], bytearray()
        alike = self._next(name, 0)
        tags = self._kinds[alike]
        if name == "node" and _OPERATOR in tags:
            alike = self._text(name, _OPERATOR, (0, _OPERATOR, 0))
        whole = False
        for tag, where in zip(tags, _places(alike, tags)):
            value: bytes | memoryview
            found += varints([tag])
            if tag & 7 == _NUMBER:
                integer = self._number(name, tag)
                whole = whole or (name, tag, integer) == ("tensor", _NUMBER_TYPE, _INT64)
                found += varints([integer])
                continue
            if tag & 7 != _SIZED:
                found += self._take(_SIZES[tag & 7])
                continue
            if tag >> 3 in inside:
                value = self.message(inside[tag >> 3], depth + 1)
            elif name == "tensor" and tag >> 3 in _NUMBERS:
                size = self._number(name, tag)
                is_whole = whole and size % _LONG == 0
                value = self._integers(size // _LONG) if is_whole else self._take(size)
            elif (name, tag) == ("node", _OPERATOR):
                value = self._texts[alike]
            else:
                value = self._texts[self._text(name, tag, where)]
            found += varints([len(value)]) + value
            if len(found) > self._most:
                raise ValueError(f"more than {self._most} bytes")
        return bytes(found)

    def _next(self, name: str, tag: int) -> int:
        return next(self._fields[_key(name, tag)])

    def _number(self, name: str, tag: int) -> int:
        key = _key(name, tag)
        self._last[key] = number = (self._last.get(key, 0) + signed(self._next(name, tag))) % (1 << 64)
        return number

    def _text(self, name: str, tag: int, where: tuple[int, int, int]) -> int:
        """Return the place of the next text."""
        place = self._expected.place(where, self._next(name, tag))
        if place < 0:
            raise ValueError(f"text {place}")
        return place

    def _integers(self, size: int) -> bytes:
        """Return the next integers of tensors."""
        if _LONG * size > self._most:
            raise ValueError(f"{size} integers that are not there")
        return np.array([self._number("integers", 0) for _ in range(size)], "<u8").tobytes()

    def _take(self, size: int) -> memoryview:
        """Return the next bytes of numbers."""
        part = _BYTES if size % 4 else _WORDS
        start = self._taken[part]
        self._taken[part] = end = start + size
        if end > len(self._numbers[part]):
            raise ValueError(f"{size} bytes of numbers that are not there")
        return self._numbers[part][start:end]


class _Expected:
    """The texts that are expected: a new one, or in a field of messages alike the one after the last there."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, int, int], int] = {}
        self._n_texts = 0

    def step(self, where: tuple[int, int, int], place: int) -> int:
        """Return a number for the place of a text."""
        step = 0 if place == self._n_texts else 1 + unsigned(place - self._next.get(where, self._n_texts))
        self._expect(where, place)
        return step

    def place(self, where: tuple[int, int, int], step: int) -> int:
        """Return the place that :meth:`step` was given."""
        place = signed(step - 1) + self._next.get(where, self._n_texts) if step else self._n_texts
        self._expect(where, place)
        return place

    def _expect(self, where: tuple[int, int, int], place: int) -> None:
        self._n_texts = max(self._n_texts, place + 1)
        self._next[where] = place + 1


def _places(kind: int, tags: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield for each field its kind of message, its tag, and its number among those of this tag, up to 3."""
    last = number = 0
    for tag in tags:
        number = min(number + 1, 3) if tag == last else 0
        last = tag
        yield kind, tag, number


def _fields_of(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the tags and values of the fields of a message."""
    at = 0
    while at < len(content):
        tag, at = read_varint(content, at)
        wire = tag & 7
        if wire == _NUMBER:
            value, at = read_varint(content, at)
            yield tag, value
            continue
        if wire == _SIZED:
            size, at = read_varint(content, at)
        else:
            size = _SIZES[wire]
        if at + size > len(content):
            raise ValueError("a field that ends after its message")
        yield tag, content[at : at + size]
        at += size


def _key(name: str, tag: int) -> int:
    """Return the key of the column of a field, or with tag 0 of the kinds of a type."""
    return _FIELDS + _TYPES[name] + len(_TYPES) * tag


def _check_depth(depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError(f"messages nested {_DEEPEST} deep")
