"""Many training steps in one call of the runtime: a loop over batches as a graph.

For small models, most of the time of a step is spent on the way into the runtime and back. The loop gathers
the rows of each batch inside the graph, so that a whole epoch is one call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxsgd.engine.buffers import Buffers, bind
from onnxsgd.graph.model import unique_name

if TYPE_CHECKING:
    from onnxsgd.engine.batches import Batches, EpochPlan
    from onnxsgd.engine.step import CompiledStep

__all__ = ["EpochRunner", "build_epoch"]

#: Inputs of the loop beside weights, states and data; all names of the step get a prefix of their own.
_ROWS, _WEIGHTS, _SCALARS, _COUNT, _LOSSES = "rows", "sample_weights", "scalars", "n_batches", "losses"
_PREFIX = "step/"


def build_epoch(step: CompiledStep) -> bytes:
    """Return a graph that makes the step for one batch after another.

    Inputs: the number of batches; `rows` [n_batches, batch_size]; `sample_weights` [n_batches, batch_size,
    1]; `scalars` [n_batches, n_scalars]; the features and the target of all samples; weights and states.
    Outputs: `losses` [n_batches, 1, 1]; new weights and states.
    """
    model = onnx.load_from_string(step.model)
    graph = model.graph
    _add_prefix(graph)
    types = {value.name: value.type.tensor_type for value in graph.input}
    carried = [(_PREFIX + old, _PREFIX + new) for old, new in step.tensors.values()]
    tables = [_PREFIX + name for name in (*step.features, step.target) if _PREFIX + name in types]
    real = types[_PREFIX + step.target].elem_type
    body = _body(graph, step, carried, tables)
    state_names = [old for old, _ in carried]
    loop = helper.make_node(
        "Loop", [_COUNT, "", *(f"{name}/first" for name in state_names)],
        [*(f"{name}/last" for name in state_names), _LOSSES], body=body,
    )  # fmt: skip
    inputs = [
        helper.make_tensor_value_info(_COUNT, TensorProto.INT64, []),
        helper.make_tensor_value_info(_ROWS, TensorProto.INT64, [None, None]),
        helper.make_tensor_value_info(_WEIGHTS, real, [None, None, 1]),
        helper.make_tensor_value_info(_SCALARS, real, [None, len(step.scalars)]),
        *(_all_rows(f"{name}/all", types[name]) for name in tables),
        *(_like(f"{name}/first", types[name]) for name in state_names),
    ]
    outputs = [
        *(_like(f"{name}/last", types[name]) for name in state_names),
        helper.make_tensor_value_info(_LOSSES, real, [None, 1, 1]),
    ]
    initializers = list(graph.initializer)
    whole = helper.make_graph([loop], "epoch", inputs, outputs, initializers)
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
    block : int
        Batches of one call; between calls an interrupt is noticed.

    Attributes
    ----------
    n_done : int
        Batches done by the last call to :meth:`run`, also if that was interrupted.
    """

    def __init__(self, session: Any, step: CompiledStep, buffers: Buffers, block: int) -> None:
        self._session = session
        self._step = step
        self._buffers = buffers
        self._block = block
        self.n_done = 0

    def run(self, batches: Batches, plan: EpochPlan, scalars: np.ndarray, losses: np.ndarray) -> None:
        """Make one update for each batch; see :meth:`onnxsgd.engine.runner.StepRunner.run`."""
        self.n_done = 0
        real = batches.target.dtype
        scalars = scalars.astype(real)
        for start in range(0, len(losses), self._block):
            part = slice(start, start + self._block)
            arrays = {
                _COUNT: np.array(len(losses[part])),
                _ROWS: np.ascontiguousarray(plan.rows[part]),
                _WEIGHTS: np.ascontiguousarray(plan.sample_weight[part], real),
                _SCALARS: scalars[part],
                f"{_PREFIX}{self._step.target}/all": batches.target,
                **{f"{_PREFIX}{name}/all": array for name, array in batches.features.items()},
            }
            result = np.empty((len(losses[part]), 1, 1), real)
            self._run_block(arrays, result)
            losses[part] = result[:, 0, 0]
            self.n_done += len(result)
            if not np.isfinite(result).all():
                break

    def _run_block(self, arrays: dict[str, np.ndarray], result: np.ndarray) -> None:
        binding = self._session.io_binding()
        wanted = {value.name for value in self._session.get_inputs()}
        for name, array in arrays.items():
            if name in wanted:
                bind(binding.bind_input, name, array, array.shape)
        sources, targets = (
            self._buffers.sets[self._buffers.current],
            self._buffers.sets[1 - self._buffers.current],
        )
        for key, (old, _) in self._step.tensors.items():
            bind(binding.bind_input, f"{_PREFIX}{old}/first", sources[key], sources[key].shape)
            bind(binding.bind_output, f"{_PREFIX}{old}/last", targets[key], targets[key].shape)
        bind(binding.bind_output, _LOSSES, result, result.shape)
        self._session.run_with_iobinding(binding)
        self._buffers.flip()


def _body(
    graph: onnx.GraphProto, step: CompiledStep, carried: list[tuple[str, str]], tables: list[str]
) -> onnx.GraphProto:
    """Return the body of the loop: gather what the step reads, then the step."""
    types = {value.name: value.type.tensor_type for value in graph.input}
    names = {name for node in graph.node for name in (*node.input, *node.output)}
    index, batch_rows, numbers = "batch", unique_name("batch_rows", names), unique_name("numbers", names)
    nodes = [
        helper.make_node("Gather", [_ROWS, index], [batch_rows]),
        helper.make_node("Gather", [_WEIGHTS, index], [_PREFIX + step.sample_weight]),
        *(helper.make_node("Gather", [f"{name}/all", batch_rows], [name]) for name in tables),
        helper.make_node("Gather", [_SCALARS, index], [numbers]),
    ]
    graph.initializer.extend(
        helper.make_tensor(f"number_{i}", TensorProto.INT64, [], [i]) for i in range(len(step.scalars))
    )
    nodes += [
        helper.make_node("Gather", [numbers, f"number_{i}"], [_PREFIX + name])
        for i, name in enumerate(step.scalars.values())
    ]
    inputs = [
        helper.make_tensor_value_info(index, TensorProto.INT64, []),
        helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
        *(_like(old, types[old]) for old, _ in carried),
    ]
    outputs = [
        helper.make_tensor_value_info("still_go_on", TensorProto.BOOL, []),
        *(_like(new, types[old]) for old, new in carried),
        helper.make_tensor_value_info(_PREFIX + step.loss, types[_PREFIX + step.target].elem_type, [1, 1]),
    ]
    nodes += [*graph.node, helper.make_node("Identity", ["go_on"], ["still_go_on"])]
    return helper.make_graph(nodes, "batch", inputs, outputs)


def _add_prefix(graph: onnx.GraphProto) -> None:
    """Give every tensor of the step a name that the loop does not use."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = _PREFIX + value.name
    for node in graph.node:
        node.input[:] = [_PREFIX + name if name else "" for name in node.input]
        node.output[:] = [_PREFIX + name if name else "" for name in node.output]


def _like(name: str, type_: onnx.TypeProto.Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, type_.elem_type, [d.dim_value for d in type_.shape.dim])


def _all_rows(name: str, type_: onnx.TypeProto.Tensor) -> onnx.ValueInfoProto:
    sizes = [d.dim_value for d in type_.shape.dim]
    return helper.make_tensor_value_info(name, type_.elem_type, [None, *sizes[1:]])
