"""Texts that are written as patterns and numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxsgd.persistence.text_patterns import TextWriter, read_texts

KNOWN = [b"red", b"C7", b"green", b"red"]
NAMES = [
    b"C0",
    b"C01",
    b"C02",
    b"C010",
    b"v7/Add",
    b"v12/Add",
    b"007",
    b"12345678901234",
    b"",
    b"red",
    b"green",
]


def written(texts, known=()):
    writer = TextWriter(known)
    return [writer.place(text) for text in texts], writer.parts()


@pytest.mark.parametrize("known", [(), KNOWN], ids=["none", "known"])
def test_texts_return_in_the_order_of_their_first_use(known):
    places, parts = written([*NAMES, *NAMES[::-1]], known)
    assert places == [*range(len(NAMES)), *reversed(range(len(NAMES)))]
    assert read_texts(parts, known, 1000) == NAMES


#: Texts that are partly equal, with numbers.
TEXTS = st.lists(st.sampled_from([b"a", b"b1", b"0", b"90", b"_", b"red"])).map(b"".join)


@given(st.lists(TEXTS | st.binary(max_size=5).map(lambda text: text.translate(None, b"\0\1"))))
def test_so_do_others(texts):
    places, parts = written(texts, KNOWN)
    found = read_texts(parts, KNOWN, 10_000)
    assert [found[place] for place in places] == texts
    assert len(found) == len(set(texts))


def test_patterns_are_written_once_and_known_texts_never():
    _, (patterns, choices, numbers) = written([b"layer%d/w" % k for k in range(50)] + [b"green"], KNOWN)
    assert patterns.count(b"layer") == 1
    assert b"green" not in patterns
    # each step is the same
    assert (len(set(numbers)), len(set(choices))) == (2, 3)


def test_texts_of_more_bytes_than_allowed_are_refused():
    """A long pattern could be named in each byte."""
    _, parts = written([b"x" * 1000 + b"%d" % k for k in range(50)])
    with pytest.raises(ValueError, match="more bytes"):
        read_texts(parts, (), 20_000)
    with pytest.raises(ValueError, match="place 9 of 4"):
        read_texts([b"", bytes([2 + 2 * 18]), b""], KNOWN, 100)
    with pytest.raises(ValueError, match="place -1 of 4"):
        read_texts([b"", bytes([2 + 2 * 1]), b""], KNOWN, 100)
