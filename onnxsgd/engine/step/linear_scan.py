"""A short loop over batches for linear models under plain SGD: two products make an update.

The loop of :mod:`onnxsgd.engine.step.scan_epoch` runs the whole step, whose operators on a few numbers each
cost more than their arithmetic. Here all that does not depend on the weights is computed before the loop, for
all batches at once. With coefficients W, intercepts b, and the numbers ::

    s_t = (1 - decay_1) ... (1 - decay_(t-1)),   W_t = s_t V_t

an update is one product for the raw predictions, and one for the new weights::

    z = [s_t x, 1] [V; b]^T,   [V; b] = [V; b] + gradient^T [g x / s_(t+1), g]

where g is the weight of a sample times minus the rate. Half the squared error, of one output, has the targets
in the first product too: a column of -y with the coefficient 1. Its gradient is then z. Losses of a margin,
of one output, have rows with the signs of their labels. Averages of weights follow after the loop; an l1
penalty takes operators of its own, see :mod:`~onnxsgd.engine.step.linear_truncation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxsgd._library_errors import run_error
from onnxsgd.engine.step.buffers import Buffers, Tensors, all_finite, bind, dtype_of
from onnxsgd.engine.step.deferred_losses import declare
from onnxsgd.engine.step.fuse import widen_scalars
from onnxsgd.engine.step.linear_averages import LinearAverages, add_changes
from onnxsgd.engine.step.linear_layer import LinearLayer
from onnxsgd.engine.step.linear_truncation import BOUNDS, DECAY_SHARE, LinearTruncation, truncated
from onnxsgd.engine.step.update import AVERAGE_RATE, L1_TOTAL, WEIGHT
from onnxsgd.graph.append import appending
from onnxsgd.graph.model import to_proto
from onnxsgd.graph.nodes import element_type
from onnxsgd.graph.writing import new_node

if TYPE_CHECKING:
    from onnxsgd.engine.step.batches import Batches, EpochPlan
    from onnxsgd.engine.step.scan_epoch import EpochRunner

__all__ = ["LinearScanRunner", "build_linear_scan"]

#: Bytes of data of a block, and batches of a block at most: bounds, not measured. Others round differently.
_BLOCK_BYTES, _MOST_BATCHES = 4_000_000, 10_000
#: The least product of the factors 1 - decay of a block: V has at most as many times the size of W.
_LEAST_SCALE = 1 / 16
#: The largest decay of an update, for which blocks have 550 batches at least; the general loop makes others.
_LARGEST_DECAY = 5e-3


def build_linear_scan(layer: LinearLayer, model: ir.Model) -> bytes:
    """Return a graph that makes one update for each batch.

    Inputs: `weights` [n_outputs, width]; `forward` and `backward` [n_batches, batch_size, width], `target`
    [n_batches, batch_size, n_outputs], unless rows have signs; `sample_weight` [n_batches, batch_size].
    Outputs: `new_weights`; `losses` [n_batches].
    With an l1 penalty also `lower`, `upper` and, beside l2, `decay_share` [n_batches]. With averages, see
    :func:`~onnxsgd.engine.step.linear_averages.add_changes`: `shares`; `changes`.

    Parameters
    ----------
    layer : LinearLayer
        The only layer of the model.
    model : ir.Model
        The model, whose type and opset the graph has.
    """
    dtype, opsets = element_type(model.graph.outputs[0]), {"": model.graph.opset_imports[""]}
    body = _body(layer, dtype, opsets)
    type_, rows = ir.TensorType(dtype), layer.batch_size
    old, *scanned = body.inputs
    first, last = declare("weights", old), declare("new_weights", old)
    names = (str(value.name).removeprefix("update/") for value in scanned)
    stacked = [declare(name, value, stacked=True) for name, value in zip(names, scanned, strict=True)]
    shape = ir.Shape([None, rows, layer.n_outputs])
    of_updates = stacked[-1:] if layer.reads_target else []
    # where the data have a column of targets, the losses alone read them
    of_losses = [ir.Value(name="target", type=type_, shape=shape)] if layer.folds_target else of_updates
    weight = ir.Value(name="sample_weight", type=type_, shape=ir.Shape([None, rows]))
    score = ir.Value(name="scores", type=type_, shape=ir.Shape([None, *layer.shape_of_scores]))
    graph = ir.Graph([], [], nodes=[], opset_imports=opsets, name="linear_epoch")
    attributes = {"body": body, "num_scan_inputs": len(scanned)}
    graph.append(new_node("Scan", [first, *stacked], [last, score], attributes))
    losses = layer.losses(graph, score, weight, *of_losses)
    shares, changes = [], []
    if layer.is_averaged:
        shares, changes = ([value] for value in add_changes(graph, layer, of_updates, score, stacked[1]))
    for node in list(graph):
        widen_scalars(graph, node)
    graph.inputs.extend([first, *dict.fromkeys([*stacked, *of_losses]), weight, *shares])
    graph.outputs.extend([last, losses, *changes])
    return to_proto(ir.Model(graph, ir_version=model.ir_version, producer_name="onnxsgd")).SerializeToString()


def _body(layer: LinearLayer, dtype: ir.DataType, opsets: dict[str, int]) -> ir.Graph:
    """Return the graph of one update."""
    rows, n_outputs, type_ = layer.batch_size, layer.n_outputs, ir.TensorType(dtype)

    def value(name: str, *sizes: int) -> ir.Value:
        return ir.Value(name=f"update/{name}", type=type_, shape=ir.Shape(sizes))

    weights = value("weights", n_outputs, layer.width)
    forward, backward = value("forward", rows, layer.width), value("backward", rows, layer.width)
    target = layer.scanned(value("target", rows, n_outputs))
    bounds = [value(name) for name in BOUNDS] if layer.is_truncated else []
    shares = [value(DECAY_SHARE)] if layer.is_truncated and layer.is_penalised else []
    inputs = [weights, forward, backward, *bounds, *shares, *target]
    body = ir.Graph(inputs, [], nodes=[], opset_imports=opsets, name="update")
    with appending(body) as op:
        present, kept = truncated(op, weights, *bounds, *shares) if bounds else (weights, weights)
        score = layer.scores(op, forward, present)
        gradient = layer.gradient(op, score, *target)
        new = layer.change(op, gradient, backward, kept)
        new.type, new.shape = type_, weights.shape
    for node in list(body):
        widen_scalars(body, node)
        for made in node.outputs:
            made.name = f"update/{made.name}"
    body.outputs.extend([new, score])
    return body


class LinearScanRunner:
    """The loop over batches of a linear model, on the buffers of a general step.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        The session of :func:`build_linear_scan`.
    layer : LinearLayer
        The model.
    buffers : Buffers
        Weights, updated in place.
    batches : Batches
        The data.
    general : callable
        Returns the runner of the general loop, for large decays.
    columns : dict of int
        The columns of the numbers of an update that have the rate of averages and the l1 penalty so far.

    Attributes
    ----------
    n_done : int
        Batches done by the last call to :meth:`run`, also if that was interrupted.
    """

    #: Updates are written beside the present weights, which an interrupt leaves whole.
    is_whole = True

    def __init__(
        self,
        session: Any,
        layer: LinearLayer,
        buffers: Buffers,
        batches: Batches,
        general: Callable[[], EpochRunner],
        columns: Mapping[str, int],
    ) -> None:
        self._session, self._layer, self._buffers, self._batches = session, layer, buffers, batches
        self._general = general
        inputs = {value.name: value for value in session.get_inputs()}
        dtype = dtype_of(inputs["weights"])
        nbytes = np.dtype(dtype).itemsize * layer.batch_size * (3 * layer.width + layer.n_outputs)
        self._size = max(1, min(_MOST_BATCHES, _BLOCK_BYTES // nbytes, batches.n_batches))
        self._arrays = {
            name: np.zeros([self._size, *inputs[name].shape[1:]], dtype)
            for name in inputs
            if name not in ("weights", "shares")
        }
        self._rows = np.zeros([self._size, layer.batch_size, layer.n_features], dtype)
        #: Inputs of the graph too, where it reads them.
        self._target = self._arrays.get("target", np.zeros([self._size, layer.batch_size, 1], dtype))
        self._gradient_weight = np.zeros([self._size, layer.batch_size, 1], dtype)
        self._losses = np.zeros(self._size, dtype)
        self._weights = [np.zeros(inputs["weights"].shape, dtype) for _ in range(2)]
        self._averages = (
            LinearAverages(layer, columns[AVERAGE_RATE], self._size, dtype) if layer.is_averaged else None
        )
        self._truncation = LinearTruncation(layer, columns[L1_TOTAL]) if layer.is_truncated else None
        self._arrays["forward"][..., layer.n_features] = 1.0 / layer.unit

    @property
    def n_done(self) -> int:
        """Batches done by the last call to :meth:`run`."""
        return self._buffers.n_done

    def run(self, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray) -> None:
        """Make one update for each batch; see :meth:`onnxsgd.engine.step.single_step.StepRunner.run`."""
        self._buffers.restart()
        decay = scalars[:, 0] if self._layer.is_penalised else np.zeros(len(losses))
        is_known = self._truncation is None or self._truncation.is_known(self._present)
        if decay.max(initial=0.0) > _LARGEST_DECAY or not is_known:
            self._general().run(plan, scalars, losses)
            return
        for part, scales in self._blocks(np.log1p(-decay)):
            count = len(losses[part])
            self._fill(plan.part(part), scales, count)
            self._load()
            if self._averages is not None:
                self._averages.begin(scalars[part], scales[1:])
            if self._truncation is not None:
                self._truncation.begin(self._present, scalars[part], scales, self._arrays)
            try:
                self._session.run_with_iobinding(self._bind(count))
            except Exception as error:
                raise run_error(error) from error
            if self._averages is not None:
                self._averages.store(self._buffers, self._weights[0])
            self._store(scales[-1])
            losses[part] = self._losses[:count]
            self._buffers.flip(count)
            if not all_finite(self._losses[:count]):
                break

    def _blocks(self, logs: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the batches of each block, and the products of their factors, before each and after all."""
        start = 0
        while start < len(logs):
            sums = np.concatenate([[0.0], np.cumsum(logs[start : start + self._size])])
            count = max(1, np.searchsorted(-sums, -np.log(_LEAST_SCALE)) - 1)
            yield slice(start, start + count), np.exp(sums[: count + 1])
            start += count

    def _fill(self, plan: EpochPlan, scales: np.ndarray, count: int) -> None:
        """Gather the batches of a block, and multiply them by all that does not depend on the weights."""
        layer, n = self._layer, self._layer.n_features
        forward, backward, weight = (
            self._arrays[name][:count] for name in ("forward", "backward", "sample_weight")
        )
        rows, factors, target = self._rows[:count], self._gradient_weight[:count], self._target[:count]
        self._batches.fill(plan.rows, {layer.feature: rows}, target)
        plan.weigh(slice(None), weight, factors)
        of_ones = factors
        if layer.has_signs:
            signs = layer.signs(target)
            rows *= signs
            of_ones = factors * signs
            np.multiply(signs[..., 0], 1.0 / layer.unit, out=forward[..., n])
        before, after = scales.astype(rows.dtype)[:-1], (1.0 / scales[1:]).astype(rows.dtype)
        np.multiply(rows, before[:, None, None], out=forward[..., :n])
        np.multiply(rows, factors * after[:, None, None], out=backward[..., :n])
        if layer.intercept is not None:
            np.multiply(of_ones[..., 0], layer.unit, out=backward[..., n])
        if layer.folds_target:
            np.multiply(target[..., 0], -1.0 / layer.unit, out=forward[..., n + 1])

    @property
    def _present(self) -> Tensors:
        """The weights and states before the next call."""
        return self._buffers.sets[self._buffers.current]

    def _load(self) -> None:
        weights = self._weights[0]
        self._layer.pack(self._present, WEIGHT, weights)
        weights[:, self._layer.n_features + 1 :] = 1
        if self._truncation is not None:
            self._truncation.load(weights, self._present)

    def _store(self, scale: float) -> None:
        weights = self._weights[1]
        weights[:, : self._layer.n_features] *= weights.dtype.type(scale)
        if self._truncation is not None:
            self._truncation.store(weights, self._buffers.following)
        self._layer.unpack(weights, self._buffers.following, WEIGHT)

    def _bind(self, count: int) -> Any:
        binding = self._session.io_binding()
        inputs = {"weights": self._weights[0]} | {name: array[:count] for name, array in self._arrays.items()}
        outputs = {"new_weights": self._weights[1], "losses": self._losses[:count]}
        if self._averages is not None:
            inputs |= self._averages.inputs(count)
            outputs |= self._averages.outputs
        for name, array in inputs.items():
            bind(binding.bind_input, name, array, array.shape)
        for name, array in outputs.items():
            bind(binding.bind_output, name, array, array.shape)
        return binding
