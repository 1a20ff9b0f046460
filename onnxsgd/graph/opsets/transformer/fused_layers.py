"""Normalizations, activations and products of the domain ``com.microsoft``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import PARAMETER
from onnxsgd.graph.nodes import attribute, first, rank
from onnxsgd.graph.opsets.transformer.axis_sizes import number, operand, positions
from onnxsgd.graph.opsets.transformer.refusal import refuse
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["LAYER_RULES", "layer_norm", "mark", "reads", "rms_norm"]

_TINY = 1e-12


def mark(value: ir.Value | None, kind: str) -> None:
    """Mark an initializer as a parameter; the operators written here do not show it."""
    if value is not None and value.is_initializer():
        value.metadata_props.setdefault(PARAMETER, kind)


def layer_norm(w: Writer, x: ir.Value, scale: ir.Value, bias: ir.Value | None, epsilon: float) -> ir.Value:
    """Write ``scale (x - mean) / sqrt(variance + epsilon) + bias``, over the last axis."""
    mark(scale, "weight")
    mark(bias, "intercept")
    if w.opset >= 17:
        given = [x, scale] if bias is None else [x, scale, bias]
        return w.op.LayerNormalization(*given, axis=-1, epsilon=epsilon)
    centred = w.op.Sub(x, w.reduce("ReduceMean", x, [-1]))
    scaled = _by_root_mean_square(w, centred, [-1], epsilon, scale)
    return scaled if bias is None else w.op.Add(scaled, bias)


def rms_norm(
    w: Writer, x: ir.Value, scale: ir.Value, epsilon: float, axes: Sequence[int] = (-1,)
) -> ir.Value:
    """Write ``scale x / sqrt(mean(x^2) + epsilon)``, over `axes`, in float32 at least."""
    mark(scale, "weight")
    if x.dtype != ir.DataType.FLOAT16:
        return _by_root_mean_square(w, x, axes, epsilon, scale)
    wide = w.op.Cast(x, to=ir.DataType.FLOAT)
    result = _by_root_mean_square(w, wide, axes, epsilon, w.op.Cast(scale, to=ir.DataType.FLOAT))
    return w.op.Cast(result, to=ir.DataType.FLOAT16)


def _by_root_mean_square(
    w: Writer, x: ir.Value, axes: Sequence[int], epsilon: float, scale: ir.Value
) -> ir.Value:
    mean = w.reduce("ReduceMean", w.op.Mul(x, x), axes)
    return w.op.Mul(w.op.Div(x, w.op.Sqrt(w.op.Add(mean, number(w, epsilon, x)))), scale)


def _skip_layer_normalization(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Normalize ``input + skip + bias``; the last output is this sum."""
    if reads(node, 1) or reads(node, 2):
        return refuse(node, "outputs mean and inv_std_var")
    x, skip, scale, shift, bias = (operand(node, index) for index in range(5))
    total = _sum(w, x, skip, bias)
    result = layer_norm(w, total, scale, shift, attribute(node, "epsilon", _TINY))
    return _with_sum(w, node, result, total)


def _skip_rms_normalization(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Normalize ``input + skip + bias`` by its root mean square; the last output is this sum."""
    if reads(node, 1) or reads(node, 2):
        return refuse(node, "outputs mean and inv_std_var")
    x, skip, scale, bias = (operand(node, index) for index in range(4))
    total = _sum(w, x, skip, bias)
    result = rms_norm(w, total, scale, attribute(node, "epsilon", _TINY))
    return _with_sum(w, node, result, total)


def _with_sum(w: Writer, node: ir.Node, result: ir.Value, total: ir.Value) -> Sequence[ir.Value]:
    """Return the outputs of a normalization of a sum: nothing reads the middle ones."""
    if len(node.outputs) < 4:
        return [result]
    return [result, w.op.Identity(result), w.op.Identity(result), total]


def _rms_normalization(w: Writer, node: ir.Node) -> ir.Value | None:
    """``scale x / sqrt(mean(x^2) + epsilon)`` over `axis` and the later axes."""
    x, scale = operand(node, 0), operand(node, 1)
    if reads(node, 1):
        return refuse(node, "output inv_std_var")
    if (dimensions := rank(x)) is None:
        return refuse(node, "an input of unknown rank")
    begin = attribute(node, "axis", -1) % dimensions
    return rms_norm(w, x, scale, attribute(node, "epsilon", 1e-5), list(range(begin - dimensions, 0)))


def _layer_normalization(w: Writer, node: ir.Node) -> ir.Value | None:
    """Write the runtime's LayerNormalization, older than the standard's."""
    if reads(node, 1) or reads(node, 2) or attribute(node, "axis", -1) != -1:
        return refuse(node, "further outputs, or axes other than the last")
    x, scale, bias = (operand(node, index) for index in range(3))
    return layer_norm(w, x, scale, bias, attribute(node, "epsilon", 1e-5))


def _embed_layer_normalization(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """Add the embeddings of words, positions and segments, and normalize them.

    The second output is the number of words that the mask of a sample keeps.
    """
    ids, segments, words, places, kinds, scale, shift, mask, numbers = (operand(node, i) for i in range(9))
    for table in (words, places, kinds):
        mark(table, "weight")
    if numbers is None:
        numbers = positions(w, ids, 1)
    total = w.op.Add(w.op.Gather(words, ids, axis=0), w.op.Gather(places, numbers, axis=0))
    if segments is not None and kinds is not None:
        total = w.op.Add(total, w.op.Gather(kinds, segments, axis=0))
    result = layer_norm(w, total, scale, shift, attribute(node, "epsilon", _TINY))
    return [result, _count_words(w, mask, ids), total][: len(node.outputs)]


def _count_words(w: Writer, mask: ir.Value | None, ids: ir.Value) -> ir.Value:
    one = w.tensor("one", np.array(1, np.int64))
    if mask is None:
        ids = w.op.Cast(ids, to=ir.DataType.INT64)
        kept = w.op.Sub(ids, ids)
    else:
        kept = w.op.Cast(w.op.Equal(w.op.Cast(mask, to=ir.DataType.INT64), one), to=ir.DataType.INT64)
    return w.op.Cast(w.reduce("ReduceSum", kept, [1], keepdims=0), to=ir.DataType.INT32)


def _gelu(w: Writer, x: ir.Value) -> ir.Value:
    bend = w.op.Erf(w.op.Mul(x, number(w, math.sqrt(0.5), x)))
    return w.op.Mul(w.op.Mul(x, number(w, 0.5, x)), w.op.Add(bend, number(w, 1.0, x)))


def _plain_gelu(w: Writer, node: ir.Node) -> ir.Value:
    """``x Phi(x)`` with the normal distribution Phi."""
    return _gelu(w, first(node))


def _bias_gelu(w: Writer, node: ir.Node) -> ir.Value:
    """``gelu(x + bias)``."""
    return _gelu(w, _sum(w, operand(node, 0), operand(node, 1)))


def _fast_gelu(w: Writer, node: ir.Node) -> ir.Value:
    """``gelu(x + bias)``, with the usual approximation by a tanh."""
    x = _sum(w, operand(node, 0), operand(node, 1))
    cubic = w.op.Mul(w.op.Mul(x, x), w.op.Mul(x, number(w, 0.044715, x)))
    bend = w.op.Tanh(w.op.Mul(w.op.Add(x, cubic), number(w, math.sqrt(2 / math.pi), x)))
    return w.op.Mul(w.op.Mul(x, number(w, 0.5, x)), w.op.Add(bend, number(w, 1.0, x)))


def _quick_gelu(w: Writer, node: ir.Node) -> ir.Value:
    """``x sigmoid(alpha x)``."""
    x, alpha = first(node), attribute(node, "alpha", 1.702)
    return w.op.Mul(x, w.op.Sigmoid(w.op.Mul(x, number(w, alpha, x))))


def _fused_matmul(w: Writer, node: ir.Node) -> ir.Value | None:
    """``alpha A B``, with A and B first transposed according to the attributes."""
    a, b = operand(node, 0), operand(node, 1)
    a, b = _transposed(w, node, a, "A"), _transposed(w, node, b, "B")
    if a is None or b is None:
        return refuse(node, "a transposed input of unknown rank")
    product, alpha = w.op.MatMul(a, b), attribute(node, "alpha", 1.0)
    return product if alpha == 1.0 else w.op.Mul(product, number(w, alpha, a))


def _transposed(w: Writer, node: ir.Node, x: ir.Value | None, name: str) -> ir.Value | None:
    """Move the first axis before the last, and swap rows and columns, according to the attributes."""
    within, batch = attribute(node, f"trans{name}", 0), attribute(node, f"transBatch{name}", 0)
    if x is None or not (within or batch):
        return x
    dimensions = rank(x)
    if dimensions is None or dimensions < 2:
        return None if dimensions is None else x
    order = list(range(dimensions))
    if batch:
        order = [*order[1:-1], 0, order[-1]]
    if within:
        order[-2:] = order[:-3:-1]
    return w.op.Transpose(x, perm=order)


def _sum(w: Writer, x: ir.Value, *others: ir.Value | None) -> ir.Value:
    for other in others:
        if other is not None:
            mark(other, "intercept")
            x = w.op.Add(x, other)
    return x


def reads(node: ir.Node, index: int) -> bool:
    """Return whether anything reads an output of `node`."""
    if index >= len(node.outputs):
        return False
    return bool(node.outputs[index].uses()) or node.outputs[index].is_graph_output()


_DOMAIN = "com.microsoft"

#: The rules of the layers.
LAYER_RULES: Table = {
    (_DOMAIN, "BiasGelu"): _bias_gelu,
    (_DOMAIN, "EmbedLayerNormalization"): _embed_layer_normalization,
    (_DOMAIN, "FastGelu"): _fast_gelu,
    (_DOMAIN, "FusedMatMul"): _fused_matmul,
    (_DOMAIN, "Gelu"): _plain_gelu,
    (_DOMAIN, "LayerNormalization"): _layer_normalization,
    (_DOMAIN, "QuickGelu"): _quick_gelu,
    (_DOMAIN, "SimplifiedLayerNormalization"): _rms_normalization,
    (_DOMAIN, "SkipLayerNormalization"): _skip_layer_normalization,
    (_DOMAIN, "SkipSimplifiedLayerNormalization"): _skip_rms_normalization,
    (_DOMAIN, "TransposeMatMul"): _fused_matmul,
}
