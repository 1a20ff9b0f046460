"""The runner of a compiled step on sparse data: the first layer outside the runtime, the rest inside.

The runtime has no sparse products, and no update of some rows of a tensor in place. The step takes the
product of a batch and the first weight as an input, and returns its gradient. The product, and the update of
the columns that the batch has, are computed here, in as many operations as the batch has entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from scipy import sparse

from onnxsgd._library_errors import run_error
from onnxsgd.engine.sparse_products import SparseRows
from onnxsgd.engine.step.buffers import Buffers, Tensors, bind, dtype_of

if TYPE_CHECKING:
    from onnxsgd.engine.step.batches import Batches, EpochPlan
    from onnxsgd.engine.step.training_step import CompiledStep

__all__ = ["SparseBuffers", "SparseLayer", "SparseStepRunner", "SparseUpdate"]

#: Batches whose rows are gathered at once: their copy stays in the cache. 256 take 1.2 of the time.
_BLOCK = 32


class SparseUpdate(Protocol):
    """The weight of a first layer, with shape [n_columns, n_outputs], and its update by sparse batches."""

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """The weight and its states by kind, at present values between two runs."""

    def reset(self) -> None:
        """Handle new values of the tensors."""

    def begin(self, numbers: Mapping[str, np.ndarray]) -> None:
        """Take the numbers of the next updates, [n_updates] each."""

    def multiply(self, rows: SparseRows, out: np.ndarray) -> None:
        """Write the product of a batch and the weight to `out`."""

    def update(self, number: int, rows: SparseRows, gradient: np.ndarray) -> None:
        """Make one update by the gradient of the product of a batch, which may be overwritten."""

    def end(self) -> None:
        """Handle the end of the updates since `begin`."""


@dataclass(frozen=True)
class SparseLayer:
    """A first layer of sparse data.

    Attributes
    ----------
    weight : str
        Its weight.
    is_transposed : bool
        Whether the weight has shape [n_outputs, n_columns] in the graph.
    product, gradient : str
        The input and the output of the step.
    numbers : dict of int
        The column of each number of its update in the table of numbers.
    updates : SparseUpdate
        The weight and its update.
    """

    weight: str
    is_transposed: bool
    product: str
    gradient: str
    numbers: Mapping[str, int]
    updates: SparseUpdate


class SparseBuffers:
    """Weights and states: those of first layers in place, the others in double buffers.

    Parameters
    ----------
    buffers : Buffers
        The buffers of the step.
    layers : sequence of SparseLayer
        The first layers.
    order : sequence of str
        All weights, in the order of snapshots.
    """

    def __init__(self, buffers: Buffers, layers: Sequence[SparseLayer], order: Sequence[str]) -> None:
        self._buffers, self._layers = buffers, layers
        self._order = {name: number for number, name in enumerate(order)}

    def load(self, tensors: Mapping[tuple[str, str], np.ndarray]) -> None:
        """Copy these values; missing ones become zero."""
        self._buffers.load(tensors)
        for key, buffer in self._own().items():
            buffer[...] = tensors.get(key, 0)
        for layer in self._layers:
            layer.updates.reset()

    def snapshot(self) -> Tensors:
        """Return a copy of the weights and of their states."""
        own = {key: np.array(buffer, order="C") for key, buffer in self._own().items()}
        both = self._buffers.snapshot() | own
        return dict(sorted(both.items(), key=lambda item: self._order[item[0][0]]))

    def _own(self) -> Tensors:
        """Return the tensors of first layers in their shapes in the graph, without a copy."""
        return {
            (layer.weight, kind): array.T if layer.is_transposed else array
            for layer in self._layers
            for kind, array in layer.updates.tensors.items()
        }


class SparseStepRunner:
    """A training step on batches of one sparse table.

    Parameters
    ----------
    sessions : tuple of (session, session)
        Those of the two graphs of :func:`onnxsgd.engine.step.deferred_losses.build_deferred`.
    step : CompiledStep
        The names of the inputs and outputs.
    buffers : Buffers
        Weights and states of the step.
    layers : sequence of SparseLayer
        The first layers.
    batches : Batches
        The data: one sparse feature.
    centre : ndarray of shape [n_columns] or None
        The means of the scaled columns, which the updates subtract; columns of which it has zero, or all of
        them with None, are centred in the data.

    Attributes
    ----------
    n_done : int
        Batches done by the last call to :meth:`run`, also if that was interrupted.
    is_whole : bool
        Whether weights and states are those of `n_done` batches; not where something interrupted an update,
        which changes first layers in place.
    """

    def __init__(
        self,
        sessions: tuple[Any, Any],
        step: CompiledStep,
        buffers: Buffers,
        layers: Sequence[SparseLayer],
        batches: Batches,
        centre: np.ndarray | None = None,
    ) -> None:
        ((name, _),) = batches.features.items()
        table = batches.sparse_table(name, centre)
        self._table = _cyclic(table, batches.batch_size - 1) if batches.is_mixed else table
        self._offsets = None
        if centre is not None:
            self._offsets = np.ones((2, self._table.shape[0]), self._table.dtype)
            self._offsets[0] = self._table @ centre
        (self._updates, self._losses), self._step = sessions, step
        self._buffers, self._layers, self._batches = buffers, layers, batches
        self._inputs = {value.name: value for value in self._updates.get_inputs()}
        self._outputs = {value.name: value for value in self._updates.get_outputs()}
        dtype = batches.target.dtype
        self._target = np.zeros((batches.batch_size, batches.target.shape[1]), dtype)
        self._gradient_weight = np.zeros((batches.batch_size, 1), dtype)
        self._products = [_zeros(self._inputs[layer.product]) for layer in layers]
        self._gradients = [_zeros(self._outputs[layer.gradient]) for layer in layers]
        self._raw_prediction = _zeros(self._outputs[step.raw_prediction])
        self._scalars = np.zeros(len(step.scalars), dtype)
        first, second = buffers.sets
        self._bindings = (self._bind(first, second), self._bind(second, first))
        self.n_done = self._n_begun = 0
        self.is_whole = True

    def run(self, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray) -> None:
        """Make one update for each batch; see :meth:`onnxsgd.engine.step.single_step.StepRunner.run`.

        Losses are computed, and compared with infinity, after some batches each.
        """
        self.is_whole, self.n_done, self._n_begun = False, 0, 0
        for layer in self._layers:
            layer.updates.begin({name: scalars[:, column] for name, column in layer.numbers.items()})
        try:
            for start in range(0, len(losses), _BLOCK):
                part = slice(start, start + _BLOCK)
                losses[part] = self._run_block(plan.part(part), scalars[part])
                if not np.isfinite(losses[part]).all():
                    break
        finally:
            for layer in self._layers:
                layer.updates.end()
            self.is_whole = self.n_done == self._n_begun

    def _run_block(self, plan: EpochPlan, scalars: np.ndarray) -> np.ndarray:
        """Make some updates; return the losses of their batches."""
        targets, weights, gradient_weights = self._gather(plan)
        raw_predictions = np.empty((len(targets), *self._raw_prediction.shape), self._raw_prediction.dtype)
        layers = list(zip(self._layers, self._products, self._gradients, strict=True))
        run = self._updates.run_with_iobinding
        numbers = scalars.astype(self._scalars.dtype)
        of_batches = zip(
            self._split(plan.rows), targets, gradient_weights, numbers, raw_predictions, strict=True
        )
        for rows, target, gradient_weight, row, raw_prediction in of_batches:
            for layer, product, _ in layers:
                layer.updates.multiply(rows, product)
            self._target[...] = target
            self._gradient_weight[...] = gradient_weight
            self._scalars[...] = row
            try:
                run(self._bindings[self._buffers.current])
            except Exception as error:
                raise run_error(error) from error
            self._n_begun += 1
            self._buffers.flip()
            for layer, _, gradient in layers:
                layer.updates.update(self.n_done, rows, gradient)
            raw_prediction[...] = self._raw_prediction
            self.n_done += 1
        feeds = {"target": targets, "raw_prediction": raw_predictions, "sample_weight": weights}
        losses: np.ndarray = self._losses.run(None, feeds)[0]
        return losses

    def _split(self, rows: np.ndarray) -> list[SparseRows]:
        """Return the data of each batch; those of neighbouring rows without a copy."""
        table, size, n_rows = self._table, rows.shape[1], len(self._batches.target)
        # behind the last row of mixed data the first ones follow
        last = table.shape[0] - size
        distances = np.diff(rows.astype(np.intp, copy=False), axis=1)
        are_runs = ((distances == 1) | (distances == 1 - n_rows)).all(axis=1)
        are_runs &= rows[:, 0] <= last
        others = iter(self._gathered(rows[~are_runs]))
        return [
            _neighbours(table, self._offsets, first, size) if is_run else next(others)
            for first, is_run in zip(rows[:, 0].tolist(), are_runs.tolist(), strict=True)
        ]

    def _gathered(self, rows: np.ndarray) -> list[SparseRows]:
        """Return copies of the data of each batch."""
        n_batches, size = rows.shape
        if not n_batches:
            return []
        taken = rows.ravel()
        table, offsets = self._table[taken], None if self._offsets is None else self._offsets[:, taken]
        return [_neighbours(table, offsets, first, size) for first in range(0, n_batches * size, size)]

    def _gather(self, plan: EpochPlan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the targets and both weights of the samples of each batch."""
        n_batches, size = plan.rows.shape
        targets = np.empty((n_batches, *self._target.shape), self._target.dtype)
        weights = np.empty((n_batches, size), targets.dtype)
        gradient_weights = np.empty((n_batches, size, 1), targets.dtype)
        self._batches.fill(plan.rows, {}, targets)
        plan.weigh(slice(None), weights, gradient_weights)
        return targets, weights, gradient_weights

    def _bind(self, sources: Tensors, targets: Tensors) -> Any:
        step, binding = self._step, self._updates.io_binding()
        inputs = {step.target: self._target, step.gradient_weight: self._gradient_weight}
        inputs |= {name: self._scalars[i : i + 1] for i, name in enumerate(step.scalars.values())}
        inputs |= {step.tensors[key][0]: buffer for key, buffer in sources.items()}
        outputs = {step.tensors[key][1]: buffer for key, buffer in targets.items()}
        for layer, product, gradient in zip(self._layers, self._products, self._gradients, strict=True):
            inputs[layer.product], outputs[layer.gradient] = product, gradient
        outputs[step.raw_prediction] = self._raw_prediction
        # an update need not depend on each input
        for name in self._inputs:
            bind(binding.bind_input, name, inputs[name], self._inputs[name].shape)
        for name, array in outputs.items():
            bind(binding.bind_output, name, array, self._outputs[name].shape)
        return binding


def _neighbours(table: Any, offsets: np.ndarray | None, first: int, size: int) -> SparseRows:
    """Return so many rows of a CSR matrix from the first one on, without a copy."""
    of_rows = None if offsets is None else offsets[:, first : first + size]
    starts = table.indptr[first : first + size + 1]
    return SparseRows(starts, table.indices, table.data, table.shape[1], of_rows)


def _cyclic(table: Any, n_rows: int) -> Any:
    """Return a CSR matrix with copies of so many of its first rows behind the last one.

    Of fewer rows than that, all are copied several times.
    """
    if n_rows > table.shape[0]:
        return table[np.arange(table.shape[0] + n_rows) % table.shape[0]]
    n_entries = table.indptr[n_rows]
    data, indices = (np.concatenate([array, array[:n_entries]]) for array in (table.data, table.indices))
    starts = np.concatenate([table.indptr, table.indptr[-1] + table.indptr[1 : n_rows + 1]])
    return sparse.csr_array((data, indices, starts), shape=(table.shape[0] + n_rows, table.shape[1]))


def _zeros(value: Any) -> np.ndarray:
    """Return an array of zeros of the type and shape of an input or output of a session."""
    return np.zeros(value.shape, dtype_of(value))
