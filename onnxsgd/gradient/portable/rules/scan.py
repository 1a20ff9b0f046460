"""Loops over the first axis of sequences, as Scan nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxsgd.gradient.portable.writing.emitter import Emitter
from onnxsgd.gradient.portable.writing.known_shapes import Dims, to_shape
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["Step", "flipped", "scan"]

_END = np.iinfo(np.int64).max

#: Maps the states and one element of each sequence to the next states and the collected tensors.
Step = Callable[[Emitter, list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]


def scan(
    step: Step, states: Sequence[Tensor], sequences: Sequence[Tensor], *, backwards: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the last states, and the tensors that `step` collects, stacked along a new first axis.

    Parameters
    ----------
    step : callable
        Called once, with the emitter of the loop's body, tensors for the states and for one element of each
        sequence. It reads tensors from outside through the emitter (``body.tensor``).
    states : sequence of Tensor
        The first states. The next ones have the same shapes.
    sequences : sequence of Tensor
        Of equal length along axis 0.
    backwards : bool
        Whether the last element comes first; what is collected for an element keeps its place.
    """
    outer = [*states, *sequences][0].emitter
    body = outer.child()
    inner = [_argument(body, t, t.dims) for t in states]
    elements = [_argument(body, t, t.dims[1:] if t.dims is not None else None) for t in sequences]
    after, collected = step(body, inner, elements)
    graph = body.graph([*inner, *elements], [*after, *collected])
    attributes: dict[str, Any] = {"body": graph, "num_scan_inputs": len(sequences)}
    if backwards:
        attributes["scan_input_directions"] = [1] * len(sequences)
        attributes["scan_output_directions"] = [1] * len(collected)
    kinds = [(t.dtype, s.dims) for t, s in zip(after, states, strict=True)]
    kinds += [(t.dtype, _stacked(sequences[0].dims, t.dims)) for t in collected]
    inputs = [tensor.value for tensor in (*states, *sequences)]
    found = outer.append("Scan", inputs, attributes, kinds)
    return found[: len(after)], found[len(after) :]


def _argument(body: Emitter, like: Tensor, dims: Dims) -> Tensor:
    kind = None if like.dtype is None else ir.TensorType(like.dtype)
    return body.tensor(ir.Value(name=body.new_name(), type=kind, shape=to_shape(dims)), dims)


def _stacked(sequence: Dims, element: Dims) -> Dims:
    return None if sequence is None or element is None else (sequence[0], *element)


def flipped(sequence: Tensor) -> Tensor:
    """Return `sequence` with its first axis reversed."""
    back: Tensor = op.Slice(sequence, [-1], [-_END], [0], [-1])
    return back.known_as(sequence.dims)
