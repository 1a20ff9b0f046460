"""Generators of random numbers, made quickly."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from sklearn.utils import check_random_state

__all__ = ["copied", "make_generator", "position", "put_back", "restored", "seeded", "words"]

#: The length of the state of the Mersenne twister, and the bytes of it and of the place in it.
_N_WORDS = 624
_N_BYTES = 4 * _N_WORDS + ctypes.sizeof(ctypes.c_int)


class _Zeros(ISeedSequence):
    """A sequence of zeros, for a generator that is seeded later.

    ``RandomState(seed)`` first takes entropy from the system, which it then replaces: 0.1 ms, a third of a
    small ``partial_fit``.
    """

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        # the generator reads one word after another, in a list eighty times as fast as in an array
        words: Any = [0] * n_words
        return words


def seeded(seed: int) -> np.random.RandomState:
    """Return ``numpy.random.RandomState(seed)``."""
    # numpy's annotations lack this interface
    zeros: Any = _Zeros()
    generator = np.random.RandomState(np.random.MT19937(zeros))
    generator.seed(seed)
    return generator


def copied(generator: np.random.RandomState) -> np.random.RandomState:
    """Return a generator that draws what `generator` will draw."""
    duplicate = seeded(0)
    duplicate.set_state(generator.get_state())
    return duplicate


def words(generator: np.random.RandomState, count: int) -> np.ndarray:
    """Return `count` numbers of 32 bits, as ``randint(0, 1 << 32, count, numpy.uint32)`` draws them.

    They are the words of the Mersenne twister, which all generators here are. For few of them that method
    takes ten times as long.
    """
    drawn: np.ndarray = generator._bit_generator.random_raw(count)
    return drawn


def position(generator: np.random.RandomState) -> Any:
    """Return the place of a generator in its sequence, for :func:`put_back`.

    The words are copied as bytes: ``get_state``, which reads them one by one, takes forty times as long, a
    tenth of a small ``partial_fit``. Normal numbers drawn ahead are left out: nothing here draws those.
    """
    return _copied_words(generator) if _are_words_plain() else generator.get_state(legacy=False)


def put_back(generator: np.random.RandomState, place: Any) -> None:
    """Let a generator draw the numbers after :func:`position` again."""
    if isinstance(place, bytes):
        bits = generator._bit_generator
        with bits.lock:
            ctypes.memmove(bits.ctypes.state_address, place, _N_BYTES)
    else:
        generator.set_state(place)


def _copied_words(generator: np.random.RandomState) -> bytes:
    with generator._bit_generator.lock:
        return _memory(generator).tobytes()


@lru_cache(maxsize=64)
def _memory(generator: np.random.RandomState) -> np.ndarray:
    """Return the bytes of the words of a generator and of its place, where they are in memory.

    They are kept, as numpy's interface of addresses takes as long as a tenth of a small ``partial_fit`` where
    other work has taken the caches of the processor. The memory is that of the generator, which is kept too.
    """
    address = generator._bit_generator.ctypes.state_address
    memory: Any = (ctypes.c_char * _N_BYTES).from_address(address)
    return np.frombuffer(memory, np.uint8)


@cache
def _are_words_plain() -> bool:
    """Tell whether the memory of a generator is its words and its place, as in all numpy so far."""
    generator = seeded(1)
    words(generator, 3)
    state: Any = generator.get_state(legacy=False)["state"]
    return _copied_words(generator) == state["key"].tobytes() + bytes(ctypes.c_int(state["pos"]))


def restored(state: Sequence[Any]) -> np.random.RandomState:
    """Return the generator of a result of ``get_state`` that comes from a file.

    Raises
    ------
    ValueError
        If no generator has this state. numpy would read memory outside the words, or draw without end from
        zeros.
    """
    name, words, position, *_ = state
    if type(position) is not int or not 0 <= position <= _N_WORDS:
        raise ValueError(f"a generator of random numbers at position {position!r:.40} of {_N_WORDS}")
    # the words have 32 bits, of which the first one uses the highest
    is_state = np.shape(words) == (_N_WORDS,) and np.asarray(words).dtype.kind in "iu"
    if name != "MT19937" or not is_state or not np.any(np.asarray(words).astype(np.uint32)[1:]):
        raise ValueError("a generator of random numbers without its words")
    generator = seeded(0)
    generator.set_state(tuple(state))
    return generator


def make_generator(seed: int | np.random.RandomState | None) -> np.random.RandomState:
    """Return a new generator; a generator given as `seed` loses one draw, and is not shared.

    Parameters
    ----------
    seed : int, RandomState or None
        As the parameter `random_state` of scikit-learn.
    """
    return seeded(_draw_of(seed) if isinstance(seed, int) else _draw(seed))


def _draw(seed: int | np.random.RandomState | None) -> int:
    return int(check_random_state(seed).randint(np.iinfo(np.int32).max))


@lru_cache(maxsize=256)
def _draw_of(seed: int) -> int:
    return _draw(seed)
