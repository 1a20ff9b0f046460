"""Appending of formulas to a graph, under new names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import onnx
import onnx_ir as ir
from onnxscript import GraphBuilder, OpBuilder

from onnxsgd._builder import Builder, Operand
from onnxsgd.exceptions import GraphError
from onnxsgd.graph.model import FROZEN, REAL_TYPES, graph_names, nodes_within, unique_name
from onnxsgd.graph.nodes import content
from onnxsgd.graph.writing import new_node, take_nodes

__all__ = ["appending", "blank", "builder_of", "check_operators", "graft", "take_constants"]


@contextmanager
def appending(graph: ir.Graph) -> Iterator[Builder]:
    """Yield an operator builder; when the block ends, append its nodes to `graph`."""
    scratch, op = blank(graph)
    yield op
    names = graph_names(graph)
    take_constants(scratch, graph, names)
    _append(take_nodes(scratch), graph, names, lambda name, op_type: name or op_type)


def graft(graph: ir.Graph, names: set[str], prefix: str, build: Callable[[Builder], ir.Value]) -> ir.Value:
    """Append the nodes of `build` to `graph`, and return their result.

    Parameters
    ----------
    graph : ir.Graph
        Changed in place.
    names : set of str
        The tensor names in use; the new ones are added.
    prefix : str
        The prefix of the new names.
    build : callable
        Receives an ``onnxscript.OpBuilder``, builds nodes on values of `graph`, and returns one value.

    Raises
    ------
    GraphError
        If the graph's opset lacks an operator that `build` uses.

    Notes
    -----
    Constants become nodes, not initializers: an initializer of a real type would be taken for a weight. They
    are also marked as frozen, in case a later pass lifts them to initializers.
    """
    scratch, op = blank(graph)
    result = build(op)
    nodes = [*_constant_nodes(scratch, f"constant of {prefix}"), *take_nodes(scratch)]
    check_operators(nodes, graph.opset_imports)
    _append(nodes, graph, names, lambda name, op_type: f"{prefix}_{op_type}")
    return result


def blank(graph: ir.Graph) -> tuple[ir.Graph, Builder]:
    """Return an empty graph and its operator builder.

    On `graph` itself the builder would reuse existing names: it numbers its values without checking.
    """
    scratch = ir.Graph([], [], nodes=[], opset_imports=dict(graph.opset_imports), name="scratch")
    return scratch, builder_of(scratch)


def builder_of(graph: ir.Graph) -> Builder:
    """Return the operator builder of a graph that has no names yet."""
    return cast("Builder", _Builder(GraphBuilder(graph)))


class _Builder(OpBuilder):
    """onnxscript's builder, with exponents of the type of their base.

    The standard lets a Pow have an exponent of another type, so that onnxscript rounds numbers to float32.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        super().__init__(builder, builder.op.domain, builder.op.version)
        self._exponents: dict[float, ir.Value] = {}

    def Pow(self, X: Operand, Y: Operand, **options: Any) -> Any:
        """Add a node of that name."""
        is_wide = isinstance(X, ir.Value) and X.dtype == ir.DataType.DOUBLE
        if is_wide and isinstance(Y, float):
            Y = self._exponent(Y)
        return super().__getattr__("Pow")(X, Y, **options)

    def _exponent(self, number: float) -> ir.Value:
        if number not in self._exponents:
            name = f"const_exponent_{len(self._exponents)}"
            tensor = ir.tensor(number, dtype=ir.DataType.DOUBLE, name=name)
            self._exponents[number] = self.initializer(tensor, name)
        return self._exponents[number]


def take_constants(scratch: ir.Graph, graph: ir.Graph, names: set[str]) -> None:
    """Move the initializers of `scratch` to `graph`; the builder's constants are no parameters."""
    for name in list(scratch.initializers):
        value = scratch.initializers.pop(name)
        if name.startswith("const_") and value.dtype in REAL_TYPES:
            value.metadata_props.setdefault(FROZEN, "constant of a formula")
        value.name = unique_name(name, names)
        graph.register_initializer(value)


def check_operators(nodes: Iterable[ir.Node], opsets: Mapping[str, int]) -> None:
    """Refuse nodes whose operator is not in the imported opset."""
    for node in nodes:
        try:
            onnx.defs.get_schema(node.op_type, opsets[node.domain], node.domain)
        except onnx.defs.SchemaError:
            raise GraphError(
                f"Opset {opsets[node.domain]} has no operator {node.op_type}; onnx.version_converter brings "
                "a model to a newer one."
            ) from None


def _constant_nodes(scratch: ir.Graph, frozen: str) -> list[ir.Node]:
    """Take the initializers out of `scratch`, and return equivalent Constant nodes."""
    nodes = []
    for name in list(scratch.initializers):
        value = scratch.initializers.pop(name)
        value.metadata_props[FROZEN] = frozen
        nodes.append(new_node("Constant", [], [value], {"value": content(value)}))
    return nodes


def _append(
    nodes: Iterable[ir.Node], graph: ir.Graph, names: set[str], name_of: Callable[[str | None, str], str]
) -> None:
    """Append `nodes`; `name_of` maps a name, or None, and the operator to a new name."""
    taken = {str(node.name) for node in nodes_within(graph)}
    for node in nodes:
        node.name = unique_name(name_of(node.name, node.op_type), taken)
        node.metadata_props.clear()
        for value in node.outputs:
            value.name = unique_name(name_of(value.name, node.op_type), names)
        graph.append(node)
