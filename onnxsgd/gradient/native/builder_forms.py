"""Operators in the only form that the gradient builder of onnxruntime-training accepts."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import unique_name
from onnxsgd.graph.nodes import element_type, maker, required, shape_of
from onnxsgd.graph.writing import add_initializer, computed

__all__ = ["OPTIONAL_OUTPUTS", "complete"]

#: Number of outputs of the operators whose gradient reads optional outputs.
OPTIONAL_OUTPUTS = {"Dropout": 2, "LayerNormalization": 3, "SoftmaxCrossEntropyLoss": 2}


def complete(graph: ir.Graph, sources: Collection[ir.Value], names: set[str]) -> None:
    """Complete the nodes of `graph`, in place.

    Precondition: :func:`~onnxsgd.gradient.native.coverage.why_not` refuses no node. Result: the same values,
    and

    - nodes have unique names;
    - optional outputs that gradients read exist;
    - LayerNormalization has a bias, Transpose a permutation, CastLike is a Cast, and a Cast to the type of
      its input is an Identity: the builder would drop it;
    - no node reads one of `sources` twice: the builder would define its gradient twice.

    Parameters
    ----------
    graph : ir.Graph
        An isolated path.
    sources : collection of ir.Value
        The inputs to differentiate with respect to.
    names : set of str
        The names of its tensors, updated in place.
    """
    for index, node in enumerate(list(graph)):
        node.name = f"{node.op_type}_{index}"
        _add_outputs(node, names)
        if node.op_type == "LayerNormalization":
            _add_bias(graph, node, names)
        elif node.op_type in ("Cast", "CastLike"):
            _fix_cast(node)
        elif node.op_type == "Transpose" and "perm" not in node.attributes:
            rank = len(node.inputs[0].shape)  # type: ignore[union-attr, arg-type]
            node.attributes["perm"] = ir.AttrInt64s("perm", list(reversed(range(rank))))
        _read_once(graph, node, sources, names)


def _add_outputs(node: ir.Node, names: set[str]) -> None:
    wanted = OPTIONAL_OUTPUTS.get(node.op_type, 0)
    if len(node.outputs) < wanted:
        node.resize_outputs(wanted)
    for value in node.outputs[:wanted]:
        value.name = value.name or unique_name(f"{node.name}_output", names)


def _add_bias(graph: ir.Graph, node: ir.Node, names: set[str]) -> None:
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        return
    scale = required(node, 1)
    name = unique_name(f"{node.name}_bias", names)
    bias = add_initializer(graph, name, np.zeros(shape_of(scale).numpy(), element_type(scale).numpy()))
    node.resize_inputs(3)
    node.replace_input_with(2, bias)


def _fix_cast(node: ir.Node) -> None:
    source, dtype = required(node, 0), element_type(node.outputs[0])
    node.resize_inputs(1)
    node.attributes.clear()
    if source.dtype == dtype:
        node.op_type = "Identity"
    else:
        node.op_type = "Cast"
        node.attributes["to"] = ir.AttrInt64("to", dtype.value)


def _read_once(graph: ir.Graph, node: ir.Node, sources: Collection[ir.Value], names: set[str]) -> None:
    for value in {value for value in node.inputs if value is not None and value in sources}:
        positions = [index for index, other in enumerate(node.inputs) if other is value]
        if len(positions) < 2:
            continue
        copy = computed("Identity", [value], name=unique_name(f"{value.name}_copy", names), like=value)
        maker(copy).name = f"{node.name}_input_{positions[0]}"
        graph.insert_before(node, maker(copy))
        # an output, so that it is not optimised away
        graph.outputs.append(copy)
        for index in positions:
            node.replace_input_with(index, copy)
