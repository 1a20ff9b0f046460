"""Gradients of RNN, GRU and LSTM, from those of their cells.

The gradients of the weights are single products over all steps.
"""

from __future__ import annotations

from functools import reduce
from itertools import starmap
from operator import add

from onnxsgd.gradient.portable.rules.lstm_memory import Peepholes
from onnxsgd.gradient.portable.rules.recurrent_cells import CELLS, Gradients, Pass
from onnxsgd.gradient.portable.rules.scan import flipped
from onnxsgd.gradient.portable.rules.sequence_lengths import Lengths
from onnxsgd.gradient.portable.writing.broadcasting import zeros_like
from onnxsgd.gradient.portable.writing.call import Call, Rules
from onnxsgd.gradient.portable.writing.known_shapes import UNNAMED, Dim, Dims, to_shape
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["RECURRENT"]


def _chosen(t: Tensor, index: int, axis: int, dims: Dims) -> Tensor:
    """Return one direction of `t`, which has shape `dims`."""
    one: Tensor = op.Squeeze(op.Slice(t, [index], [index + 1], [axis]), [axis])
    return one.known_as(dims)


def _directions(n: Call) -> list[str]:
    direction = n.attribute("direction", "forward")
    return ["forward", "reverse"] if direction == "bidirectional" else [direction]


def _read_pass(n: Call, d: int, flip: bool) -> Pass:
    time, batch, rows, inputs, hidden = _sizes(n)
    sequence, state = (time, batch, hidden), (batch, hidden)
    every = n.extra_output(0, (time, len(_directions(n)), batch, hidden), n.x.dtype)
    h = _chosen(every, d, 1, sequence)
    zero = zeros_like(_chosen(h, 0, 0, state))
    b, h0, c0 = map(n.optional, (3, 5, 6))
    dy, dh, dc = map(n.gradient, (0, 1, 2))
    found = Pass(
        x=Tensor(n.emitter, n.x.value, n.x.dtype, (time, batch, inputs)),
        w=_chosen(n.b, d, 0, (rows, inputs)),
        r=_chosen(n.c, d, 0, (rows, hidden)),
        b=None if b is None else _chosen(b, d, 0, (2 * rows,)),
        h=h,
        h0=zero if h0 is None else _chosen(h0, d, 0, state),
        c0=zero if c0 is None else _chosen(c0, d, 0, state),
        dy=zeros_like(h) if dy is None else _chosen(dy, d, 1, sequence),
        dh=zero if dh is None else _chosen(dh, d, 0, state),
        dc=zero if dc is None else _chosen(dc, d, 0, state),
        peepholes=_peepholes(n, d, hidden),
    )
    if flip:
        found.x, found.h, found.dy = (_flipped(n, t) for t in (found.x, found.h, found.dy))
    lengths = _lengths(n)
    return found if lengths is None else found.cut(lengths, dc is not None)


def _peepholes(n: Call, d: int, hidden: int) -> Peepholes | None:
    weights = n.optional(7)
    if weights is None:
        return None
    one = _chosen(weights, d, 0, (3 * hidden,))
    i, o, f = op.Split(one, [hidden] * 3, axis=0, outputs=3)
    return Peepholes(*(t.known_as((hidden,)) for t in (i, o, f)))


def _lengths(n: Call) -> Lengths | None:
    counts = n.optional(4)
    return None if counts is None else Lengths(counts, n.x)


def _flipped(n: Call, sequence: Tensor) -> Tensor:
    """Return `sequence` with the time of each sample reversed."""
    lengths = _lengths(n)
    return flipped(sequence) if lengths is None else lengths.flipped(sequence)


def _sizes(n: Call) -> tuple[Dim, Dim, int, int, int]:
    """Return the numbers of steps, samples, rows of weights, inputs and hidden units."""
    w, r = n.b.dims, n.c.dims
    if w is None or r is None or not (n.b.is_static and n.c.is_static):
        raise n.refuse(f"needs weights of known shapes, not {to_shape(w)} and {to_shape(r)}")
    x = n.x.dims or tuple(f"{UNNAMED}{n.x.value.name}:{axis}" for axis in range(3))
    return x[0], x[1], int(w[1]), int(w[2]), int(r[2])


def _gradients(n: Call) -> list[tuple[Pass, Gradients, bool]]:
    """Return each direction with its gradients, and whether its time runs backwards."""
    found = []
    for d, direction in enumerate(_directions(n)):
        p = _read_pass(n, d, direction == "reverse")
        found.append((p, CELLS[n.node.op_type](n, p, d), direction == "reverse"))
    return found


def _each(n: Call) -> list[tuple[Pass, Gradients, bool]]:
    found: list[tuple[Pass, Gradients, bool]] = n.once("directions", _gradients)
    return found


def _product(pre: Tensor, factor: Tensor) -> Tensor:
    """Return the sum over time and batch of products of two vectors: (gates * hidden, size of the factor)."""
    flat = [op.Reshape(t, [-1, int(t.dims[-1])]) for t in (pre, factor) if t.dims is not None]
    product: Tensor = op.Gemm(*flat, transA=1)
    return product


def _stack(parts: list[Tensor]) -> Tensor:
    """Return one tensor for each direction as one tensor, directions first."""
    stacked: Tensor = op.Concat(*(op.Unsqueeze(part, [0]) for part in parts), axis=0)
    return stacked


def _d_x(n: Call) -> Tensor:
    def of_direction(p: Pass, g: Gradients, flip: bool) -> Tensor:
        dx = op.MatMul(g.from_x, p.w)
        return _flipped(n, dx) if flip else dx

    return reduce(add, starmap(of_direction, _each(n)))


def _d_w(n: Call) -> Tensor:
    return _stack([_product(g.from_x, p.x) for p, g, _ in _each(n)])


def _d_r(n: Call) -> Tensor:
    parts = []
    for _, g, _ in _each(n):
        products = [_product(pre, state) for pre, state in g.products]
        parts.append(products[0] if len(products) == 1 else op.Concat(*products, axis=0))
    return _stack(parts)


def _d_b(n: Call) -> Tensor:
    sums = [[op.ReduceSum(t, [0, 1], keepdims=0) for t in (g.from_x, g.from_h)] for _, g, _ in _each(n)]
    return _stack([op.Concat(*pair, axis=0) for pair in sums])


def _d_h0(n: Call) -> Tensor:
    return _stack([g.dh0 for _, g, _ in _each(n)])


def _d_c0(n: Call) -> Tensor:
    return _stack([g.dc0 for _, g, _ in _each(n) if g.dc0 is not None])


def _d_p(n: Call) -> Tensor:
    return _stack([g.dp for _, g, _ in _each(n) if g.dp is not None])


RECURRENT: Rules = {
    "GRU": (_d_x, _d_w, _d_r, _d_b, None, _d_h0),
    "LSTM": (_d_x, _d_w, _d_r, _d_b, None, _d_h0, _d_c0, _d_p),
    "RNN": (_d_x, _d_w, _d_r, _d_b, None, _d_h0),
}
