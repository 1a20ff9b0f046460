"""Rotary position embeddings: rotations of pairs of features by an angle that grows with the position."""

from __future__ import annotations

import onnx_ir as ir

from onnxsgd.graph.opsets.transformer.axis_sizes import known_size
from onnxsgd.graph.rewriting import Writer

__all__ = ["angles_at", "n_turned", "rotate"]


def angles_at(w: Writer, table: ir.Value, places: ir.Value) -> ir.Value:
    """Look up the angles of `places`, [batch, length] or [length]: [batch or 1, 1, length, pairs]."""
    return w.op.Unsqueeze(w.op.Gather(table, places, axis=0), [1] if _is_table(places) else [0, 1])


def n_turned(table: ir.Value | None, x: ir.Value) -> int | None:
    """Return the number of features of `x` that a table of angles rotates, None for all."""
    pairs = None if table is None or table.shape is None else known_size(table, -1)
    return None if pairs is None or 2 * pairs == known_size(x, 3) else 2 * pairs


def _is_table(places: ir.Value) -> bool:
    return places.shape is not None and len(places.shape) == 2


def rotate(
    w: Writer, x: ir.Value, cosine: ir.Value, sine: ir.Value, n_turned: int | None, interleaved: bool
) -> ir.Value:
    """Rotate pairs of features of `x`.

    ::

        a' = a cos - b sin,  b' = a sin + b cos

    Parameters
    ----------
    x : ir.Value
        [batch, heads, length, size].
    cosine, sine : ir.Value
        Broadcast against [batch, heads, length, pairs].
    n_turned : int or None
        The number of rotated features, the others are unchanged; None for all.
    interleaved : bool
        True: a pair is two neighbours; False: one feature of the first half and one of the second.
    """
    turned = x if n_turned is None else w.op.Slice(x, [0], [n_turned], [3])
    if interleaved:
        pairs = w.op.Reshape(turned, [0, 0, 0, -1, 2])
        a, b = (w.op.Squeeze(part, [4]) for part in _halves(w, pairs, 4))
    else:
        a, b = _halves(w, turned, 3)
    first = w.op.Sub(w.op.Mul(a, cosine), w.op.Mul(b, sine))
    second = w.op.Add(w.op.Mul(a, sine), w.op.Mul(b, cosine))
    if interleaved:
        joined = w.op.Concat(w.op.Unsqueeze(first, [4]), w.op.Unsqueeze(second, [4]), axis=4)
        result = w.op.Reshape(joined, [0, 0, 0, -1])
    else:
        result = w.op.Concat(first, second, axis=3)
    if n_turned is None:
        return result
    return w.op.Concat(result, w.op.Slice(x, [n_turned], [2**62], [3]), axis=3)


def _halves(w: Writer, x: ir.Value, axis: int) -> tuple[ir.Value, ir.Value]:
    parts = {"num_outputs": 2} if w.opset >= 18 else {}
    first, second = w.op.Split(x, axis=axis, **parts, _outputs=2)
    return first, second
