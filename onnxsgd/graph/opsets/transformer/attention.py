"""Attention operators of the domain ``com.microsoft``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, rank
from onnxsgd.graph.opsets.transformer.attention_heads import attend, merge_heads, scale_queries, split_heads
from onnxsgd.graph.opsets.transformer.attention_masks import add, as_bias, lowest, of_keys, visible, within
from onnxsgd.graph.opsets.transformer.axis_sizes import known_size, operand, size
from onnxsgd.graph.opsets.transformer.fused_layers import mark
from onnxsgd.graph.opsets.transformer.refusal import refuse
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["ATTENTION_RULES"]


def _attention(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Self attention, with the projections to queries, keys and values in one matrix."""
    x, weight, bias, mask, past, more, past_length = (operand(node, index) for index in range(7))
    n_heads = attribute(node, "num_heads", 1)
    if past_length is not None or attribute(node, "past_present_share_buffer", 0):
        return refuse(node, "a shared buffer of past and present")
    if attribute(node, "do_rotary", 0):
        return refuse(node, "attribute do_rotary")
    if (form := _unknown_mask(mask, (1, 2, 3))) is not None:
        return refuse(node, form)
    widths = attribute(node, "qkv_hidden_sizes") or [(known_size(weight, 1) or 0) // 3] * 3
    if not all(widths):
        return refuse(node, "weights of unknown size")
    mark(weight, "weight")
    mark(bias, "intercept")
    projected = w.op.MatMul(x, weight)
    projected = projected if bias is None else w.op.Add(projected, bias)
    parts = w.op.Split(projected, w.tensor("sizes", np.array(widths, np.int64)), axis=-1, _outputs=3)
    q, k, v = (split_heads(w, part, n_heads) for part in parts)
    present = None
    if past is not None:
        past_k, past_v = (w.op.Gather(past, w.tensor("index", np.array(i, np.int64)), axis=0) for i in (0, 1))
        k, v = w.op.Concat(past_k, k, axis=2), w.op.Concat(past_v, v, axis=2)
    if len(node.outputs) > 1:
        present = w.op.Concat(w.op.Unsqueeze(k, [0]), w.op.Unsqueeze(v, [0]), axis=0)
    bias = _bias(w, node, q, k, mask, more)
    attended = attend(w, scale_queries(w, q, attribute(node, "scale")), k, v, bias)
    output = merge_heads(w, attended.output)
    return [output] if present is None else [output, present]


def _multi_head_attention(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Attention of queries to keys and values, projected by other layers."""
    query, key, value, bias, mask, more, past_k, past_v, past_length, beams = (
        operand(node, index) for index in range(10)
    )
    if past_length is not None or beams is not None:
        return refuse(node, "a shared buffer of past and present")
    if (form := _unknown_mask(mask, (1, 2, 3))) is not None:
        return refuse(node, form)
    if rank(query) not in (3, 5) or (key is not None and rank(key) not in (3, 4, 5)):
        return refuse(node, "queries or keys of unknown rank")
    if bias is not None and (rank(query) == 5 or rank(key) == 5 or value is None):
        return refuse(node, "a bias of packed inputs")
    n_heads = attribute(node, "num_heads", 1)
    if bias is not None:
        query, key, value = _biased(w, query, key, value, bias)
    q, k, v = _heads_of(w, query, key, value, n_heads)
    if past_k is not None and past_v is not None:
        k, v = w.op.Concat(past_k, k, axis=2), w.op.Concat(past_v, v, axis=2)
    bias = _bias(w, node, q, k, mask, more)
    attended = attend(w, scale_queries(w, q, attribute(node, "scale")), k, v, bias)
    return [merge_heads(w, attended.output), k, v, attended.weights][: len(node.outputs)]


def _biased(
    w: Writer, query: ir.Value, key: ir.Value, value: ir.Value, bias: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Add the parts of a bias for queries, keys and values; those already split into heads need none."""
    mark(bias, "intercept")
    width = size(w, query, 2)
    double = w.op.Add(width, width)
    end = w.tensor("end", np.array([2**62], np.int64))
    start, axis = (w.tensor("start", np.array([0], np.int64)) for _ in range(2))
    query = w.op.Add(query, w.op.Slice(bias, start, width, axis))
    if rank(key) == 3:
        key = w.op.Add(key, w.op.Slice(bias, width, double, axis))
        value = w.op.Add(value, w.op.Slice(bias, double, end, axis))
    return query, key, value


def _heads_of(
    w: Writer, query: ir.Value, key: ir.Value | None, value: ir.Value | None, n_heads: int
) -> list[ir.Value]:
    """Return queries, keys and values as [batch, heads, length, size], unpacked if they are packed."""
    if key is None:
        return _unpacked(w, query, 3)
    q = split_heads(w, query, n_heads)
    if value is None:
        return [q, *_unpacked(w, key, 2)]
    return [q, *(x if rank(x) == 4 else split_heads(w, x, n_heads) for x in (key, value))]


def _unpacked(w: Writer, packed: ir.Value, count: int) -> list[ir.Value]:
    """Return the parts of [batch, length, heads, count, size]."""
    indices = (w.tensor("index", np.array(index, np.int64)) for index in range(count))
    return [w.op.Transpose(w.op.Gather(packed, index, axis=3), perm=[0, 2, 1, 3]) for index in indices]


def _unknown_mask(mask: ir.Value | None, ranks: Sequence[int]) -> str | None:
    if mask is None or rank(mask) in ranks:
        return None
    return f"a mask of {rank(mask)} dimensions"


def _bias(
    w: Writer, node: ir.Node, q: ir.Value, k: ir.Value, mask: ir.Value | None, more: ir.Value | None
) -> ir.Value | None:
    """Return the sum of the masks of Attention and MultiHeadAttention, as in the runtime."""
    fill = attribute(node, "mask_filter_value", -10000.0)
    masked = None if mask is None else as_bias(w, _kept(w, q, k, mask), fill, q)
    future = None
    if attribute(node, "unidirectional", 0):
        future = as_bias(w, visible(w, q, k), lowest(q), q)
    return add(w, masked, future, more)


def _kept(w: Writer, q: ir.Value, k: ir.Value, mask: ir.Value) -> ir.Value:
    """Return whether keys are kept; a vector holds the end, or the end and the start of each sample."""
    if rank(mask) != 1:
        return of_keys(w, mask)
    batch = size(w, q, 0)
    zero = w.tensor("zero", np.array([0], np.int64))
    both = w.op.Concat(w.op.Cast(mask, to=ir.DataType.INT64), w.op.Expand(zero, batch), axis=0)
    starts = w.op.Slice(both, batch, w.op.Add(batch, batch), zero)
    return within(w, k, w.op.Slice(both, zero, batch, zero), starts)


_DOMAIN = "com.microsoft"

#: The rules of attention.
ATTENTION_RULES: Table = {
    (_DOMAIN, "Attention"): _attention,
    (_DOMAIN, "MultiHeadAttention"): _multi_head_attention,
}
