"""Many training steps in one call of the runtime: a scan over batches as a graph.

For small models, most of the time of a step is spent on the way into the runtime and back. The rows of a
block of batches are gathered into one array; the graph makes the step for one slice of it after another.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from onnxsgd.engine.buffers import Buffers, Tensors, bind, dtype_of

if TYPE_CHECKING:
    from onnxsgd.engine.batches import Batches, EpochPlan
    from onnxsgd.engine.step import CompiledStep

__all__ = ["EpochRunner", "build_epoch", "can_loop"]

#: The output beside those of the step, and the prefix that all names of the step get; the graph around them
#: has names that begin with "first/", "last/" and "all/".
_LOSSES, _PREFIX = "losses", "step/"
#: What the features of a block take: more batches at once would leave the processor's cache.
_BLOCK_BYTES = 4_000_000
_MOST_BATCHES = 10_000


def build_epoch(step: CompiledStep) -> bytes:
    """Return a graph that makes the step for one batch after another.

    Inputs: weights and states; what else the step reads, stacked: one of each for each batch.
    Outputs: new weights and states; `losses` [n_batches, 1, 1].
    """
    model = onnx.load_from_string(step.model)
    graph = model.graph
    _add_prefix(graph)
    types = {value.name: value.type.tensor_type for value in graph.input}
    carried = [(_PREFIX + old, _PREFIX + new) for old, new in step.tensors.values()]
    sliced = [name for name in types if name not in dict(carried)]
    real = types[_PREFIX + step.target].elem_type
    scan = helper.make_node(
        "Scan",
        [*(f"first/{old}" for old, _ in carried), *(f"all/{name}" for name in sliced)],
        [*(f"last/{old}" for old, _ in carried), _LOSSES],
        num_scan_inputs=len(sliced),
        body=_body(graph, step, carried, sliced),
    )
    inputs = [
        *(_info(f"first/{old}", types[old]) for old, _ in carried),
        *(_info(f"all/{name}", types[name], stacked=True) for name in sliced),
    ]
    outputs = [
        *(_info(f"last/{old}", types[old]) for old, _ in carried),
        helper.make_tensor_value_info(_LOSSES, real, [None, 1, 1]),
    ]
    whole = helper.make_graph([scan], "epoch", inputs, outputs, list(graph.initializer))
    return helper.make_model(
        whole, opset_imports=model.opset_import, ir_version=model.ir_version, producer_name="onnxsgd"
    ).SerializeToString()


def can_loop(step: CompiledStep) -> bool:
    """Tell whether a step can be the body of a scan.

    Only one of standard operators without graphs inside: some operators of the training runtime end the
    interpreter there, and what graphs inside read from around them would have to be renamed.
    """
    nodes = onnx.load_from_string(step.model).graph.node
    graphs = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    return all(
        onnx.defs.has(node.op_type, node.domain)
        and not any(attribute.type in graphs for attribute in node.attribute)
        for node in nodes
    )


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
    block : int or None
        Batches of one call, between which an interrupt is noticed; None: as many as pay.

    Attributes
    ----------
    n_done : int
        Batches done by the last call to :meth:`run`, also if that was interrupted.
    """

    def __init__(
        self, session: Any, step: CompiledStep, buffers: Buffers, batches: Batches, block: int | None = None
    ) -> None:
        self._new_block = partial(_Block, session, step, buffers, batches)
        self._session = session
        self._buffers = buffers
        self._size = block or max(1, min(_MOST_BATCHES, _BLOCK_BYTES // batches.nbytes))
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
        self._batches = batches
        inputs = {value.name: value for value in session.get_inputs()}
        self._arrays = {
            name: np.zeros([n_batches, *value.shape[1:]], dtype_of(value))
            for name, value in inputs.items()
            if name.startswith("all/")
        }
        names = {name: f"all/{_PREFIX}{name}" for name in step.features}
        self._features = {name: self._arrays[given] for name, given in names.items() if given in self._arrays}
        self._target = self._arrays[f"all/{_PREFIX}{step.target}"]
        self._sample_weight = self._arrays[f"all/{_PREFIX}{step.sample_weight}"]
        self._gradient_weight = self._arrays[f"all/{_PREFIX}{step.gradient_weight}"]
        self._scalars = [self._arrays[f"all/{_PREFIX}{name}"] for name in step.scalars.values()]
        self.losses = np.zeros((n_batches, 1, 1), self._target.dtype)
        first, second = buffers.sets
        self.bindings = (self._bind(session, step, first, second), self._bind(session, step, second, first))

    def fill(self, plan: EpochPlan, scalars: np.ndarray) -> None:
        """Gather the batches of `plan`, and copy their scalars, [n_batches, n_scalars]."""
        self._batches.fill(plan.rows, self._features, self._target)
        self._sample_weight[...] = plan.sample_weight
        self._gradient_weight[...] = plan.gradient_weight
        for array, column in zip(self._scalars, scalars.T, strict=True):
            array[...] = column

    def _bind(self, session: Any, step: CompiledStep, sources: Tensors, targets: Tensors) -> Any:
        binding = session.io_binding()
        for name, array in self._arrays.items():
            bind(binding.bind_input, name, array, array.shape)
        for key, (old, _) in step.tensors.items():
            bind(binding.bind_input, f"first/{_PREFIX}{old}", sources[key], sources[key].shape)
            bind(binding.bind_output, f"last/{_PREFIX}{old}", targets[key], targets[key].shape)
        bind(binding.bind_output, _LOSSES, self.losses, self.losses.shape)
        return binding


def _body(
    graph: onnx.GraphProto, step: CompiledStep, carried: list[tuple[str, str]], sliced: list[str]
) -> onnx.GraphProto:
    """Return the step as the body of the scan."""
    types = {value.name: value.type.tensor_type for value in graph.input}
    inputs = [*(_info(old, types[old]) for old, _ in carried), *(_info(name, types[name]) for name in sliced)]
    outputs = [
        *(_info(new, types[old]) for old, new in carried),
        helper.make_tensor_value_info(_PREFIX + step.loss, types[_PREFIX + step.target].elem_type, [1, 1]),
    ]
    return helper.make_graph(graph.node, "batch", inputs, outputs)


def _add_prefix(graph: onnx.GraphProto) -> None:
    """Give every tensor of the step a name that the loop does not use."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = _PREFIX + value.name
    for node in graph.node:
        node.input[:] = [_PREFIX + name if name else "" for name in node.input]
        node.output[:] = [_PREFIX + name if name else "" for name in node.output]


def _info(name: str, type_: onnx.TypeProto.Tensor, *, stacked: bool = False) -> onnx.ValueInfoProto:
    """Declare a tensor of that type, or one for each batch if `stacked`."""
    sizes: list[int | None] = [dim.dim_value for dim in type_.shape.dim]
    return helper.make_tensor_value_info(name, type_.elem_type, [None, *sizes] if stacked else sizes)
