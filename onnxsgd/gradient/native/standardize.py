"""Replacement of operators of onnxruntime-training by standard ones.

Shapes that its gradient graphs compute at run time become constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from onnxsgd.gradient.native import standard_operators as operators
from onnxsgd.gradient.native import standard_shapes as shapes
from onnxsgd.gradient.native.replacements import Writer, element_type
from onnxsgd.graph.model import graph_names, unique_name
from onnxsgd.graph.nodes import operands
from onnxsgd.graph.writing import Replacement, replace_nodes

__all__ = ["FLOAT64_RULES", "RULES", "standardize"]

#: Returns the replacements of the outputs of a node, one value for each; None: the node stays.
Rule = Callable[[Writer, ir.Node], Sequence[ir.Value] | None]

_MICROSOFT = "com.microsoft"

#: Rules for every graph: the replacement takes no longer to run.
RULES: Mapping[tuple[str, str], Rule] = {
    ("", "Expand"): shapes.replace_expand,
    ("", "Identity"): shapes.identity,
    ("", "ReduceSum"): shapes.replace_reduce_sum,
    ("", "Reshape"): shapes.replace_reshape,
    ("", "Where"): shapes.replace_where,
    (_MICROSOFT, "BroadcastGradientArgs"): shapes.replace_broadcast_gradient_args,
    (_MICROSOFT, "DivGrad"): operators.replace_div_grad,
    (_MICROSOFT, "FusedMatMul"): operators.replace_fused_matmul,
    (_MICROSOFT, "GatherElementsGrad"): operators.replace_gather_elements_grad,
    (_MICROSOFT, "GatherGrad"): operators.replace_gather_grad,
    (_MICROSOFT, "GatherNDGrad"): operators.replace_gather_nd_grad,
    (_MICROSOFT, "LogSoftmaxGrad_13"): operators.replace_log_softmax_grad,
    (_MICROSOFT, "ReluGrad"): operators.replace_relu_grad,
    (_MICROSOFT, "Scale"): shapes.replace_scale,
    (_MICROSOFT, "SplitTraining"): shapes.replace_split_training,
    (_MICROSOFT, "Trilu"): operators.replace_trilu,
}

#: Rules for float64, with those for operators of which the runtime has no kernel in float64.
FLOAT64_RULES: Mapping[tuple[str, str], Rule] = {
    **RULES,
    ("", "Cos"): operators.replace_cos,
    ("", "MaxPoolGrad"): operators.replace_max_pool_grad,
    (_MICROSOFT, "FusedMatMul"): operators.replace_fused_matmul_of_float64,
    (_MICROSOFT, "LayerNormalizationGrad"): operators.replace_layer_normalization_grad,
    (_MICROSOFT, "LeakyReluGrad"): operators.replace_leaky_relu_grad,
    (_MICROSOFT, "SoftmaxGrad_13"): operators.replace_softmax_grad,
}


def standardize(graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
    """Replace those of `nodes` that have a rule, in place.

    Precondition: `graph` is a gradient graph as the builder returns it, without subgraphs, `nodes` some
    of its nodes in topological order; a name of a dimension denotes one size. Result: the same numbers,
    to rounding. Operators without a rule stay: ``ConvGrad``, ``AveragePoolGrad``, ``SliceGrad``, ``TanhGrad``
    and the like need onnxruntime-training.
    """
    names = graph_names(graph)

    def find(node: ir.Node) -> Replacement | None:
        rule, writer = _rule_for(node), Writer(graph.opset_imports[""])
        results = rule(writer, node) if rule is not None else None
        return None if results is None else _named(graph, node, writer, results, names)

    replace_nodes(nodes, find)


def _rule_for(node: ir.Node) -> Rule | None:
    key = (node.domain, node.op_type)
    if key not in FLOAT64_RULES:
        return None
    inputs = operands(node)
    if any(value.dtype == ir.DataType.DOUBLE for value in inputs):
        return FLOAT64_RULES[key]
    if key in RULES or all(value.dtype is not None for value in inputs):
        return RULES.get(key)
    return FLOAT64_RULES[key] if element_type(inputs[0]) == ir.DataType.DOUBLE else None


def _named(
    graph: ir.Graph, node: ir.Node, writer: Writer, results: Sequence[ir.Value], names: set[str]
) -> Replacement:
    """Name the nodes of `writer` after `node`, and add its constants to `graph`."""
    base = node.outputs[0].name
    for count, value in enumerate(writer.constants):
        value.name = unique_name(f"{base}_constant_{count}", names)
        graph.register_initializer(value)
    for count, value in enumerate(value for new in writer.nodes for value in new.outputs):
        value.name = unique_name(f"{base}_part_{count}", names)
    for old, new in zip(node.outputs, results, strict=True):
        if new.producer() in writer.nodes:
            new.name = old.name or new.name
        new.shape = old.shape if new.shape is None else new.shape
        new.type = old.type if new.type is None else new.type
    return writer.nodes, results
