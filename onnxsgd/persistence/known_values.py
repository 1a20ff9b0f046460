"""Texts and numbers of the parameter `model`, which a saved graph need not hold again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxsgd._cached_property import cached_property
from onnxsgd.persistence.equal_words import words_of
from onnxsgd.persistence.shared_tensors import NUMERIC, arrays_in

__all__ = ["KnownValues"]

#: The most numbers that are known: those of large weights would take seconds, and 24 bytes each.
_MOST = 1 << 20


@dataclass(frozen=True)
class KnownValues:
    """Those of the arrays of an estimator, in their order.

    Attributes
    ----------
    arrays : sequence of ndarray
        The arrays, of real numbers and of texts.
    """

    arrays: Sequence[np.ndarray] = ()

    @classmethod
    def of(cls, model: object) -> KnownValues:
        """Return those of an estimator, in the order of the paths of its arrays; none of others.

        Arrays that have too many numbers, with those before them, are left out.
        """
        arrays, n_numbers = list[np.ndarray](), 0
        for _, array in sorted(arrays_in(model).items()):
            if array.dtype.kind not in NUMERIC:
                arrays.append(array)
            elif n_numbers + array.size <= _MOST:
                arrays.append(array)
                n_numbers += array.size
        return cls(arrays)

    @cached_property
    def texts(self) -> list[bytes]:
        """The texts."""
        texts = [array.ravel().tolist() for array in self.arrays if array.dtype.kind not in NUMERIC]
        return [
            text.encode(errors="surrogatepass") for part in texts for text in part if isinstance(text, str)
        ]

    @cached_property
    def words(self) -> np.ndarray:
        """The words of the numbers."""
        return words_of([array for array in self.arrays if array.dtype.kind in NUMERIC])

    @property
    def nbytes(self) -> int:
        """The bytes of the numbers."""
        return sum(array.nbytes for array in self.arrays if array.dtype.kind in NUMERIC)

    def digest(self) -> bytes:
        """Return a digest of all."""
        digest = hashlib.sha256(repr(self.texts).encode())
        for array in self.arrays:
            if array.dtype.kind in NUMERIC:
                # equal bytes of another type, or cut elsewhere, are other words
                digest.update(repr((array.dtype.str, array.size)).encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.digest()
