"""The memory of an LSTM at every step, and the peepholes through which its gates read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnxsgd.gradient.portable.rules.time_steps import run_steps
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["Peepholes", "memory", "memory_behind"]

Gates = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass
class Peepholes:
    """Weights of the memory in the gates, one for each hidden unit: (directions, 1, hidden)."""

    i: Tensor
    o: Tensor
    f: Tensor

    @property
    def over_time(self) -> tuple[Tensor, Tensor, Tensor]:
        """The weights as they broadcast against (time, directions, batch, hidden)."""
        i, o, f = (op.Unsqueeze(t, [0]) for t in (self.i, self.o, self.f))
        return i, o, f

    def gradient(self, pre: Sequence[Tensor], before: Tensor, after: Tensor) -> Tensor:
        """Return the gradient of the weights in their given form, (directions, 3 * hidden).

        Parameters
        ----------
        pre : sequence of Tensor
            Gradients before the activations of the gates i, o and f.
        before, after : Tensor
            The memory before and after each step.
        """
        seen = (before, after, before)
        sums = [op.ReduceSum(t * c, [0, 2], keepdims=0) for t, c in zip(pre, seen, strict=True)]
        joined: Tensor = op.Concat(*sums, axis=1)
        return joined


def memory(first: Tensor, kept: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
    """Return the memory after each step that keeps a part of it and adds to it, and the part kept."""

    def step(states: list[Tensor], now: list[Tensor], _: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        part = states[0] * now[0]
        return [part + now[1]], [part]

    # a tensor that is both the next state and collected would need a copy in each step
    _, (part,) = run_steps(step, [first], [kept, added])
    return part + added, part


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

    def step(
        states: list[Tensor], now: list[Tensor], weights: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        (c,), (to_i, to_f, g, *masks) = states, now
        seen_by_i, seen_by_f = (c * weight for weight in weights)
        i, f = gates(to_i + seen_by_i, to_f + seen_by_f)
        after = f * c + i * g
        for mask in masks:
            after = (after * mask).known_as(c.dims)
        return [after], [after]

    return run_steps(step, [first], sequences, [p.i, p.f])[1][0]
