"""Results of the frozen part, computed for the rows of a batch where those of all rows are too large."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxsgd.data.features import Features, n_rows, take_rows
from onnxsgd.engine.predict import InferenceGraph
from onnxsgd.runtime.device import Device

__all__ = ["FrozenFeature"]


class FrozenFeature:
    """A table of results, of which a read computes the rows.

    Parameters
    ----------
    graph : InferenceGraph
        The frozen part.
    features : dict of arrays
        The data inputs of the graph.
    n_threads : int or None
        Threads of its session; None: chosen by the size of the graph.
    device : Device
        The device of the computation.

    Attributes
    ----------
    shape : tuple of int
        The shape of the results for all rows.
    dtype : dtype
        Their type.
    """

    def __init__(
        self, graph: InferenceGraph, features: Features, n_threads: int | None, device: Device
    ) -> None:
        self._graph, self._features, self._place = graph, features, (n_threads, device)
        first = self[:1]
        self.shape = (n_rows(features), *first.shape[1:])
        self.dtype = first.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> Any:
        """Return the results for a slice, or for the given numbers of rows."""
        return self._graph.run(take_rows(self._features, rows), {}, *self._place)
