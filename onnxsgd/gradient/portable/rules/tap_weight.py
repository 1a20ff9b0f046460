"""Gradients of weights as products of matrices, with the image part of each tap of the window as one of them.

For each tap, its part of the image is cut out; the sum over all images and places is then the product of
that part with the gradient, each with its channels as rows. Without strides, the same sums are those of the
whole image with parts of the gradient, the taps in opposite order: less is copied where the result has fewer
channels than the image.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from onnxsgd.gradient.portable.rules.windows import Window, sizes_of
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = [
    "ENOUGH",
    "all_taps_at_once",
    "all_taps_of_the_gradient",
    "has_few_channels",
    "has_few_results",
    "has_few_taps",
    "tap_by_tap",
]

#: Over so many places a sum is as fast for each image as over all of them, and no image has to be moved.
#: ``benchmarks/constants.py``: sums over all images take 0.91 of the time at 49 places, 0.98 at 100, 1.02 at
#: 196, 1.05 at 400.
ENOUGH = 192

#: The columns of a matrix that are multiplied at once: with fewer, a product takes the same time.
#: ``benchmarks/constants.py``: one product for all taps takes 0.54 of the time at 4 channels, 0.74 at 8, 1.08
#: at 16.
_LANES = 16

#: The largest number of taps that are cut out one by one: each adds nodes to the graph.
#: ``benchmarks/constants.py``: cutting takes 0.41 of the time of a convolution at 9 taps, 0.64 at 49, 0.85 at
#: 81, 0.97 at 121.
_TAPS = 64

#: The same for sequences of channels in groups, whose products are small ones. ``benchmarks/constants.py``,
#: 8 groups of 8 channels, 24 places: cutting takes 0.53 of the time of a convolution at 3 taps, 0.82 at 5,
#: 1.21 at 9, 2.03 at 16, 2.7 at 32; at 16 taps 1.15 with 100 places, 1.03 with 400.
_GROUPED_TAPS = 7

#: The channels of the image for each of the result from which on parts of the gradient are cut out.
#: ``benchmarks/constants.py``, 8 channels of the result, 3 x 3 taps: 1.00 of the time with 8 channels of the
#: image, 0.57 with 16, 0.46 with 32, 0.33 with 64; 64 of 128 channels 0.79 at 7 x 7, 0.97 at 14 x 14, 1.02 at
#: 28 x 28.
_RATIO = 2


def has_few_taps(image: Tensor, g: Tensor, window: Window, group: int) -> bool:
    """Return whether the sizes are known and the taps can be cut out one by one."""
    most = _GROUPED_TAPS if group > 1 and len(window.kernel) == 1 else _TAPS
    return image.is_static and g.is_static and math.prod(window.kernel) <= most


def has_few_channels(image: Tensor, g: Tensor, window: Window, group: int) -> bool:
    """Return whether, moreover, the channels of the image make too narrow a matrix for a fast product."""
    return has_few_taps(image, g, window, group) and group == 1 and sizes_of(image)[1] < _LANES


def has_few_results(image: Tensor, g: Tensor, window: Window, group: int) -> bool:
    """Return whether parts of the gradient are possible, and have at most half the channels of the image."""
    if not has_few_taps(image, g, window, group) or group > 1 or math.prod(window.kernel) == 1:
        return False
    is_dense = max(window.strides) == 1 and min((*_exchanged(window).before, *_exchanged(window).after)) >= 0
    return is_dense and _RATIO * sizes_of(g)[1] <= sizes_of(image)[1]


def _exchanged(window: Window) -> Window:
    """Return the window of a convolution of the gradient whose result has the sizes of the image."""
    before, after = (
        tuple(extent - 1 - pad for extent, pad in zip(window.extent, pads, strict=True))
        for pads in (window.before, window.after)
    )
    return replace(window, before=before, after=after)


def tap_by_tap(image: Tensor, g: Tensor, window: Window, group: int) -> Tensor:
    """Return the gradient of the weight by one product for each tap.

    Where a group has few channels, neighbouring groups are multiplied as if they were one, and the products
    of channels of different groups are dropped.
    """
    n_in, n_out = sizes_of(image)[1] // group, sizes_of(g)[1] // group
    batch, joined = _batch(g), _joined(group, n_in, n_out)
    matrices = batch * group // joined
    left = op.Reshape(_by_channel(g, batch), [1, matrices, joined * n_out, -1])
    products = []
    for part in _parts(image, g, window, batch):
        right = op.Reshape(part, [1, matrices, joined * n_in, -1])
        # A single row is multiplied faster from the left.
        first, second = (right, left) if n_in == 1 else (left, right)
        products.append(op.MatMul(first, op.Transpose(second, perm=[0, 1, 3, 2])))
    taps = len(products)
    total = op.Concat(*products, axis=0) if taps > 1 else products[0]
    if batch > 1:
        total = op.ReduceSum(op.Reshape(total, [taps, batch, -1]), [1], keepdims=0)
    if joined > 1:
        total = op.Reshape(total, [taps, group // joined, joined, n_out, joined, n_in])
        total = op.ReduceSum(total * _same_group(g, joined), [4], keepdims=0)
    if taps > 1:
        total = op.Transpose(op.Reshape(total, [taps, -1]), perm=[1, 0])
    weight: Tensor = op.Reshape(total, [group * n_out, n_in, *window.kernel])
    return weight


def all_taps_at_once(image: Tensor, g: Tensor, window: Window, _: int) -> Tensor:
    """Return the gradient of the weight by one product, with the parts of all taps one below the other."""
    c, m, batch = sizes_of(image)[1], sizes_of(g)[1], _batch(g)
    parts = _parts(image, g, window, batch)
    taps = len(parts)
    left = op.Reshape(_by_channel(g, batch), [batch, m, -1])
    below = op.Concat(*parts, axis=1 if batch > 1 else 0) if taps > 1 else parts[0]
    right = op.Reshape(below, [batch, taps * c, -1])
    total = op.MatMul(left, op.Transpose(right, perm=[0, 2, 1]))
    if batch > 1:
        total = op.ReduceSum(total, [0], keepdims=0)
    if min(taps, c) > 1:
        total = op.Transpose(op.Reshape(total, [m, taps, c]), perm=[0, 2, 1])
    weight: Tensor = op.Reshape(total, [m, c, *window.kernel])
    return weight


def all_taps_of_the_gradient(image: Tensor, g: Tensor, window: Window, group: int) -> Tensor:
    """Return the gradient of the weight by one product, with parts of the gradient for all taps.

    The taps of those parts are in opposite order. The sum over places of the image has those of its padding
    too, where the gradient has none.
    """
    c, m = sizes_of(image)[1], sizes_of(g)[1]
    batch = _batch(image)
    parts = _parts(g, image, _exchanged(window), batch)[::-1]
    taps = len(parts)
    above = op.Reshape(op.Concat(*parts, axis=1 if batch > 1 else 0), [batch, taps * m, -1])
    right = op.Reshape(_by_channel(image, batch), [batch, c, -1])
    total = op.MatMul(above, op.Transpose(right, perm=[0, 2, 1]))
    if batch > 1:
        total = op.ReduceSum(total, [0], keepdims=0)
    weight: Tensor = op.Reshape(
        op.Transpose(op.Reshape(total, [taps, m, c]), perm=[1, 2, 0]), [m, c, *window.kernel]
    )
    return weight


def _batch(g: Tensor) -> int:
    """Return the number of sums: one for each image, or one over all where an image has few places."""
    n, _, *out = sizes_of(g)
    return n if math.prod(out) >= ENOUGH else 1


def _joined(group: int, n_in: int, n_out: int) -> int:
    """Return the number of groups to multiply as one; single rows are fast by themselves."""
    if min(n_in, n_out) == 1:
        return 1
    return max(k for k in range(1, group + 1) if group % k == 0 and (k == 1 or k * n_in <= _LANES))


def _same_group(like: Tensor, joined: int) -> Tensor:
    mask = np.eye(joined, dtype=like.known_dtype.numpy()).reshape(1, 1, joined, 1, joined, 1)
    return like.emitter.constant(mask)


def _by_channel(x: Tensor, batch: int) -> Tensor:
    """Return `x` for `batch` sums: unchanged, [N, C, ...], or [C, N, ...] for one sum over all images."""
    if batch > 1 or sizes_of(x)[0] == 1:
        return x
    turned: Tensor = op.Transpose(x, perm=[1, 0, *range(2, len(sizes_of(x)))])
    return turned


def _parts(image: Tensor, g: Tensor, window: Window, batch: int) -> list[Tensor]:
    """Return the image part of each tap, its axes as those of `_by_channel`, of the sizes of `g`."""
    x, out, (n, c, *sizes) = _by_channel(image, batch), sizes_of(g)[2:], sizes_of(image)
    if set(window.kernel) == set(window.strides) == {1} and out == sizes:
        return [x]
    lengths = _lengths(sizes, out, window)
    after = [length - size - low for length, size, low in zip(lengths, sizes, window.before, strict=True)]
    if any(window.before) or any(after):
        x = op.Pad(x, [0, 0, *window.before, 0, 0, *after], 0.0)
    x = _sorted_by_phase(x, [*([n, c] if batch > 1 else [c, n]), *lengths], window.strides[-1])
    axes, steps = list(range(2, 2 + len(out))), [*window.strides[:-1], 1]
    parts = []
    for tap in np.ndindex(*window.kernel):
        starts = [int(k) * d for k, d in zip(tap, window.dilations, strict=True)]
        rounds, phase = divmod(starts[-1], window.strides[-1])
        starts[-1] = phase * (lengths[-1] // window.strides[-1]) + rounds
        ends = [start + (size - 1) * step + 1 for start, size, step in zip(starts, out, steps, strict=True)]
        parts.append(op.Slice(x, starts, ends, axes, steps))
    return parts


def _lengths(sizes: list[int], out: list[int], window: Window) -> list[int]:
    """Return the sizes of the padded image: the reach of the taps, in whole steps along the last axis."""
    moves = zip(sizes, out, window.before, window.extent, window.strides, strict=True)
    lengths = [max(low + size, (o - 1) * step + e) for size, o, low, e, step in moves]
    last = window.strides[-1]
    return [*lengths[:-1], -(-lengths[-1] // last) * last]


def _sorted_by_phase(x: Tensor, shape: list[int], step: int) -> Tensor:
    """Return `x` with every step-th column side by side: the part of a tap is then copied quickly."""
    if step == 1:
        return x
    *lead, width = shape
    rank = len(lead)
    apart = op.Reshape(x, [*lead, width // step, step])
    by_phase: Tensor = op.Transpose(apart, perm=[*range(rank), rank + 1, rank])
    return op.Reshape(by_phase, shape)
