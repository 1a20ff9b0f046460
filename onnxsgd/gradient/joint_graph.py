"""Forward and backward pass of a graph as one graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, RemoveInitializersFromInputsPass

from onnxsgd.exceptions import GraphError, NotTrainableError, ParameterError
from onnxsgd.gradient.engines import ENGINES, check_opset, resolve_engine
from onnxsgd.graph.model import REAL_TYPES, graph_names, nodes_within, unique_name
from onnxsgd.graph.nodes import carries_gradient

__all__ = ["Prepared", "assemble", "forward_backward_model", "prepare"]


def forward_backward_model(
    model: ir.Model,
    weights: Sequence[str],
    inputs: Sequence[str] = (),
    engine: str = "auto",
) -> ir.Model:
    """Return the graph that computes the outputs of `model` and their gradients.

    With ``y`` an output and ``y_grad`` the gradient fed for it, the gradient for a weight ``w`` is ::

        w_grad = sum over the outputs y of  (dy / dw)^T y_grad

    Parameters
    ----------
    model : ir.Model
        A valid graph, lowered (see :func:`~onnxsgd.graph.lowering.lower.lower_for_training`); it is not
        changed.
    weights : sequence of str
        Initializers to differentiate with respect to.
    inputs : sequence of str
        Inputs to differentiate with respect to.
    engine : {"auto", "onnxruntime-training", "portable"}, default="auto"
        The engine; "auto" is the portable one.

    Returns
    -------
    ir.Model
        Inputs: those of `model`, `weights`, then ``<output>_grad`` for each output of real numbers that
        operators compute. Outputs: those of `model`, then ``<name>_grad`` for `weights` and `inputs`. Tensors
        of `model` keep their names; an inner tensor with the name of a new input or output is renamed.

    Raises
    ------
    ParameterError
        If a name is unknown, repeated or not one of real numbers, or there is no such engine.
    NotTrainableError
        If an operator on a path has no gradient, or no path leads from a weight to an output.
    GraphError
        If an input, initializer or output has a name that the result needs, or an output is listed twice.
    MissingRuntimeError
        If the engine's runtime is not installed.
    """
    prepared = prepare(model, weights, inputs)
    engine = resolve_engine(engine)
    check_opset(model, engine)
    differentiate = ENGINES[engine].differentiate
    return assemble(prepared, differentiate(prepared.model, prepared.targets, prepared.sources))


@dataclass(frozen=True)
class Prepared:
    """A graph ready to be differentiated.

    Attributes
    ----------
    model : ir.Model
        The graph, its trained weights among its inputs.
    outputs : list of str
        All of its outputs.
    targets : list of str
        The outputs to differentiate: computed, and of real numbers.
    sources : list of str
        The inputs to differentiate with respect to: weights, then inputs.
    """

    model: ir.Model
    outputs: list[str]
    targets: list[str]
    sources: list[str]


def prepare(model: ir.Model, weights: Sequence[str], inputs: Sequence[str]) -> Prepared:
    """Return a copy of `model` with its weights as inputs, and the tensors to differentiate.

    See :func:`forward_backward_model` for the errors.
    """
    copy = _copy(model)
    graph = copy.graph
    sources = [*_free(graph, weights), *_find_inputs(graph, inputs)]
    if not sources:
        raise ParameterError("There is nothing to differentiate for: weights and inputs are both empty.")
    outputs = [str(value.name) for value in graph.outputs]
    if len(set(outputs)) < len(outputs):
        raise GraphError(f"The graph lists an output twice: its outputs are {outputs}.")
    computed = [value for value in graph.outputs if value.producer() is not None]
    targets = [str(value.name) for value in computed if carries_gradient(value)]
    for value in computed:
        if value.name in targets and value.type is None:
            raise GraphError(f"The element type of the output {value.name!r} cannot be inferred.")
    if not targets:
        raise NotTrainableError(f"No output is a computed tensor of real numbers: the outputs are {outputs}.")
    _claim(graph, [f"{name}_grad" for name in (*targets, *sources)])
    return Prepared(copy, outputs, targets, sources)


def assemble(prepared: Prepared, result: ir.Model) -> ir.Model:
    """Make `result`, from an engine, return all outputs in their order, then the gradients."""
    returned = list(result.graph.outputs)
    known = {value.name: value for value in (*result.graph.inputs, *result.graph.initializers.values())}
    known.update((value.name, value) for node in result.graph for value in node.outputs)
    gradients = returned[len(prepared.targets) :]
    result.graph.outputs[:] = [*(known[name] for name in prepared.outputs), *gradients]
    return result


def _copy(model: ir.Model) -> ir.Model:
    """Return a copy without functions, in topological order, in which no initializer is an input."""
    copy = model.clone()
    if copy.functions:
        InlinePass()(copy)
    RemoveInitializersFromInputsPass()(copy)
    copy.graph.sort()
    return copy


def _free(graph: ir.Graph, names: Sequence[str]) -> list[str]:
    """Turn initializers into the last inputs, in place; return their names."""
    for name in _distinct(names, "weights"):
        value = graph.initializers.get(name)
        if value is None or value.const_value is None:
            raise ParameterError(
                f"weights: {name!r} is not an initializer of the graph; it has {sorted(graph.initializers)}."
            )
        value.shape, value.dtype = ir.Shape(value.const_value.shape.numpy()), value.const_value.dtype
        _check_real(value, "weights")
        graph.initializers.pop(name)
        value.const_value = None
        graph.inputs.append(value)
    return list(names)


def _find_inputs(graph: ir.Graph, names: Sequence[str]) -> list[str]:
    by_name = {str(value.name): value for value in graph.inputs}
    for name in _distinct(names, "inputs"):
        if name not in by_name:
            raise ParameterError(f"inputs: {name!r} is not an input of the graph; it has {sorted(by_name)}.")
        _check_real(by_name[name], "inputs")
    return list(names)


def _distinct(names: Sequence[str], parameter: str) -> Sequence[str]:
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        raise ParameterError(f"{parameter} names {repeated} more than once: give each name once.")
    return names


def _check_real(value: ir.Value, parameter: str) -> None:
    if value.dtype not in REAL_TYPES:
        raise ParameterError(
            f"{parameter}: {value.name!r} has elements of type {value.dtype}: gradients need real numbers "
            f"(float16, float32 or float64)."
        )


def _claim(graph: ir.Graph, wanted: Iterable[str]) -> None:
    """Free the names `wanted`: rename inner tensors, refuse other ones."""
    names = graph_names(graph)
    needed = set(wanted) & names
    if not needed:
        return
    names |= set(wanted)
    for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
        if value.name in needed:
            raise GraphError(
                f"The graph has an input, initializer or output called {value.name!r}, a name that a "
                f"gradient needs: rename it, or the tensor that the gradient belongs to."
            )
    inner = [value for node in nodes_within(graph) for value in node.outputs]
    inner += [value for subgraph in graph.subgraphs() for value in subgraph.inputs]
    for value in inner:
        if value.name in needed:
            value.name = unique_name(value.name, names)
