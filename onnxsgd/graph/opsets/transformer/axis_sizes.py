"""Sizes and positions along an axis: constants if they are known, computed otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.rewriting import Writer

__all__ = ["known_size", "number", "operand", "positions", "size"]


def operand(node: ir.Node, index: int) -> Any:
    """Return an input of `node`, an ir.Value, or None if omitted: rules know the required ones."""
    return node.inputs[index] if index < len(node.inputs) else None


def number(w: Writer, value: float, like: ir.Value) -> ir.Value:
    """Return a constant of the element type of `like`."""
    array = np.array(value, ir.DataType(like.dtype or ir.DataType.FLOAT).numpy())
    return w.tensor("number", array, frozen="constant of a formula")


def known_size(x: ir.Value, axis: int) -> int | None:
    """Return a size of `x`, None if it is unknown."""
    found = None if x.shape is None else x.shape[axis]
    return found if isinstance(found, int) else None


def size(w: Writer, x: ir.Value, axis: int) -> ir.Value:
    """Return a size of `x`, as a vector of one integer; `axis` counts from the front."""
    known = known_size(x, axis)
    if known is not None:
        return w.tensor("size", np.array([known], np.int64))
    return w.op.Slice(w.op.Shape(x), [axis], [axis + 1], [0])


def positions(w: Writer, x: ir.Value, axis: int, offset: ir.Value | None = None) -> ir.Value:
    """Return the vector 0, 1, 2 ... as long as `axis` of `x`, plus `offset`."""
    known = known_size(x, axis)
    if known is not None:
        numbers = w.tensor("positions", np.arange(known, dtype=np.int64))
    else:
        zero, one = (w.tensor("step", np.array(step, np.int64)) for step in (0, 1))
        numbers = w.op.Range(zero, w.op.Squeeze(size(w, x, axis), [0]), one)
    return numbers if offset is None else w.op.Add(numbers, offset)
