"""Whole numbers in as few bytes as they need: seven bits in each, as protobuf has them."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["read_varint", "read_varints", "signed", "unsigned", "varint", "varints"]

#: The most bits of a number.
_BITS = 64


#: The bytes of small numbers, which most are.
_SMALL = [bytes([number]) for number in range(128)]


def varint(number: int) -> bytes:
    """Return a number in bytes."""
    return _SMALL[number] if number < 128 else varints([number])


def varints(numbers: Iterable[int]) -> bytes:
    """Return numbers in bytes."""
    found = bytearray()
    for number in numbers:
        while number > 127:
            found.append(number & 127 | 128)
            number >>= 7
        found.append(number)
    return bytes(found)


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it.

    Raises
    ------
    IndexError
        If the bytes end in it.
    ValueError
        If it has too many of them.
    """
    byte = content[at]
    if byte < 128:
        return byte, at + 1
    number, shift = byte & 127, 7
    while byte > 127:
        at += 1
        byte = content[at]
        number |= (byte & 127) << shift
        shift += 7
        if shift > _BITS + 6:
            raise ValueError("a number of more than 64 bits")
    return number, at + 1


def read_varints(content: bytes) -> list[int]:
    """Return all numbers in bytes; raises as :func:`read_varint` does."""
    if not content or max(content) < 128:
        return list(content)
    numbers, at = [], 0
    while at < len(content):
        number, at = read_varint(content, at)
        numbers.append(number)
    return numbers


def unsigned(number: int) -> int:
    """Return a number as one of at least 0, small ones as small ones."""
    return 2 * number if number >= 0 else -2 * number - 1


def signed(number: int) -> int:
    """Return the number that :func:`unsigned` was given."""
    return number >> 1 if number & 1 == 0 else -(number >> 1) - 1
