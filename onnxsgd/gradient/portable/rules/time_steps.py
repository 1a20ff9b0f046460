"""Steps of recurrent cells over time: written out one after another, or as the body of a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxsgd.gradient.portable.rules.scan import scan
from onnxsgd.gradient.portable.writing.emitter import Emitter
from onnxsgd.gradient.portable.writing.known_shapes import Dims, is_static
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["Step", "run_steps", "swap_first"]

#: Up to so many steps are written out, for GPUs: they repeat such an update at once, and run a loop step by
#: step. On a CPU a Scan reads slices in place, and written-out steps split and join their sequences: an
#: update of a bidirectional LSTM, 32 units, batch 8, takes 1.07 to 1.14 of the time written out at 5 steps,
#: 1.09 to 1.23 at 8.
_WRITTEN_OUT = 8

_SWAP = [1, 0, 2, 3]

#: Maps the states, one time step of each sequence, and the weights to the next states and the collected
#: tensors.
Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]


def run_steps(
    step: Step,
    states: Sequence[Tensor],
    sequences: Sequence[Tensor],
    weights: Sequence[Tensor] = (),
    *,
    backwards: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the last states, and the tensors that `step` collects, along the axis of time, the first one.

    Parameters
    ----------
    step : callable
        One step, of operators that broadcast over leading axes.
    states : sequence of Tensor
        The first states, (directions, batch, features). The next ones have the same shapes.
    sequences : sequence of Tensor
        (time, directions, batch, features).
    weights : sequence of Tensor
        Read by each step, (directions, rows, columns).
    backwards : bool
        Whether the last step comes first.
    """
    time = sequences[0].known_dims[0]
    if isinstance(time, int) and 0 < time <= _WRITTEN_OUT:
        return _write_out(step, states, sequences, weights, backwards)
    return _loop(step, states, sequences, weights, backwards)


def _write_out(
    step: Step,
    states: Sequence[Tensor],
    sequences: Sequence[Tensor],
    weights: Sequence[Tensor],
    backwards: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    """Write the nodes of each step, on tensors whose axis of time has size 1."""
    order = range(int(sequences[0].known_dims[0]))
    parts = [_split(t) for t in sequences]
    now, shared = ([op.Unsqueeze(t, [0]) for t in tensors] for tensors in (states, weights))
    collected = []
    for k in reversed(order) if backwards else order:
        now, found = step(now, [part[k] for part in parts], shared)
        collected.append(found)
    columns = zip(*(reversed(collected) if backwards else collected), strict=True)
    last = [op.Squeeze(t, [0]).known_as(s.dims) for t, s in zip(now, states, strict=True)]
    return last, [_joined(list(column)) for column in columns]


def _split(t: Tensor) -> list[Tensor]:
    """Return the time steps of a sequence."""
    time, *rest = t.known_dims
    if time == 1:
        return [t]
    parts: list[Tensor] = op.Split(t, [1] * int(time), axis=0, outputs=int(time))
    return [part.known_as((1, *rest)) for part in parts]


def _joined(parts: list[Tensor]) -> Tensor:
    """Return the sequence of these time steps."""
    if len(parts) == 1:
        return parts[0]
    joined: Tensor = op.Concat(*parts, axis=0)
    dims = parts[0].dims
    return joined.known_as(None if dims is None else (len(parts), *dims[1:]))


def _loop(
    step: Step,
    states: Sequence[Tensor],
    sequences: Sequence[Tensor],
    weights: Sequence[Tensor],
    backwards: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    """Write the nodes of one step, as the body of a Scan."""

    def body_of(body: Emitter, states: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return step(states, now, [body.tensor(t.value, t.dims) for t in weights])

    return scan(body_of, states, sequences, backwards=backwards)


def swap_first(t: Tensor) -> Tensor:
    """Return a tensor of four axes with the first two exchanged: directions and time."""
    dims: Dims = t.dims
    node = t.value.producer()
    source = node.inputs[0] if node is not None and _swaps(node) else None
    if source is not None:
        return t.emitter.tensor(source)
    if dims is not None and is_static(dims) and 1 in dims[:2] and 0 not in dims:
        return op.Reshape(t, [int(dim) for dim in (dims[1], dims[0], *dims[2:])])
    swapped: Tensor = op.Transpose(t, perm=_SWAP)
    return swapped.known_as(None if dims is None else (dims[1], dims[0], *dims[2:]))


def _swaps(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and node.attributes["perm"].as_ints() == _SWAP
