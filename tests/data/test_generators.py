"""Generators of random numbers equal those of numpy."""

import numpy as np
import pytest

from onnxsgd.data import generators
from onnxsgd.data.generators import make_generator, position, put_back, restored, seeded, words


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_seeded_generators_draw_the_numbers_of_numpy(seed: int) -> None:
    ours, numpys = seeded(seed), np.random.RandomState(seed)
    np.testing.assert_array_equal(
        ours.randint(0, 1 << 32, 2000, np.uint32), numpys.randint(0, 1 << 32, 2000, np.uint32)
    )
    np.testing.assert_array_equal(ours.normal(size=7), numpys.normal(size=7))


def test_words_are_the_draws_of_numpy() -> None:
    """From any position of the state, which then goes on from the same place: streams keep their orders."""
    ours, numpys = seeded(5), np.random.RandomState(5)
    for count in (1, 3, 32, 625):
        np.testing.assert_array_equal(words(ours, count), numpys.randint(0, 1 << 32, count, np.uint32))
        # a normal number takes two words, and keeps a second number for later
        np.testing.assert_array_equal(ours.normal(size=3), numpys.normal(size=3))


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_generator_goes_back(is_plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over the end of its words, whether or not its memory is read."""
    assert generators._are_words_plain()
    monkeypatch.setattr(generators, "_are_words_plain", lambda: is_plain)
    ours, numpys = seeded(5), np.random.RandomState(5)
    for count in (1, 600, 700):
        words(ours, 3)
        numpys.randint(0, 1 << 32, 3, np.uint32)
        place = position(ours)
        words(ours, count)
        put_back(ours, place)
        np.testing.assert_array_equal(words(ours, 40), numpys.randint(0, 1 << 32, 40, np.uint32))


def test_a_seed_gives_equal_generators_which_are_not_shared() -> None:
    first, second = make_generator(3), make_generator(3)
    expected = np.random.RandomState(np.random.RandomState(3).randint(np.iinfo(np.int32).max)).rand(5)
    np.testing.assert_array_equal(first.rand(5), expected)
    np.testing.assert_array_equal(second.rand(5), expected)


def test_a_generator_loses_one_draw() -> None:
    given, same = np.random.RandomState(3), np.random.RandomState(3)
    made = make_generator(given)
    np.testing.assert_array_equal(
        made.rand(5), np.random.RandomState(same.randint(np.iinfo(np.int32).max)).rand(5)
    )
    np.testing.assert_array_equal(given.rand(5), same.rand(5))


def test_no_seed_gives_different_generators() -> None:
    assert not np.array_equal(make_generator(None).rand(5), make_generator(None).rand(5))


def test_a_state_of_a_file_comes_back() -> None:
    given = np.random.RandomState(5)
    given.normal(size=3)
    again = restored(list(given.get_state(legacy=True)))
    np.testing.assert_array_equal(again.normal(size=700), given.normal(size=700))


@pytest.mark.parametrize("position", [-1, 625, 2**31 - 1, 1.0, True, "5", None])
def test_positions_outside_the_words_are_refused(position: object) -> None:
    """numpy takes them, and reads memory outside the words: the process ends."""
    name, words, *_ = np.random.RandomState(5).get_state(legacy=True)
    with pytest.raises(ValueError, match=f"at position {position!r} of 624"):
        restored([name, words, position, 0, 0.0])


@pytest.mark.parametrize("words", [np.zeros(624, np.uint32), np.ones(623, np.uint32), None])
def test_states_without_words_are_refused(words: object) -> None:
    """Zeros are drawn again for ever: a normal number never ends."""
    with pytest.raises(ValueError, match="without its words"):
        restored(["MT19937", words, 0, 0, 0.0])
