"""Updates of the rows of a weight whose columns a sparse batch has, by the optimizer's own formula.

The states of the other rows wait. So do their penalties: proximal ones are applied with the next update of
the row, as often as it has waited; cumulative ones before its next product, which changes no result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxsgd._library_errors import run_error
from onnxsgd.engine.sparse_products import SparseRows
from onnxsgd.engine.step.buffers import bind
from onnxsgd.engine.step.row_update_graph import GRADIENT, WAITED, RowUpdateGraph
from onnxsgd.engine.step.update import L1_DEBT, L1_TOTAL, PENALTY_SCALE, WEIGHT

__all__ = ["SparseRowUpdates"]

#: Rows are padded to a multiple of the power of two that is this many times below them: few shapes to bind.
_STEPS = 8


class SparseRowUpdates:
    """The weight of a first layer, its states, and their update by rows.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        The session of the graph.
    graph : RowUpdateGraph
        The update.
    shapes : mapping of str to (int, int)
        The shape of the whole weight and of each of its states, by kind. Its rows come first.
    dtype : dtype
        The type of the weight.
    """

    def __init__(
        self,
        session: Any,
        graph: RowUpdateGraph,
        shapes: Mapping[str, tuple[int, int]],
        dtype: np.dtype,
    ) -> None:
        self._session, self._graph = session, graph
        self._tensors = {kind: np.zeros(shape, dtype) for kind, shape in shapes.items()}
        self._by_row = [kind for kind, is_by_row in graph.kinds.items() if is_by_row]
        self._changed = [kind for kind in self._by_row if kind != PENALTY_SCALE]
        self._whole = [kind for kind, is_by_row in graph.kinds.items() if not is_by_row]
        n_rows = shapes[WEIGHT][0]
        #: The update that each row had last, counted from the last call of `reset`.
        self._last, self._count = np.zeros(n_rows, np.int32), 0
        self._places, self._order = np.zeros(n_rows, np.int32), np.arange(0, dtype=np.int32)
        self._numbers = np.zeros(len(graph.numbers), dtype)
        self._buffers: dict[str, np.ndarray] = {}
        self._bindings: dict[int, Any] = {}
        self._n_done = 0

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """The weight and its states by kind, at present values between two runs."""
        return self._tensors

    def reset(self) -> None:
        """Handle new values of the tensors: nothing waits."""
        self._last.fill(0)
        self._count = 0

    def begin(self, numbers: Mapping[str, np.ndarray]) -> None:
        """Take the numbers of the next updates, [n_updates] each."""
        columns = [numbers[name] for name in self._graph.numbers]
        self._table = np.stack(columns, axis=1).astype(self._numbers.dtype)
        self._totals = numbers.get(L1_TOTAL)
        self._n_done = 0

    def multiply(self, rows: SparseRows, out: np.ndarray) -> None:
        """Write the product of a batch and the weight to `out`."""
        self._columns, places = self._distinct(rows.indices)
        self._batch = SparseRows(rows.indptr.astype(np.int32), places, rows.data, len(self._columns))
        self._gather()
        out.fill(0)
        self._batch.add_product(self._rows(WEIGHT), out)

    def update(self, number: int, rows: SparseRows, gradient: np.ndarray) -> None:
        """Make one update by the gradient of the product of a batch."""
        self._count += 1
        n = len(self._columns)
        self._batch.add_transposed_product(gradient, self._rows(GRADIENT))
        if WAITED in self._buffers:
            np.subtract(self._count, self._last.take(self._columns), out=self._buffers[WAITED][:n, 0])
        self._last[self._columns] = self._count
        self._numbers[...] = self._table[number]
        try:
            self._session.run_with_iobinding(self._bindings[self._padded(n)])
        except Exception as error:
            raise run_error(error) from error
        for kind in self._changed:
            _as_items(self._tensors[kind])[self._columns] = _as_items(self._buffers[f"{kind}_new"])[:n]
        for kind in self._whole:
            self._tensors[kind][...] = self._buffers[f"{kind}_new"]
        self._n_done = number + 1

    def end(self) -> None:
        """Apply the cumulative penalty to all rows."""
        if L1_DEBT in self._tensors and self._n_done and self._totals is not None:
            _truncate(self._tensors[WEIGHT], self._tensors[L1_DEBT], self._totals[self._n_done - 1])

    def _distinct(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct columns, and the place of each given one among them; no sort."""
        if len(indices) > len(self._order):
            self._order = np.arange(2 * len(indices), dtype=np.int32)
        given, order = indices.astype(np.intp), self._order[: len(indices)]
        # of equal columns the last one stays
        self._places[given] = order
        columns = given[self._places.take(given) == order]
        self._places[columns] = order[: len(columns)]
        return columns, self._places.take(given)

    def _rows(self, name: str) -> np.ndarray:
        return self._buffers[name][: len(self._columns)]

    def _gather(self) -> None:
        """Copy the rows of the batch into buffers; the padding is zero."""
        n = len(self._columns)
        padded = self._padded(n)
        if padded not in self._bindings:
            self._make_bindings(padded)
        for kind in self._by_row:
            np.take(self._tensors[kind], self._columns, axis=0, out=self._rows(kind), mode="clip")
            self._buffers[kind][n:padded] = 0
        for kind in self._whole:
            self._buffers[kind][...] = self._tensors[kind]
        self._buffers[GRADIENT][:padded] = 0
        if L1_DEBT in self._tensors and self._n_done and self._totals is not None:
            _truncate(self._rows(WEIGHT), self._rows(L1_DEBT), self._totals[self._n_done - 1])

    def _padded(self, n: int) -> int:
        """Return the number of rows in a call."""
        step = max(16, (1 << n.bit_length()) // _STEPS)
        return -(-n // step) * step

    def _make_bindings(self, n: int) -> None:
        """Bind buffers of `n` rows; larger ones than before replace them."""
        values = {value.name: value for value in self._session.get_inputs()}
        outputs = {value.name: value for value in self._session.get_outputs()}
        if not self._buffers or n > len(self._buffers[GRADIENT]):
            self._bindings.clear()
            for name, value in {**values, **outputs}.items():
                self._buffers[name] = np.zeros(_sizes(value, n), self._numbers.dtype)
        binding = self._session.io_binding()
        for index, name in enumerate(self._graph.numbers):
            if name in values:
                bind(binding.bind_input, name, self._numbers[index : index + 1], (1, 1))
                del values[name]
        for call, some in ((binding.bind_input, values), (binding.bind_output, outputs)):
            for name, value in some.items():
                bind(call, name, self._buffers[name], _sizes(value, n))
        self._bindings[n] = binding


def _sizes(value: Any, n_rows: int) -> tuple[int, ...]:
    """Return the shape of an input or output of a session for so many rows."""
    return tuple(n_rows if isinstance(size, str) else size for size in value.shape)


#: Bytes of a row up to which it is copied as one item: numpy's copies of rows, 2,300 of 10 numbers, take 76
#: us, of items 16 us, and as much for rows of 100 numbers.
_SMALL_ROW = 128


def _as_items(table: np.ndarray) -> np.ndarray:
    """Return a view of a contiguous table for assignments to rows, with one item for a row if it is small."""
    if table.shape[1] == 1:
        return table[:, 0]
    size = table.shape[1] * table.itemsize
    return table.view(f"V{size}")[:, 0] if size <= _SMALL_ROW else table


def _truncate(weight: np.ndarray, debt: np.ndarray, total: float) -> None:
    """Apply the cumulative penalty in place; see :mod:`onnxsgd.engine.step.update`.

    Applied once for several updates, in which the weight received nothing else, it gives the same.
    """
    received = np.clip(weight, debt - total, debt + total)
    weight -= received
    debt -= received
