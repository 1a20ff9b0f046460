"""Gradients of weights as products of matrices, of images whose channels come last.

The image part of each tap is then copied in runs of whole rows of all channels, in place of rows of one
channel, and is multiplied as it lies, all images at once.
"""

from __future__ import annotations

import math

import numpy as np

from onnxsgd.gradient.portable.rules.tap_weight import has_few_taps
from onnxsgd.gradient.portable.rules.windows import Window, sizes_of
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["has_short_rows", "tap_by_tap_of_rows"]

#: The most places of a result, and of a row of it: longer rows of one channel are copied as fast.
#: ``benchmarks/constants.py``, 64 channels, batch 8, 3 x 3 taps: 0.52 of the time of rows of one channel at
#: 4 x 4, 0.64 at 8 x 8, 0.76 at 14 x 14, 0.92 at 28 x 28, 1.04 at 56 x 56; series of 32 channels 0.80 at 25
#: places, 0.91 at 100, 1.04 at 400.
_PLACES, _ROW = 28 * 28, 128


def has_short_rows(image: Tensor, g: Tensor, window: Window, group: int) -> bool:
    """Return whether taps of one group are cut out of an image of short rows."""
    if group > 1 or not has_few_taps(image, g, window, group):
        return False
    is_cut, out = math.prod(window.kernel) > 1 or max(window.strides) > 1, sizes_of(g)[2:]
    return is_cut and math.prod(out) <= _PLACES and out[-1] <= _ROW


def tap_by_tap_of_rows(image: Tensor, g: Tensor, window: Window, _: int) -> Tensor:
    """Return the gradient of the weight by one product for each tap."""
    (_, c, *sizes), (n, m, *out) = sizes_of(image), sizes_of(g)
    moves = zip(sizes, out, window.before, window.extent, window.strides, strict=True)
    lengths = [max(low + size, (o - 1) * step + e) for size, o, low, e, step in moves]
    after = [length - size - low for length, size, low in zip(lengths, sizes, window.before, strict=True)]
    x = op.Transpose(image, perm=[0, *window.axes, 1])
    if any(window.before) or any(after):
        x = op.Pad(x, [0, *window.before, 0, 0, *after, 0], 0.0)
    left = g if n == 1 else op.Transpose(g, perm=[1, 0, *window.axes])
    left = op.Reshape(left, [m, -1])
    axes, products = [axis - 1 for axis in window.axes], []
    for tap in np.ndindex(*window.kernel):
        starts = [int(k) * d for k, d in zip(tap, window.dilations, strict=True)]
        runs = zip(starts, out, window.strides, strict=True)
        ends = [start + (size - 1) * step + 1 for start, size, step in runs]
        part = op.Slice(x, starts, ends, axes, list(window.strides))
        products.append(op.MatMul(left, op.Reshape(part, [-1, c])))
    taps = len(products)
    total = op.Concat(*products, axis=0) if taps > 1 else products[0]
    if taps > 1:
        total = op.Transpose(op.Reshape(total, [taps, -1]), perm=[1, 0])
    weight: Tensor = op.Reshape(total, [m, c, *window.kernel])
    return weight
