"""Many training steps in one call of the runtime: a loop over batches as a graph.

For small models, most of the time of a step is spent on the way into the runtime and back. The loop gathers
the rows of each batch inside the graph, so that a whole epoch is one call.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxsgd.engine.buffers import Buffers, Tensors, bind

if TYPE_CHECKING:
    from onnxsgd.engine.batches import Batches, EpochPlan
    from onnxsgd.engine.step import CompiledStep

__all__ = ["EpochRunner", "build_epoch"]

#: Inputs and outputs beside those of the step, whose names all get a prefix of their own.
_ROWS, _LOSSES, _PREFIX = "rows", "losses", "step/"


def build_epoch(step: CompiledStep) -> bytes:
    """Return a graph that makes the step for one batch after another.

    Inputs: weights and states; `rows` [n_batches, batch_size]; both weights of the samples, [n_batches,
    batch_size, 1]; each scalar, [n_batches]; the features and the target of all samples.
    Outputs: new weights and states; `losses` [n_batches, 1, 1].
    """
    model = onnx.load_from_string(step.model)
    graph = model.graph
    _add_prefix(graph)
    types = {value.name: value.type.tensor_type for value in graph.input}
    carried = [(_PREFIX + old, _PREFIX + new) for old, new in step.tensors.values()]
    weights = (step.sample_weight, step.gradient_weight)
    sliced = [_PREFIX + name for name in (*weights, *step.scalars.values())]
    gathered = [_PREFIX + name for name in (*step.features, step.target) if _PREFIX + name in types]
    real = types[_PREFIX + step.target].elem_type
    scan = helper.make_node(
        "Scan",
        [*(f"{old}/first" for old, _ in carried), f"{_ROWS}/all", *(f"{name}/all" for name in sliced)],
        [*(f"{old}/last" for old, _ in carried), _LOSSES],
        num_scan_inputs=1 + len(sliced),
        body=_body(graph, step, carried, sliced, gathered),
    )
    inputs = [
        *(_info(f"{old}/first", types[old]) for old, _ in carried),
        helper.make_tensor_value_info(f"{_ROWS}/all", TensorProto.INT64, [None, None]),
        *(_info(f"{name}/all", types[name], stacked=True) for name in sliced),
        *(_info(f"{name}/all", types[name], any_rows=True) for name in gathered),
    ]
    outputs = [
        *(_info(f"{old}/last", types[old]) for old, _ in carried),
        helper.make_tensor_value_info(_LOSSES, real, [None, 1, 1]),
    ]
    whole = helper.make_graph([scan], "epoch", inputs, outputs, list(graph.initializer))
    return helper.make_model(
        whole, opset_imports=model.opset_import, ir_version=model.ir_version, producer_name="onnxsgd"
    ).SerializeToString()


class EpochRunner:
    """The loop over batches, on the buffers of a :class:`~onnxsgd.engine.runner.StepRunner`.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        The session of :func:`build_epoch`.
    step : CompiledStep
        The step inside.
    buffers : Buffers
        Weights and states, updated in place.
    batches : Batches
        The data.
    block : int
        Batches of one call; between calls an interrupt is noticed.

    Attributes
    ----------
    n_done : int
        Batches done by the last call to :meth:`run`, also if that was interrupted.
    """

    def __init__(
        self, session: Any, step: CompiledStep, buffers: Buffers, batches: Batches, block: int
    ) -> None:
        self._new_block = partial(_Block, session, step, buffers, batches)
        self._session = session
        self._buffers = buffers
        self._size = block
        self._blocks: dict[int, _Block] = {}
        self.n_done = 0

    def run(self, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray) -> None:
        """Make one update for each batch; see :meth:`onnxsgd.engine.runner.StepRunner.run`."""
        self.n_done = 0
        for start in range(0, len(losses), self._size):
            part = slice(start, start + self._size)
            n_batches = len(losses[part])
            if n_batches not in self._blocks:
                self._blocks[n_batches] = self._new_block(n_batches)
            block = self._blocks[n_batches]
            block.fill(plan.part(part), scalars[part])
            self._session.run_with_iobinding(block.bindings[self._buffers.current])
            self._buffers.flip()
            losses[part] = block.losses[:, 0, 0]
            self.n_done += n_batches
            if not np.isfinite(block.losses).all():
                break


class _Block:
    """What a call for so many batches is given, in arrays that are bound once."""

    def __init__(
        self, session: Any, step: CompiledStep, buffers: Buffers, batches: Batches, n_batches: int
    ) -> None:
        real = batches.target.dtype
        self._rows = np.zeros((n_batches, batches.batch_size), np.int64)
        self._sample_weight = np.zeros((n_batches, batches.batch_size, 1), real)
        self._gradient_weight = np.zeros_like(self._sample_weight)
        self._scalars = np.zeros((len(step.scalars), n_batches), real)
        self.losses = np.zeros((n_batches, 1, 1), real)
        wanted = {value.name for value in session.get_inputs()}
        arrays = {
            _ROWS: self._rows,
            _PREFIX + step.sample_weight: self._sample_weight,
            _PREFIX + step.gradient_weight: self._gradient_weight,
            _PREFIX + step.target: batches.target,
            **{_PREFIX + name: array for name, array in batches.features.items()},
            **{_PREFIX + name: row for name, row in zip(step.scalars.values(), self._scalars, strict=True)},
        }
        self._inputs = {f"{name}/all": array for name, array in arrays.items() if f"{name}/all" in wanted}
        first, second = buffers.sets
        self.bindings = (self._bind(session, step, first, second), self._bind(session, step, second, first))

    def fill(self, plan: EpochPlan, scalars: np.ndarray) -> None:
        """Copy the batches of `plan` and their scalars, [n_batches, n_scalars], into the arrays."""
        self._rows[...] = plan.rows
        self._sample_weight[...] = plan.sample_weight
        self._gradient_weight[...] = plan.gradient_weight
        self._scalars[...] = scalars.T

    def _bind(self, session: Any, step: CompiledStep, sources: Tensors, targets: Tensors) -> Any:
        binding = session.io_binding()
        for name, array in self._inputs.items():
            bind(binding.bind_input, name, array, array.shape)
        for key, (old, _) in step.tensors.items():
            bind(binding.bind_input, f"{_PREFIX}{old}/first", sources[key], sources[key].shape)
            bind(binding.bind_output, f"{_PREFIX}{old}/last", targets[key], targets[key].shape)
        bind(binding.bind_output, _LOSSES, self.losses, self.losses.shape)
        return binding


def _body(
    graph: onnx.GraphProto,
    step: CompiledStep,
    carried: list[tuple[str, str]],
    sliced: list[str],
    gathered: list[str],
) -> onnx.GraphProto:
    """Return the body of the loop: gather the rows of the batch, then the step."""
    types = {value.name: value.type.tensor_type for value in graph.input}
    batch_size = types[_PREFIX + step.target].shape.dim[0].dim_value
    inputs = [
        *(_info(old, types[old]) for old, _ in carried),
        helper.make_tensor_value_info(_ROWS, TensorProto.INT64, [batch_size]),
        *(_info(name, types[name]) for name in sliced),
    ]
    outputs = [
        *(_info(new, types[old]) for old, new in carried),
        helper.make_tensor_value_info(_PREFIX + step.loss, types[_PREFIX + step.target].elem_type, [1, 1]),
    ]
    gathers = [helper.make_node("Gather", [f"{name}/all", _ROWS], [name]) for name in gathered]
    return helper.make_graph([*gathers, *graph.node], "batch", inputs, outputs)


def _add_prefix(graph: onnx.GraphProto) -> None:
    """Give every tensor of the step a name that the loop does not use."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = _PREFIX + value.name
    for node in graph.node:
        node.input[:] = [_PREFIX + name if name else "" for name in node.input]
        node.output[:] = [_PREFIX + name if name else "" for name in node.output]


def _info(
    name: str, type_: onnx.TypeProto.Tensor, *, stacked: bool = False, any_rows: bool = False
) -> onnx.ValueInfoProto:
    """Declare a tensor: one for each batch if `stacked`, with any first dimension if `any_rows`."""
    sizes: list[int | None] = [dim.dim_value for dim in type_.shape.dim]
    if stacked:
        sizes = [None, *sizes]
    if any_rows:
        sizes[0] = None
    return helper.make_tensor_value_info(name, type_.elem_type, sizes)
