"""Updates of the rows of a weight whose columns a sparse batch has, by the optimizer's own formula.

The states of the other rows wait. So do their penalties: proximal ones are applied with the next update of
the row, as often as it has waited; cumulative ones before its next product, which changes no result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxsgd._library_errors import run_error
from onnxsgd.engine.sparse_products import SparseRows
from onnxsgd.engine.step.buffers import bind
from onnxsgd.engine.step.row_update_graph import GRADIENT, WAITED, RowUpdateGraph
from onnxsgd.engine.step.update import CONSTANT_STATES, L1_DEBT, L1_TOTAL, WEIGHT
from onnxsgd.optimizers import TINY

__all__ = ["SparseRowUpdates"]

#: Rows are padded to a multiple of the power of two that is this many times below them: few shapes to bind.
_STEPS = 32
#: The part of the table with the number of the last update of each row, beside the kinds of tensors.
_LAST = "last"
#: The parts that an update of rows does not write.
_KEPT = frozenset((_LAST, *CONSTANT_STATES))


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
        by_row = {kind: shapes[kind][1] for kind, is_by_row in graph.kinds.items() if is_by_row}
        self._parts = _side_by_side(by_row | {_LAST: 1})
        # side by side, so that the processor's cache misses a row once
        n_rows = shapes[WEIGHT][0]
        self._table = np.zeros((n_rows, self._parts[_LAST].stop), dtype)
        self._whole = {kind: np.zeros(shapes[kind], dtype) for kind in shapes if kind not in by_row}
        self._places, self._order = np.zeros(n_rows, np.int32), np.arange(0, dtype=np.int32)
        self._numbers = np.zeros(len(graph.numbers), dtype)
        self._buffers: dict[str, np.ndarray] = {}
        self._bindings: dict[int, Any] = {}
        self._count = self._n_done = 0

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """The weight and its states by kind, at present values between two runs."""
        by_row = {kind: self._table[:, part] for kind, part in self._parts.items() if kind != _LAST}
        return by_row | self._whole

    def reset(self) -> None:
        """Handle new values of the tensors: nothing waits."""
        self._table[:, self._parts[_LAST]] = self._count = 0

    def begin(self, numbers: Mapping[str, np.ndarray]) -> None:
        """Take the numbers of the next updates, [n_updates] each."""
        columns = [numbers[name] for name in self._graph.numbers]
        self._all_numbers = np.stack(columns, axis=1).astype(self._numbers.dtype)
        self._totals = numbers.get(L1_TOTAL)
        # small counts, which are exact in float32
        self._table[:, self._parts[_LAST]] -= self._count
        self._count = self._n_done = 0

    def multiply(self, rows: SparseRows, out: np.ndarray) -> None:
        """Write the product of a batch and the weight to `out`."""
        rows = rows.alone()
        self._columns, places = self._distinct(rows.indices)
        self._batch = SparseRows(rows.indptr.astype(np.int32), places, rows.data, len(self._columns))
        self._gather()
        out.fill(0)
        self._batch.add_product(self._rows(WEIGHT), out)

    def update(self, number: int, rows: SparseRows, gradient: np.ndarray) -> None:
        """Make one update by the gradient of the product of a batch."""
        self._count = self._n_done = number + 1
        self._batch.add_transposed_product(gradient, self._rows(GRADIENT))
        if WAITED in self._buffers:
            np.subtract(self._count, self._gathered[:, self._parts[_LAST]], out=self._rows(WAITED))
        self._numbers[...] = self._all_numbers[number]
        try:
            self._session.run_with_iobinding(self._bindings[self._padded(len(self._columns))])
        except Exception as error:
            raise run_error(error) from error
        for kind, part in self._parts.items():
            if kind not in _KEPT:
                self._gathered[:, part] = self._rows(f"{kind}_new")
        self._gathered[:, self._parts[_LAST]] = self._count
        _as_items(self._table)[self._columns] = _as_items(self._gathered)
        for kind, array in self._whole.items():
            array[...] = self._buffers[f"{kind}_new"]

    def end(self) -> None:
        """Apply the cumulative penalty to all rows."""
        self._truncate(self._table)

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
        self._gathered = self._table.take(self._columns, axis=0)
        self._truncate(self._gathered)
        for kind, part in self._parts.items():
            if kind != _LAST:
                self._rows(kind)[...] = self._gathered[:, part]
                self._buffers[kind][n:padded] = 0
        for kind, array in self._whole.items():
            self._buffers[kind][...] = array
        self._buffers[GRADIENT][:padded] = 0

    def _truncate(self, table: np.ndarray) -> None:
        """Apply the cumulative penalty of the updates so far to rows; see :mod:`onnxsgd.engine.step.update`.

        Applied once for several updates, in which a weight received nothing else, it gives the same.
        """
        if L1_DEBT not in self._parts or not self._n_done or self._totals is None:
            return
        weight, debt = table[:, self._parts[WEIGHT]], table[:, self._parts[L1_DEBT]]
        total = self._totals[self._n_done - 1]
        if self._graph.has_groups:
            rest = weight - debt
            norm = np.sqrt(np.square(rest).sum(axis=1, keepdims=True)) + TINY
            share = np.minimum(1.0, math.sqrt(weight.shape[1]) * total / norm)
            received = weight - rest * (1.0 - share)
        else:
            received = np.clip(weight, debt - total, debt + total)
        weight -= received
        debt -= received

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


def _side_by_side(widths: Mapping[str, int]) -> dict[str, slice]:
    """Return the columns of a table that hold parts of the given widths."""
    parts, start = {}, 0
    for name, width in widths.items():
        parts[name] = slice(start, start + width)
        start += width
    return parts


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
