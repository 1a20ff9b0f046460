"""Lowering layers: normalisations, pooling, and forms of operators that the gradient builders do not take."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import PARAMETER
from onnxsgd.graph.rewriting import Table, Writer, attribute, constant

__all__ = ["LAYER_RULES"]


def _batch_normalization(w: Writer, node: ir.Node) -> ir.Value | None:
    """``x * scale / sqrt(var + eps) + (bias - mean * scale / sqrt(var + eps))`` with the statistics of inference.

    Trained as it is, the operator would use the statistics of the batch. Scale and bias stay the graph's own
    tensors, under their own names; mean and variance are folded into constants. Where the rank is known and
    the node is in inference mode.
    """
    x, scale, bias, mean, variance = node.inputs
    means, variances = constant(mean), constant(variance)
    if means is None or variances is None or x.shape is None or attribute(node, "training_mode", 0):
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
    x, scale, bias = node.inputs
    if x.shape is None:
        return None
    _mark_parameters(scale, bias)
    space = list(range(2, len(x.shape)))
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
    trailing = list(range(1, len(x.shape) - 1))
    return w.op.Unsqueeze(vector, trailing) if trailing else vector


def _dropout(w: Writer, node: ir.Node) -> ir.Value | None:
    """Nothing at all, where it is not in training mode and nobody reads the mask."""
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is not None and (constant(training) is None or constant(training)):
        return None
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        return None
    return node.inputs[0]


def _transpose(w: Writer, node: ir.Node) -> ir.Value | None:
    """The same with an explicit permutation, where there is none and the rank is known."""
    x = node.inputs[0]
    if attribute(node, "perm") is not None or x.shape is None:
        return None
    return w.op.Transpose(x, perm=list(reversed(range(len(x.shape)))))


def _matmul(w: Writer, node: ir.Node) -> ir.Value | None:
    """A product with a vector of weights as a product with a matrix of one column."""
    left, right = node.inputs
    if constant(right) is None or right.shape is None or len(right.shape) != 1 or left.shape is None:
        return None
    if len(left.shape) < 2:
        return None
    return w.op.Squeeze(w.op.MatMul(left, w.op.Unsqueeze(right, [1])), [-1])


def _global_max_pool(w: Writer, node: ir.Node) -> ir.Value | None:
    """The first of the largest elements over the space of each channel; gradients go to that one."""
    x = node.inputs[0]
    if x.shape is None or x.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return None
    rows = w.op.Reshape(x, [0, 0, -1])
    largest, _ = w.op.TopK(rows, [1], axis=2, _outputs=2)
    return w.op.Reshape(largest, [0, 0] + [1] * (len(x.shape) - 2))


#: What replaces layers of the standard domain.
LAYER_RULES: Table = {
    ("", "BatchNormalization"): _batch_normalization,
    ("", "Dropout"): _dropout,
    ("", "GlobalMaxPool"): _global_max_pool,
    ("", "InstanceNormalization"): _instance_normalization,
    ("", "MatMul"): _matmul,
    ("", "Transpose"): _transpose,
}
