"""A short loop over batches for linear models under :class:`~onnxsgd.optimizers.BlockAdam`.

The coefficients and the intercepts are one matrix [W | b], with one first and one second moment: less than
half of the operators of :mod:`onnxsgd.engine.step.scan_epoch`, where each of the two has its own update. The
mean of squares over a block is a product with a constant matrix, which also spreads it over the columns::

    z = [x, 1] [W | b]^T,   G = gradient^T [g x, g]
    M = beta_1 M + G,       V = beta_2 V + G^2 A,   s = sqrt(V)
    [W | b] = [W | b] - (M + p [W | b]) / (s / (r eta) + p),   p = l2 / r

where g is the weight of a sample, A the matrix of means, r the factor of the first moment. The pull p has a
number for each column. The graph also gathers the rows of the batches, from a table of all data where that is
small. As in :mod:`~onnxsgd.engine.step.linear_scan`, a squared error has a column of targets, and a margin
rows with signs.

Where the rate is steered, the same product takes the means of M G and of M^2, and s is divided by the factor
that follows; with penalties in the angle, of (M + p / r [W | b]) in place of M. Steps have a share i of the
moment::

    [W | b] = [W | b] - ((1 - i) G + i r M + p [W | b]) / (s / eta + p),   p = l2

and the products of the angle are divided by ``1 + p / (s / eta)``, where s has the factor before.

A preconditioner P takes the penalty into the gradient, p = l2, and has the moments of a direction::

    D = (G + p [W | b]) P,   M = beta_1 M + D,   V = beta_2 V + ((G + p [W | b]) D) A
    [W | b] = [W | b] - M r eta / s

Without a gradient so far, V = 0, penalties move nothing either, but s = 0 would divide zero by zero. V begins
as the least number that decay leaves above zero, which keeps weights of zero, and weights without a penalty.
Others are updated one batch in a call, and kept, until there is a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxsgd._library_errors import run_error
from onnxsgd.data.masks import are_all, is_any
from onnxsgd.data.row_tables import as_array
from onnxsgd.engine.step.buffers import Buffers, Tensors, all_finite, bind, dtype_of
from onnxsgd.engine.step.deferred_losses import declare
from onnxsgd.engine.step.fuse import widen_scalars
from onnxsgd.engine.step.linear_layer import Copies, LinearLayer, make_copies
from onnxsgd.engine.step.update import PENALTY_SCALE, PRECONDITIONER, RATE_SCALE, WEIGHT
from onnxsgd.graph.append import appending
from onnxsgd.graph.model import to_proto
from onnxsgd.graph.nodes import element_type, fixed_size
from onnxsgd.graph.writing import new_node
from onnxsgd.optimizers import (
    DECAY,
    LOG_FACTOR,
    MOST_STRENGTH,
    RATE,
    REST,
    bound_of_pull,
    most_factor,
    sized,
    steered,
)

if TYPE_CHECKING:
    from onnxsgd._builder import Builder
    from onnxsgd.engine.step.batches import Batches, EpochPlan
    from onnxsgd.engine.step.step_spec import StepSpec

__all__ = ["LinearAdamRunner", "LinearBlocks", "build_linear_adam", "fits_table"]

#: Bytes of data of a block, and batches of a block at most, as in :mod:`onnxsgd.engine.step.scan_epoch`.
_BLOCK_BYTES, _MOST_BATCHES = 2_000_000, 10_000
#: The kinds of tensors that updates change, under the names of their matrices; the last one of steered rates.
_STATES = {
    "weights": WEIGHT, "first_moment": "first_moment", "second_moment": "second_moment",
    LOG_FACTOR: LOG_FACTOR,
}  # fmt: skip
#: The inputs of the first moment of steered rates.
_OF_MOMENT = "n_gradients", "decay"
#: The inputs that hold the data.
_TABLES = ("table", "targets")
#: The most calls that are kept bound, each for another number of batches.
_MOST_CALLS = 16
#: The second moment of blocks without a gradient so far, as a multiple of the least normal number, and the
#: least share of it that decay leaves in a call.
_FLOOR, _LEAST_SHARE = 1e6, 1e-5
#: Up to this many outputs a product with a diagonal matrix takes less time than two operators.
_FEW_OUTPUTS = 8


@dataclass(frozen=True)
class LinearBlocks:
    """The blocks of the second moment.

    Attributes
    ----------
    layer : LinearLayer
        The only layer of the model.
    by_output : bool
        Whether each output has blocks of its own.
    beta_1, beta_2, steering : float
        The decay rates of the moments, that of the first one unless the rate is steered, and the largest
        change of the logarithm of a factor; 0: none.
    has_table : bool
        Whether the graph gathers the rows of batches; otherwise it is given them.
    has_one_rate : bool
        Whether coefficients and intercepts of all outputs have one rate.
    is_preconditioned : bool
        Whether the gradient has a preconditioner; the rate is not steered then.
    with_penalties : bool
        Whether penalties count in the angle that steers the rate.
    with_sizes : bool
        Whether the size of the gradient counts.
    rests : (float, float or None)
        The cosine that leaves a factor as it is, and its bound in multiples of the square of the cosine.
    inertia : float
        The share of the moment in a steered step.
    """

    layer: LinearLayer
    by_output: bool
    beta_1: float
    beta_2: float
    steering: float
    has_table: bool
    has_one_rate: bool
    is_preconditioned: bool = False
    with_penalties: bool = False
    with_sizes: bool = False
    rests: tuple[float, float | None] = (REST, None)
    inertia: float = 1.0

    @property
    def states(self) -> dict[str, str]:
        """The kinds of tensors that updates change, under the names of their matrices."""
        return {name: kind for name, kind in _STATES.items() if self.steering or kind != LOG_FACTOR}

    @property
    def n_rows(self) -> int:
        """The rows of the second moment."""
        return self.layer.n_outputs if self.by_output else 1

    @property
    def shape_of_rates(self) -> tuple[int, int]:
        """The shape of the rates of an update."""
        return (1, 1) if self.has_one_rate else (self.n_rows, self.layer.width)

    def means(self, dtype: np.dtype[Any]) -> np.ndarray:
        """Return the matrix that takes the means over blocks, of shape [width, width]."""
        n, width = self.layer.n_features, self.layer.width
        matrix = np.zeros((width, width))
        matrix[:n, :n] = 1.0 / n
        matrix[n, n] = 1.0
        return (matrix / (self.layer.n_outputs // self.n_rows)).astype(dtype)


def fits_table(batches: Batches, n_features: int) -> bool:
    """Tell whether a table of all samples, of so many features, an intercept and a target, is small."""
    return batches.target.dtype.itemsize * len(batches.target) * (n_features + 2) <= _BLOCK_BYTES


def build_linear_adam(blocks: LinearBlocks, model: ir.Model) -> bytes:
    """Return a graph that makes one update for each batch.

    Inputs: `weights` and `first_moment` [n_outputs, width], `second_moment` [n_rows, width], and `log_factor`
    of the same shape if the rate is steered; `table` [n, width] and, unless rows have signs, `targets`
    [n, n_outputs]; `rows` [n_batches, batch_size], if the graph gathers them from the table, otherwise the
    table has one row for each place; `factors` [n_batches, batch_size, width], which multiply the rows for
    the gradient; `sample_weight` [n_batches, batch_size]; `inverse_rate`, 1 / (r eta),
    [n_batches, n_rows, width], or [n_batches, 1, 1] for one rate; `n_gradients`, 1 / r, and
    `decay`, beta_1, [n_batches, 1, 1], if the rate is steered; for a layer with a penalty `pull`
    [n_batches, 1, 1] and `penalty_scale` [1, width], whose product is p, bounded; `preconditioner`
    [width, width], if there is one.
    Outputs: the new weights and states, whose names begin with `new_`; `losses` [n_batches]; for a layer with
    a penalty `steps` [n_batches, n_outputs, width], which are subtracted from the weights.

    Parameters
    ----------
    blocks : LinearBlocks
        The only layer of the model, and the blocks of its second moment.
    model : ir.Model
        The model, whose type and opset the graph has.
    """
    layer = blocks.layer
    dtype, opsets = element_type(model.graph.outputs[0]), {"": model.graph.opset_imports[""]}
    type_, size, n_outputs = ir.TensorType(dtype), layer.batch_size, layer.n_outputs

    def tensor(name: str, *sizes: int | None, type_: ir.TensorType = type_) -> ir.Value:
        return ir.Value(name=name, type=type_, shape=ir.Shape(sizes))

    tables = [tensor("table", None, layer.width)]
    if not layer.has_signs:
        tables.append(tensor("targets", None, n_outputs))
    factors, weight = tensor("factors", None, size, layer.width), tensor("sample_weight", None, size)
    rows = tensor("rows", None, size, type_=ir.TensorType(ir.DataType.INT64))
    inverse_rate = tensor("inverse_rate", None, *blocks.shape_of_rates)
    pull, penalty_scale = tensor("pull", None, 1, 1), tensor("penalty_scale", 1, layer.width)
    of_moment = [tensor(name, None, 1, 1) for name in _OF_MOMENT] if blocks.steering else []
    preconditioner = tensor(PRECONDITIONER, layer.width, layer.width)
    graph = ir.Graph([], [], nodes=[], opset_imports=opsets, name="linear_epoch")
    with appending(graph) as op:
        forward, *target = (
            op.Gather(table, rows)
            if blocks.has_table
            else op.Reshape(table, [-1, size, fixed_size(table, 1)])
            for table in tables
        )
        backward = op.Mul(forward, factors)
        # bounded, as those of nearly constant columns overflow, and inf / inf is no step
        most = float(np.finfo(dtype.numpy()).max) ** MOST_STRENGTH
        pulls = [op.Min(op.Mul(pull, penalty_scale), most)] if layer.is_penalised else []
    for made in (forward, backward, *target):
        width = n_outputs if made in target else layer.width
        made.type, made.shape = type_, ir.Shape([None, size, width])
    body = _body(blocks, dtype, opsets, preconditioner)
    states = body.inputs[: len(blocks.states)]
    first = [declare(str(value.name).removeprefix("update/"), value) for value in states]
    last = [declare(f"new_{value.name}", value) for value in first]
    stacked = [
        forward, backward, inverse_rate, *pulls, *of_moment, *(target if layer.reads_target else []),
    ]  # fmt: skip
    score = tensor("scores", None, *layer.shape_of_scores)
    steps = [tensor("steps", None, n_outputs, layer.width)] if layer.is_penalised else []
    attributes = {"body": body, "num_scan_inputs": len(stacked)}
    graph.append(new_node("Scan", [*first, *stacked], [*last, score, *steps], attributes))
    losses = layer.losses(graph, score, weight, *target)
    for node in list(graph):
        widen_scalars(graph, node)
    graph.inputs.extend(
        [
            *first, *tables, *([rows] if blocks.has_table else []), factors, weight, inverse_rate,
            *([pull, penalty_scale] if layer.is_penalised else []), *of_moment,
            *([preconditioner] if blocks.is_preconditioned else []),
        ]
    )  # fmt: skip
    graph.outputs.extend([*last, losses, *steps])
    return to_proto(ir.Model(graph, ir_version=model.ir_version, producer_name="onnxsgd")).SerializeToString()


def _body(
    blocks: LinearBlocks, dtype: ir.DataType, opsets: dict[str, int], preconditioner: ir.Value
) -> ir.Graph:
    """Return the graph of one update, which reads the preconditioner, if there is one, from outside."""
    layer, n_rows = blocks.layer, blocks.n_rows
    size, n_outputs, width, type_ = layer.batch_size, layer.n_outputs, layer.width, ir.TensorType(dtype)

    def value(name: str, *sizes: int) -> ir.Value:
        return ir.Value(name=f"update/{name}", type=type_, shape=ir.Shape(sizes))

    weights, first = value("weights", n_outputs, width), value("first_moment", n_outputs, width)
    of_blocks = [value(name, n_rows, width) for name in list(blocks.states)[2:]]
    forward, backward = value("forward", size, width), value("backward", size, width)
    inverse_rate, pull = value("inverse_rate", *blocks.shape_of_rates), value("pull", 1, width)
    of_moment = [value(name, 1, 1) for name in _OF_MOMENT] if blocks.steering else []
    target = layer.scanned(value("target", size, n_outputs))
    pulls = [pull] if layer.is_penalised else []
    inputs = [weights, first, *of_blocks, forward, backward, inverse_rate, *pulls, *of_moment, *target]
    body = ir.Graph(inputs, [], nodes=[], opset_imports=opsets, name="update")
    with appending(body) as op:
        score = layer.scores(op, forward, weights)
        gradient = layer.change(op, layer.gradient(op, score, *target), backward)
        gradient.type = type_
        if blocks.is_preconditioned:
            gradient = op.Add(gradient, op.Mul(weights, pull)) if pulls else gradient
            new_first, *new_blocks = _moved_along(blocks, op, gradient, first, of_blocks, preconditioner)
            step = op.Div(new_first, op.Mul(op.Sqrt(new_blocks[0]), inverse_rate))
        else:
            new_first = _decayed_sum(blocks, op, first, gradient, *of_moment[1:])
            pulled = op.Mul(weights, pull) if pulls else None
            along = new_first
            if blocks.steering:
                penalty = None
                if blocks.with_penalties and pulled is not None:
                    penalty = _Penalty(op.Mul(pulled, of_moment[0]), pull, inverse_rate)
                new_blocks = _steered_blocks(blocks, op, gradient, first, of_blocks, penalty)
                along = _step(blocks, op, gradient, new_first, of_moment[0])
            else:
                new_blocks = [_decayed_means(blocks, op, of_blocks[0], _squares(blocks, op, gradient))]
            new_second, *new_factors = new_blocks
            size_of_gradient = op.Sqrt(new_second)
            for factor in new_factors:
                size_of_gradient = op.Div(size_of_gradient, op.Exp(factor))
            along = along if pulled is None else op.Add(along, pulled)
            if pulls and blocks.has_one_rate:
                # of one number: a product takes less time than two operators
                divisor = op.Gemm(inverse_rate, size_of_gradient, pull)
            else:
                divisor = op.Mul(size_of_gradient, inverse_rate)
                divisor = op.Add(divisor, pull) if pulls else divisor
            step = op.Div(along, divisor)
        # a difference: steps below the last digit of a weight leave it as it is
        new = op.Sub(weights, step)
        updated = [new, new_first, *new_blocks]
        for made, like in zip(updated, inputs, strict=False):
            made.type, made.shape = type_, like.shape
    for node in list(body):
        widen_scalars(body, node)
        for made in node.outputs:
            made.name = f"update/{made.name}"
    step.type, step.shape = type_, weights.shape
    body.outputs.extend([*updated, score, *([step] if pulls else [])])
    return body


@dataclass(frozen=True)
class _Penalty:
    """The values of a penalty that counts in the angle.

    Attributes
    ----------
    of_moment : ir.Value
        Its part in the sum of gradients of the objective.
    pull, inverse_rate : ir.Value
        Its strength, and the inverse of the rate.
    """

    of_moment: ir.Value
    pull: ir.Value
    inverse_rate: ir.Value


def _step(
    blocks: LinearBlocks, op: Builder, gradient: ir.Value, first: ir.Value, n_gradients: ir.Value
) -> ir.Value:
    """Return the direction of a steered step."""
    if not blocks.inertia:
        return gradient
    mean = op.Div(first, n_gradients)
    return op.Add(op.Mul(gradient, 1.0 - blocks.inertia), op.Mul(mean, blocks.inertia))


def _steered_blocks(
    blocks: LinearBlocks,
    op: Builder,
    gradient: ir.Value,
    first: ir.Value,
    of_blocks: Sequence[ir.Value],
    penalty: _Penalty | None,
) -> list[ir.Value]:
    """Return the new second moment, and the new logarithm of the factor of the rate."""
    second, factor = of_blocks
    square = _squares(blocks, op, gradient)
    means = _means(blocks, op, first)
    if penalty is not None:
        most = bound_of_pull(first)
        first = op.Add(first, op.Clip(penalty.of_moment, -most, most))
    product = op.Mul(first, gradient)
    if blocks.n_rows < blocks.layer.n_outputs:
        product = op.ReduceSum(product, [0], keepdims=1)
    parts, n_rows = [square, product, _squares(blocks, op, first)], blocks.n_rows
    steering: ir.Value | float = blocks.steering
    if penalty is None:
        of_angle = op.Split(op.MatMul(op.Concat(*parts, axis=0), means), [n_rows] * 3, axis=0, _outputs=3)
        mean = of_angle[0]
        new_second = op.Add(op.Mul(second, blocks.beta_2), mean)
    else:
        mean = op.MatMul(square, means)
        new_second = op.Add(op.Mul(second, blocks.beta_2), mean)
        size = op.Mul(op.Div(op.Sqrt(new_second), op.Exp(factor)), penalty.inverse_rate)
        # a rate of zero has an infinite inverse: a quotient of two infinite numbers is none
        shrinkage = op.Add(op.Div(penalty.pull, size), 1.0)
        parts = [op.Div(part, shrinkage) for part in parts]
        of_angle = op.Split(op.MatMul(op.Concat(*parts, axis=0), means), [n_rows] * 3, axis=0, _outputs=3)
    if blocks.with_sizes:
        steering = sized(op, steering, mean, op.Mul(new_second, 1.0 - blocks.beta_2))
    square, product, moment_square = of_angle
    most = most_factor(blocks.with_sizes)
    return [new_second, steered(op, factor, product, moment_square, square, steering, blocks.rests, most)]


def _moved_along(
    blocks: LinearBlocks,
    op: Builder,
    gradient: ir.Value,
    first: ir.Value,
    of_blocks: Sequence[ir.Value],
    preconditioner: ir.Value,
) -> list[ir.Value]:
    """Return the new first and second moments of the product of gradient and preconditioner."""
    direction = op.MatMul(gradient, preconditioner)
    product = op.Mul(gradient, direction)
    if blocks.n_rows < blocks.layer.n_outputs:
        product = op.ReduceSum(product, [0], keepdims=1)
    (second,) = of_blocks
    return [_decayed_sum(blocks, op, first, direction), _decayed_means(blocks, op, second, product)]


def _decayed_means(blocks: LinearBlocks, op: Builder, second: ir.Value, square: ir.Value) -> ir.Value:
    """Return ``beta_2 second + mean(square)``, with the means over blocks."""
    means = _means(blocks, op, second)
    # the attribute beta of Gemm is a number of float32
    if second.dtype == ir.DataType.FLOAT:
        return op.Gemm(square, means, second, beta=blocks.beta_2)
    return op.Gemm(square, means, op.Mul(second, blocks.beta_2))


def _means(blocks: LinearBlocks, op: Builder, like: ir.Value) -> ir.Value:
    """Return the matrix that takes the means over blocks, of the type of a value."""
    dtype = like.dtype or ir.DataType.FLOAT
    return op.initializer(ir.tensor(blocks.means(dtype.numpy()), name="update/means"))


def _squares(blocks: LinearBlocks, op: Builder, matrix: ir.Value) -> ir.Value:
    """Return the squares of a matrix, summed over outputs that share a block."""
    if blocks.n_rows == blocks.layer.n_outputs:
        return op.Mul(matrix, matrix)
    return op.ReduceSumSquare(matrix, [0], keepdims=1)


def _decayed_sum(
    blocks: LinearBlocks, op: Builder, first: ir.Value, gradient: ir.Value, decay: ir.Value | None = None
) -> ir.Value:
    """Return ``beta_1 first + gradient``: for few outputs and a constant by one product."""
    if decay is not None:
        return op.Add(op.Mul(first, decay), gradient)
    n_outputs, dtype = blocks.layer.n_outputs, first.dtype
    if n_outputs > _FEW_OUTPUTS or dtype is None:
        return op.Add(op.Mul(first, blocks.beta_1), gradient)
    factor = (blocks.beta_1 * np.eye(n_outputs)).astype(dtype.numpy())
    return op.Gemm(op.initializer(ir.tensor(factor, name="update/beta_1")), first, gradient)


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
        The data, which may be replaced between calls by others of the same types and shapes of rows.

    Attributes
    ----------
    n_done : int
        Batches done by the last call to :meth:`run`, also if that was interrupted.
    """

    #: Updates are written beside the present weights, which an interrupt leaves whole.
    is_whole = True

    def __init__(
        self, session: Any, blocks: LinearBlocks, spec: StepSpec, buffers: Buffers, batches: Batches
    ) -> None:
        self._blocks, self._buffers = blocks, buffers
        self._call = partial(_Call, session, blocks, buffers)
        layer, places = blocks.layer, {name: place for place, name in enumerate(spec.scalars)}
        #: The columns of the scalars that hold the numbers of the first moment, the penalty, and the rates.
        self._momentum_rate, self._decay = places["momentum_rate"], places[DECAY]
        self._decay_of_moment = places["beta_1"]
        columns = {
            layer.weight: slice(0, layer.n_features),
            layer.intercept: slice(layer.n_features, layer.n_features + 1),
        }
        self._rates = [
            (name, column, spec.numbers_of(name, places)[RATE])
            for name, column in columns.items()
            if name is not None
        ]
        if blocks.has_one_rate:
            _, _, place = self._rates[0]
            self._rates = [(layer.weight, slice(None), place)]
        dtype: Any = dtype_of(session.get_outputs()[0])
        #: Rates below this one have no inverse in this type.
        self._least_rate = float(np.finfo(dtype).tiny)
        of_steps = layer.n_outputs * layer.width if layer.is_penalised else 0
        of_rows = layer.batch_size * (2 * layer.width + layer.n_outputs)
        nbytes = np.dtype(dtype).itemsize * (of_rows + of_steps)
        longest = int(math.log(_LEAST_SHARE) / math.log(blocks.beta_2))
        self._size = max(1, min(_MOST_BATCHES, _BLOCK_BYTES // nbytes, longest))
        self._calls: dict[int, _Call] = {}
        #: The only call of the last run.
        self._only: _Call | None = None
        self._batches: Any = None
        self._table: tuple[np.ndarray, np.ndarray] | None = None
        self.batches = batches

    @property
    def batches(self) -> Batches | None:
        """The data."""
        return self._batches

    @batches.setter
    def batches(self, batches: Batches | None) -> None:
        self._batches = batches
        self._is_filled = not self._blocks.has_table
        if len(self._calls) > _MOST_CALLS:
            self._calls.clear()

    def _fill_table(self) -> None:
        """Gather the table of all samples, once the runner is used."""
        target = self._batches.target
        layer = self._blocks.layer
        if self._table is None or len(self._table[1]) != len(target):
            # otherwise calls stay bound to the same memory
            for call in self._calls.values():
                call.forget_table()
            self._table = np.empty((len(target), layer.width), target.dtype), np.empty_like(target)
        table, targets = self._table
        self._batches.copy_table(layer.feature, table[:, : layer.n_features])
        targets[...] = as_array(target)
        layer.complete(table, targets)
        self._is_filled = True

    @property
    def nbytes(self) -> int:
        """Bytes of the inputs of all calls."""
        of_table = 0 if self._table is None else self._table[0].nbytes + self._table[1].nbytes
        return of_table + sum([call.nbytes for call in self._calls.values()])

    @property
    def n_done(self) -> int:
        """Batches done by the last call to :meth:`run`."""
        return self._buffers.n_done

    def run(self, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray) -> None:
        """Make one update for each batch; see :meth:`onnxsgd.engine.step.single_step.StepRunner.run`."""
        self._buffers.restart()
        if not self._is_filled:
            self._fill_table()
        start = 0
        while start < len(losses):
            present = self._buffers.sets[self._buffers.current]
            part = slice(start, start + (1 if self._waits(present) else self._size))
            count = len(losses[part])
            call = self._calls.get(count)
            if call is None:
                call = self._calls[count] = self._call(count)
            call.fill(self._batches, plan if count == len(losses) else plan.part(part), self._table)
            self._fill_rates(call, present, scalars if count == len(losses) else scalars[part])
            of_part = losses[part]
            self._only = call if count == len(losses) else None
            of_part[...] = call.run(self._buffers.current)
            self._buffers.flip(count)
            if not all_finite(of_part):
                break
            start += count

    def squares(self, n_parts: int) -> np.ndarray | None:
        """Return the sums of squares of the coefficients of raw data after each part of the last run.

        Parameters
        ----------
        n_parts : int
            The number of parts, of as many batches.

        Returns
        -------
        ndarray of float64 or None
            None: they are not known, as there is no penalty, or as the run took several calls or broke off.
        """
        only, n_done = self._only, self._buffers.n_done
        if (
            only is None
            or not self._blocks.layer.is_penalised
            or n_done != only.n_batches
            or n_done % n_parts
        ):
            return None
        return only.squares(n_parts)

    def _waits(self, present: Tensors) -> bool:
        """Tell whether there are weights with a penalty, and no gradient of their block so far."""
        layer = self._blocks.layer
        second = present[layer.weight, "second_moment"]
        if not layer.is_penalised or np.count_nonzero(second) == second.size:
            return False
        return bool(((second == 0) & (present[layer.weight, WEIGHT] != 0)).any())

    def _fill_rates(self, call: _Call, present: Tensors, scalars: np.ndarray) -> None:
        """Copy the numbers of the updates, with those of each column of the weights."""
        moment, inverse = scalars[:, self._momentum_rate], call.arrays["inverse_rate"]
        # steered steps are along means of gradients, not along their sum
        factor = np.ones_like(moment) if self._blocks.steering else moment
        for name, column, place in self._rates:
            rate = (scalars[:, place] * factor)[:, None, None]
            scale = present.get((name, RATE_SCALE))
            rate = rate if scale is None else rate * scale.reshape(1, -1, 1)
            moves = rate > self._least_rate
            if are_all(moves):
                np.reciprocal(rate, out=inverse[..., column], casting="same_kind")
            else:
                # steps at a rate of zero are zero
                inverse[..., column] = np.divide(1.0, rate, where=moves, out=np.full_like(rate, np.inf))
        if self._blocks.layer.is_penalised:
            # a preconditioned gradient includes the penalty, a moment has the factor of its sum
            factor = np.ones_like(factor) if self._blocks.is_preconditioned else factor
            np.divide(scalars[:, self._decay], factor, out=call.arrays["pull"][:, 0, 0], casting="same_kind")
        if self._blocks.steering:
            n_gradients, decay = (call.arrays[name][:, 0, 0] for name in _OF_MOMENT)
            np.reciprocal(moment, out=n_gradients, casting="same_kind")
            decay[...] = scalars[:, self._decay_of_moment]


class _Call:
    """The inputs and outputs of a call for `n_batches` batches, in arrays that are bound once.

    Attributes
    ----------
    arrays : dict of ndarray
        The inputs but the table.
    n_batches : int
        The batches.
    nbytes : int
        Their bytes.
    """

    def __init__(self, session: Any, blocks: LinearBlocks, buffers: Buffers, n_batches: int) -> None:
        self._session, self._blocks, self.n_batches = session, blocks, n_batches
        layer = blocks.layer
        dtypes = {value.name: dtype_of(value) for value in session.get_inputs()}
        counts = dict.fromkeys(dtypes, n_batches)
        if not blocks.has_table:
            counts |= dict.fromkeys(_TABLES, n_batches * layer.batch_size)
        self.arrays = {
            value.name: np.zeros(
                [size if isinstance(size, int) else counts[value.name] for size in value.shape],
                dtypes[value.name],
            )
            for value in session.get_inputs()
            if not (blocks.has_table and value.name in _TABLES)
        }
        #: The tables that the graph reads, and the targets of those that are gathered here.
        self._tables = [name for name in _TABLES if name in dtypes]
        n_gathered = 0 if blocks.has_table else n_batches * layer.batch_size
        targets = np.zeros([n_gathered, layer.n_outputs], dtypes["weights"])
        self._targets = self.arrays.get("targets", targets)
        # columns of no weights have no gradient
        for name in ("second_moment", "inverse_rate"):
            self.arrays[name][...] = 1
        # an array without axes: operations on few numbers take twice the time with one of Python
        dtype = self.arrays["second_moment"].dtype
        self._floor = np.array(_FLOOR * float(np.finfo(dtype).tiny), dtype)
        self._new = {name: np.zeros_like(self.arrays[name]) for name in blocks.states}
        self._losses = np.zeros(n_batches, dtypes["weights"])
        self._steps = np.zeros([n_batches, layer.n_outputs, layer.width] if layer.is_penalised else 0, dtype)
        self.nbytes = sum(array.nbytes for array in self.arrays.values()) + self._steps.nbytes
        self._weights: tuple[np.ndarray, np.ndarray] | None = None
        self._table: tuple[np.ndarray, np.ndarray] | None = None
        self._binding = session.io_binding()
        for name, array in self.arrays.items():
            bind(self._binding.bind_input, name, array, array.shape)
        outputs = {f"new_{name}": array for name, array in self._new.items()} | {"losses": self._losses}
        if layer.is_penalised:
            outputs["steps"] = self._steps
        for name, array in outputs.items():
            bind(self._binding.bind_output, name, array, array.shape)
        if layer.folds_target:
            self.arrays["weights"][:, layer.n_features + 1] = 1
        if blocks.is_preconditioned:
            np.fill_diagonal(self.arrays[PRECONDITIONER], 1)
        if layer.is_penalised:
            # the intercept has no penalty
            self.arrays["penalty_scale"][:, : layer.n_features] = 1
        #: The copies from each set of the buffers before a run, and to the other one after it.
        self._copies = [
            (self._inputs(given), self._outputs(given, following))
            for given, following in (buffers.sets, buffers.sets[::-1])
        ]

    def _inputs(self, given: Tensors) -> Copies:
        """Return the copies of the present weights and states into the inputs."""
        states = self._blocks.states.items()
        copies = [self._blocks.layer.packing(given, kind, self.arrays[name]) for name, kind in states]
        layer, scales = self._blocks.layer, list[tuple[np.ndarray, np.ndarray]]()
        if (scale := given.get((layer.weight, PENALTY_SCALE))) is not None:
            scales.append((self.arrays["penalty_scale"][0, : layer.n_features], scale.reshape(-1)))
        if (matrix := given.get((layer.weight, PRECONDITIONER))) is not None:
            scales.append((self.arrays[PRECONDITIONER][: layer.n_features, : layer.n_features], matrix))
        return [*(copy for of_state in copies for copy in of_state), *scales]

    def _outputs(self, given: Tensors, following: Tensors) -> Copies:
        """Return the copies of the new weights and states out of the outputs, and those of the others."""
        states = self._blocks.states
        copies = [
            self._blocks.layer.unpacking(self._new[name], following, kind) for name, kind in states.items()
        ]
        others = [(following[key], array) for key, array in given.items() if key[1] not in states.values()]
        return [*(copy for of_state in copies for copy in of_state), *others]

    def forget_table(self) -> None:
        """Drop a table that is replaced before the next call."""
        self._table = None

    def fill(self, batches: Batches, plan: EpochPlan, table: tuple[np.ndarray, np.ndarray] | None) -> None:
        """Take the batches, from a table of all rows if there is one, and their weights."""
        if table is None:
            _gather(batches, self._blocks.layer, plan.rows.reshape(-1), self.arrays["table"], self._targets)
        else:
            self.arrays["rows"][...] = plan.rows
            if table is not self._table:
                self._table = None
                for name, array in zip(self._tables, table, strict=False):
                    bind(self._binding.bind_input, name, array, array.shape)
                self._table = table
        # most plans of a fit share these
        known = self._weights
        if known is None or known[0] is not plan.sample_weight or known[1] is not plan.factors:
            self._weights = None
            self._weigh(plan)
            self._weights = plan.sample_weight, plan.factors

    def _weigh(self, plan: EpochPlan) -> None:
        layer, factors = self._blocks.layer, self.arrays["factors"]
        # the columns of a missing intercept and of the targets get no gradient
        trained = layer.n_features + (layer.intercept is not None)
        plan.weigh(slice(None), self.arrays["sample_weight"], factors[..., :1])
        factors[..., 1:trained] = factors[..., :1]

    def run(self, current: int) -> np.ndarray:
        """Write the weights and states of this set of the buffers after the updates to the other one.

        Return the losses.
        """
        inputs, outputs = self._copies[current]
        make_copies(inputs)
        second = self.arrays["second_moment"]
        begins = second == 0 if is_any(second < self._floor) else None
        if begins is not None:
            np.maximum(second, self._floor, out=second)
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            raise run_error(error) from error
        if begins is not None:
            self._keep_idle(begins & (self._new["second_moment"] <= self._floor))
        make_copies(outputs)
        return self._losses

    def squares(self, n_parts: int) -> np.ndarray:
        """Return the sums of squares of the coefficients of raw data after parts of as many batches."""
        weights = self.arrays["weights"]
        moves = np.add.reduce(self._steps.reshape(n_parts, -1, *weights.shape), axis=1)
        present = weights - np.add.accumulate(moves, dtype=np.float64)
        present *= present
        squares: np.ndarray = np.add.reduce(present.dot(self.arrays["penalty_scale"][0]), axis=1)
        return squares

    def _keep_idle(self, idle: np.ndarray) -> None:
        """Keep the weights and the moment of blocks that have no gradient so far."""
        self._new["second_moment"][idle] = 0
        np.copyto(self._new["weights"], self.arrays["weights"], where=idle)


def _gather(
    batches: Batches, layer: LinearLayer, rows: np.ndarray, table: np.ndarray, target: np.ndarray
) -> None:
    """Copy samples into a table of features, a column of ones, and minus the targets if they are a column."""
    features = np.empty((len(table), layer.n_features), table.dtype)
    batches.fill(rows, {layer.feature: features}, target)
    table[:, : layer.n_features] = features
    layer.complete(table, target)
