"""Attention masks, as biases of the scores of queries and keys."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import rank
from onnxsgd.graph.opsets.transformer.axis_sizes import known_size, number, positions, size
from onnxsgd.graph.rewriting import Writer

__all__ = ["add", "as_bias", "lowest", "of_keys", "visible", "within"]


def add(w: Writer, *biases: ir.Value | None) -> ir.Value | None:
    """Return the sum of the biases that are not None."""
    total = None
    for bias in biases:
        if bias is not None:
            total = bias if total is None else w.op.Add(total, bias)
    return total


def as_bias(w: Writer, keep: ir.Value, fill: float, like: ir.Value) -> ir.Value:
    """Return 0 where `keep`, else `fill`, in the type of `like`."""
    return w.op.Where(keep, number(w, 0.0, like), number(w, fill, like))


def visible(
    w: Writer,
    q: ir.Value,
    k: ir.Value,
    before: int | None = None,
    after: int | None = 0,
    offset: ir.Value | None = None,
) -> ir.Value:
    """Return whether each query may see each key, by their distance: [queries, keys].

    Parameters
    ----------
    q, k : ir.Value
        Queries and keys, of shape [batch, heads, length, size].
    before, after : int or None
        The number of keys before and after its own position that a query sees; None for all. Not both are
        None.
    offset : ir.Value or None
        The position of the first query among the keys; None if the last query and the last key have the same
        position. It is broadcast against [batch, 1, queries, keys].
    """
    n_queries, n_keys = known_size(q, 2), known_size(k, 2)
    if offset is None and n_queries is not None and n_keys is not None:
        distance = np.arange(n_queries)[:, None] + (n_keys - n_queries) - np.arange(n_keys)
        seen = np.ones_like(distance, bool) if after is None else distance >= -after
        return w.tensor("visible", seen if before is None else seen & (distance <= before))
    if offset is None:
        offset = w.op.Sub(size(w, k, 2), size(w, q, 2))
    places = w.op.Add(w.op.Unsqueeze(positions(w, q, 2), [1]), offset)
    distances = w.op.Sub(places, positions(w, k, 2))
    bounds = [
        write(distances, w.tensor("bound", np.array(bound, np.int64)))
        for write, bound in ((w.op.LessOrEqual, before), (w.op.GreaterOrEqual, after and -after))
        if bound is not None
    ]
    return bounds[0] if len(bounds) == 1 else w.op.And(*bounds)


def within(w: Writer, k: ir.Value, end: ir.Value, start: ir.Value | None = None) -> ir.Value:
    """Return whether each key lies before `end`, and not before `start`, one position for each sample.

    The result has the shape [batch, 1, 1, keys].
    """
    columns = positions(w, k, 2)
    keep = w.op.Less(columns, _per_sample(w, end))
    if start is None:
        return keep
    return w.op.And(keep, w.op.GreaterOrEqual(columns, _per_sample(w, start)))


def lowest(like: ir.Value) -> float:
    """Return the bias of the scores of masked keys: their softmax is 0."""
    return -6e4 if like.dtype == ir.DataType.FLOAT16 else -1e30


def of_keys(w: Writer, mask: ir.Value) -> ir.Value:
    """Return whether a mask of [batch, keys] or [batch, queries, keys] is above 0, over all heads."""
    integers = w.op.Cast(mask, to=ir.DataType.INT64)
    keep = w.op.Greater(integers, w.tensor("zero", np.array(0, np.int64)))
    return w.op.Unsqueeze(keep, [1, 2] if rank(mask) == 2 else [1])


def _per_sample(w: Writer, vector: ir.Value) -> ir.Value:
    return w.op.Unsqueeze(w.op.Cast(vector, to=ir.DataType.INT64), [1, 2, 3])
