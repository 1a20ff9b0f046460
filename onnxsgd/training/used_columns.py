"""Training on the columns that sparse data have, or had before: the others have no gradient.

Time and memory of an epoch are then of the order of the entries, whatever the number of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from onnxsgd.engine.step.batches import Batches
from onnxsgd.engine.step.buffers import Tensors
from onnxsgd.engine.step.update import WEIGHT
from onnxsgd.graph.reading.first_layers import FirstLayer
from onnxsgd.optimizers import BlockAdam
from onnxsgd.training.state import FitState

__all__ = ["UsedColumns", "used_columns"]

#: The second moment, which block Adam has of all columns together.
_SECOND = BlockAdam().slots[1]
#: The largest share of the columns with an entry. Default fits of texts with a share of 0.6 take 0.9 of the
#: time.
_FEW = 0.9


@dataclass(frozen=True)
class UsedColumns:
    """Data and weights of the columns with an entry alone.

    Attributes
    ----------
    batches : Batches
        The data.
    tensors : dict of ndarray
        The tensors of the state.
    """

    batches: Batches
    tensors: Tensors
    _axes: dict[str, int]
    _shapes: dict[str, tuple[int, ...]]
    _columns: np.ndarray

    def widen(self, tensors: Tensors) -> Tensors:
        """Return tensors of these columns with all columns, the others zero."""
        return _spread(tensors, self._axes, self._shapes, self._columns)


def used_columns(layers: Sequence[FirstLayer], batches: Batches, state: FitState) -> UsedColumns | None:
    """Return data and weights of the columns with an entry alone; None: of too many, or others have weights.

    These are the columns of the data, and of those before in a stream. That needs weights of zero in the
    other columns: penalties do not move these.

    Parameters
    ----------
    layers : sequence of FirstLayer
        The layers that read the data, which train sparse.
    batches : Batches
        The data: one sparse feature, not standardised.
    state : FitState
        The state, whose tensors have all columns.
    """
    ((name, table),) = batches.features.items()
    n_columns = table.shape[1]
    is_used = np.zeros(n_columns, bool)
    # converted once, not for each array
    of_entries = table.indices.astype(np.intp)
    is_used[of_entries] = True
    if name in state.moments:
        seen = state.moments[name].columns
        is_used[slice(None) if seen is None else seen[0]] = True
    columns = np.flatnonzero(is_used)
    axes = {layer.weight: int(layer.is_transposed) for layer in layers}
    shapes = {weight: state.tensors[weight, WEIGHT].shape for weight in axes}
    is_few = 1 < len(columns) <= _FEW * n_columns
    taken = _taken(state.tensors, axes, shapes, columns) if is_few else None
    if taken is None:
        return None
    places = np.empty(n_columns, table.indices.dtype)
    places[columns] = np.arange(len(columns))
    shape = (table.shape[0], len(columns))
    used = sparse.csr_array((table.data, places.take(of_entries), table.indptr), shape=shape)
    found = replace(batches, features={name: used}, columns=(columns, n_columns))
    return UsedColumns(found, taken, axes, shapes, columns)


def _taken(
    tensors: Tensors, axes: dict[str, int], shapes: dict[str, tuple[int, ...]], columns: np.ndarray
) -> Tensors | None:
    """Return the tensors of some columns; None if others have numbers that are not zero."""
    taken = dict(tensors)
    for (name, kind), array in tensors.items():
        if name in axes and _is_mean(kind, array, shapes[name]):
            taken[name, kind] = array * (shapes[name][axes[name]] / len(columns))
        elif array.shape == shapes.get(name):
            part = array.take(columns, axes[name])
            if np.count_nonzero(part) != np.count_nonzero(array):
                return None
            taken[name, kind] = part
    return taken


def _spread(
    tensors: Tensors, axes: dict[str, int], shapes: dict[str, tuple[int, ...]], columns: np.ndarray
) -> Tensors:
    """Return tensors of all columns, the others zero; the inverse."""
    spread = dict(tensors)
    for (name, kind), array in tensors.items():
        if name in axes and _is_mean(kind, array, tensors[name, WEIGHT].shape):
            spread[name, kind] = array * (len(columns) / shapes[name][axes[name]])
        elif name in axes and array.shape == tensors[name, WEIGHT].shape:
            whole = np.zeros(shapes[name], array.dtype)
            # row by row: numpy's assignment to columns takes ten times as long
            for row, values in zip(whole, array, strict=True) if axes[name] else [(whole, array)]:
                row[columns] = values
            spread[name, kind] = whole
    return spread


def _is_mean(kind: str, array: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Tell whether a state of a weight of that shape is a mean over the columns."""
    return kind == _SECOND and array.shape != shape
