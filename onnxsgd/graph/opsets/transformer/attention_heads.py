"""Multi-head attention, from queries, keys and values to its output."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from onnxsgd.graph.opsets.transformer.axis_sizes import known_size, number
from onnxsgd.graph.rewriting import Writer

__all__ = ["Attended", "attend", "merge_heads", "repeat_heads", "scale_queries", "split_heads"]


@dataclass(frozen=True)
class Attended:
    """The result of attention.

    Attributes
    ----------
    output : ir.Value
        Of shape [batch, heads, queries, size of a value].
    weights : ir.Value
        Attention weights [batch, heads, queries, keys]: each row sums to 1.
    products : ir.Value
        Raw products of queries and keys.
    """

    output: ir.Value
    weights: ir.Value
    products: ir.Value


def split_heads(w: Writer, x: ir.Value, n_heads: int) -> ir.Value:
    """Return [batch, length, heads * size] as [batch, heads, length, size]."""
    return w.op.Transpose(w.op.Reshape(x, [0, 0, n_heads, -1]), perm=[0, 2, 1, 3])


def merge_heads(w: Writer, x: ir.Value) -> ir.Value:
    """Return [batch, heads, length, size] as [batch, length, heads * size]."""
    return w.op.Reshape(w.op.Transpose(x, perm=[0, 2, 1, 3]), [0, 0, -1])


def repeat_heads(w: Writer, x: ir.Value, n_heads: int, times: int) -> ir.Value:
    """Repeat each head of `x`, [batch, heads, length, size], `times` times in a row."""
    if times == 1:
        return x
    repeated = w.op.Expand(w.op.Unsqueeze(x, [2]), [1, 1, times, 1, 1])
    # sizes 3 and 4 of five become 2 and 3 of four: a Reshape copies sizes of the same position only
    joined = w.op.Reshape(w.op.Transpose(repeated, perm=[0, 3, 1, 2, 4]), [0, 0, n_heads * times, -1])
    return w.op.Transpose(joined, perm=[0, 2, 1, 3])


def scale_queries(w: Writer, q: ir.Value, scale: float | None) -> ir.Value:
    """Multiply queries, [batch, heads, length, size], by `scale`, ``1 / sqrt(size)`` by default."""
    width = known_size(q, 3)
    if scale:
        return w.op.Mul(q, number(w, scale, q))
    if width is not None:
        return w.op.Mul(q, number(w, 1 / math.sqrt(width), q))
    length = w.op.Slice(w.op.Shape(q), [3], [4], [0])
    return w.op.Div(q, w.op.Sqrt(w.op.Cast(length, to=q.dtype or ir.DataType.FLOAT)))


def attend(
    w: Writer,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    bias: ir.Value | None = None,
    softcap: float = 0.0,
    sink: ir.Value | None = None,
) -> Attended:
    """Write ``softmax(q k^T + bias) v``.

    Parameters
    ----------
    q, k, v : ir.Value
        Of shape [batch, heads, length, size]; queries are scaled.
    bias : ir.Value or None
        Added to the scores, and broadcast against them.
    softcap : float
        Above 0, scores are first squashed: ``softcap tanh(scores / softcap)``.
    sink : ir.Value or None
        A score that takes part in the softmax and attends to nothing; broadcast against [1, heads, 1, 1].
    """
    scores = products = w.op.MatMul(q, w.op.Transpose(k, perm=[0, 1, 3, 2]))
    if softcap:
        squashed = w.op.Tanh(w.op.Mul(scores, number(w, 1 / softcap, q)))
        scores = w.op.Mul(squashed, number(w, softcap, q))
    if bias is not None:
        scores = w.op.Add(scores, bias)
    if sink is None:
        weights = w.op.Softmax(scores, axis=-1)
    else:
        column = w.op.Add(w.op.Mul(w.op.Slice(scores, [0], [1], [3]), number(w, 0.0, q)), sink)
        weights = w.op.Slice(w.op.Softmax(w.op.Concat(column, scores, axis=3), axis=-1), [1], [2**62], [3])
    return Attended(w.op.MatMul(weights, v), weights, products)
