"""Neighbours merged into channels, which exporters write with a Slice for each place, as one transposition.

The gradients of Slices with steps are padded to the size of the whole image, and added. Of images whose
channels come last, forward and backward pass together take 0.27 to 0.46 of the time, from 8 x 8 x 32 to
56 x 56 x 96, also with onnxruntime 1.19.2; of others, whose neighbours are moved number by number, 0.65, and
up to 1.17 with 1.19.2: they stay. ``benchmarks/networks.py``, swin: 0.99 of the time of an update.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, permutations, product

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import (
    attribute,
    constant,
    first,
    is_fixed_float32,
    operands,
    shape_of,
    standard_operator,
)
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["MERGED_PATCH_FORMS"]

#: Start and step of the elements that are read, by axis.
_Places = dict[int, tuple[int, int]]


def _concat(w: Writer, node: ir.Node) -> ir.Value | None:
    """``Concat(x[:, ::2, ::2], x[:, 1::2, ::2], ...)`` of all starts, along another axis, last ones whole."""
    y, parts = node.outputs[0], operands(node)
    if len(parts) < 2 or not all(is_fixed_float32(value) for value in (y, *parts)):
        return None
    (x, *others), places = zip(*map(_read, parts), strict=True)
    if any(other is not x for other in others) or not is_fixed_float32(x):
        return None
    sizes, steps = shape_of(x).numpy(), {axis: step for axis, (_, step) in places[0].items()}
    target = attribute(node, "axis") % len(sizes)
    order = _order(steps, places)
    if (
        not order
        or {target, len(sizes) - 1} & {*order}
        or any(sizes[axis] % step for axis, step in steps.items())
    ):
        return None
    apart = [
        [size // steps[axis], steps[axis]] if axis in steps else [size] for axis, size in enumerate(sizes)
    ]
    starts = np.cumsum([0, *map(len, apart)]).tolist()
    kept = [[starts[axis]] for axis in range(len(sizes))]
    kept[target] = [*(starts[axis] + 1 for axis in order), starts[target]]
    image = w.transposed(w.reshaped(x, list(chain(*apart))), list(chain(*kept)))
    return w.reshaped(image, shape_of(y).numpy())


def _read(value: ir.Value) -> tuple[ir.Value, _Places]:
    """Return the tensor that Slices with steps read a value from, and its places there."""
    places: _Places = {}
    while (node := value.producer()) is not None and standard_operator(node) == "Slice":
        found = _steps(node)
        if found is None or places.keys() & found.keys():
            break
        places |= found
        value = first(node)
    return value, places


def _steps(node: ir.Node) -> _Places | None:
    """Return the places that a Slice reads, each step-th up to the end, on its axes; None for other ones."""
    x = first(node)
    given = [array for value in node.inputs[1:] if (array := constant(value)) is not None]
    if len(given) < 4 or not is_fixed_float32(x):
        return None
    found: _Places = {}
    for start, end, axis, step in zip(*(array.ravel().tolist() for array in given), strict=True):
        size = shape_of(x).numpy()[axis]
        if not 0 <= start < step or step < 2 or end < size:
            return None
        found[axis % len(shape_of(x))] = start, step
    return found


def _order(steps: dict[int, int], places: Sequence[_Places]) -> tuple[int, ...]:
    """Return the order of the axes in which parts follow each other; empty if not all places do, once."""
    if math.prod(steps.values()) != len(places):
        return ()
    if any({axis: step for axis, (_, step) in part.items()} != steps for part in places):
        return ()
    for order in permutations(steps):
        starts = list(product(*(range(steps[axis]) for axis in order)))
        if starts == [tuple(part[axis][0] for axis in order) for part in places]:
            return order
    return ()


#: The form of merged neighbours.
MERGED_PATCH_FORMS: Table = {("", "Concat"): _concat}
