"""Cutting a graph at a tensor."""

from __future__ import annotations

import difflib

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, RemoveUnusedOpsetsPass

from onnxsgd.exceptions import GraphError, ParameterError
from onnxsgd.graph.model import find_value
from onnxsgd.graph.shape_inference import ShapeInferencePass

__all__ = ["cut_at", "tensor_named"]


def cut_at(model: ir.Model, name: str) -> ir.Model:
    """Return a copy of `model` whose only output is the tensor `name`.

    Nodes, initializers and inputs that this output does not need are dropped.

    Parameters
    ----------
    model : ir.Model
        It is not changed.
    name : str
        A tensor that a node of the main graph computes.

    Returns
    -------
    ir.Model
        A new model; large tensors are shared with `model`.

    Raises
    ------
    ParameterError
        No tensor has this name, or it is an input or an initializer.
    GraphError
        The element type of the tensor cannot be inferred.
    """
    copy = model.clone()
    graph = copy.graph
    value = tensor_named(graph, name)
    if value.producer() is None:
        raise ParameterError(
            f"{name!r} is an input or an initializer: a graph can be cut at the output of a node."
        )
    graph.outputs[:] = [value]
    RemoveUnusedNodesPass()(copy)
    graph.inputs[:] = [entry for entry in graph.inputs if entry.uses()]
    RemoveUnusedOpsetsPass()(copy)
    if value.dtype is None or value.shape is None:
        ShapeInferencePass(strict_mode=False)(copy)
    if value.dtype is None:
        raise GraphError(
            f"The element type of {name!r} is unknown: an operator before it has no type inference."
        )
    return copy


def tensor_named(graph: ir.Graph, name: str) -> ir.Value:
    """Return the tensor `name` of `graph`; an error suggests similar names."""
    value = find_value(graph, name)
    if value is None:
        known = [*graph.initializers, *(str(out.name) for node in graph for out in node.outputs if out.name)]
        close = difflib.get_close_matches(name, known, n=5) or known[-5:]
        raise ParameterError(
            f"The graph has no tensor {name!r}; it has, among others, {', '.join(map(repr, close))}."
        )
    return value
