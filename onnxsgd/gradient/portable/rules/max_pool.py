"""The gradient of MaxPool.

Where the maximum of a window is reached several times, the first place takes the whole gradient, as in the
operator's index output.
"""

from __future__ import annotations

import math
from functools import reduce
from itertools import product
from operator import add

import numpy as np
import onnx_ir as ir

from onnxsgd.gradient.portable.rules.indexing import ADDING_SCATTER
from onnxsgd.gradient.portable.rules.windows import bare_window, sizes_of
from onnxsgd.gradient.portable.writing.broadcasting import dim_of, number, reshape_to, vector, zeros_like
from onnxsgd.gradient.portable.writing.call import Call
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["maximum"]

_END = np.iinfo(np.int64).max

#: The largest window, and the largest image, whose elements are compared. ``benchmarks/constants.py``, alone
#: and for 16 images of 8 channels: 1.07 of the time at 8 x 8, 0.57 at 16 x 16, 0.30 at 32 x 32, 0.27 at
#: 56 x 56; windows of 16 elements 0.63 at 32 x 32; with onnxruntime 1.19.2 1.23, 0.89, 0.35, 0.32 and 0.79.
#: The training step on a CPU compares them in larger images too, by
#: :mod:`onnxsgd.graph.lowering.forms.max_pools`; on a GPU that was not measured.
_TAPS, _PLACES = 4, 32 * 32


def maximum(n: Call) -> Tensor:
    """Return the gradient of a MaxPool."""
    return _by_comparison(n) if _is_small_and_tiled(n) else _by_index(n)


def _is_small_and_tiled(n: Call) -> bool:
    """Return whether small windows lie side by side on a small image of known size, and cover it."""
    window = bare_window(n, n.attribute("kernel_shape"))
    if not (n.x.is_static and n.y.is_static) or window.kernel != window.strides or n.x.dtype not in _COMPARED:
        return False
    sizes, out = sizes_of(n.x)[2:], sizes_of(n.y)[2:]
    covers = all(size == count * k for size, count, k in zip(sizes, out, window.kernel, strict=True))
    taps, is_padded = math.prod(window.kernel), any(n.attribute("pads", ()))
    fits = covers and len(sizes) < 3 and max(window.dilations) == 1 and not is_padded
    return fits and 1 < taps <= _TAPS and 0 < math.prod(sizes) <= _PLACES


_COMPARED = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _by_comparison(n: Call) -> Tensor:
    """Return the gradient at the first element of each window that equals its maximum, zeros elsewhere.

    The elements of each tap are collected, so that a comparison runs over all windows at once. First the rows
    of a window are compared, by their maxima, and then the elements of the row.
    """
    *above, k = n.attribute("kernel_shape")
    n_rows, width = (above or [1])[0], sizes_of(n.y)[-1]
    lines = math.prod(sizes_of(n.y)) // width
    size = lines * n_rows * width
    flat = n.x
    if k > 1:
        # not parts of the table: the runtime would take those of its transpose
        flat = op.Reshape(op.Transpose(op.Reshape(n.x, [size, k]), perm=[1, 0]), [k * size])
    elements = [op.Reshape(part, [lines, n_rows * width]) for part in _cut(flat, k, size, 0)]
    rows = _cut(_largest(elements), n_rows, width, 1)
    shares = _first_largest(rows, op.Reshape(n.dy, [lines, width]))
    joined = _joined(_first_largest(elements, _joined(shares, 1)), 0)
    return reshape_to(joined if k == 1 else op.Transpose(op.Reshape(joined, [k, size]), perm=[1, 0]), n.x)


def _cut(x: Tensor, count: int, size: int, axis: int) -> list[Tensor]:
    """Return `count` parts of equal size along an axis."""
    if count == 1:
        return [x]
    found: list[Tensor] = op.Split(x, [size] * count, axis=axis, outputs=count)
    return found


def _joined(parts: list[Tensor], axis: int) -> Tensor:
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=axis)


def _largest(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else op.Max(*parts)


def _first_largest(parts: list[Tensor], g: Tensor) -> list[Tensor]:
    """Return the share of each part in `g`: `g` where it is the first one with the largest element, or 0."""
    shares = []
    for index, part in enumerate(parts[:-1], 1):
        shares.append(g * (part >= _largest(parts[index:])))
        g = g - shares[-1]
    return [*shares, g]


def _by_index(n: Call) -> Tensor:
    """Scatter the gradient to the places of the maxima in the flattened input, by the index output."""
    indices = n.extra_output(1, n.y.dims, ir.DataType.INT64)
    if n.attribute("storage_order", 0):
        indices = _row_major(n, indices)
    window = bare_window(n, n.attribute("kernel_shape"))
    flat = op.Reshape(zeros_like(n.x), [-1])
    apart = [-(-extent // stride) for extent, stride in zip(window.extent, window.strides, strict=True)]
    if max(apart) == 1:
        placed = op.ScatterElements(flat, op.Reshape(indices, [-1]), op.Reshape(n.dy, [-1]))
    elif n.opset >= ADDING_SCATTER:
        placed = op.ScatterElements(flat, op.Reshape(indices, [-1]), op.Reshape(n.dy, [-1]), reduction="add")
    else:
        placed = _sum_of_separate_windows(flat, [indices, n.dy], apart)
    return reshape_to(placed, n.x)


def _row_major(n: Call, indices: Tensor) -> Tensor:
    """Return the row-major places for the column-major ones in `indices`."""
    sizes = [vector(n.x, dim_of(n.x, axis)) for axis in range(2, n.rank)]
    whole = sizes[0]
    for size in sizes[1:]:
        whole = whole * size
    left = op.Mod(indices, whole)
    place = number(left, 0)
    for size in sizes:
        place, left = place * size + op.Mod(left, size), left / size
    return indices - op.Mod(indices, whole) + place


def _sum_of_separate_windows(flat: Tensor, both: list[Tensor], apart: list[int]) -> Tensor:
    """Scatter indices and gradients without adding: windows that are `apart` share no element."""
    axes, ends = list(range(2, 2 + len(apart))), [_END] * len(apart)

    def scattered(starts: tuple[int, ...]) -> Tensor:
        chosen = [op.Reshape(op.Slice(t, list(starts), ends, axes, apart), [-1]) for t in both]
        return op.ScatterElements(flat, *chosen)

    return reduce(add, map(scattered, product(*(range(step) for step in apart))))
