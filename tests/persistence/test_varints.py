"""Whole numbers in bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxsgd.persistence.varints import read_varint, read_varints, signed, unsigned, varint, varints

LARGEST = 2**64 - 1


@given(st.lists(st.integers(0, 200) | st.integers(0, LARGEST)))
def test_numbers_return_as_they_were(numbers):
    assert read_varints(varints(numbers)) == numbers


@pytest.mark.parametrize(
    ("number", "content"),
    [(0, b"\x00"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02"), (LARGEST, b"\xff" * 9 + b"\x01")],
)
def test_they_are_those_of_protobuf(number, content):
    assert varint(number) == varints([number]) == content
    assert read_varint(b"." + content + b".", 1) == (number, 1 + len(content))


def test_a_number_that_is_cut_or_too_long_is_refused():
    for content in (b"\x80", b"\x01\xff\xff"):
        with pytest.raises(IndexError):
            read_varints(content)
    with pytest.raises(ValueError, match="64 bits"):
        read_varints(b"\xff" * 11 + b"\x01")


@given(st.integers(-(2**63), 2**63 - 1))
def test_signs_return_as_they_were(number):
    assert signed(unsigned(number)) == number
    assert 0 <= unsigned(number) <= 2 * abs(number)
