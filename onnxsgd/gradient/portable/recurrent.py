"""Gradients of RNN, GRU and LSTM.

The gates are computed again, for all time steps at once, from the states that the operator returns; only the
gradient itself runs step by step, backwards in time, in a Scan over small matrices. The gradients of the
weights are single products over all steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .broadcasting import zeros_like
from .call import Call, Rules
from .scan import Step, flipped, scan
from .shapes import Dim, Dims, to_shape
from .tensor import Emitter, Tensor, op

__all__ = ["RECURRENT"]

_END = np.iinfo(np.int64).max

#: Derivatives of activations, in terms of their results.
_SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "Relu": lambda y: (y > 0).cast(y.dtype),
    "Sigmoid": lambda y: y * (1 - y),
    "Tanh": lambda y: 1 - y * y,
}


@dataclass
class _Pass:
    """One direction of a recurrent operator, with time running forwards."""

    x: Tensor  # (time, batch, inputs)
    w: Tensor  # (gates * hidden, inputs)
    r: Tensor  # (gates * hidden, hidden)
    b: Tensor | None  # (2 * gates * hidden,)
    h: Tensor  # (time, batch, hidden)
    h0: Tensor  # (batch, hidden)
    c0: Tensor  # (batch, hidden)
    dy: Tensor  # (time, batch, hidden)
    dh: Tensor  # (batch, hidden)
    dc: Tensor  # (batch, hidden)

    @property
    def before(self) -> Tensor:
        """The hidden state before each step."""
        return _shifted(self.h0, self.h)


@dataclass
class _Gradients:
    """What one direction gives: gradients before the activations, and of the first states."""

    from_x: Tensor  # (time, batch, gates * hidden): of what the input adds to the gates
    from_h: Tensor  # (time, batch, gates * hidden): of what the hidden state adds
    products: list[tuple[Tensor, Tensor]]  # parts of from_h, and the states that the weights multiply there
    dh0: Tensor
    dc0: Tensor | None = None


def _shifted(first: Tensor, sequence: Tensor) -> Tensor:
    """Return `sequence` one step later, with `first` before it."""
    late: Tensor = op.Concat(op.Unsqueeze(first, [0]), op.Slice(sequence, [0], [-1], [0]), axis=0)
    return late.known_as(sequence.dims)


def _chosen(t: Tensor, index: int, axis: int, dims: Dims) -> Tensor:
    """Return one direction of `t`, which has shape `dims`."""
    one: Tensor = op.Squeeze(op.Slice(t, [index], [index + 1], [axis]), [axis])
    return one.known_as(dims)


def _directions(n: Call) -> list[str]:
    direction = n.attribute("direction", "forward")
    return ["forward", "reverse"] if direction == "bidirectional" else [direction]


def _read_pass(n: Call, d: int, flip: bool) -> _Pass:
    time, batch, rows, inputs, hidden = _sizes(n)
    sequence, state = (time, batch, hidden), (batch, hidden)
    every = n.extra_output(0, (time, len(_directions(n)), batch, hidden), n.x.dtype)
    h = _chosen(every, d, 1, sequence)
    zero = zeros_like(_chosen(h, 0, 0, state))
    b, h0, c0 = map(n.optional, (3, 5, 6))
    dy, dh, dc = map(n.gradient, (0, 1, 2))
    found = _Pass(
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
    )
    if flip:
        found.x, found.h, found.dy = flipped(found.x), flipped(found.h), flipped(found.dy)
    return found


def _sizes(n: Call) -> tuple[Dim, Dim, int, int, int]:
    """Return how many steps, samples, rows of weights, inputs and hidden units there are."""
    w, r = n.b.dims, n.c.dims
    if n.x.dims is None or w is None or r is None or not (n.b.is_static and n.c.is_static):
        raise n.refuse(
            f"needs an input of known rank and weights of known shapes, not {to_shape(w)} and {to_shape(r)}"
        )
    return n.x.dims[0], n.x.dims[1], int(w[1]), int(w[2]), int(r[2])


def _refuse_rarities(n: Call) -> None:
    for name in ("clip", "input_forget", "layout"):
        if n.attribute(name, 0):
            raise n.refuse(f"with {name}={n.attribute(name)} has no gradient rule")
    for index, name in ((4, "sequence_lens"), (7, "peepholes")):
        if n.optional(index) is not None:
            raise n.refuse(f"with {name} has no gradient rule")


def _activations(n: Call, defaults: list[str], d: int) -> list[str]:
    """Return the activations of one direction, all of which must have a known slope."""
    names = n.attribute("activations") or defaults * 2
    chosen = [name.capitalize() for name in names[d * len(defaults) : (d + 1) * len(defaults)]]
    unknown = [name for name in chosen if name not in _SLOPES]
    if unknown:
        raise n.refuse(f"with activation {unknown[0]} has no gradient rule; {', '.join(_SLOPES)} have")
    return chosen


def _parts(t: Tensor, count: int) -> list[Tensor]:
    """Return `t` cut into equal parts along its last axis."""
    assert t.dims is not None
    size = int(t.dims[-1]) // count
    parts: list[Tensor] = op.Split(t, [size] * count, axis=-1, outputs=count)
    return [part.known_as((*t.dims[:-1], size)) for part in parts]


def _gates(p: _Pass, count: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return what the input and what the hidden state add to each gate, biases included."""
    from_x = op.MatMul(p.x, op.Transpose(p.w, perm=[1, 0]))
    from_h = op.MatMul(p.before, op.Transpose(p.r, perm=[1, 0]))
    if p.b is not None:
        b_x, b_h = _parts(p.b, 2)
        from_x, from_h = from_x + b_x, from_h + b_h
    return _parts(from_x, count), _parts(from_h, count)


def _apply(name: str, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return an activation and its slope."""
    y = getattr(op, name)(t)
    return y, _SLOPES[name](y)


def _backwards(
    step: Step, states: list[Tensor], sequences: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Run `step` from the last element of `sequences` to the first."""
    last, collected = scan(step, states, [flipped(t) for t in sequences])
    return last, [flipped(t) for t in collected]


def _joined(parts: list[Tensor]) -> Tensor:
    joined: Tensor = op.Concat(*parts, axis=-1)
    dims = parts[0].dims
    width = sum(int(part.dims[-1]) for part in parts if part.dims is not None)
    return joined.known_as(None if dims is None else (*dims[:-1], width))


def _rnn(n: Call, p: _Pass, d: int) -> _Gradients:
    (name,) = _activations(n, ["Tanh"], d)

    def step(body: Emitter, states: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        (dh,), (dy, slope) = states, now
        pre = (dh + dy) * slope
        return [op.MatMul(pre, body.tensor(p.r.value, p.r.dims))], [pre]

    (dh0,), (pre,) = _backwards(step, [p.dh], [p.dy, _SLOPES[name](p.h)])
    return _Gradients(pre, pre, [(pre, p.before)], dh0)


def _lstm(n: Call, p: _Pass, d: int) -> _Gradients:
    gate, candidate, output = _activations(n, ["Sigmoid", "Tanh", "Tanh"], d)
    added = [x + h for x, h in zip(*_gates(p, 4), strict=True)]
    (i, i_slope), (o, o_slope), (f, f_slope) = (_apply(gate, t) for t in added[:3])
    g, g_slope = _apply(candidate, added[3])

    def remember(_: Emitter, states: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        c = states[0] * now[0] + now[1]
        return [c], [c]

    _, (c,) = scan(remember, [p.c0], [f, i * g])
    y, y_slope = _apply(output, c)

    def step(body: Emitter, states: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        (dh, dc), (dy, from_h, forget, to_i, to_o, to_f, to_g) = states, now
        dh = dh + dy
        dc = dc + dh * from_h
        pre = _joined([dc * to_i, dh * to_o, dc * to_f, dc * to_g])
        return [op.MatMul(pre, body.tensor(p.r.value, p.r.dims)), dc * forget], [pre]

    to_gates = [g * i_slope, y * o_slope, _shifted(p.c0, c) * f_slope, i * g_slope]
    (dh0, dc0), (pre,) = _backwards(step, [p.dh, p.dc], [p.dy, o * y_slope, f, *to_gates])
    return _Gradients(pre, pre, [(pre, p.before)], dh0, dc0)


def _gru(n: Call, p: _Pass, d: int) -> _Gradients:
    gate, candidate = _activations(n, ["Sigmoid", "Tanh"], d)
    (x_z, x_r, x_h), (h_z, h_r, h_h) = _gates(p, 3)
    (z, z_slope), (r, r_slope) = _apply(gate, x_z + h_z), _apply(gate, x_r + h_r)
    if not n.attribute("linear_before_reset", 0):
        return _gru_reset_first(p, candidate, (x_h, z, z_slope, r, r_slope))
    y, y_slope = _apply(candidate, x_h + r * h_h)

    def step(body: Emitter, states: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        (dh,), (dy, keep, to_z, to_y, to_r, reset) = states, now
        dh = dh + dy
        pre_y = dh * to_y
        z_r = _joined([dh * to_z, pre_y * to_r])
        from_h = _joined([z_r, pre_y * reset])
        before = dh * keep + op.MatMul(from_h, body.tensor(p.r.value, p.r.dims))
        return [before], [_joined([z_r, pre_y]), from_h]

    sequences = [p.dy, z, (p.before - y) * z_slope, (1 - z) * y_slope, h_h * r_slope, r]
    (dh0,), (from_x, from_h) = _backwards(step, [p.dh], sequences)
    return _Gradients(from_x, from_h, [(from_h, p.before)], dh0)


def _gru_reset_first(p: _Pass, candidate: str, gates: tuple[Tensor, ...]) -> _Gradients:
    """Return the gradients of a GRU that resets the state before it is multiplied by its weights."""
    x_h, z, z_slope, r, r_slope = gates
    assert p.r.dims is not None
    hidden = int(p.r.dims[-1])
    r_gates = op.Slice(p.r, [0], [2 * hidden], [0]).known_as((2 * hidden, hidden))
    r_y = op.Slice(p.r, [2 * hidden], [_END], [0]).known_as((hidden, hidden))
    kept = r * p.before
    added = x_h + op.MatMul(kept, op.Transpose(r_y, perm=[1, 0]))
    if p.b is not None:
        added = added + _parts(p.b, 6)[5]
    y, y_slope = _apply(candidate, added)

    def step(body: Emitter, states: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        (dh,), (dy, keep, to_z, to_y, to_r, reset) = states, now
        dh = dh + dy
        pre_y = dh * to_y
        of_kept = op.MatMul(pre_y, body.tensor(r_y.value, r_y.dims))
        z_r = _joined([dh * to_z, of_kept * to_r])
        through = op.MatMul(z_r, body.tensor(r_gates.value, r_gates.dims))
        return [dh * keep + of_kept * reset + through], [_joined([z_r, pre_y])]

    sequences = [p.dy, z, (p.before - y) * z_slope, (1 - z) * y_slope, p.before * r_slope, r]
    (dh0,), (pre,) = _backwards(step, [p.dh], sequences)
    z, r, y = _parts(pre, 3)
    return _Gradients(pre, pre, [(_joined([z, r]), p.before), (y, kept)], dh0)


_CELLS = {"GRU": _gru, "LSTM": _lstm, "RNN": _rnn}


def _gradients(n: Call) -> list[tuple[_Pass, _Gradients, bool]]:
    """Return what each direction gives, and whether its time runs backwards."""
    _refuse_rarities(n)
    found = []
    for d, direction in enumerate(_directions(n)):
        p = _read_pass(n, d, direction == "reverse")
        found.append((p, _CELLS[n.node.op_type](n, p, d), direction == "reverse"))
    return found


def _each(n: Call) -> list[tuple[_Pass, _Gradients, bool]]:
    found: list[tuple[_Pass, _Gradients, bool]] = n.once("directions", _gradients)
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
    total = None
    for p, g, flip in _each(n):
        dx = op.MatMul(g.from_x, p.w)
        dx = flipped(dx) if flip else dx
        total = dx if total is None else total + dx
    assert total is not None
    return total


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


RECURRENT: Rules = {
    "GRU": (_d_x, _d_w, _d_r, _d_b, None, _d_h0),
    "LSTM": (_d_x, _d_w, _d_r, _d_b, None, _d_h0, _d_c0, None),
    "RNN": (_d_x, _d_w, _d_r, _d_b, None, _d_h0),
}
