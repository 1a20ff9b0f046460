"""Grouped-query attention and rotary position embeddings of ``com.microsoft``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import attribute, rank
from onnxsgd.graph.opsets.transformer.attention_heads import (
    attend,
    merge_heads,
    repeat_heads,
    scale_queries,
    split_heads,
)
from onnxsgd.graph.opsets.transformer.attention_masks import add, as_bias, lowest, visible, within
from onnxsgd.graph.opsets.transformer.axis_sizes import known_size, number, operand, positions
from onnxsgd.graph.opsets.transformer.fused_layers import mark
from onnxsgd.graph.opsets.transformer.refusal import refuse
from onnxsgd.graph.opsets.transformer.rotary_embedding import angles_at, n_turned, rotate
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["GROUPED_RULES"]


def _group_query_attention(w: Writer, node: ir.Node) -> Sequence[ir.Value] | None:
    """Causal attention in which several heads of queries share one of keys and values."""
    given = {name: operand(node, index) for index, name in enumerate(_GROUP_QUERY_INPUTS)}
    n_heads, n_shared = attribute(node, "num_heads"), attribute(node, "kv_num_heads")
    if (form := _unknown_group_query(node, given)) is not None:
        return refuse(node, form)
    q, k, v = _grouped_heads(w, given, n_heads, n_shared)
    if attribute(node, "do_rotary", 0):
        q, k = _rotated(w, node, given, q, k)
    one = w.tensor("one", np.array(1, np.int64))
    keep = within(w, k, w.op.Add(w.op.Cast(given["seqlens_k"], to=ir.DataType.INT64), one))
    if attribute(node, "causal", 1):
        window = attribute(node, "local_window_size", -1)
        keep = w.op.And(keep, visible(w, q, k, before=window - 1 if window > 0 else None))
    bias = add(w, as_bias(w, keep, lowest(q), q), given["attention_bias"])
    sink = given["head_sink"]
    if sink is not None:
        mark(sink, "intercept")
        sink = w.op.Reshape(sink, [1, -1, 1, 1])
    elif attribute(node, "smooth_softmax", 0) == 1:
        sink = number(w, 0.0, q)
    times = n_heads // n_shared
    keys, values = (repeat_heads(w, x, n_shared, times) for x in (k, v))
    q = scale_queries(w, q, attribute(node, "scale"))
    attended = attend(w, q, keys, values, bias, attribute(node, "softcap", 0.0), sink)
    return [merge_heads(w, attended.output), k, v][: len(node.outputs)]


_GROUP_QUERY_INPUTS = (
    "query",
    "key",
    "value",
    "past_key",
    "past_value",
    "seqlens_k",
    "total_sequence_length",
    "cos_cache",
    "sin_cache",
    "position_ids",
    "attention_bias",
    "head_sink",
)


def _unknown_group_query(node: ir.Node, given: Mapping[str, Any]) -> str | None:
    for name in ("past_key", "past_value"):
        past = given[name]
        if past is not None and known_size(past, 2) != 0:
            return f"input {name}"
    if any(value is not None for value in node.inputs[len(_GROUP_QUERY_INPUTS) :]):
        return "inputs behind head_sink"
    if attribute(node, "qk_output", 0) or len(node.outputs) > 3:
        return "output output_qk"
    return None


def _grouped_heads(
    w: Writer, given: Mapping[str, Any], n_heads: int, n_shared: int
) -> tuple[ir.Value, ir.Value, ir.Value]:
    query, key, value = given["query"], given["key"], given["value"]
    if key is not None and value is not None:
        return split_heads(w, query, n_heads), split_heads(w, key, n_shared), split_heads(w, value, n_shared)
    packed = split_heads(w, query, n_heads + 2 * n_shared)
    sizes = w.tensor("sizes", np.array([n_heads, n_shared, n_shared], np.int64))
    q, k, v = w.op.Split(packed, sizes, axis=1, _outputs=3)
    return q, k, v


def _rotated(w: Writer, node: ir.Node, given: Mapping[str, Any], q: ir.Value, k: ir.Value) -> list[ir.Value]:
    """Rotate queries and keys by the angles of their positions, which count from 0 by default."""
    places = given["position_ids"]
    places = positions(w, q, 2) if places is None else places
    tables = given["cos_cache"], given["sin_cache"]
    cosine, sine = (angles_at(w, table, places) for table in tables if table is not None)
    interleaved = bool(attribute(node, "rotary_interleaved", 0))
    turned = n_turned(tables[0], q)
    return [rotate(w, x, cosine, sine, turned, interleaved) for x in (q, k)]


def _rotary_embedding(w: Writer, node: ir.Node) -> ir.Value | None:
    """Rotate pairs of features by angles from a lookup table of positions."""
    x, places, cosine, sine = (operand(node, index) for index in range(4))
    if attribute(node, "is_packed_batching", 0) or attribute(node, "scale", 1.0) != 1.0:
        return refuse(node, "attributes is_packed_batching and scale")
    if rank(x) not in (3, 4) or rank(places) not in (1, 2):
        return refuse(node, "inputs of unknown rank")
    heads = x if rank(x) == 4 else _rotary_heads(w, node, x, cosine)
    if heads is None:
        return refuse(node, "an unknown head size")
    if rank(places) == 1:
        places = positions(w, heads, 2, w.op.Cast(places, to=ir.DataType.INT64))
    turned = attribute(node, "rotary_embedding_dim", 0) or n_turned(cosine, heads)
    cosine, sine = angles_at(w, cosine, places), angles_at(w, sine, places)
    result = rotate(w, heads, cosine, sine, turned, bool(attribute(node, "interleaved", 0)))
    return result if rank(x) == 4 else merge_heads(w, result)


def _rotary_heads(w: Writer, node: ir.Node, x: ir.Value, cosine: ir.Value) -> ir.Value | None:
    """Split [batch, length, features] into `num_heads` heads, or heads as wide as the table of angles."""
    n_heads, pairs = attribute(node, "num_heads", 0), known_size(cosine, 1)
    if n_heads:
        return split_heads(w, x, n_heads)
    if pairs is None:
        return None
    return w.op.Transpose(w.op.Reshape(x, [0, 0, -1, 2 * pairs]), perm=[0, 2, 1, 3])


_DOMAIN = "com.microsoft"

#: The rules of rotary embeddings, and of attention with them.
GROUPED_RULES: Table = {
    (_DOMAIN, "GroupQueryAttention"): _group_query_attention,
    (_DOMAIN, "RotaryEmbedding"): _rotary_embedding,
}
