"""Texts and numbers of the parameter `model`, which a saved graph need not hold again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from onnxsgd._cached_property import cached_property
from onnxsgd.persistence.equal_words import words_of

__all__ = ["KnownValues"]


@dataclass(frozen=True)
class KnownValues:
    """Those of the arrays of an estimator, in their order.

    Attributes
    ----------
    arrays : tuple of ndarray
        The arrays, of real numbers and of texts.
    """

    arrays: tuple[np.ndarray, ...] = ()

    @cached_property
    def texts(self) -> list[bytes]:
        """The texts."""
        texts = [array.ravel().tolist() for array in self.arrays if array.dtype.kind in "OU"]
        return [text.encode(errors="surrogatepass") for part in texts for text in part if isinstance(text, str)]

    @cached_property
    def words(self) -> np.ndarray:
        """The words of the numbers."""
        return words_of([array for array in self.arrays if array.dtype.kind in "fiu"])

    @property
    def nbytes(self) -> int:
        """The bytes of the numbers."""
        return sum(array.nbytes for array in self.arrays if array.dtype.kind in "fiu")

    def digest(self) -> bytes:
        """Return a digest of all."""
        digest = hashlib.sha256(b"\0".join(self.texts))
        for array in self.arrays:
            if array.dtype.kind in "fiu":
                digest.update(np.ascontiguousarray(array))
        return digest.digest()
