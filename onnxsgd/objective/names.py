"""Reservation of the names that a caller chooses for new tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from onnxsgd.exceptions import ParameterError, ParameterTypeError
from onnxsgd.graph.model import graph_names, nodes_within, unique_name

__all__ = ["claim_names"]


def claim_names(graph: ir.Graph, wanted: Mapping[str, str]) -> set[str]:
    """Free the names in `wanted`, and return every name in use, these included.

    Parameters
    ----------
    graph : ir.Graph
        Intermediate results that have one of the names are renamed, in place.
    wanted : mapping of str to str
        The name wanted for each parameter, such as ``{"label_name": "label"}``.

    Raises
    ------
    ParameterTypeError
        If a name is not a string, or is empty.
    ParameterError
        If a name is wanted twice, or an input, an output or an initializer of the graph has it: their names
        are visible to users.
    """
    visible = {str(value.name) for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
    roles: dict[str, str] = {}
    for role, name in wanted.items():
        if not isinstance(name, str) or not name:
            raise ParameterTypeError(f"{role}={name!r} is not accepted: it must be a string, not empty.")
        if name in roles:
            raise ParameterError(f"{role}={name!r} is not accepted: {roles[name]} has the same value.")
        if name in visible:
            raise ParameterError(
                f"{role}={name!r} is not accepted: an input, an output or an initializer of the model "
                f"has that name; {role} must be a new name."
            )
        roles[name] = role
    return _rename_inner_values(graph, set(roles))


def _rename_inner_values(graph: ir.Graph, claimed: set[str]) -> set[str]:
    inner = [value for value in _inner_values(graph) if value.name]
    names = graph_names(graph) | {str(value.name) for value in inner} | claimed
    for value in inner:
        if value.name in claimed:
            value.name = unique_name(str(value.name), names)
    return names


def _inner_values(graph: ir.Graph) -> Iterator[ir.Value]:
    for node in nodes_within(graph):
        yield from node.outputs
    for subgraph in graph.subgraphs():
        yield from subgraph.inputs
        yield from list(subgraph.initializers.values())
