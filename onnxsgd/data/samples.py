"""Checked samples: features, targets and weights of the same rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from onnxsgd._records import record
from onnxsgd.data.features import Features, take_rows
from onnxsgd.data.row_tables import RowTable, Selected, are_many, evenly
from onnxsgd.exceptions import ParameterError

__all__ = ["Samples"]


@record
class Samples:
    """Checked samples.

    Attributes
    ----------
    features : dict of ndarray or sparse matrix
        One array for each input of the graph.
    target : ndarray of shape [n_samples] or [n_samples, n_outputs]
        Labels, or a table.
    weight : ndarray of shape [n_samples]
        The weight of each sample.
    """

    features: Features
    target: np.ndarray
    weight: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Samples]) -> Samples:
        """Return the samples of several parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        features = {name: _stack([part.features[name] for part in parts]) for name in parts[0].features}
        target = np.concatenate([part.target for part in parts])
        return cls(features, target, np.concatenate([part.weight for part in parts]))

    def copied(self) -> Samples:
        """Return the same samples in arrays of their own: a loader may use its arrays again."""
        features = {name: array.copy() for name, array in self.features.items()}
        return Samples(features, self.target.copy(), self.weight.copy())

    def take(self, rows: np.ndarray | slice) -> Samples:
        """Return the given rows."""
        if isinstance(rows, slice) or not self._stays:
            return Samples(take_rows(self.features, rows), self.target[rows], self.weight[rows])
        numbers = np.asarray(rows, np.uint32)
        features = {name: Selected(table, numbers) for name, table in self.features.items()}
        weight = self.weight[numbers] if any(self.weight.strides) else evenly(self.weight[0], len(numbers))
        # tables of labels have encodings that take all of them
        is_row = are_many(numbers) and (self.target.ndim == 1 or self.target.dtype.kind == "f")
        target: Any = Selected(self.target, numbers) if is_row else self.target[numbers]
        return Samples(features, target, weight)

    @property
    def _stays(self) -> bool:
        """True if the samples are too many for a copy of some: these are read when they are taken."""
        is_dense = all(isinstance(table, np.ndarray | RowTable) for table in self.features.values())
        return is_dense and are_many(self.target)

    def weighted_by(self, weight: np.ndarray) -> Samples:
        """Return the same samples with their weights multiplied."""
        with np.errstate(over="ignore", invalid="ignore"):
            weighted = self.weight * weight
            total = float(weighted.sum())
        if (weight < 0).any() or not 0 < total < math.inf:
            raise ParameterError(
                f"class_weight gives the samples weights from {weight.min():g} to {weight.max():g}: they "
                "must be >= 0, of a finite sum, and not all 0."
            )
        return Samples(self.features, self.target, weighted)

    def without_zeros(self) -> Samples:
        """Return the samples of positive weight: a sample of weight zero is dropped."""
        return self if self.weight.all() else self.take(np.flatnonzero(self.weight))


def _stack(tables: list[Any]) -> Any:
    if not any(map(sparse.issparse, tables)):
        return np.concatenate(tables)
    return sparse.vstack([sparse.csr_array(table) for table in tables], "csr")
