"""Lowering layers: normalisations, pooling, and forms of operators that the gradient builders do not take."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import PARAMETER
from onnxsgd.graph.rewriting import Table, Writer, attribute, constant, first, operands, rank

__all__ = ["LAYER_RULES"]


def _batch_normalization(w: Writer, node: ir.Node) -> ir.Value | None:
    """``x * factor + (bias - mean * factor)`` with ``factor = scale / sqrt(var + eps)``.

    Trained as it is, the operator would use the statistics of the batch. Scale and bias stay the graph's own
    tensors, under their own names; mean and variance are folded into constants. Where the rank is known and
    the node is in inference mode.
    """
    x, scale, bias, mean, variance = operands(node)
    means, variances = constant(mean), constant(variance)
    if means is None or variances is None or rank(x) is None or attribute(node, "training_mode", 0):
        return None
    if len([value for value in node.outputs if value.uses() or value.is_graph_output()]) > 1:
        return None
    _mark_parameters(scale, bias)
    inverse = 1 / np.sqrt(variances.astype(np.float64) + attribute(node, "epsilon", 1e-5))
    factor = w.op.Mul(
        scale, w.tensor("inverse_deviation", inverse.astype(variances.dtype), frozen=_STATISTICS)
    )
    offset = w.op.Sub(bias, w.op.Mul(factor, w.tensor("mean", means, frozen=_STATISTICS)))
    return w.op.Add(w.op.Mul(x, _by_channel(w, factor, x)), _by_channel(w, offset, x))


_STATISTICS = "statistics of a batch normalisation"


def _instance_normalization(w: Writer, node: ir.Node) -> ir.Value | None:
    """``scale (x - mean) / sqrt(var + eps) + bias``, mean and variance over the space of each channel."""
    x, scale, bias = operands(node)
    if (dimensions := rank(x)) is None:
        return None
    _mark_parameters(scale, bias)
    space = list(range(2, dimensions))
    centred = w.op.Sub(x, w.reduce("ReduceMean", x, space))
    variance = w.reduce("ReduceMean", w.op.Mul(centred, centred), space)
    deviation = w.op.Sqrt(w.op.Add(variance, attribute(node, "epsilon", 1e-5)))
    scaled = w.op.Mul(w.op.Div(centred, deviation), _by_channel(w, scale, x))
    return w.op.Add(scaled, _by_channel(w, bias, x))


def _mark_parameters(scale: ir.Value, bias: ir.Value) -> None:
    """Let it be known that these are parameters, which the operators written here do not show."""
    scale.metadata_props[PARAMETER], bias.metadata_props[PARAMETER] = "weight", "intercept"


def _by_channel(w: Writer, vector: ir.Value, x: ir.Value) -> ir.Value:
    """Shape a value for each channel so that it is broadcast along axis 1 of `x`."""
    trailing = list(range(1, (rank(x) or 0) - 1))
    return w.op.Unsqueeze(vector, trailing) if trailing else vector


def _dropout(w: Writer, node: ir.Node) -> ir.Value | None:
    """``x``, where it is not in training mode and nobody reads the mask."""
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is not None and (constant(training) is None or constant(training)):
        return None
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        return None
    return first(node)


def _cast(w: Writer, node: ir.Node) -> ir.Value | None:
    """``x``, where it has that type already: the gradient builder fails on what optimizers remove."""
    return first(node) if first(node).dtype == attribute(node, "to") else None


def _transpose(w: Writer, node: ir.Node) -> ir.Value | None:
    """Give the permutation explicitly, where it is not given and the rank is known."""
    dimensions = rank(first(node))
    if attribute(node, "perm") is not None or dimensions is None:
        return None
    return w.op.Transpose(first(node), perm=list(reversed(range(dimensions))))


def _matmul(w: Writer, node: ir.Node) -> ir.Value | None:
    """Multiply by a matrix of one column instead of by a vector."""
    left, right = operands(node)
    if rank(right) != 1 or (rank(left) or 0) < 2:
        return None
    return w.op.Squeeze(w.op.MatMul(left, w.op.Unsqueeze(right, [1])), [-1])


def _global_max_pool(w: Writer, node: ir.Node) -> ir.Value | None:
    """Take the first of the largest elements over the space of each channel; gradients go to that one."""
    x = first(node)
    dimensions = rank(x)
    if dimensions is None or x.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return None
    rows = w.op.Reshape(x, [0, 0, -1])
    largest, _ = w.op.TopK(rows, [1], axis=2, _outputs=2)
    return w.op.Reshape(largest, [0, 0] + [1] * (dimensions - 2))


#: What replaces layers of the standard domain.
LAYER_RULES: Table = {
    ("", "BatchNormalization"): _batch_normalization,
    ("", "Cast"): _cast,
    ("", "Dropout"): _dropout,
    ("", "GlobalMaxPool"): _global_max_pool,
    ("", "InstanceNormalization"): _instance_normalization,
    ("", "MatMul"): _matmul,
    ("", "Transpose"): _transpose,
}
