"""Unrolled training steps: one graph without a loop, on data resident on its device.

Launching a kernel costs more than running it; CUDA graphs avoid that, but cannot contain loops. So the step
is repeated in the graph. It gathers the rows of its batches from all of the data, by the order of the epoch
and a counter that it increments: the outputs of one call are the only new inputs of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from onnxsgd.engine.step.deferred_losses import add_losses, declare, reduce_to_updates
from onnxsgd.engine.step.dropout_masks import KEYS
from onnxsgd.engine.step.fuse import separate_sums, widen_scalars
from onnxsgd.engine.step.mixed_precision import SCALER, SKIPPED, widen_missing
from onnxsgd.engine.step.update import IS_LAST
from onnxsgd.graph.append import appending
from onnxsgd.graph.model import to_ir, to_proto
from onnxsgd.graph.nodes import element_type, shape_of
from onnxsgd.graph.writing import take_nodes

if TYPE_CHECKING:
    from onnxsgd.engine.step.training_step import CompiledStep
    from onnxsgd.losses import Loss

__all__ = [
    "COUNTER", "LOSSES", "ROWS", "UPDATES", "build_block", "input_name", "numbers_of_updates", "output_name",
]  # fmt: skip

#: Inputs of a block beside those of a step: the order of the data, the number of batches done, and the losses
#: of an epoch. Names of a step have other prefixes.
ROWS, COUNTER, LOSSES = "epoch/rows", "epoch/counter", "epoch/losses"
#: Where updates may be skipped: the update of each batch, the first being 0.
UPDATES = "epoch/updates"
#: The numbers of a step that each batch of an update has of its own.
_OF_BATCHES = (IS_LAST, *KEYS)


def input_name(name: str) -> str:
    """Return the name in a block of an input of the step."""
    return f"step/{name}"


def output_name(name: str) -> str:
    """Return the name in a block of the output that becomes an input of the next block."""
    return f"new/{name}"


def numbers_of_updates(step: CompiledStep) -> tuple[str, ...]:
    """Return the numbers of a step that a block takes for each update that is made, not for each batch.

    None unless updates may be skipped: those after a skipped one then take the numbers of one update earlier.
    """
    if (SCALER, SKIPPED) not in step.tensors:
        return ()
    return tuple(name for name in step.scalars if name not in _OF_BATCHES)


def build_block(step: CompiledStep, loss: Loss, n_steps: int, *, on_gpu: bool = False) -> bytes:
    """Return a graph that runs a step `n_steps` times.

    Inputs: weights and states; features [n_samples, ...] and target [n_samples, n_outputs]; both weights of
    the samples [n_batches, batch_size, 1] and each scalar [n_batches], as far as the step reads them; rows
    [n_batches, batch_size]; counter [1] and losses [n_batches]. Outputs: new weights and states, counter and
    losses. Where updates may be skipped, the scalars of :func:`numbers_of_updates` are [n_updates], and
    another input is the update of each batch [n_batches].

    Parameters
    ----------
    step : CompiledStep
        The step, of standard operators; with subgraphs, for one step alone.
    loss : Loss
        Its loss.
    n_steps : int
        The number of steps.
    on_gpu : bool
        Whether operators have forms that are faster on a GPU, and types of which it has kernels.
    """
    models = [to_ir(onnx.load_from_string(step.model)) for _ in range(n_steps)]
    first = models[0].graph
    graph = ir.Graph([], [], nodes=[], opset_imports=dict(first.opset_imports), name="block")
    given = {value.name: value for value in first.inputs}
    state = [declare(input_name(old), given[old]) for old, _ in step.tensors.values()]
    graph.inputs.extend(state)
    data = _Data(graph, step, first, n_steps)
    raw_predictions = []
    for number, model in enumerate(models):
        carried = [old for old, _ in reduce_to_updates(model, step)]
        read = [value for value in model.graph.inputs if value not in carried]
        present = dict(zip(step.tensors, state, strict=True))
        skipped = present.get((SCALER, SKIPPED))
        batch = [data.of_step(str(value.name), number, skipped) for value in read]
        given_now = dict(zip([*carried, *read], [*state, *batch], strict=True))
        *state, raw_prediction = _move(model.graph, graph, f"step{number}/", given_now)
        raw_predictions.append(raw_prediction)
    for value, (old, _) in zip(state, step.tensors.values(), strict=True):
        value.name = output_name(old)
    made = _joined(graph, raw_predictions)
    losses = add_losses(graph, loss, data.stacked(step.target), made, data.table(step.sample_weight))
    graph.outputs.extend([*state, *data.move_on(losses)])
    for node in list(graph):
        widen_scalars(graph, node)
    if on_gpu:
        separate_sums(graph)
        widen_missing(graph)
    proto = to_proto(ir.Model(graph, ir_version=models[0].ir_version, producer_name="onnxsgd"))
    return proto.SerializeToString()


class _Data:
    """The inputs of the steps of a block beside weights and states.

    Parameters
    ----------
    graph : ir.Graph
        The block, which gets each input at its first use.
    step : CompiledStep
        The step.
    body : ir.Graph
        Its graph.
    n_steps : int
        The number of steps.
    """

    def __init__(self, graph: ir.Graph, step: CompiledStep, body: ir.Graph, n_steps: int) -> None:
        self._graph, self._n_steps = graph, n_steps
        self._like = {value.name: declare(str(value.name), value) for value in body.inputs}
        self._rows_of = {*step.features, step.target}
        self._of_updates = {step.scalars[name] for name in numbers_of_updates(step)}
        self._wholes: dict[str, ir.Value] = {}
        self._stacked: dict[str, ir.Value] = {}
        self._cut: dict[str, Sequence[ir.Value]] = {}
        batch_size = self._shape(step.target)[0]
        self._counter = self._input(COUNTER, ir.DataType.INT64, [1])
        rows = self._input(ROWS, ir.DataType.INT32, [None, batch_size])
        with appending(graph) as op:
            self._numbers = op.Add(self._counter, list(range(n_steps))) if n_steps > 1 else self._counter
            self._rows = op.Gather(rows, self._numbers, axis=0)

    def stacked(self, name: str) -> ir.Value:
        """Return an input of the step for all steps of the block, [n_steps, ...]."""
        if name not in self._stacked:
            like, shape = self._like[name], self._shape(name)
            by_row = name in self._rows_of
            sizes = [None, *shape[1:]] if by_row else [None, *shape]
            whole = self._input(input_name(name), element_type(like), sizes)
            with appending(self._graph) as op:
                value = op.Gather(whole, self._rows if by_row else self._numbers, axis=0)
            value.type, value.shape = like.type, ir.Shape([self._n_steps, *shape])
            self._stacked[name] = value
        return self._stacked[name]

    def of_step(self, name: str, number: int, skipped: ir.Value | None) -> ir.Value:
        """Return an input of the step for one of the steps, with so many updates skipped before it."""
        if skipped is not None and name in self._of_updates:
            return self._of_made_update(name, number, skipped)
        if name not in self._cut:
            stacked, like = self.stacked(name), self._like[name]
            parts: Sequence[ir.Value] = [stacked]
            with appending(self._graph) as op:
                if self._n_steps > 1:
                    parts = op.Split(stacked, [1] * self._n_steps, axis=0, _outputs=self._n_steps)
                self._cut[name] = [op.Squeeze(part, [0]) for part in parts]
            for part in parts:
                part.type, part.shape = like.type, ir.Shape([1, *self._shape(name)])
            for value in self._cut[name]:
                value.type, value.shape = like.type, like.shape
        return self._cut[name][number]

    def _of_made_update(self, name: str, number: int, skipped: ir.Value) -> ir.Value:
        """Return a scalar of the update that one of the steps belongs to, counted without skipped ones."""
        like, updates = self._like[name], self._whole(UPDATES, ir.DataType.INT64)
        whole = self._whole(input_name(name), element_type(like))
        with appending(self._graph) as op:
            batch = op.Add(self._counter, [number]) if number else self._counter
            made = op.Sub(op.Gather(updates, batch, axis=0), skipped)
            value = op.Squeeze(op.Gather(whole, made, axis=0), [0])
        value.type, value.shape = like.type, like.shape
        return value

    def _whole(self, name: str, dtype: ir.DataType) -> ir.Value:
        """Return an input of one number for each batch or update."""
        if name not in self._wholes:
            self._wholes[name] = self._input(name, dtype, [None])
        return self._wholes[name]

    def table(self, name: str) -> ir.Value:
        """Return a column input of the step as rows, [n_steps, batch_size]."""
        stacked, batch_size = self.stacked(name), self._shape(name)[0]
        with appending(self._graph) as op:
            value = op.Reshape(stacked, [self._n_steps, batch_size])
        value.type, value.shape = stacked.type, ir.Shape([self._n_steps, batch_size])
        return value

    def move_on(self, losses: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return the counter after the block, and the losses of the epoch updated by those of the block."""
        known = self._input(LOSSES, element_type(losses), [None])
        with appending(self._graph) as op:
            counter = op.Add(self._counter, [self._n_steps])
            updated = op.ScatterElements(known, self._numbers, losses, axis=0)
        for value, old in ((counter, self._counter), (updated, known)):
            value.name, value.type, value.shape = output_name(str(old.name)), old.type, old.shape
        return counter, updated

    def _shape(self, name: str) -> list[int]:
        return list(shape_of(self._like[name]).numpy())

    def _input(self, name: str, dtype: ir.DataType, shape: Sequence[int | None]) -> ir.Value:
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self._graph.inputs.append(value)
        return value


def _move(body: ir.Graph, graph: ir.Graph, prefix: str, given: dict[ir.Value, ir.Value]) -> list[ir.Value]:
    """Move the nodes of a step to the end of `graph`, with its inputs replaced; return its outputs.

    All steps share constants.
    """
    for value, present in given.items():
        ir.convenience.replace_all_uses_with(value, present)
    outputs = list(body.outputs)
    nodes = take_nodes(body)
    constants = [body.initializers.pop(name) for name in list(body.initializers)]
    for constant in constants:
        constant.name = f"constant/{constant.name}"
        if constant.name in graph.initializers:
            ir.convenience.replace_all_uses_with(constant, graph.initializers[constant.name])
        else:
            graph.register_initializer(constant)
    for node in nodes:
        node.name = None
        for value in filter(lambda value: value.name, node.outputs):
            value.name = f"{prefix}{value.name}"
    graph.extend(nodes)
    return outputs


def _joined(graph: ir.Graph, tables: Sequence[ir.Value]) -> ir.Value:
    """Return the concatenation of tables along the first axis."""
    if len(tables) == 1:
        return tables[0]
    with appending(graph) as op:
        value: ir.Value = op.Concat(*tables, axis=0)
    return value
