"""Texts that differ in numbers alone, as the names in a graph do: each pattern once, and the numbers.

A text is known to both sides, or a pattern, which is the text without its numbers, and these. Of known ones,
patterns and numbers the distances from the ones before are written, which are small and repeat.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from onnxsgd.persistence.varints import read_varints, signed, unsigned, varints

__all__ = ["ExpectedTexts", "TextWriter", "read_texts"]

#: A number that is written again from its value. skl2onnx names its values C0, C01, C02.
_NUMBER = re.compile(rb"(0|[1-9][0-9]{0,8})")
#: The bytes between the parts of a pattern, and after it. Texts that have them cannot be written.
_GAP, _END = b"\x01", b"\x00"


class TextWriter:
    """Writes each text once, and gives its place in their order.

    Parameters
    ----------
    known : sequence of bytes
        Texts that the reader has.
    """

    def __init__(self, known: Sequence[bytes]) -> None:
        self._known = {text: place for place, text in reversed([*enumerate(known)])}
        self._places: dict[bytes, int] = {}
        self._patterns: dict[bytes, int] = {}
        self._next_known = self._next_pattern = 0
        self._last: dict[bytes, list[int]] = {}
        self._choices: list[int] = []
        self._numbers: list[int] = []

    def place(self, text: bytes) -> int:
        """Return the place of a text, which is written if it is new."""
        place = self._places.get(text)
        if place is None:
            place = self._places[text] = len(self._places)
            self._write(text)
        return place

    def parts(self) -> list[bytes]:
        """Return the patterns, the choices, and the numbers."""
        patterns = b"".join(pattern + _END for pattern in self._patterns)
        return [patterns, varints(self._choices), varints(self._numbers)]

    def _write(self, text: bytes) -> None:
        known = self._known.get(text)
        if known is not None:
            self._choices.append(2 + 2 * unsigned(known - self._next_known))
            self._next_known = known + 1
            return
        parts = _NUMBER.split(text)
        pattern, numbers = _GAP.join(parts[::2]), [int(part) for part in parts[1::2]]
        place = self._patterns.get(pattern)
        if place is None:
            place = self._patterns[pattern] = len(self._patterns)
            self._choices.append(0)
        else:
            self._choices.append(1 + 2 * unsigned(place - self._next_pattern))
        self._next_pattern = place + 1
        last = self._last.get(pattern) or [0] * len(numbers)
        self._numbers += [unsigned(number - before) for number, before in zip(numbers, last, strict=True)]
        self._last[pattern] = numbers


def read_texts(parts: Sequence[bytes], known: Sequence[bytes], most: int) -> list[bytes]:
    """Return the texts of :meth:`TextWriter.parts`, of at most `most` bytes together in a message.

    Raises
    ------
    ValueError, IndexError, StopIteration
        If the parts are damaged.
    """
    patterns, choices, numbers = parts[0].split(_END), read_varints(parts[1]), iter(read_varints(parts[2]))
    last: dict[int, list[int]] = {}
    texts, n_patterns, next_known, next_pattern = [], 0, 0, 0
    for choice in choices:
        if choice and choice % 2 == 0:
            place = next_known + signed((choice - 2) // 2)
            text = known[_checked(place, len(known))]
            next_known = place + 1
        else:
            place = next_pattern + signed((choice - 1) // 2) if choice else n_patterns
            n_patterns += not choice
            pieces = patterns[_checked(place, n_patterns)].split(_GAP)
            last[place] = [
                signed(next(numbers)) + before for before in last.get(place, [0] * (len(pieces) - 1))
            ]
            text = pieces[0] + b"".join(b"%d%b" % pair for pair in zip(last[place], pieces[1:], strict=True))
            next_pattern = place + 1
        texts.append(text)
        # with its tag and its size
        most -= len(text) + 2
        if most < 0:
            raise ValueError("texts of more bytes than it has")
    return texts


class ExpectedTexts:
    """The text that is expected in a field: a new one, or the one after the last in messages alike."""

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


def _checked(place: int, size: int) -> int:
    if not 0 <= place < size:
        raise ValueError(f"place {place} of {size}")
    return place
