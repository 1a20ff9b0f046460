"""Inlining of the branches of If nodes with a constant condition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from onnxsgd.graph.model import nodes_within
from onnxsgd.graph.nodes import bodies, constant, maker, standard_operator
from onnxsgd.graph.writing import computed, replace_output, take_nodes

__all__ = ["take_constant_branches"]


# fold_constants of onnxscript 0.7 inlines branches too, but drops the names of the tensors that they return:
# a user may have chosen one of them as the output
def take_constant_branches(model: ir.Model) -> None:
    """Replace each If with a constant condition by the nodes of its branch, in place.

    Exporters write such nodes, and both supported runtimes crash the interpreter if several of them are
    nested. The other branch is dropped. Tensors of the branch keep their names unless these are taken.
    """
    if any(node.op_type == "If" for node in nodes_within(model.graph)):
        _take(model.graph, Counter(_defined(model.graph)))


def _take(graph: ir.Graph, defined: Counter[str]) -> None:
    for node in list(graph):
        for body in bodies(node):
            _take(body, defined)
        if (condition := _condition(node)) is None:
            continue
        taken, left = ("then_branch", "else_branch") if condition else ("else_branch", "then_branch")
        defined.subtract(_defined(node.attributes[left].as_graph()))
        _inline(graph, node, node.attributes[taken].as_graph(), defined)


def _condition(node: ir.Node) -> bool | None:
    """Return the constant condition of an If; None for others, and for other operators."""
    array = constant(node.inputs[0]) if standard_operator(node) == "If" else None
    return bool(array.item()) if array is not None and array.size == 1 else None


def _defined(graph: ir.Graph) -> Iterator[str]:
    """Yield the name of each tensor that a graph or one of its subgraphs defines."""
    yield from (str(value.name) for value in graph.inputs)
    yield from (name for name, value in graph.initializers.items() if not value.is_graph_input())
    for node in graph:
        yield from (value.name for value in node.outputs if value.name)
        for body in bodies(node):
            yield from _defined(body)


def _inline(graph: ir.Graph, node: ir.Node, branch: ir.Graph, defined: Counter[str]) -> None:
    outputs, constants = list(branch.outputs), list(branch.initializers.values())
    branch.initializers.clear()
    nodes = take_nodes(branch)
    for value in (*constants, *(value for inner in nodes for value in inner.outputs)):
        if value.name and defined[value.name] > 1:
            value.name = _free_name(value.name, defined)
    for value in constants:
        graph.register_initializer(value)
    # the rest of the graph reads the results by name
    results = [computed("Identity", [value]) for value in outputs]
    graph.insert_before(node, [*nodes, *map(maker, results)])
    for old, new in zip(node.outputs, results, strict=True):
        replace_output(old, new)
    graph.remove(node, safe=True)


def _free_name(name: str, defined: Counter[str]) -> str:
    number = 1
    while defined[f"{name}_{number}"] > 0:
        number += 1
    defined[name] -= 1
    defined[f"{name}_{number}"] += 1
    return f"{name}_{number}"
