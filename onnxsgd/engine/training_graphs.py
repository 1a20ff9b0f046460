"""The graphs that the training agent runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from onnxsgd.engine.tensors import TensorSpec, specs_of
from onnxsgd.exceptions import NotTrainableError, ParameterError, ParameterTypeError
from onnxsgd.gradient.forward_backward import assemble, prepare
from onnxsgd.gradient.native import differentiate_with_native
from onnxsgd.gradient.orttraining import NativeGradient, check_opset
from onnxsgd.gradient.seeds import find_seeds, yield_seeds
from onnxsgd.gradient.sources import Sources, select_sources
from onnxsgd.graph.lower import lower_for_training
from onnxsgd.graph.model import to_ir, to_proto

__all__ = ["TrainingGraphs", "build_training_graphs"]

#: The newest IR version that the training edition of the runtime reads. What later ones added is not in
#: graphs of the opsets it reads.
_NEWEST_IR_VERSION = 10


@dataclass(frozen=True)
class TrainingGraphs:
    """What is run forward and backward.

    Attributes
    ----------
    training : onnx.ModelProto
        Forward and backward pass, a ``YieldOp`` in between. Takes the inputs, then the weights; returns the
        gradients of the inputs, then those of the weights, then the outputs.
    evaluation : onnx.ModelProto
        The forward pass. Takes the same, returns the outputs.
    sources : Sources
        The weights and inputs that are differentiated for.
    inputs, outputs, fetches : list of str
        The inputs of the graph without the weights, its outputs, and the gradients.
    input_specs, gradient_specs : tuple of TensorSpec
        What is expected of the inputs and weights, and of the gradients that are given.
    gradient_positions : list of int
        Which outputs take a gradient.
    initial_values : dict
        The initializers.
    native : NativeGradient or None
        What the gradient builder returned.
    """

    training: onnx.ModelProto
    evaluation: onnx.ModelProto
    sources: Sources
    inputs: list[str]
    outputs: list[str]
    fetches: list[str]
    input_specs: tuple[TensorSpec, ...]
    gradient_specs: tuple[TensorSpec, ...]
    gradient_positions: list[int]
    initial_values: dict[str, ir.TensorProtocol]
    native: NativeGradient | None


def build_training_graphs(
    model: onnx.ModelProto,
    weights: Sequence[str] | None,
    inputs: Sequence[str] | None,
    outputs: Sequence[str] | None,
    memory_efficient: bool,
) -> TrainingGraphs:
    """Build the graphs that the training agent runs.

    Parameters
    ----------
    model : onnx.ModelProto
        The graph; it is not changed.
    weights, inputs, outputs : sequence of str or None
        The initializers and inputs to differentiate for, the outputs to compute; None for all.
    memory_efficient : bool
        Passed on to the gradient builder.
    """
    original = to_ir(model)
    check_opset(original)
    lowered = lower_for_training(original)
    _keep_outputs(lowered.graph, outputs)
    sources = select_sources(original, lowered, weights, inputs)
    if not sources.weights:
        raise NotTrainableError(
            "There is nothing to train: the graph has no weights that a gradient reaches, or "
            "weights_to_train is empty. onnxsgd.onnx_derivative(model, weights=[]) gives the gradient by "
            "inputs alone."
        )
    prepared = prepare(lowered, sources.weights, sources.inputs)
    result, native = differentiate_with_native(
        prepared.model, prepared.targets, prepared.sources, memory_efficient
    )
    graph = assemble(prepared, result).graph
    returned, gradients = graph.outputs[: len(prepared.outputs)], graph.outputs[len(prepared.outputs) :]
    n_weights = len(sources.weights)
    graph.outputs[:] = [*gradients[n_weights:], *gradients[:n_weights]]
    seeds = find_seeds(graph, returned)
    gradient_specs = specs_of(list(seeds.values()))
    yield_seeds(graph, returned, seeds)
    fetches = [str(value.name) for value in graph.outputs]
    # Outputs of the graph keep their memory; otherwise the backward pass overwrites it, and users see that.
    graph.outputs.extend(value for value in returned if value.producer() is not None)
    n_inputs = len(graph.inputs) - n_weights
    return TrainingGraphs(
        training=_readable(result),
        evaluation=_readable(prepared.model),
        sources=sources,
        inputs=[str(value.name) for value in graph.inputs[:n_inputs]],
        outputs=prepared.outputs,
        fetches=fetches,
        input_specs=specs_of(graph.inputs),
        gradient_specs=gradient_specs,
        gradient_positions=[index for index, value in enumerate(returned) if value in seeds],
        initial_values=_initial_values(lowered.graph, original.graph),
        native=native,
    )


def _keep_outputs(graph: ir.Graph, names: Sequence[str] | None) -> None:
    """Let `graph` return the outputs `names` only, in that order, in place."""
    if names is None:
        return
    if isinstance(names, str):
        raise ParameterTypeError(f"output_names must be a list of names or None, not {names!r}.")
    known = {value.name: value for value in graph.outputs}
    for name in names:
        if name not in known:
            raise ParameterError(
                f"output_names: {name!r} is not an output of the graph: it has {list(known)}."
            )
    if not names or len(set(names)) < len(names):
        raise ParameterError(f"output_names={list(names)} must name at least one output, and each once.")
    graph.outputs[:] = [known[name] for name in names]


def _initial_values(*graphs: ir.Graph) -> dict[str, ir.TensorProtocol]:
    return {
        name: value.const_value
        for graph in graphs
        for name, value in graph.initializers.items()
        if value.const_value is not None
    }


def _readable(model: ir.Model) -> onnx.ModelProto:
    proto = to_proto(model)
    proto.ir_version = min(proto.ir_version, _NEWEST_IR_VERSION)
    return proto
