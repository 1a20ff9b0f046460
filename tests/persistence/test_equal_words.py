"""Numbers of 32 bits that are equal to others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxsgd.persistence.equal_words import read_words, words_of, write_words

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(7, 5))
KNOWN = words_of([np.arange(3), TABLE, np.array([0.0, np.nan, -np.inf])])
NONE = words_of([])


def size_of_new(content, known):
    parts = write_words(content, known)
    assert read_words(parts, known, len(content)) == content
    return len(parts[2])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "change",
    [
        lambda table: table,
        np.transpose,
        np.negative,
        np.reciprocal,
        lambda table: -table[::-1, ::2],
        lambda table: np.pad(table, ((2, 2), (0, 0)), mode="edge"),
    ],
    ids=["itself", "transposed", "negative", "inverse", "a part", "longer"],
)
def test_numbers_of_a_known_array_are_not_written(change, dtype):
    content = change(TABLE).astype(dtype).tobytes()
    assert size_of_new(content, KNOWN) == 0
    assert size_of_new(content, NONE) > 0


def test_equal_numbers_are_written_once():
    row = RNG.normal(size=50).astype(np.float32)
    assert size_of_new(np.r_[row, -row[::-1], np.tile(row, 3)].tobytes(), NONE) == row.nbytes


WORDS = st.sampled_from([0, 1, 1 << 31, 0x7FC00000, 0xFFC00001, 0x3F800000, 0xBF800000]) | st.integers(
    0, 2**32 - 1
)


@given(st.lists(WORDS), st.lists(WORDS))
def test_all_words_return_as_they_were(words, known):
    size_of_new(np.array(words, "<u4").tobytes(), np.array(known, np.uint32))


@pytest.mark.parametrize(
    "damage",
    [
        lambda parts: [parts[0], parts[1], parts[2][4:]],
        lambda parts: [parts[0][:-1], *parts[1:]],
        lambda parts: [b"\xff" * len(parts[0]), *parts[1:]],
        lambda parts: [np.array([1, 0, 0, 0, 0, 0, 0, 0x40], np.uint8).tobytes(), b"", b""],
    ],
    ids=["fewer new ones", "cut", "negative", "a billion"],
)
def test_damaged_words_are_refused(damage):
    with pytest.raises(ValueError, match=r"words|reshape"):
        read_words(damage(write_words(np.arange(9, dtype="<u4").tobytes(), NONE)), NONE, 1000)


def test_words_of_another_array_are_refused():
    parts = write_words(np.r_[TABLE.ravel(), 5.5].astype(np.float32).tobytes(), KNOWN)
    with pytest.raises(ValueError, match="places of other words"):
        read_words(parts, NONE, 1000)


def test_known_words_that_are_not_used_are_not_sorted(monkeypatch):
    """Sorting those of an estimator of a million numbers takes half a second."""
    known = np.random.default_rng(0).integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    sizes, unique = [], np.unique
    monkeypatch.setattr(
        np, "unique", lambda words, **options: sizes.append(words.size) or unique(words, **options)
    )
    content = known[5000:6000].tobytes()
    parts = write_words(content, known)
    assert sizes[0] < 10_000
    assert len(parts[0]) < 100
    assert read_words(parts, known, 4000) == content


def test_arrays_of_any_kind_have_words():
    """Masks and other types are in attributes of estimators too."""
    numbers = np.array([[3.0, 0.0, -2.0]])
    expected = words_of([numbers])
    arrays = [
        np.ma.array(numbers, mask=[[1, 0, 1]]), numbers.astype(">f8"), numbers.astype(int),
        numbers.astype(np.float16), numbers.astype(np.longdouble), np.repeat(numbers, 2)[::2],
    ]  # fmt: skip
    for array in arrays:
        words = words_of([array])
        assert type(words) is np.ndarray
        np.testing.assert_array_equal(words, expected)
    assert words_of([np.array(3.0), np.empty((0, 2))]).size == 6
