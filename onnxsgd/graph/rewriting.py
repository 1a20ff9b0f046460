"""Table-driven rewriting: a rule's nodes replace one node in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxsgd._builder import Attribute, Builder
from onnxsgd._library_errors import reason
from onnxsgd.exceptions import GraphError, OnnxSGDError
from onnxsgd.graph.append import appending, blank, take_constants
from onnxsgd.graph.model import FROZEN, graph_names, unique_name
from onnxsgd.graph.nodes import maker
from onnxsgd.graph.writing import Replacement, computed, replace_nodes, take_nodes

__all__ = [
    "Rule",
    "Table",
    "Writer",
    "extend",
    "is_rewritten",
    "rewrite",
]


@dataclass(frozen=True)
class Writer:
    """Builder of a rule's replacement.

    Attributes
    ----------
    op : onnxscript builder
        ``op.Add(x, 1.0)`` writes a node of the standard domain and returns its output. Python numbers
        become constants of the type that the operator expects.
    opset : int
        The version of the standard operators in the graph.
    """

    op: Builder
    opset: int

    def tensor(self, name: str, array: np.ndarray | ir.TensorProtocol, frozen: str | None = None) -> ir.Value:
        """Return a new initializer; `frozen` is the reason why it is no parameter, or None."""
        taken = set(self.op.builder.graph.initializers)
        value = self.op.initializer(ir.tensor(array), unique_name(name, taken))
        if frozen:
            value.metadata_props[FROZEN] = frozen
        return value

    def known(
        self, op_type: str, inputs: Sequence[ir.Value], sizes: Sequence[int], **attributes: Attribute
    ) -> ir.Value:
        """Write a standard node whose result has the type of its first input and these sizes.

        `op` infers both: of a network with 70 convolutions that takes as long as its gradient.
        """
        value = computed(op_type, inputs, attributes)
        value.type, value.shape = inputs[0].type, ir.Shape(sizes)
        self.op.builder.graph.append(maker(value))
        return value

    def reshaped(self, x: ir.Value, sizes: Sequence[int]) -> ir.Value:
        """Write a Reshape to these sizes."""
        return self.known("Reshape", [x, self.tensor("sizes", np.array(sizes, np.int64))], sizes)

    def transposed(self, x: ir.Value, perm: Sequence[int]) -> ir.Value:
        """Write a Transpose of a tensor of known sizes."""
        sizes = [] if x.shape is None else x.shape.numpy()
        return self.known("Transpose", [x], [sizes[axis] for axis in perm], perm=list(perm))

    def as_float(self, x: ir.Value) -> ir.Value:
        """Return `x` as float32, the type in which the operators of ``ai.onnx.ml`` compute."""
        return x if x.dtype == ir.DataType.FLOAT else self.op.Cast(x, to=ir.DataType.FLOAT)

    def reduce(self, op_type: str, x: ir.Value, axes: Sequence[int] | None, keepdims: int = 1) -> ir.Value:
        """Write a reduction over `axes` (None: all of them) in the form of the opset."""
        write = getattr(self.op, op_type)
        if axes is None:
            return write(x, keepdims=keepdims)
        if self.opset >= 18 or op_type == "ReduceSum":
            return write(x, list(axes), keepdims=keepdims)
        return write(x, axes=list(axes), keepdims=keepdims)


# onnxscript.rewriter matches patterns of nodes: on Swin of tests/networks one rule takes as long as all of
# graph.lowering here, 1 ms, and constants of a replacement become nodes.

#: A rule returns the replacements of the node's outputs, or None, before it has written anything, if its
#: precondition does not hold. Trailing outputs that nothing reads need no replacement.
Rule = Callable[[Writer, ir.Node], ir.Value | Sequence[ir.Value] | None]
Table = Mapping[tuple[str, str], Rule]


def rewrite(model: ir.Model, table: Table, nodes: Iterable[ir.Node] | None = None) -> int:
    """Apply `table` in place to nodes of the main graph, and to the nodes that rules write.

    The replacement takes the place and the output names of the node. Subgraphs are left alone, and so is a
    node whose first input has no known element type.

    Parameters
    ----------
    model : ir.Model
        The model.
    table : mapping
        The rules.
    nodes : iterable of ir.Node or None
        The nodes to try, in order; None for all.

    Returns
    -------
    int
        The number of nodes that were replaced.
    """
    graph = model.graph
    names = graph_names(graph)

    def find(node: ir.Node) -> Replacement | None:
        rule = _rule_for(table, node)
        return None if rule is None else _replacement(rule, node, graph, names)

    return replace_nodes(graph if nodes is None else nodes, find)


def is_rewritten(table: Table, node: ir.Node) -> bool:
    """Return whether `table` has a rule whose precondition `node` meets; change nothing."""
    rule = _rule_for(table, node)
    if rule is None or not isinstance(node.graph, ir.Graph):
        return False
    scratch, writer = _blank(node.graph)
    written = rule(writer, node)
    scratch.remove(list(scratch), safe=True)
    return written is not None


def _rule_for(table: Table, node: ir.Node) -> Rule | None:
    known = node.inputs and node.inputs[0] is not None and node.inputs[0].dtype is not None
    return table.get((node.domain, node.op_type)) if known else None


def extend(graph: ir.Graph, name: str, write: Callable[[Writer], ir.Value]) -> ir.Value:
    """Append the nodes of `write` to `graph`; return their result, named `name` or with a number appended."""
    with appending(graph) as op:
        result = write(Writer(op, graph.opset_imports[""]))
        result.name = name
    return result


def _replacement(rule: Rule, node: ir.Node, graph: ir.Graph, names: set[str]) -> Replacement | None:
    """Return the nodes of `rule`, their constants added to `graph`; None if the rule does not apply."""
    scratch, writer = _blank(graph)
    try:
        written = rule(writer, node)
    except OnnxSGDError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # no checker compares all attributes of a node with its operands
        raise GraphError(
            f"The {node.op_type} that computes {node.outputs[0].name!r} has operands or attributes that do "
            f"not fit together ({reason(error)})."
        ) from error
    if written is None:
        return None
    results = [written] if isinstance(written, ir.Value) else list(written)
    own = {value for new in scratch for value in new.outputs}
    for index, (old, new) in enumerate(zip(node.outputs, results, strict=False)):
        if old.is_graph_output() and new not in own:
            # an output of a graph needs its own node
            results[index] = writer.op.Identity(new)
    new_nodes = take_nodes(scratch)
    inherited = {new: str(old.name) for old, new in zip(node.outputs, results, strict=False)}
    _move(scratch, new_nodes, graph, inherited, str(node.outputs[-1].name or node.outputs[0].name), names)
    return new_nodes, results


def _blank(graph: ir.Graph) -> tuple[ir.Graph, Writer]:
    scratch, op = blank(graph)
    return scratch, Writer(op, scratch.opset_imports[""])


def _move(
    scratch: ir.Graph,
    nodes: list[ir.Node],
    graph: ir.Graph,
    given: Mapping[ir.Value, str],
    base: str,
    names: set[str],
) -> None:
    """Move the initializers of `scratch` to `graph`; name its `nodes` and their values, first as `given`."""
    for node in nodes:
        node.metadata_props.clear()
        for value in node.outputs:
            value.name = given.get(value) or unique_name(f"{base}_{node.op_type}", names)
        node.name = f"{node.outputs[0].name}/{node.op_type}"
    take_constants(scratch, graph, names)
