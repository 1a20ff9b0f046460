"""A short loop over batches for linear models under :class:`~onnxsgd.optimizers.BlockAdam`.

The coefficients and the intercepts are one matrix [W | b], with one first and one second moment: less than
half of the operators of :mod:`onnxsgd.engine.step.scan_epoch`, where each of the two has its own update. The
mean of squares over a block is a product with a constant matrix, which also spreads it over the columns::

    z = [x, 1] [W | b]^T,   G = gradient^T [g x, g]
    M = beta_1 M + G,       V = beta_2 V + G^2 A
    k = eta sqrt(V) / (V + tiny)
    [W | b] = ([W | b] - k r M) / (1 + k l2)

where g is the weight of a sample, A the matrix of means, r the factor of the first moment; eta and l2 have a
number for each column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxsgd._library_errors import run_error
from onnxsgd.engine.step.buffers import Buffers, Tensors, bind, dtype_of
from onnxsgd.engine.step.deferred_losses import add_losses, declare
from onnxsgd.engine.step.fuse import widen_scalars
from onnxsgd.engine.step.linear_scan import LinearLayer
from onnxsgd.engine.step.update import PENALTY_SCALE, RATE_SCALE, WEIGHT
from onnxsgd.graph.append import appending
from onnxsgd.graph.model import to_proto
from onnxsgd.graph.nodes import element_type
from onnxsgd.graph.writing import new_node
from onnxsgd.optimizers import DECAY, RATE, TINY

if TYPE_CHECKING:
    from onnxsgd.engine.step.batches import Batches, EpochPlan
    from onnxsgd.engine.step.step_spec import StepSpec

__all__ = ["LinearAdamRunner", "LinearBlocks", "build_linear_adam"]

#: Bytes of data of a block, and batches of a block at most, as in :mod:`onnxsgd.engine.step.scan_epoch`.
_BLOCK_BYTES, _MOST_BATCHES = 2_000_000, 10_000
#: The kinds of tensors that updates change, under the names of their matrices.
_STATES = {"weights": WEIGHT, "first_moment": "first_moment", "second_moment": "second_moment"}


@dataclass(frozen=True)
class LinearBlocks:
    """The blocks of the second moment.

    Attributes
    ----------
    layer : LinearLayer
        The only layer of the model.
    by_output : bool
        Whether each output has blocks of its own.
    beta_1, beta_2 : float
        The decay rates of the moments.
    """

    layer: LinearLayer
    by_output: bool
    beta_1: float
    beta_2: float

    @property
    def n_rows(self) -> int:
        """The rows of the second moment."""
        return self.layer.n_outputs if self.by_output else 1

    def means(self, dtype: np.dtype[Any]) -> np.ndarray:
        """Return the matrix that takes the means over blocks, of shape [width, width]."""
        n, width = self.layer.n_features, self.layer.width
        matrix = np.zeros((width, width))
        matrix[:n, :n] = 1.0 / n
        matrix[n, n] = 1.0
        return (matrix / (self.layer.n_outputs // self.n_rows)).astype(dtype)


def build_linear_adam(blocks: LinearBlocks, model: ir.Model) -> bytes:
    """Return a graph that makes one update for each batch.

    Inputs: `weights` and `first_moment` [n_outputs, width], `second_moment` [n_rows, width]; `forward` and
    `backward` [n_batches, batch_size, width], `target` [n_batches, batch_size, n_outputs], `sample_weight`
    [n_batches, batch_size]; `eta` [n_batches, n_rows, width], `first_rate` [n_batches, 1, 1]; `decay`
    [n_rows, width] for a layer with a penalty.
    Outputs: `new_weights`, `new_first_moment`, `new_second_moment`; `losses` [n_batches].

    Parameters
    ----------
    blocks : LinearBlocks
        The only layer of the model, and the blocks of its second moment.
    model : ir.Model
        The model, whose type and opset the graph has.
    """
    layer = blocks.layer
    dtype, opsets = element_type(model.graph.outputs[0]), {"": model.graph.opset_imports[""]}
    type_, rows = ir.TensorType(dtype), layer.batch_size
    decay = ir.Value(name="decay", type=type_, shape=ir.Shape([blocks.n_rows, layer.width]))
    body = _body(blocks, dtype, opsets, decay)
    states, scanned = body.inputs[:3], body.inputs[3:]
    first = [declare(str(value.name).removeprefix("update/"), value) for value in states]
    last = [declare(f"new_{value.name}", value) for value in first]
    names = (str(value.name).removeprefix("update/") for value in scanned)
    stacked = [declare(name, value, stacked=True) for name, value in zip(names, scanned, strict=True)]
    shape = ir.Shape([None, rows, layer.n_outputs])
    target = ir.Value(name="target", type=type_, shape=shape) if layer.folds_target else stacked[-1]
    weight = ir.Value(name="sample_weight", type=type_, shape=ir.Shape([None, rows]))
    score = ir.Value(name="scores", type=type_, shape=shape)
    graph = ir.Graph([], [], nodes=[], opset_imports=opsets, name="linear_epoch")
    attributes = {"body": body, "num_scan_inputs": len(scanned)}
    graph.append(new_node("Scan", [*first, *stacked], [*last, score], attributes))
    raw = layer.raw_predictions(graph, score, target)
    losses = add_losses(graph, layer.loss, target, raw, weight)
    for node in list(graph):
        widen_scalars(graph, node)
    inputs = [*first, *stacked, *([target] if layer.folds_target else []), weight]
    graph.inputs.extend([*inputs, *([decay] if layer.is_penalised else [])])
    graph.outputs.extend([*last, losses])
    return to_proto(ir.Model(graph, ir_version=model.ir_version, producer_name="onnxsgd")).SerializeToString()


def _body(blocks: LinearBlocks, dtype: ir.DataType, opsets: dict[str, int], decay: ir.Value) -> ir.Graph:
    """Return the graph of one update; it reads `decay` from the graph around it."""
    layer, n_rows = blocks.layer, blocks.n_rows
    rows, n_outputs, width, type_ = layer.batch_size, layer.n_outputs, layer.width, ir.TensorType(dtype)

    def value(name: str, *sizes: int) -> ir.Value:
        return ir.Value(name=f"update/{name}", type=type_, shape=ir.Shape(sizes))

    weights, first = value("weights", n_outputs, width), value("first_moment", n_outputs, width)
    second = value("second_moment", n_rows, width)
    forward, backward = value("forward", rows, width), value("backward", rows, width)
    eta, first_rate = value("eta", n_rows, width), value("first_rate", 1, 1)
    target = [] if layer.folds_target else [value("target", rows, n_outputs)]
    inputs = [weights, first, second, forward, backward, eta, first_rate, *target]
    body = ir.Graph(inputs, [], nodes=[], opset_imports=opsets, name="update")
    with appending(body) as op:
        score = op.Gemm(forward, weights, transB=1)
        score.type, score.shape = type_, ir.Shape([rows, n_outputs])
        slope = layer.loss.gradient(op, target[0], score) if target else score
        gradient = op.Gemm(slope, backward, transA=1)
        new_first = op.Add(op.Mul(first, blocks.beta_1), gradient)
        square = (
            op.Mul(gradient, gradient) if blocks.by_output else op.ReduceSumSquare(gradient, [0], keepdims=1)
        )
        means = op.initializer(ir.tensor(blocks.means(dtype.numpy()), name="update/means"))
        # not the attribute beta of Gemm, which is a number of float32
        new_second = op.Gemm(square, means, op.Mul(second, blocks.beta_2))
        rate = op.Mul(eta, op.Div(op.Sqrt(new_second), op.Add(new_second, TINY)))
        new = op.Sub(weights, op.Mul(new_first, op.Mul(rate, first_rate)))
        if layer.is_penalised:
            new = op.Div(new, op.Add(op.Mul(rate, decay), 1.0))
        for made, like in ((new, weights), (new_first, first), (new_second, second)):
            made.type, made.shape = type_, like.shape
    for node in list(body):
        widen_scalars(body, node)
        for made in node.outputs:
            made.name = f"update/{made.name}"
    body.outputs.extend([new, new_first, new_second, score])
    return body


class LinearAdamRunner:
    """The loop over batches of a linear model, on the buffers of a general step.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        The session of :func:`build_linear_adam`.
    blocks : LinearBlocks
        The model.
    spec : StepSpec
        The specification of the general step.
    buffers : Buffers
        Weights and states, updated in place.
    batches : Batches
        The data.

    Attributes
    ----------
    n_done : int
        Batches done by the last call to :meth:`run`, also if that was interrupted.
    """

    def __init__(
        self, session: Any, blocks: LinearBlocks, spec: StepSpec, buffers: Buffers, batches: Batches
    ) -> None:
        self._blocks, self._spec, self._buffers, self._batches = blocks, spec, buffers, batches
        self._call = partial(_Call, session, blocks)
        layer, itemsize = blocks.layer, batches.target.dtype.itemsize
        nbytes = itemsize * layer.batch_size * (2 * layer.width + layer.n_outputs)
        self._size = max(1, min(_MOST_BATCHES, _BLOCK_BYTES // nbytes))
        n_samples = len(batches.target)
        self._table = None
        if itemsize * n_samples * layer.width <= _BLOCK_BYTES:
            self._table = np.empty((n_samples, layer.width), batches.target.dtype)
            _gather(batches, layer, np.arange(n_samples), self._table, np.empty_like(batches.target))
        self._calls: dict[int, _Call] = {}
        self.n_done = 0

    def run(self, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray) -> None:
        """Make one update for each batch; see :meth:`onnxsgd.engine.step.single_step.StepRunner.run`."""
        self.n_done = 0
        present = self._buffers.sets[self._buffers.current]
        for start in range(0, len(losses), self._size):
            part = slice(start, start + self._size)
            count = len(losses[part])
            if count not in self._calls:
                self._calls[count] = self._call(count)
            call = self._calls[count]
            call.fill(self._batches, plan.part(part), self._table)
            numbers = dict(zip(self._spec.scalars, scalars[part].T, strict=True))
            self._fill_rates(call, present, numbers)
            losses[part] = call.run(present)
            self.n_done += count
            if not np.isfinite(losses[part]).all():
                break

    def _fill_rates(self, call: _Call, present: Tensors, numbers: Mapping[str, np.ndarray]) -> None:
        """Copy the numbers of the updates, with those of each column of the weights."""
        layer, n = self._blocks.layer, self._blocks.layer.n_features
        columns = [(layer.weight, slice(0, n)), (layer.intercept, slice(n, n + 1))]
        for name, column in columns:
            if name is None:
                continue
            rate = self._spec.numbers_of(name, numbers)[RATE][:, None, None]
            scale = present.get((name, RATE_SCALE), np.ones(1)).reshape(1, -1, 1)
            call.arrays["eta"][..., column] = rate * scale
        call.arrays["first_rate"][:, 0, 0] = numbers["momentum_rate"]
        if layer.is_penalised:
            scale = present.get((layer.weight, PENALTY_SCALE), np.ones(1))
            call.arrays["decay"][:, :n] = numbers[DECAY][0] * scale.reshape(1, -1)


class _Call:
    """The inputs and outputs of a call for `n_batches` batches, in arrays that are bound once."""

    def __init__(self, session: Any, blocks: LinearBlocks, n_batches: int) -> None:
        self._session, self._layer = session, blocks.layer
        dtype = dtype_of(session.get_inputs()[0])
        self.arrays = {
            value.name: np.zeros(
                [size if isinstance(size, int) else n_batches for size in value.shape], dtype
            )
            for value in session.get_inputs()
        }
        self._new = {name: np.zeros_like(self.arrays[name]) for name in _STATES}
        self._losses = np.zeros(n_batches, dtype)
        self._factors = np.zeros([n_batches, self._layer.batch_size, 1], dtype)
        self._binding = session.io_binding()
        for name, array in self.arrays.items():
            bind(self._binding.bind_input, name, array, array.shape)
        outputs = {f"new_{name}": array for name, array in self._new.items()} | {"losses": self._losses}
        for name, array in outputs.items():
            bind(self._binding.bind_output, name, array, array.shape)

    def fill(self, batches: Batches, plan: EpochPlan, table: np.ndarray | None) -> None:
        """Gather the batches, from a table of all rows if there is one, and weigh them."""
        layer, arrays = self._layer, self.arrays
        forward, backward, target = arrays["forward"], arrays["backward"], arrays["target"]
        if table is None:
            _gather(batches, layer, plan.rows, forward, target)
        else:
            np.take(table, plan.rows, axis=0, out=forward, mode="clip")
            batches.fill(plan.rows, {}, target)
        plan.weigh(slice(None), arrays["sample_weight"], self._factors)
        np.multiply(forward, self._factors, out=backward)
        # the columns of a missing intercept and of the targets get no gradient
        backward[..., layer.n_features + (layer.intercept is not None) :] = 0

    def run(self, present: Tensors) -> np.ndarray:
        """Make the updates of the weights and states in `present`, in place; return their losses."""
        layer = self._layer
        for name, kind in _STATES.items():
            layer.pack(present, kind, self.arrays[name])
        self.arrays["weights"][:, layer.n_features + 1 :] = 1
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            raise run_error(error) from error
        for name, kind in _STATES.items():
            layer.unpack(self._new[name], present, kind)
        return self._losses


def _gather(
    batches: Batches, layer: LinearLayer, rows: np.ndarray, table: np.ndarray, target: np.ndarray
) -> None:
    """Copy samples into a table of features, a column of ones, and minus the targets if they are a column."""
    n = layer.n_features
    features = np.empty((*table.shape[:-1], n), table.dtype)
    batches.fill(rows, {layer.feature: features}, target)
    table[..., :n] = features
    table[..., n] = 1
    if layer.folds_target:
        np.negative(target[..., 0], out=table[..., n + 1])
