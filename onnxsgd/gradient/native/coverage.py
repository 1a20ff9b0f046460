"""Operators that the gradient builder of onnxruntime-training 1.19.2 differentiates, as tables.

The builder raises for an operator without gradient, returns wrong gradients in a few corner cases, and ends
the interpreter on some graphs. These tables are read before it is called, then the one of forms that a sweep
found right (:mod:`onnxsgd.gradient.native.proof`). The tests check each line against central differences.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxsgd.gradient.native.refused_forms import REFUSALS
from onnxsgd.graph.nodes import qualified_operator, standard_operator
from onnxsgd.graph.operators import TYPE_ONLY, Fact, having

__all__ = [
    "DIFFERENTIABLE",
    "blocks_gradient",
    "has_zero_gradient",
    "passes_gradient",
    "why_not",
]

#: The operators with a gradient, and the indices of the inputs that it flows to, or None for all of them.
DIFFERENTIABLE: Mapping[str, tuple[int, ...] | None] = {
    "Abs": None,
    "Add": None,
    "AveragePool": None,
    "Cast": None,
    "CastLike": (0,),
    "Clip": (0,),
    "Concat": None,
    "Conv": None,
    "Cos": None,
    "Div": None,
    "Dropout": (0,),
    "Erf": None,
    "Exp": None,
    "Expand": (0,),
    "Flatten": None,
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Gemm": None,
    "GlobalAveragePool": None,
    "Identity": None,
    "LayerNormalization": None,
    "LeakyRelu": None,
    "Log": None,
    "LogSoftmax": None,
    "MatMul": None,
    "Max": None,
    "MaxPool": None,
    "Min": None,
    "Mul": None,
    "Neg": None,
    "Pad": (0,),
    "Pow": (0,),
    "Reciprocal": None,
    "ReduceL2": (0,),
    "ReduceLogSumExp": (0,),
    "ReduceMean": (0,),
    "ReduceSum": (0,),
    "Relu": None,
    "Reshape": (0,),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Sigmoid": None,
    "Sin": None,
    "Slice": (0,),
    "Softmax": None,
    "SoftmaxCrossEntropyLoss": (0,),
    "Split": (0,),
    "Sqrt": None,
    "Squeeze": (0,),
    "Sub": None,
    "Tanh": None,
    "Tile": (0,),
    "TopK": (0,),
    "Transpose": None,
    "Trilu": (0,),
    "Unsqueeze": (0,),
    "Where": (1, 2),
}


def has_zero_gradient(node: ir.Node) -> bool:
    """Return whether the results of `node` do not change with a small change of its inputs."""
    return standard_operator(node) in having(Fact.FLAT)


def passes_gradient(node: ir.Node, index: int | None) -> bool:
    """Return whether a gradient flows from the outputs of `node` to its input at `index`.

    Also true for operators without a gradient: on a path, they must be found and refused.
    """
    if has_zero_gradient(node):
        return False
    inputs = DIFFERENTIABLE.get(standard_operator(node))
    return inputs is None or index in inputs


def blocks_gradient(node: ir.Node, index: int) -> bool:
    """Return whether results of `node` depend on its input at `index`, but no gradient flows there."""
    if passes_gradient(node, index) or has_zero_gradient(node):
        return False
    return index != TYPE_ONLY.get(standard_operator(node))


def why_not(node: ir.Node) -> str | None:
    """Return why no gradient passes `node`, as a phrase; None if one does, or is zero."""
    if has_zero_gradient(node):
        return None
    if standard_operator(node) not in DIFFERENTIABLE:
        return f"{qualified_operator(node)} has no gradient in onnxruntime-training"
    refuse = REFUSALS.get(node.op_type)
    reason = refuse(node) if refuse is not None else None
    return f"{node.op_type} {reason} has no gradient in onnxruntime-training" if reason else None
