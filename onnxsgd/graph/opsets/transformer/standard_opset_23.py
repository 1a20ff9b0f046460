"""Transformer operators of opset 23 and later, in older operators.

Their definitions in the standard are equivalent, but compute axes and shapes: with open sizes, the ranks of
their results are unknown. A form that a rule here does not cover is left to the definition.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.model import REAL_TYPES
from onnxsgd.graph.nodes import attribute, rank
from onnxsgd.graph.opsets.transformer.attention_heads import (
    attend,
    merge_heads,
    repeat_heads,
    scale_queries,
    split_heads,
)
from onnxsgd.graph.opsets.transformer.attention_masks import add, as_bias, lowest, visible, within
from onnxsgd.graph.opsets.transformer.axis_sizes import known_size, number, operand, size
from onnxsgd.graph.opsets.transformer.fused_layers import reads, rms_norm
from onnxsgd.graph.opsets.transformer.rotary_embedding import angles_at, n_turned, rotate
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["STANDARD_RULES"]


def _attention(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """``softmax(scale q k^T + mask) v``; a query that sees no key gets zeros."""
    q, k, v, mask, past_k, past_v = (operand(node, index) for index in range(6))
    if not _is_plain(node) or (q_heads := _heads(node, q, "q")) is None:
        return None
    kv_heads = _heads(node, k, "kv")
    if kv_heads is None or q_heads % kv_heads or (mask is not None and not _fits(mask, k, past_k)):
        return None
    merged = rank(q) == 3
    q, k, v = (
        split_heads(w, x, heads) if merged else x for x, heads in ((q, q_heads), (k, kv_heads), (v, kv_heads))
    )
    if past_k is not None:
        k, v = w.op.Concat(past_k, k, axis=2), w.op.Concat(past_v, v, axis=2)
    keys, values = (repeat_heads(w, x, kv_heads, q_heads // kv_heads) for x in (k, v))
    wide, narrow = _precision(node, q), q.dtype or ir.DataType.FLOAT
    queries, keys, values = (_cast(w, x, wide) for x in (q, keys, values))
    queries = scale_queries(w, queries, attribute(node, "scale"))
    bias = add(w, None if mask is None else _as_numbers(w, mask, queries), *_bounds(w, node, queries, k))
    attended = attend(w, queries, keys, values, bias, attribute(node, "softcap", 0.0))
    output, weights = attended.output, attended.weights
    if bias is not None:
        seen = w.op.Greater(_largest(w, bias), number(w, lowest(queries) / 2, queries))
        output, weights = (w.op.Where(seen, x, number(w, 0.0, queries)) for x in (output, weights))
    shown = attended.products if attribute(node, "qk_matmul_output_mode", 0) == 0 else weights
    output, shown = (_cast(w, x, narrow) for x in (output, shown))
    return [merge_heads(w, output) if merged else output, k, v, shown][: len(node.outputs)]


def _bounds(w: Writer, node: ir.Node, q: ir.Value, k: ir.Value) -> list[ir.Value]:
    """Return the biases that limit queries by their position, and by the length of each sample."""
    past, lengths = operand(node, 4), operand(node, 6)
    offset = w.tensor("offset", np.array([0], np.int64)) if past is None else size(w, past, 2)
    if lengths is not None:
        first = w.op.Sub(w.op.Cast(lengths, to=ir.DataType.INT64), size(w, q, 2))
        offset = w.op.Unsqueeze(first, [1, 2, 3]) if past is None else offset
    before, after = (attribute(node, f"{side}_window_size", -1) for side in ("left", "right"))
    before, after = (None if bound < 0 else bound for bound in (before, after))
    after = 0 if attribute(node, "is_causal", 0) else after
    masks = [] if before is None and after is None else [visible(w, q, k, before, after, offset)]
    masks += [] if lengths is None else [within(w, k, lengths)]
    return [as_bias(w, mask, lowest(q), q) for mask in masks]


def _is_plain(node: ir.Node) -> bool:
    """Return whether the rule covers the form of an Attention."""
    q, k, v, mask, past_k, past_v = (operand(node, index) for index in range(6))
    precision = attribute(node, "softmax_precision")
    return (
        all(x.dtype == q.dtype for x in (k, v))
        and q.dtype in REAL_TYPES
        and precision in (None, 0, *map(int, REAL_TYPES))
        and (rank(q), rank(k), rank(v)) in ((3, 3, 3), (4, 4, 4))
        and (past_k is None) == (past_v is None)
        and (attribute(node, "qk_matmul_output_mode", 0) in (0, 3) or not reads(node, 3))
        and (mask is None or rank(mask) is not None)
    )


def _precision(node: ir.Node, q: ir.Value) -> ir.DataType:
    """Return the computation type: that of the inputs or of the softmax, float32 at least."""
    precise = ir.DataType.DOUBLE in (q.dtype, attribute(node, "softmax_precision"))
    return ir.DataType.DOUBLE if precise else ir.DataType.FLOAT


def _cast(w: Writer, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    return x if x.dtype == dtype else w.op.Cast(x, to=dtype)


def _heads(node: ir.Node, x: ir.Value, kind: str) -> int | None:
    return attribute(node, f"{kind}_num_heads") or (known_size(x, 1) if rank(x) == 4 else None)


def _fits(mask: ir.Value, k: ir.Value, past: ir.Value | None) -> bool:
    """Return whether a mask is known to have a column for each key; the standard pads it otherwise."""
    # the length of keys is the last axis but one, with heads split or not
    keys, columns = known_size(k, -2), known_size(mask, -1)
    before = 0 if past is None else known_size(past, 2)
    return None not in (keys, columns, before) and (keys or 0) + (before or 0) == columns


def _as_numbers(w: Writer, mask: ir.Value, q: ir.Value) -> ir.Value:
    """Return a mask as a finite bias."""
    if mask.dtype == ir.DataType.BOOL:
        return as_bias(w, mask, lowest(q), q)
    return w.op.Max(_cast(w, mask, q.dtype or ir.DataType.FLOAT), number(w, lowest(q), q))


def _largest(w: Writer, bias: ir.Value) -> ir.Value:
    return w.reduce("ReduceMax", bias, [-1])


def _rms_normalization(w: Writer, node: ir.Node) -> ir.Value | None:
    """``scale x / sqrt(mean(x^2) + epsilon)`` over `axis` and the later axes."""
    x, scale = operand(node, 0), operand(node, 1)
    if (dimensions := rank(x)) is None:
        return None
    begin = attribute(node, "axis", -1) % dimensions
    return rms_norm(w, x, scale, attribute(node, "epsilon", 1e-5), list(range(begin - dimensions, 0)))


def _rotary_embedding(w: Writer, node: ir.Node) -> ir.Value | None:
    """Rotate pairs of features by angles, given for each position, or taken from a lookup table."""
    x, cosine, sine, places = (operand(node, index) for index in range(4))
    n_heads = attribute(node, "num_heads", 0)
    if rank(x) != 4 and not (rank(x) == 3 and n_heads):
        return None
    heads = x if rank(x) == 4 else split_heads(w, x, n_heads)
    pairs = rank(cosine)
    if pairs is None or (places is not None and rank(places) is None):
        return None
    turned = attribute(node, "rotary_embedding_dim", 0) or n_turned(cosine, heads)
    if places is None:
        angles = [w.op.Unsqueeze(table, [1]) for table in (cosine, sine)]
    else:
        angles = [angles_at(w, table, places) for table in (cosine, sine)]
    interleaved = bool(attribute(node, "interleaved", 0))
    result = rotate(w, heads, angles[0], angles[1], turned, interleaved)
    return result if rank(x) == 4 else merge_heads(w, result)


#: The rules of the newer operators.
STANDARD_RULES: Table = {
    ("", "Attention"): _attention,
    ("", "RMSNormalization"): _rms_normalization,
    ("", "RotaryEmbedding"): _rotary_embedding,
}
