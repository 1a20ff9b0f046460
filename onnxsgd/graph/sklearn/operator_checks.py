"""Checks of the nodes of a converter, which skl2onnx 1.20 makes for each path through them.

Nodes that are used twice, one after another, have exponentially many paths: a QuantileTransformer of 200
quantiles took half a minute. This module can go when that is mended.
"""

from __future__ import annotations

from typing import Any

__all__ = ["check_operators_once"]

_CHECK = "_verify_add_to_"


def check_operators_once() -> None:
    """Let skl2onnx check each node once, in this process."""
    from skl2onnx.algebra.onnx_operator import OnnxOperator

    if getattr(OnnxOperator, _CHECK, _check_once) is not _check_once:
        setattr(OnnxOperator, _CHECK, _check_once)


def _check_once(operator: Any) -> None:
    """Raise an error if a node, or one before it, was not added to the graph, as skl2onnx does."""
    waiting, seen = [operator], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.state is None:
            raise RuntimeError(f"Graph was not produced for operator {type(node).__name__!r}: {node}.")
        waiting.extend(entry for entry in node.inputs if hasattr(entry, _CHECK))
