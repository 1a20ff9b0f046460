"""Generators of random numbers equal those of numpy."""

import numpy as np
import pytest

from onnxsgd.data.generators import make_generator, seeded


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_seeded_generators_draw_the_numbers_of_numpy(seed: int) -> None:
    ours, numpys = seeded(seed), np.random.RandomState(seed)
    np.testing.assert_array_equal(
        ours.randint(0, 1 << 32, 2000, np.uint32), numpys.randint(0, 1 << 32, 2000, np.uint32)
    )
    np.testing.assert_array_equal(ours.normal(size=7), numpys.normal(size=7))


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
