"""Scan for the reference evaluator of onnx, whose own (1.23) supports only the first axis, forwards.

It can go when onnx's own supports any axis, in both directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference.ops import op_scan

__all__ = ["Scan"]

_NAMES = tuple(f"scan_{kind}_{name}" for kind in ("input", "output") for name in ("axes", "directions"))


class Scan(op_scan.Scan):
    """The operator Scan: onnx's own between moves of axes and reversals."""

    op_domain = ""
    #: Set by the evaluator, from the attribute.
    num_scan_inputs: int

    def __init__(self, onnx_node: onnx.NodeProto, run_params: dict[str, object]) -> None:
        self._orders = {entry.name: list(entry.ints) for entry in onnx_node.attribute if entry.name in _NAMES}
        plain = onnx.NodeProto()
        plain.CopyFrom(onnx_node)
        del plain.attribute[:]
        plain.attribute.extend(entry for entry in onnx_node.attribute if entry.name not in _NAMES)
        super().__init__(plain, run_params)

    def _run(self, *operands: np.ndarray, **given: Any) -> tuple[np.ndarray, ...]:
        n_states = len(operands) - self.num_scan_inputs
        sequences = [
            np.moveaxis(t, axis, 0)[flip] for t, axis, flip in self._ordered("input", operands[n_states:])
        ]
        plain = {**given, **dict.fromkeys(_NAMES)}
        results = super()._run(*operands[:n_states], *sequences, **plain)
        collected = [
            np.moveaxis(t[flip], 0, axis) for t, axis, flip in self._ordered("output", results[n_states:])
        ]
        return (*results[:n_states], *collected)

    def _ordered(self, kind: str, sequences: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, int, slice]]:
        """Yield each sequence with its axis and a slice along it in its direction."""
        zeros = [0] * len(sequences)
        axes, backwards = (
            self._orders.get(f"scan_{kind}_{name}") or zeros for name in ("axes", "directions")
        )
        for sequence, axis, back in zip(sequences, axes, backwards, strict=True):
            yield sequence, axis, slice(None, None, -1 if back else 1)
