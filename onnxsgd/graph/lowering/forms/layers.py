"""Normalisations and pooling written out."""

from __future__ import annotations

import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, first, operands, rank
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["LAYER_FORMS", "MATRIX_FORMS"]


def _batch_normalization(w: Writer, node: ir.Node) -> ir.Value | None:
    """``x * factor + (bias - mean * factor)`` with ``factor = scale / sqrt(var + eps)``.

    The rank must be known, and the node in inference mode.
    """
    x, scale, bias, mean, variance = operands(node)
    if rank(x) is None or attribute(node, "training_mode", 0):
        return None
    if len([value for value in node.outputs if value.uses() or value.is_graph_output()]) > 1:
        return None
    if any(value.dtype != x.dtype for value in (scale, bias, mean, variance)):
        return None
    inverse = w.op.Reciprocal(w.op.Sqrt(w.op.Add(variance, attribute(node, "epsilon", 1e-5))))
    factor = w.op.Mul(scale, inverse)
    offset = w.op.Sub(bias, w.op.Mul(factor, mean))
    return w.op.Add(w.op.Mul(x, _by_channel(w, factor, x)), _by_channel(w, offset, x))


def _batch_normalization_of_matrix(w: Writer, node: ir.Node) -> ir.Value | None:
    """``x * factor + (bias - mean * factor)``, for a matrix."""
    return _batch_normalization(w, node) if rank(first(node)) == 2 else None


def _instance_normalization(w: Writer, node: ir.Node) -> ir.Value | None:
    """``scale (x - mean) / sqrt(var + eps) + bias``, mean and variance over the spatial axes."""
    x, scale, bias = operands(node)
    if (dimensions := rank(x)) is None or dimensions < 3:
        return None
    space = list(range(2, dimensions))
    centred = w.op.Sub(x, w.reduce("ReduceMean", x, space))
    variance = w.reduce("ReduceMean", w.op.Mul(centred, centred), space)
    deviation = w.op.Sqrt(w.op.Add(variance, attribute(node, "epsilon", 1e-5)))
    scaled = w.op.Mul(w.op.Div(centred, deviation), _by_channel(w, scale, x))
    return w.op.Add(scaled, _by_channel(w, bias, x))


def _by_channel(w: Writer, vector: ir.Value, x: ir.Value) -> ir.Value:
    """Reshape a value for each channel to broadcast along axis 1 of `x`."""
    trailing = list(range(1, (rank(x) or 0) - 1))
    return w.op.Unsqueeze(vector, trailing) if trailing else vector


def _global_max_pool(w: Writer, node: ir.Node) -> ir.Value | None:
    """Take the largest element over the spatial axes."""
    x = first(node)
    dimensions = rank(x)
    if dimensions is None or dimensions < 3:
        return None
    return w.reduce("ReduceMax", x, list(range(2, dimensions)))


#: The forms of layers.
LAYER_FORMS: Table = {
    ("", "BatchNormalization"): _batch_normalization,
    ("", "GlobalMaxPool"): _global_max_pool,
    ("", "InstanceNormalization"): _instance_normalization,
}

#: The forms that are faster than the runtime's kernel, which computes a matrix number by number: 317 us
#: against 375 us for a step of three layers of 100 (1.19.2, batch 32).
MATRIX_FORMS: Table = {("", "BatchNormalization"): _batch_normalization_of_matrix}
