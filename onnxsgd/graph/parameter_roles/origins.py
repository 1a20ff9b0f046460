"""The origin of each value: data, parameters, or neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxsgd.graph.model import FROZEN, REAL_TYPES, nodes_within
from onnxsgd.graph.nodes import bodies, read_values, standard_operator
from onnxsgd.graph.operators import Fact, having

__all__ = ["Origins", "Use", "trace_origins", "uses_of"]

_SIZES = having(Fact.SIZES)

#: Inputs of several numbers that configure an operator: no path of a parameter leads through them.
_SETTINGS: dict[str, frozenset[int]] = {
    "Pow": frozenset({1}),
    "Resize": frozenset({1, 2}),
    "Upsample": frozenset({1}),
}

#: Predicate: a node is a layer, given the values that may be its parameters.
IsLayer = Callable[[ir.Node, set[ir.Value]], bool]


@dataclass
class Origins:
    """Values by their origin.

    Attributes
    ----------
    data : set of ir.Value
        Those that change with the inputs.
    tuned : set of ir.Value
        Those computed from initializers that may be parameters, and from no data.
    learned : set of ir.Value
        Those among `data` that are computed by a layer, or after one.
    """

    data: set[ir.Value] = field(default_factory=set)
    tuned: set[ir.Value] = field(default_factory=set)
    learned: set[ir.Value] = field(default_factory=set)


@dataclass(frozen=True)
class Use:
    """A node in which a value, or a formula of it, meets data.

    Attributes
    ----------
    node : ir.Node
        The node.
    index : int
        The index of its input.
    operand : ir.Value
        That input: the value itself, or a formula of it.
    formula : frozenset of str
        The operators between the value and the input that change more than its form; "" for one that is not
        standard.
    """

    node: ir.Node
    index: int
    operand: ir.Value
    formula: frozenset[str]


def trace_origins(graph: ir.Graph, is_layer: IsLayer) -> Origins:
    """Return the origins of the values of `graph` and of its subgraphs."""
    origins = Origins(data=set(graph.inputs))
    origins.tuned = {
        value
        for value in graph.initializers.values()
        if value.dtype in REAL_TYPES and FROZEN not in value.metadata_props
    }
    _trace(graph, origins, is_layer)
    return origins


def _trace(graph: ir.Graph, origins: Origins, is_layer: IsLayer) -> None:
    for node in graph:
        read = [value for _, value in read_values(node)]
        learned = not origins.learned.isdisjoint(read)
        for inner in bodies(node):
            origins.data.update(inner.inputs)
            if learned:
                origins.learned.update(inner.inputs)
            _trace(inner, origins, is_layer)
            learned = learned or any(
                value in origins.learned for entry in nodes_within(inner) for value in entry.outputs
            )
        operator = standard_operator(node)
        if operator in _SIZES or origins.data.isdisjoint(read):
            if not origins.tuned.isdisjoint(read) and operator not in _SIZES:
                origins.tuned.update(node.outputs)
            continue
        origins.data.update(node.outputs)
        if learned or is_layer(node, origins.tuned):
            origins.learned.update(node.outputs)


def uses_of(value: ir.Value, origins: Origins, form: frozenset[str]) -> Iterator[Use]:
    """Yield the nodes in which `value` meets data, directly or through formulas that read no data.

    Parameters
    ----------
    value : ir.Value
        An initializer.
    origins : Origins
        Of its graph.
    form : frozenset of str
        Operators that change only the form of a value.
    """
    waiting = [(value, frozenset[str]())]
    known = set(waiting)
    while waiting:
        operand, formula = waiting.pop()
        for use in operand.uses():
            node, index = use.node, use.idx
            if any(result in origins.data for result in node.outputs):
                yield Use(node, index, operand, formula)
                continue
            operator = standard_operator(node)
            if operator in _SIZES or index in _SETTINGS.get(operator, ()):
                continue
            behind = formula if operator in form else formula | {operator}
            for entry in ((result, behind) for result in node.outputs):
                if entry not in known:
                    known.add(entry)
                    waiting.append(entry)
