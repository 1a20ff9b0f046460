"""Gradients of RNN, GRU and LSTM, from those of their cells.

The gradients of the weights are single products over all steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from onnxsgd.gradient.portable.rules.directions import Directions, joined
from onnxsgd.gradient.portable.rules.indexing import picked_row
from onnxsgd.gradient.portable.rules.lstm_memory import Peepholes
from onnxsgd.gradient.portable.rules.recurrent_cells import CELLS, Gradients, Pass, activations, rows_of
from onnxsgd.gradient.portable.rules.sequence_lengths import Lengths
from onnxsgd.gradient.portable.writing.broadcasting import reshape_to, zeros_like
from onnxsgd.gradient.portable.writing.call import Call, Rules
from onnxsgd.gradient.portable.writing.known_shapes import UNNAMED, Dim, Dims, to_shape
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["RECURRENT"]

#: The most rows of weights whose gradients are one product with that of the bias, of more rows than columns.
#: ``benchmarks/constants.py``, a gradient with 160 rows of data: one product takes 0.97 of the time of three
#: at 128 rows, 0.97 to 0.99 at 256, 0.98 to 1.01 at 384, 1.02 at 512, and 1.07 there in one direction.
_ROWS = 256


def _directions(n: Call) -> list[str]:
    direction = n.attribute("direction", "forward")
    return ["forward", "reverse"] if direction == "bidirectional" else [direction]


@dataclass(frozen=True)
class _Entry:
    """The only step at which a gradient enters, as where a network reads the last one.

    Attributes
    ----------
    step : int
        Its index.
    time : int
        The number of steps.
    gradient : Tensor
        The gradient of the hidden states after it, (directions, batch, hidden).
    """

    step: int
    time: int
    gradient: Tensor

    def reached(self, direction: str) -> range:
        """Return the steps that the gradient reaches: those up to this one, in the order of a direction."""
        return range(self.step, self.time) if direction == "reverse" else range(self.step + 1)


def _find_entry(n: Call) -> _Entry | None:
    dy, time = n.gradient(0), None if n.x.dims is None else n.x.dims[0]
    of_last = [n.gradient(index) for index in range(1, len(n.node.outputs))]
    if dy is None or any(t is not None for t in of_last) or n.optional(4) is not None:
        return None
    found = picked_row(dy) if isinstance(time, int) else None
    if found is None or not isinstance(time, int):
        return None
    _, batch, _, _, hidden = _sizes(n)
    step, row = found
    return _Entry(step % time, time, row.known_as((len(_directions(n)), batch, hidden)))


def _entry(n: Call) -> _Entry | None:
    found: _Entry | None = n.once("entry", _find_entry)
    return found


def _passes(n: Call) -> list[range]:
    """Return the directions of each pass.

    They are together if their activations are the same, unless a gradient enters at one step: it reaches
    other steps in each direction. An update of a bidirectional LSTM of 20 steps whose last one is read
    (``benchmarks/networks.py``) takes 0.8 of the time apart, where the reverse direction has a step.
    """
    directions = range(len(_directions(n)))
    if len({tuple(activations(n, d)) for d in directions}) == 1 and _entry(n) is None:
        return [directions]
    return [range(d, d + 1) for d in directions]


def _reached(n: Call, which: range) -> range | None:
    """Return the steps of a pass that a gradient reaches; None: all of them."""
    entry = _entry(n)
    steps = None if entry is None else entry.reached(_directions(n)[which.start])
    return None if entry is None or steps == range(entry.time) else steps


def _steps(t: Tensor, steps: range | None) -> Tensor:
    """Return some steps of a sequence, whose first axis is that of time."""
    if steps is None:
        return t
    some: Tensor = op.Slice(t, [steps.start], [steps.stop], [0])
    return some.known_as((len(steps), *t.known_dims[1:]))


def _chosen(n: Call, t: Tensor, which: range, axis: int, dims: Dims) -> Tensor:
    """Return some directions of `t`, which has shape `dims` then, whatever names its axes had."""
    if len(which) < len(_directions(n)):
        t = op.Slice(t, [which.start], [which.stop], [axis])
    return Tensor(n.emitter, t.value, t.dtype, dims)


def _read_pass(n: Call, which: range) -> Pass:
    time, batch, rows, inputs, hidden = _sizes(n)
    count, entry, steps = len(which), _entry(n), _reached(n, which)
    every = n.extra_output(0, (time, len(_directions(n)), batch, hidden), n.x.dtype)
    given = Tensor(n.emitter, n.x.value, n.x.dtype, (time, batch, inputs))
    time = time if steps is None else len(steps)
    x, every = op.Unsqueeze(_steps(given, steps), [1]), _steps(every, steps)
    state, turned = (count, batch, hidden), (time, count, batch, hidden)
    y = _chosen(n, every, which, 1, turned)
    zero = zeros_like(op.Squeeze(op.Slice(y, [0], [1], [0]), [0]).known_as(state))
    b, h0, c0 = map(n.optional, (3, 5, 6))
    dy, dh, dc = map(n.gradient, (0, 1, 2))
    if entry is not None:
        dy, dh = None, entry.gradient
    lengths = _lengths(n)
    order = Directions(tuple(_directions(n)[d] for d in which), lengths)
    found = Pass(
        x=order.inputs(x.known_as((time, 1, batch, inputs))),
        w=_chosen(n, n.b, which, 0, (count, rows, inputs)),
        r=_chosen(n, n.c, which, 0, (count, rows, hidden)),
        b=None if b is None else _chosen(n, b, which, 0, (count, 2 * rows)),
        y=y,
        order=order,
        h0=zero if h0 is None else _chosen(n, h0, which, 0, state),
        c0=zero if c0 is None else _chosen(n, c0, which, 0, state),
        dy=None if dy is None else order.turned(_chosen(n, dy, which, 1, turned)),
        dh=zero if dh is None else _chosen(n, dh, which, 0, state),
        dc=zero if dc is None else _chosen(n, dc, which, 0, state),
        activations=activations(n, which.start),
        peepholes=_peepholes(n, which, hidden),
    )
    return found if lengths is None else found.cut(lengths, dc is not None)


def _peepholes(n: Call, which: range, hidden: int) -> Peepholes | None:
    weights = n.optional(7)
    if weights is None:
        return None
    some = op.Unsqueeze(_chosen(n, weights, which, 0, (len(which), 3 * hidden)), [1])
    i, o, f = op.Split(some, [hidden] * 3, axis=2, outputs=3)
    return Peepholes(*(t.known_as((len(which), 1, hidden)) for t in (i, o, f)))


def _lengths(n: Call) -> Lengths | None:
    counts = n.optional(4)
    return None if counts is None else Lengths(counts, n.x)


def _sizes(n: Call) -> tuple[Dim, Dim, int, int, int]:
    """Return the numbers of steps, samples, rows of weights, inputs and hidden units."""
    w, r = n.b.dims, n.c.dims
    if w is None or r is None or not (n.b.is_static and n.c.is_static):
        raise n.refuse(f"needs weights of known shapes, not {to_shape(w)} and {to_shape(r)}")
    x = n.x.dims or tuple(f"{UNNAMED}{n.x.value.name}:{axis}" for axis in range(3))
    return x[0], x[1], int(w[1]), int(w[2]), int(r[2])


def _gradients(n: Call) -> list[tuple[range, Pass, Gradients]]:
    """Return the directions of each pass, the pass, and its gradients."""
    passes = [(which, _read_pass(n, which)) for which in _passes(n)]
    return [(which, p, CELLS[n.node.op_type](n, p)) for which, p in passes]


def _each(n: Call) -> list[tuple[range, Pass, Gradients]]:
    found: list[tuple[range, Pass, Gradients]] = n.once("passes", _gradients)
    return found


def _product(pre: Tensor, factor: Tensor) -> Tensor:
    """Return the sum over time and batch of products of two vectors: (directions, rows, features)."""
    product: Tensor = op.MatMul(op.Transpose(rows_of(pre), perm=[0, 2, 1]), rows_of(factor))
    return product


def _d_x(n: Call) -> Tensor:
    parts: list[Tensor] = []
    for which, p, g in _each(n):
        product, count = op.MatMul(rows_of(g.from_x), p.w), len(which)
        rows = [product] if count == 1 else op.Split(product, [1] * count, axis=0, outputs=count)
        steps = _reached(n, which)
        for name, row in zip(p.order.names, rows, strict=True):
            dx = reshape_to(row, _steps(n.x, steps))
            if name == "reverse":
                dx = op.Squeeze(p.order.flipped(op.Unsqueeze(dx, [1])), [1])
            parts.append(dx if steps is None else _among_all(n, dx, steps))
    return reduce(add, parts)


def _among_all(n: Call, some: Tensor, steps: range) -> Tensor:
    """Return the gradient of the whole input from that of the steps that a gradient reaches."""
    after = int(n.x.known_dims[0]) - steps.stop
    whole: Tensor = op.Pad(some, [steps.start, 0, 0, after, 0, 0], 0.0)
    return whole.known_as(n.x.dims)


def _of_weights(n: Call) -> list[list[Tensor]]:
    """Return the gradients of the weights and of the bias of each pass, where one product makes them."""
    return [_at_once(p, g) for _, p, g in _each(n)]


def _at_once(p: Pass, g: Gradients) -> list[Tensor]:
    rows, inputs = (int(dim) for dim in p.w.known_dims[1:])
    hidden = int(p.r.known_dims[2])
    if p.columns is None or g.from_x is not g.from_h or rows > _ROWS or inputs + hidden >= rows:
        return []
    product = op.MatMul(op.Transpose(p.columns, perm=[0, 2, 1]), rows_of(g.from_x))
    w, r, b = op.Split(product, [inputs, hidden, 1], axis=1, outputs=3)
    return [op.Transpose(w, perm=[0, 2, 1]), op.Transpose(r, perm=[0, 2, 1]), op.Squeeze(b, [1])]


def _each_made(n: Call) -> list[tuple[Pass, Gradients, list[Tensor]]]:
    made: list[list[Tensor]] = n.once("weights", _of_weights)
    return [(p, g, of_pass) for (_, p, g), of_pass in zip(_each(n), made, strict=True)]


def _d_w(n: Call) -> Tensor:
    return joined([made[0] if made else _product(g.from_x, p.x) for p, g, made in _each_made(n)])


def _d_r(n: Call) -> Tensor:
    parts = []
    for _, g, made in _each_made(n):
        products = made[1:2] or [_product(pre, state) for pre, state in g.products]
        parts.append(products[0] if len(products) == 1 else op.Concat(*products, axis=1))
    return joined(parts)


def _sum(t: Tensor) -> Tensor:
    """Return the sum over time and batch: (directions, features)."""
    rows = rows_of(t)
    if not rows.is_static or t.dtype is None:
        return op.ReduceSum(rows, [1], keepdims=0)
    # the runtime's product with ones takes a sixth of the time of its sum, at 160 rows of 128 columns
    ones = np.ones((1, int(rows.known_dims[1])), t.dtype.numpy())
    return op.Squeeze(op.MatMul(t.emitter.constant(ones), rows), [1])


def _d_b(n: Call) -> Tensor:
    sums = [made[2:] * 2 or [_sum(t) for t in (g.from_x, g.from_h)] for _, g, made in _each_made(n)]
    return joined([op.Concat(*pair, axis=1) for pair in sums])


def _d_h0(n: Call) -> Tensor:
    return joined([g.dh0 for _, _, g in _each(n)])


def _d_c0(n: Call) -> Tensor:
    return joined([g.dc0 for _, _, g in _each(n) if g.dc0 is not None])


def _d_p(n: Call) -> Tensor:
    return joined([g.dp for _, _, g in _each(n) if g.dp is not None])


RECURRENT: Rules = {
    "GRU": (_d_x, _d_w, _d_r, _d_b, None, _d_h0),
    "LSTM": (_d_x, _d_w, _d_r, _d_b, None, _d_h0, _d_c0, _d_p),
    "RNN": (_d_x, _d_w, _d_r, _d_b, None, _d_h0),
}
