"""The graphs of the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from onnxsgd.engine.forward_backward.tensors import TensorSpec, specs_of
from onnxsgd.exceptions import (
    EngineError,
    GraphError,
    NotTrainableError,
    ParameterError,
    ParameterTypeError,
)
from onnxsgd.gradient.engines import ENGINES, NATIVE, PORTABLE, check_opset, resolve_engine
from onnxsgd.gradient.joint_graph import Prepared, assemble, prepare
from onnxsgd.gradient.native import builder as orttraining
from onnxsgd.gradient.native.builder import NativeGradient
from onnxsgd.gradient.native.native_engine import differentiate_with_native
from onnxsgd.gradient.output_gradients import find_seeds, yield_seeds
from onnxsgd.gradient.separate_graphs import split
from onnxsgd.gradient.with_respect_to import Sources, select_sources
from onnxsgd.graph.gradient_path import Passes
from onnxsgd.graph.lowering.lower import lower_for_training
from onnxsgd.graph.model import graph_names, to_ir, to_proto, unique_name
from onnxsgd.graph.nodes import maker
from onnxsgd.graph.opsets.versions import bring_into_range
from onnxsgd.graph.writing import computed

__all__ = ["TrainingGraphs", "build_training_graphs"]


@dataclass(frozen=True)
class TrainingGraphs:
    """The graphs of the forward and the backward pass, and their signatures.

    Attributes
    ----------
    engine : {"onnxruntime-training", "portable"}
        The gradient engine.
    training : onnx.ModelProto
        Forward and backward pass, a ``YieldOp`` in between. Takes the inputs, then the weights; returns the
        gradients of the inputs, then those of the weights, then the outputs.
    forward, backward : onnx.ModelProto or None
        The same as two graphs, see :class:`~onnxsgd.gradient.separate_graphs.Halves`; None with
        onnxruntime-training.
    evaluation : onnx.ModelProto
        The forward pass alone. Takes the inputs of `training`, returns the outputs.
    sources : Sources
        The weights and inputs that are differentiated for.
    inputs, outputs, fetches : list of str
        The inputs of the graph without the weights, its outputs, and the gradients.
    input_specs, gradient_specs : tuple of TensorSpec
        Expected types and shapes of the inputs and weights, and of the output gradients.
    gradient_positions : list of int
        Indices of the outputs that take a gradient.
    initial_values : dict
        The initializers.
    native : NativeGradient or None
        The result of the gradient builder of onnxruntime-training.
    reason : str or None
        With engine="auto", the reason for the fallback to the portable engine, if any.
    """

    engine: str
    training: onnx.ModelProto
    forward: onnx.ModelProto | None
    backward: onnx.ModelProto | None
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
    reason: str | None = None


def build_training_graphs(
    model: onnx.ModelProto,
    weights: Sequence[str] | None,
    inputs: Sequence[str] | None,
    outputs: Sequence[str] | None,
    engine: str,
    memory_efficient: bool,
) -> TrainingGraphs:
    """Build the graphs of the forward and the backward pass.

    Parameters
    ----------
    model : onnx.ModelProto
        The graph; it is not changed.
    weights, inputs, outputs : sequence of str or None
        The initializers and inputs to differentiate for, the outputs to compute; None for all.
    engine : {"auto", "onnxruntime-training", "portable"}
        The gradient engine.
    memory_efficient : bool
        Passed on to the gradient builder of onnxruntime-training.
    """
    reference = PORTABLE if engine == "auto" else resolve_engine(engine)
    original = to_ir(bring_into_range(model))
    lowered = lower_for_training(original)
    _keep_outputs(lowered.graph, outputs)
    sources = _select(original, lowered, weights, inputs, ENGINES[reference].passes_gradient)
    prepared = prepare(lowered, sources.weights, sources.inputs)
    engine, whole, native, reason = _differentiate(prepared, engine, memory_efficient)
    ends = _arrange(whole.graph, len(prepared.outputs), len(sources.weights))
    _compute_outputs(prepared.model.graph, prepared.model.graph.outputs)
    forward, backward = (None, None) if engine == NATIVE else _split(whole, ends)
    gradient_specs = specs_of(list(ends.seeds.values()))
    yield_seeds(whole.graph, ends.outputs, ends.seeds)
    n_inputs = len(whole.graph.inputs) - len(sources.weights)
    return TrainingGraphs(
        engine=engine,
        training=to_proto(whole),
        forward=forward,
        backward=backward,
        evaluation=to_proto(prepared.model),
        sources=sources,
        inputs=_names(whole.graph.inputs[:n_inputs]),
        outputs=prepared.outputs,
        fetches=_names(ends.gradients),
        input_specs=specs_of(whole.graph.inputs),
        gradient_specs=gradient_specs,
        gradient_positions=[index for index, value in enumerate(ends.outputs) if value in ends.seeds],
        initial_values=_initial_values(lowered.graph, original.graph),
        native=native,
        reason=reason,
    )


def _select(
    original: ir.Model,
    lowered: ir.Model,
    weights: Sequence[str] | None,
    inputs: Sequence[str] | None,
    passes: Passes,
) -> Sources:
    sources = select_sources(original, lowered, weights, inputs, passes)
    if not sources.weights:
        raise NotTrainableError(
            "There is nothing to train: the graph has no weights that a gradient reaches, or "
            "weights_to_train is empty. onnxsgd.onnx_derivative(model, weights=[]) gives the gradient by "
            "inputs alone."
        )
    return sources


def _differentiate(
    prepared: Prepared, engine: str, memory_efficient: bool
) -> tuple[str, ir.Model, NativeGradient | None, str | None]:
    """Return the engine, both passes, the native builder's result, and the reason for a fallback.

    "auto" is onnxruntime-training where that is installed and supports the graph.
    """
    reason = None
    if engine == "auto" and not orttraining.is_available():
        engine, reason = PORTABLE, "onnxruntime-training is not installed"
    if engine != PORTABLE:
        try:
            check_opset(prepared.model, NATIVE)
            arguments = prepared.model, prepared.targets, prepared.sources
            result, native = differentiate_with_native(*arguments, memory_efficient)
            return NATIVE, assemble(prepared, result), native, None
        except (EngineError, GraphError) as error:
            if engine == NATIVE:
                raise
            reason = str(error)
    result = ENGINES[PORTABLE].differentiate(prepared.model, prepared.targets, prepared.sources)
    return PORTABLE, assemble(prepared, result), None, reason


@dataclass(frozen=True)
class _Ends:
    """The outputs of a graph, the inputs that are their gradients, and the gradients it returns."""

    outputs: list[ir.Value]
    seeds: dict[ir.Value, ir.Value]
    gradients: list[ir.Value]


def _arrange(graph: ir.Graph, n_outputs: int, n_weights: int) -> _Ends:
    """Reorder the outputs in place: the gradients of inputs, those of weights, then the outputs proper."""
    returned, gradients = list(graph.outputs[:n_outputs]), list(graph.outputs[n_outputs:])
    gradients = [*gradients[n_weights:], *gradients[:n_weights]]
    seeds = find_seeds(graph, returned)
    _compute_outputs(graph, returned)
    # Outputs of the graph keep their memory; otherwise the backward pass overwrites it, and users see that.
    graph.outputs[:] = [*gradients, *returned]
    return _Ends(returned, seeds, gradients)


def _compute_outputs(graph: ir.Graph, outputs: MutableSequence[ir.Value]) -> None:
    """Copy each of `outputs` that is an input of `graph`, in place.

    An input returned as an output would lie in the caller's memory, which may be freed.
    """
    # OutputFixPass of onnx_ir copies inputs alone, not initializers
    names = graph_names(graph)
    for index, value in enumerate(outputs):
        if value.producer() is None:
            name = unique_name(f"{value.name}_output", names)
            outputs[index] = computed("Identity", [value], name=name, like=value)
            graph.append(maker(outputs[index]))


def _split(whole: ir.Model, ends: _Ends) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    halves = split(whole, _names(ends.outputs), _names(ends.seeds.values()), _names(ends.gradients))
    return to_proto(halves.forward), to_proto(halves.backward)


def _names(values: Iterable[ir.Value]) -> list[str]:
    return [str(value.name) for value in values]


def _keep_outputs(graph: ir.Graph, names: Sequence[str] | None) -> None:
    """Reduce the outputs of `graph` to `names`, in that order, in place."""
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
