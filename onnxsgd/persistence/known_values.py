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
        """Return those of an estimator, in the order of the paths of its arrays; none of others."""
        return cls([array for _, array in sorted(arrays_in(model).items())])

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
        digest = hashlib.sha256(b"\0".join(self.texts))
        for array in self.arrays:
            if array.dtype.kind in NUMERIC:
                digest.update(np.ascontiguousarray(array).data)
        return digest.digest()
