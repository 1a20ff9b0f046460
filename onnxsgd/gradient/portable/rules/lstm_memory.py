"""The memory of an LSTM at every step, and the peepholes through which its gates read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnxsgd.gradient.portable.rules.scan import scan
from onnxsgd.gradient.portable.writing.emitter import Emitter
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["Peepholes", "memory", "memory_behind"]

Gates = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass
class Peepholes:
    """Weights of the memory in the gates, one for each hidden unit: (hidden,)."""

    i: Tensor
    o: Tensor
    f: Tensor

    def gradient(self, pre: Sequence[Tensor], before: Tensor, after: Tensor) -> Tensor:
        """Return the gradient of the weights in their given form, (3 * hidden,).

        Parameters
        ----------
        pre : sequence of Tensor
            Gradients before the activations of the gates i, o and f.
        before, after : Tensor
            The memory before and after each step.
        """
        seen = (before, after, before)
        sums = [op.ReduceSum(t * c, [0, 1], keepdims=0) for t, c in zip(pre, seen, strict=True)]
        joined: Tensor = op.Concat(*sums, axis=0)
        return joined


def memory(first: Tensor, kept: Tensor, added: Tensor) -> Tensor:
    """Return the memory after each step that keeps a part of it and adds to it."""

    def step(_: Emitter, states: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        c = states[0] * now[0] + now[1]
        return [c], [c]

    return scan(step, [first], [kept, added])[1][0]


def memory_behind(p: Peepholes, gates: Gates, first: Tensor, sequences: Sequence[Tensor]) -> Tensor:
    """Return the memory after each step, of gates that read it.

    Parameters
    ----------
    p : Peepholes
        The weights of the memory in the gates.
    gates : callable
        Maps the gates i and f before their activations to the gates.
    first : Tensor
        The memory before the first step.
    sequences : sequence of Tensor
        The gates i and f before their activations, without the part of the memory, and the candidates; then
        factors of the memory, where samples end.
    """

    def step(body: Emitter, states: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        (c,), (to_i, to_f, g, *masks) = states, now
        seen_by_i, seen_by_f = (c * body.tensor(t.value, t.dims) for t in (p.i, p.f))
        i, f = gates(to_i + seen_by_i, to_f + seen_by_f)
        after = f * c + i * g
        for mask in masks:
            after = (after * mask).known_as(c.dims)
        return [after], [after]

    return scan(step, [first], sequences)[1][0]
