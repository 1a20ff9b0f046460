"""Numbers of 32 bits of which many are equal to others, or to known ones: the places of the first ones.

Frozen constants of a converted estimator are its arrays once more, transposed, repeated, inverted, negated,
cut into pieces. Of all these equal numbers one is written, or none if the reader has the array. Numbers are
equal that differ in their sign, whose bits are apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["read_words", "words_of", "write_words"]

_SIGN = np.uint32(1 << 31)
#: The bits of a hash of a word, and the factor that mixes them.
_HASHED, _FACTOR = 20, np.uint32(2654435769)


def words_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the words of arrays of real numbers, and of their inverses, as graphs may hold them."""
    # of masked ones, the numbers below the mask
    flat = np.concatenate([np.empty(0), *(np.asarray(array, np.float64).ravel() for array in arrays)])
    with np.errstate(all="ignore"):
        inverse = np.reciprocal(flat)
        forms = [flat.astype(np.float32), inverse.astype(np.float32), flat, inverse]
    return np.concatenate([form.astype(form.dtype.newbyteorder("<")).view("<u4") for form in forms])


def write_words(content: bytes, known: np.ndarray) -> list[bytes]:
    """Return the places, the signs and the new words of a content, whose size is a multiple of 4.

    Parameters
    ----------
    known : ndarray of uint32
        The words that the reader has.
    """
    words = np.frombuffer(content, "<u4")
    everything = np.concatenate([known, words])
    unsigned = everything & ~_SIGN
    own = known.size + np.arange(words.size)
    found = np.concatenate([_candidates(unsigned[: known.size], unsigned[own]), own])
    _, first, equal = np.unique(unsigned[found], return_index=True, return_inverse=True)
    places = found[first[equal.ravel()[found.size - own.size :]]]
    is_new = places == own
    is_first = np.concatenate([np.ones(known.size, bool), is_new])
    following = _following(places)
    following[(following < 0) | (following >= own)] = 0
    # a row is not broken where numbers are equal by chance
    goes_on = ~is_new & is_first[following] & (unsigned[following] == unsigned[own])
    places = np.where(goes_on, following, places)
    signs = np.packbits(((words ^ everything[places])[~is_new] & _SIGN) > 0)
    return [_runs(np.diff(places, prepend=0)), signs.tobytes(), words[is_new].tobytes()]


def _candidates(known: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return the places of known words that may be equal to some of the others: sorting all takes seconds."""
    is_own, shift = np.zeros(1 << _HASHED, bool), np.uint32(32 - _HASHED)
    is_own[(words * _FACTOR) >> shift] = True
    return np.flatnonzero(is_own[(known * _FACTOR) >> shift])


def _following(places: np.ndarray) -> np.ndarray:
    """Return for each place the one that would follow the row of equal steps before it."""
    steps, order = np.diff(places, prepend=0), np.arange(places.size)
    in_row = np.maximum.accumulate(np.where(np.diff(steps, prepend=0) == 0, order, 0))
    return places[in_row] + steps[in_row] * (order - in_row)


def read_words(parts: Sequence[bytes], known: np.ndarray, most: int) -> bytes:
    """Return the content that :func:`write_words` was given, of at most `most` bytes.

    Raises
    ------
    ValueError
        If the parts are damaged, or `known` is another one.
    """
    steps = _of_runs(parts[0], most // 4)
    places, new = np.cumsum(steps), np.frombuffer(parts[2], "<u4")
    own = known.size + np.arange(places.size)
    is_new = places == own
    if new.size != is_new.sum() or np.any((places < 0) | (places > own)):
        raise ValueError("places of other words")
    everything = np.concatenate([known, np.zeros(places.size, np.uint32)])
    everything[own[is_new]] = new
    words = everything[places]
    signs = np.unpackbits(np.frombuffer(parts[1], np.uint8), count=int((~is_new).sum()))
    words[~is_new] ^= signs.astype(np.uint32) << np.uint32(31)
    return bytes(words.astype("<u4").tobytes())


def _runs(steps: np.ndarray) -> bytes:
    """Return steps as runs of equal ones: first bytes of all steps and lengths, second ones, and so on."""
    starts = np.flatnonzero(np.diff(steps, prepend=np.nan))
    runs = np.concatenate([steps[starts], np.diff(starts, append=steps.size)])
    return bytes(runs.astype("<i4").view(np.uint8).reshape(-1, 4).T.tobytes())


def _of_runs(runs: bytes, most: int) -> np.ndarray:
    """Return the steps of runs; at most a number of them."""
    numbers = np.frombuffer(runs, np.uint8).reshape(4, -1).T.copy().view("<i4").astype(np.int64)
    steps, lengths = numbers.reshape(2, -1)
    if np.any(lengths < 0) or lengths.sum() > most:
        raise ValueError(f"more than {most} words")
    return np.repeat(steps, lengths)
