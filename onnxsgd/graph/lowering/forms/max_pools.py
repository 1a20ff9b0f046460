"""MaxPools of rectified tensors, of large images, and beside their own gradients, in fewer passes.

The values and the gradients are the same. ``benchmarks/networks.py``, together: 0.94 of the time of an update
of vgg, 0.87 of conv1d, with onnxruntime 1.32 and 1.19.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxsgd.graph.nodes import (
    attribute,
    constant,
    first,
    is_fixed_float32,
    is_read_once,
    shape_of,
    standard_operator,
)
from onnxsgd.graph.rewriting import Table, Writer

__all__ = ["COMPARED_POOL_FORMS", "POOL_FORMS"]

#: The least ratio of the elements of a tensor to the maxima: with fewer maxima to rectify, and to multiply
#: their gradient, passes over the elements are saved. ``benchmarks/networks.py``, vgg: 0.99 of the time.
_RATIO = 2
#: The most places of an image, and the most elements of a window, for the elements to be compared in the
#: gradient: those of ``gradient.portable.rules.max_pool``.
_PLACES, _TAPS = 32 * 32, 4


def _max_pool(w: Writer, node: ir.Node) -> ir.Value | None:
    """``MaxPool(x)`` without places."""
    if not _is_plain(node):
        return None
    rectified = _rectified(w, node)
    return _in_strips(w, node) if rectified is None else rectified


def _rectified(w: Writer, node: ir.Node) -> ir.Value | None:
    """``MaxPool(Relu(x))`` becomes ``Relu(MaxPool(x))``: the gradients are the same too.

    A window has an element at least, which is not given where dilated windows are padded.
    """
    x, y = first(node), node.outputs[0]
    relu = x.producer()
    if relu is None or standard_operator(relu) != "Relu" or not is_read_once(x):
        return None
    sizes = shape_of(y).numpy()
    if _RATIO * math.prod(sizes) > math.prod(shape_of(x).numpy()):
        return None
    return w.known("Relu", [w.known("MaxPool", [first(relu)], sizes, **_attributes(node))], sizes)


def _in_strips(w: Writer, node: ir.Node) -> ir.Value | None:
    """``MaxPool(x)`` of images with windows side by side becomes one of strips of them, as more channels.

    The gradient compares the elements of the windows of small images alone, which is faster on the CPU for
    others too. ``benchmarks/constants.py``, 8 images of 16 channels, with the gradient: 0.31 of the time at
    48 x 48, 0.48 at 112 x 112, 0.65 at 224 x 224; with onnxruntime 1.19.2 0.35, 0.44 and 0.65.
    """
    x, y = first(node), node.outputs[0]
    (n, c, *sizes), (_, _, *out) = shape_of(x).numpy(), shape_of(y).numpy()
    kernel = attribute(node, "kernel_shape")
    if len(sizes) > 2 or not _tiles(node, sizes, out) or math.prod(kernel) > _TAPS:
        return None
    most = _PLACES // (kernel[0] * math.prod(sizes[1:]))
    if math.prod(sizes) <= _PLACES or most == 0 or 0 in (n, c):
        return None
    rows = max(count for count in range(1, most + 1) if out[0] % count == 0)
    strips = [n, c * out[0] // rows]
    image = w.reshaped(x, [*strips, rows * kernel[0], *sizes[1:]])
    pooled = w.known("MaxPool", [image], [*strips, rows, *out[1:]], **_attributes(node))
    return w.reshaped(pooled, shape_of(y).numpy())


def _compared(w: Writer, node: ir.Node) -> ir.Value | None:
    """``MaxPool(x)`` whose gradient has compared the largest elements of the rows of its windows.

    The case is that of :mod:`onnxsgd.gradient.portable.rules.max_pool`. ``benchmarks/networks.py``, vgg: 0.98
    of the time, 0.96 with onnxruntime 1.19.2.
    """
    if not _is_plain(node):
        return None
    (*above, k), sizes = attribute(node, "kernel_shape"), list(shape_of(node.outputs[0]).numpy())
    if len(above) > 1 or not _tiles(node, shape_of(first(node)).numpy()[2:], sizes[2:]):
        return None
    lines, width, n_rows = math.prod(sizes[:-1]), sizes[-1], math.prod(above)
    for maxima in _largest_of_rows(first(node), k, [lines, n_rows * width]):
        rows = [maxima] if n_rows == 1 else _parts(maxima, n_rows, 1)
        if rows:
            largest = rows[0] if len(rows) == 1 else w.known("Max", rows, [lines, width])
            return w.reshaped(largest, sizes)
    return None


def _is_plain(node: ir.Node) -> bool:
    """Tell whether a pool returns maxima of known sizes alone, of windows without gaps."""
    is_known = is_fixed_float32(first(node)) and is_fixed_float32(node.outputs[0])
    is_dense = max(attribute(node, "dilations", [1])) == 1 and not attribute(node, "ceil_mode", 0)
    return is_known and is_dense and len(node.outputs) == 1


def _tiles(node: ir.Node, sizes: Sequence[int], out: Sequence[int]) -> bool:
    """Tell whether windows lie side by side and cover an image of these sizes."""
    kernel = list(attribute(node, "kernel_shape"))
    covers = [k * count for k, count in zip(kernel, out, strict=True)] == list(sizes)
    is_beside = list(attribute(node, "strides", [1] * len(kernel))) == kernel
    return covers and is_beside and not any(attribute(node, "pads", ()))


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: attribute(node, name) for name in node.attributes}


def _largest_of_rows(x: ir.Value, k: int, sizes: list[int]) -> list[ir.Value]:
    """Return the tables of the largest of each k neighbours that a gradient has made."""
    if k == 1:
        return _made([x], "Reshape", sizes)
    size = math.prod(sizes)
    columns = _made(_made([x], "Reshape", [size, k]), "Transpose", [k, size])
    flat = _made((value for value in columns if _is_turned(value)), "Reshape", [size * k])
    parts = [_parts(vector, k, 0) for vector in flat]
    found = (largest for some in parts for largest in _made(_made(some[:1], "Reshape", sizes), "Max", sizes))
    return [largest for largest in found if any(_is_of(largest, some) for some in parts)]


def _made(values: Iterable[ir.Value], op_type: str, sizes: list[int]) -> list[ir.Value]:
    """Return the results of nodes of a type whose first operand is one of some values, of these sizes."""
    nodes = (node for value in values for node, index in value.uses() if index == 0)
    results = (node.outputs[0] for node in nodes if standard_operator(node) == op_type)
    return [result for result in results if result.shape == sizes]


def _is_turned(table: ir.Value) -> bool:
    """Tell whether a Transpose of a table exchanges its axes, also where they have one size."""
    node = table.producer()
    return node is not None and list(attribute(node, "perm", [1, 0])) == [1, 0]


def _is_of(largest: ir.Value, parts: Sequence[ir.Value]) -> bool:
    """Tell whether a Max is that of all these parts, reshaped, and of nothing else."""
    node = largest.producer()
    reshapes = [] if node is None else [None if v is None else v.producer() for v in node.inputs]
    return [None if r is None else r.inputs[0] for r in reshapes] == list(parts)


def _parts(x: ir.Value, count: int, axis: int) -> list[ir.Value]:
    """Return the parts that a value is split into along an axis, if they are so many of one size."""
    splits = (node for node, index in x.uses() if standard_operator(node) == "Split" and index == 0)
    n_axes = len(shape_of(x))
    along = (node for node in splits if attribute(node, "axis", 0) % n_axes == axis)
    return next((list(node.outputs) for node in along if len(node.outputs) == count and _is_even(node)), [])


def _is_even(split: ir.Node) -> bool:
    """Tell whether the parts of a Split have one size."""
    if len(split.inputs) < 2 or split.inputs[1] is None:
        return True
    sizes = constant(split.inputs[1])
    return sizes is not None and len(np.unique(sizes)) == 1


#: The form of pools of rectified tensors, and of large images.
POOL_FORMS: Table = {("", "MaxPool"): _max_pool}

#: The form of pools whose gradients are in the graph.
COMPARED_POOL_FORMS: Table = {("", "MaxPool"): _compared}
