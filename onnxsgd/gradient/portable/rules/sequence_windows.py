"""Gradients of convolutions of sequences that move by several places, as products over windows.

The windows of all samples lie below each other in one table, whose rows are copied whole, all channels of a
place at once. The gradient of the weight is one product with that table. The gradient of the image is a
product too: its places, as many as one move passes, side by side, are made from the few places of the result
whose windows meet them.
"""

from __future__ import annotations

import numpy as np

from onnxsgd.gradient.portable.rules.windows import Window, sizes_of
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["correlate_windows", "moves_over_sequences", "spread_windows"]

#: The least and the most channels of the image and of the result. ``benchmarks/constants.py``, an update with
#: the gradient of the image, 99 places, 3 taps, every second place, batch 8: 1.18 of the time with 4,
#: 0.83 with 16, 0.79 with 32, 0.91 with 128, 0.97 with 256, 1.12 with 512; with onnxruntime 1.19.2 0.88,
#: 0.43, 0.47, 0.61, 0.82 and 1.06; 32 channels 1.02 at 9 places, 0.98 at 25, 0.80 at 49, 0.90 at 400, with
#: onnxruntime 1.19.2 1.02, 0.86, 0.77 and 0.44.
_LEAST, _MOST = 16, 192


def moves_over_sequences(image: Tensor, g: Tensor, window: Window, group: int) -> bool:
    """Return whether windows of sequences of known sizes move by several places, and by at most their own."""
    if group > 1 or len(window.kernel) != 1 or not (image.is_static and g.is_static):
        return False
    is_dense, channels = max(window.dilations) == 1, (sizes_of(image)[1], sizes_of(g)[1])
    fits = min(channels) >= _LEAST and max(channels) <= _MOST and min((*window.before, *window.after)) >= 0
    return is_dense and fits and 1 < window.strides[0] <= window.kernel[0]


def correlate_windows(image: Tensor, g: Tensor, window: Window, _: int) -> Tensor:
    """Return the gradient of the weight by one product with the windows of all samples."""
    (n, c, _), (_, m, out), (k,) = sizes_of(image), sizes_of(g), window.kernel
    places = np.arange(out)[:, None] * window.strides[0] - window.before[0] + np.arange(k)
    windows = _picked(op.Transpose(image, perm=[0, 2, 1]), places)
    product = op.Gemm(_rows(g), op.Reshape(windows, [n * out, k * c]), transA=1)
    weight: Tensor = op.Transpose(op.Reshape(product, [m, k, c]), perm=[0, 2, 1])
    return weight


def spread_windows(g: Tensor, weight: Tensor, window: Window, image: Tensor) -> Tensor:
    """Return the gradient of the image by one product."""
    (n, m, _), (_, c, length) = sizes_of(g), sizes_of(image)
    (k,), (stride,), before = window.kernel, window.strides, window.before[0]
    blocks, moves = -(-k // stride), -(-(before + length) // stride)
    kernel = op.Reshape(op.Transpose(weight, perm=[0, 2, 1]), [m, k * c])
    if k < blocks * stride:
        kernel = op.Pad(kernel, [0, 0, 0, (blocks * stride - k) * c], 0.0)
    if blocks > 1:
        kernel = op.Transpose(op.Reshape(kernel, [m, blocks, stride * c]), perm=[1, 0, 2])
        kernel = op.Reshape(kernel, [blocks * m, stride * c])
    met = _picked(op.Transpose(g, perm=[0, 2, 1]), np.arange(moves)[:, None] - np.arange(blocks))
    product = op.MatMul(op.Reshape(met, [n * moves, blocks * m]), kernel)
    places = op.Reshape(product, [n, moves * stride, c])
    if before or moves * stride > length:
        places = op.Slice(places, [before], [before + length], [1]).known_as((n, length, c))
    spread: Tensor = op.Transpose(places, perm=[0, 2, 1])
    return spread


def _picked(rows: Tensor, places: np.ndarray) -> Tensor:
    """Return `rows`, of shape [N, L, C], at these places, one behind the other; those outside are zero."""
    n, length, c = sizes_of(rows)
    flat, dims = places.reshape(-1), (n, places.size, c)
    if places.size <= length and np.array_equal(flat, np.arange(places.size)):
        picked = rows if places.size == length else op.Slice(rows, [0], [places.size], [1])
        return picked.known_as(dims)
    is_outside = (flat < 0) | (flat >= length)
    if is_outside.any():
        rows = op.Concat(rows, np.zeros((n, 1, c), rows.known_dtype.numpy()), axis=1)
    return op.Gather(rows, np.where(is_outside, length, flat), axis=1).known_as(dims)


def _rows(x: Tensor) -> Tensor:
    """Return a tensor of shape [N, C, L] as [N L, C]."""
    n, c, length = sizes_of(x)
    rows: Tensor = op.Reshape(op.Transpose(x, perm=[0, 2, 1]), [n * length, c])
    return rows
