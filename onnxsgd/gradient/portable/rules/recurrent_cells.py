"""One direction of a recurrent cell: the gradients before its activations, step by step backwards in time.

The gates are computed again, for all time steps at once, from the states that the operator returned; only
the gradient itself runs step by step, in a Scan over small matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from onnxsgd.gradient.portable.rules.lstm_memory import Peepholes, memory, memory_behind
from onnxsgd.gradient.portable.rules.scan import Step, flipped, scan
from onnxsgd.gradient.portable.rules.sequence_lengths import Lengths
from onnxsgd.gradient.portable.writing.broadcasting import number, zeros_like
from onnxsgd.gradient.portable.writing.call import Call
from onnxsgd.gradient.portable.writing.emitter import Emitter
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["CELLS", "Gradients", "Pass"]

_END = np.iinfo(np.int64).max

#: Derivatives of activations, in terms of their results.
_SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "Relu": lambda y: (y > 0).cast(y.dtype),
    "Sigmoid": lambda y: y * (1 - y),
    "Tanh": lambda y: 1 - y * y,
}


@dataclass
class Pass:
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
    peepholes: Peepholes | None = None
    lengths: Lengths | None = None
    ends: tuple[Tensor, ...] = ()  # (time, batch, hidden): the gradient of the last cell state, at its step

    @property
    def before(self) -> Tensor:
        """The hidden state before each step."""
        return _shifted(self.h0, self.h)

    def kept(self, sequence: Tensor) -> Tensor:
        """Return `sequence` with zeros after the ends of its samples."""
        return sequence if self.lengths is None else self.lengths.kept(sequence)

    @property
    def masks(self) -> list[Tensor]:
        """Factors of every step, if samples have lengths: 0 after their ends, else 1."""
        return [] if self.lengths is None else [self.lengths.within.cast(self.x.dtype)]

    def cut(self, lengths: Lengths, through_cell: bool) -> Pass:
        """Return this pass over samples of these lengths.

        Gradients of last states enter at the last step of each sample. After it they are zero, so that the
        steps there add nothing to any other gradient. `through_cell`: whether that of the last cell state
        may differ from zero.
        """
        dy = lengths.kept(self.dy) + lengths.at_ends(self.dh, self.dy)
        ends = (lengths.at_ends(self.dc, self.dy),) if through_cell else ()
        zero = zeros_like(self.h0)
        x = lengths.kept(self.x)
        return replace(self, x=x, dy=dy.known_as(self.dy.dims), dh=zero, dc=zero, lengths=lengths, ends=ends)


@dataclass
class Gradients:
    """Gradients of one direction: before the activations, and of the initial states."""

    from_x: Tensor  # (time, batch, gates * hidden): of the input's part of the gates
    from_h: Tensor  # (time, batch, gates * hidden): of the hidden state's part
    products: list[tuple[Tensor, Tensor]]  # parts of from_h, and the states that the weights multiply there
    dh0: Tensor
    dc0: Tensor | None = None
    dp: Tensor | None = None


def _shifted(first: Tensor, sequence: Tensor) -> Tensor:
    """Return `sequence` one step later, with `first` before it."""
    late: Tensor = op.Concat(op.Unsqueeze(first, [0]), op.Slice(sequence, [0], [-1], [0]), axis=0)
    return late.known_as(sequence.dims)


def _activations(n: Call, defaults: list[str], d: int) -> list[str]:
    """Return the activations of one direction, all of which must have a known slope."""
    names = n.attribute("activations") or defaults * 2
    chosen = [name.capitalize() for name in names[d * len(defaults) : (d + 1) * len(defaults)]]
    unknown = [name for name in chosen if name not in _SLOPES]
    if unknown:
        raise n.refuse(f"has no gradient rule for activation {unknown[0]}; accepted: {', '.join(_SLOPES)}")
    return chosen


def _parts(t: Tensor, count: int) -> list[Tensor]:
    """Return `t` cut into equal parts along its last axis."""
    if count == 1:
        return [t]
    size = int(t.known_dims[-1]) // count
    parts: list[Tensor] = op.Split(t, [size] * count, axis=-1, outputs=count)
    return [part.known_as((*t.known_dims[:-1], size)) for part in parts]


def _gates(p: Pass, count: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parts of the input and of the hidden state in each gate, biases included."""
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


def _clipped(n: Call, t: Tensor) -> Tensor:
    """Return the argument of a gate's activation within the bounds of the operator, if it has any."""
    bound = n.attribute("clip", 0)
    if not bound:
        return t
    within: Tensor = op.Clip(t, number(t, -bound), number(t, bound))
    return within.known_as(t.dims)


def _gate(n: Call, name: str, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return the activation of a gate and its slope, which is 0 outside of the bounds of the operator."""
    within = _clipped(n, t)
    y, slope = _apply(name, within)
    return y, slope if within is t else slope * op.Equal(t, within).cast(t.dtype)


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


def _rnn(n: Call, p: Pass, d: int) -> Gradients:
    (name,) = _activations(n, ["Tanh"], d)
    slope = _SLOPES[name](p.h)
    if n.attribute("clip", 0):
        (from_x,), (from_h,) = _gates(p, 1)
        _, slope = _gate(n, name, from_x + from_h)

    def step(body: Emitter, states: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        (dh,), (dy, slope) = states, now
        pre = (dh + dy) * slope
        return [op.MatMul(pre, body.tensor(p.r.value, p.r.dims))], [pre]

    (dh0,), (pre,) = _backwards(step, [p.dh], [p.dy, slope])
    return Gradients(pre, pre, [(pre, p.before)], dh0)


def _lstm(n: Call, p: Pass, d: int) -> Gradients:
    gate, candidate, output = _activations(n, ["Sigmoid", "Tanh", "Tanh"], d)
    to_i, to_o, to_f, to_g = (x + h for x, h in zip(*_gates(p, 4), strict=True))
    g, g_slope = _gate(n, candidate, to_g)
    coupled = bool(n.attribute("input_forget", 0))
    peep = p.peepholes
    if peep is not None:

        def opened(to_i: Tensor, to_f: Tensor) -> tuple[Tensor, Tensor]:
            i, f = (getattr(op, gate)(_clipped(n, t)) for t in (to_i, to_f))
            return i, 1 - i if coupled else f

        c = memory_behind(peep, opened, p.c0, [to_i, to_f, g, *p.masks])
        before = _shifted(p.c0, c)
        to_i, to_o, to_f = to_i + before * peep.i, to_o + c * peep.o, to_f + before * peep.f
    (i, i_slope), (o, o_slope), (f, f_slope) = (_gate(n, gate, t) for t in (to_i, to_o, to_f))
    if coupled:
        f, f_slope = 1 - i, zeros_like(f_slope)
    if peep is None:
        c = memory(p.c0, p.kept(f), i * g)
        before = _shifted(p.c0, c)
    y, y_slope = _apply(output, c)

    def step(body: Emitter, states: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        (dh, dc), (dy, from_h, forget, to_i, to_o, to_f, to_g, *ends) = states, now
        dh = dh + dy
        dc = sum(ends, dc + dh * from_h)
        pre = _joined([dc * to_i, dh * to_o, dc * to_f, dc * to_g])
        return [op.MatMul(pre, body.tensor(p.r.value, p.r.dims)), dc * forget], [pre]

    of_i, of_o, of_f, of_g = g * i_slope, y * o_slope, before * f_slope, i * g_slope
    if coupled:
        of_i = of_i - before * i_slope
    from_h, forget = o * y_slope, f
    if peep is not None:
        from_h, forget = from_h + of_o * peep.o, forget + of_i * peep.i + of_f * peep.f
    sequences = [p.dy, from_h, forget, of_i, of_o, of_f, of_g, *p.ends]
    (dh0, dc0), (pre,) = _backwards(step, [p.dh, p.dc], sequences)
    dp = None if peep is None else peep.gradient(_parts(pre, 4)[:3], before, c)
    return Gradients(pre, pre, [(pre, p.before)], dh0, dc0, dp)


def _gru(n: Call, p: Pass, d: int) -> Gradients:
    gate, candidate = _activations(n, ["Sigmoid", "Tanh"], d)
    (x_z, x_r, x_h), (h_z, h_r, h_h) = _gates(p, 3)
    (z, z_slope), (r, r_slope) = _gate(n, gate, x_z + h_z), _gate(n, gate, x_r + h_r)
    if not n.attribute("linear_before_reset", 0):
        return _gru_reset_first(n, p, candidate, (x_h, z, z_slope, r, r_slope))
    y, y_slope = _gate(n, candidate, x_h + r * h_h)

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
    return Gradients(from_x, from_h, [(from_h, p.before)], dh0)


def _gru_reset_first(n: Call, p: Pass, candidate: str, gates: tuple[Tensor, ...]) -> Gradients:
    """Return the gradients of a GRU that resets the state before it is multiplied by its weights."""
    x_h, z, z_slope, r, r_slope = gates
    hidden = int(p.r.known_dims[-1])
    r_gates = op.Slice(p.r, [0], [2 * hidden], [0]).known_as((2 * hidden, hidden))
    r_y = op.Slice(p.r, [2 * hidden], [_END], [0]).known_as((hidden, hidden))
    kept = r * p.before
    added = x_h + op.MatMul(kept, op.Transpose(r_y, perm=[1, 0]))
    if p.b is not None:
        added = added + _parts(p.b, 6)[5]
    y, y_slope = _gate(n, candidate, added)

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
    return Gradients(pre, pre, [(_joined([z, r]), p.before), (y, kept)], dh0)


CELLS = {"GRU": _gru, "LSTM": _lstm, "RNN": _rnn}
