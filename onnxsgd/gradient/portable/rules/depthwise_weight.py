"""Gradients of the weights of depthwise convolutions of planes.

Single channels make no matrix to multiply. Instead columns are multiplied by columns: ``P[u, v]`` sums
``g[u] image[v]`` over images and rows, and the gradient of a tap is the sum of P along a diagonal. Most of P
is unused, and still this is faster than copies of the input of each tap: products are cheap, copies are not.
Wide images are cut into blocks of columns, to keep P small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxsgd.gradient.portable.rules.tap_weight import ENOUGH
from onnxsgd.gradient.portable.rules.windows import Window, sizes_of
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["correlate_channels", "has_single_channels"]

#: The width of a block: as many columns as are multiplied at once. ``benchmarks/constants.py``, 56 columns:
#: 1.14 of the time with 8, 1.18 with 32.
_BLOCK = 16

#: Images up to this width are one block. ``benchmarks/constants.py``: one block takes 0.69 of the time of
#: blocks at 24 columns, 0.71 at 32, 0.99 at 48, 1.57 at 64.
_NARROW = 32

#: Number of products of an element in the time of a copy of it. ``benchmarks/constants.py``, 3 x 3 taps: rows
#: one by one take 0.87 of the time at 4 x 4, 0.34 at 7 x 7, where this still multiplies all rows, and 1 from
#: 14 x 14 on, where all rows would take 14 to 33 times as long.
_COPY = 14


def has_single_channels(image: Tensor, g: Tensor, window: Window, group: int) -> bool:
    """Return whether each group is one channel of a plane, of known size."""
    is_plane = image.is_static and g.is_static and len(window.kernel) == 2
    return is_plane and sizes_of(image)[1] == sizes_of(g)[1] == group


@dataclass(frozen=True)
class _Blocks:
    """Blocks of an image's columns, and for each the window of the gradient's columns that meet it.

    Block t has the columns from ``t width`` of the image; the columns of the gradient from ``t step +
    first`` to ``t step + first + reach`` meet them, where they exist.
    """

    count: int
    width: int
    step: int
    first: int
    reach: int


def _cut(size: int, out: int, window: Window) -> _Blocks:
    """Return the blocks of an image `size` wide, whose result is `out` wide.

    A window of the gradient reaches into the next one only: blocks are at least as wide as the overlap.
    """
    stride, extent, before = window.strides[1], window.extent[1], window.before[1]
    count = max(1, min(-(-size // _BLOCK), size // max(extent - 1, 1)))
    if size <= _NARROW or count == 1:
        return _Blocks(1, size, out, 0, out)
    width = -(-size // (count * stride)) * stride
    first, last = -((extent - 1 - before) // stride), (width - 1 + before) // stride
    return _Blocks(count, width, width // stride, first, last + 1 - first)


def correlate_channels(image: Tensor, g: Tensor, window: Window, _: int) -> Tensor:
    """Return the gradient of a weight of one channel, from products of columns by columns."""
    (n, c, height, size), (rows, out) = sizes_of(image), sizes_of(g)[2:]
    blocks = _cut(size, out, window)
    if n > 1 and rows * blocks.count >= ENOUGH:
        # Images are reshaped to channels: nothing is moved.
        x, dy = op.Reshape(image, [1, n * c, height, size]), op.Reshape(g, [1, n * c, rows, out])
        each = op.Reshape(correlate_channels(x, dy, window, n * c), [n, c, 1, *window.kernel])
        return op.ReduceSum(each, [0], keepdims=0)
    stride = window.strides[0]
    pairs, copies = rows * stride * blocks.width, window.kernel[0] * (blocks.width + _COPY)
    # A phase without rows would be a product over nothing, which runtimes leave unset instead of zero.
    sums = _of_all_rows if pairs <= copies or height < stride else _row_by_row
    weight: Tensor = op.Reshape(sums(image, g, window, blocks), [c, 1, *window.kernel])
    return weight


def _of_all_rows(image: Tensor, g: Tensor, window: Window, blocks: _Blocks) -> Tensor:
    """Multiply all rows by all rows, and keep the pairs of each tap: fast for few rows."""
    (n, c, height, _), rows = sizes_of(image), sizes_of(g)[2]
    order = [1, 0, 3, 2, 4]
    left = _moved(_windows(g, blocks, 0, 0), [n, c, rows, blocks.count, blocks.reach], order)
    right = _moved(_blocks(image, blocks), [n, c, height, blocks.count, blocks.width], order)
    by_place = [
        op.Reshape(left, [c, n * blocks.count, rows * blocks.reach]),
        op.Reshape(right, [c, n * blocks.count, height * blocks.width]),
    ]
    products = op.MatMul(op.Transpose(by_place[0], perm=[0, 2, 1]), by_place[1])
    split = op.Reshape(products, [c, rows, blocks.reach, height, blocks.width])
    pairs = op.Reshape(op.Transpose(split, perm=[0, 1, 3, 2, 4]), [c, rows * height, -1])
    met = _meetings(image, window, 0, 0, rows, height)
    sums: Tensor = op.MatMul(np.ascontiguousarray(met.T), _along_diagonals(pairs, window, blocks))
    return sums


def _row_by_row(image: Tensor, g: Tensor, window: Window, blocks: _Blocks) -> Tensor:
    """Multiply rows by the rows that a tap meets: the gradient is shifted, the smaller of both."""
    (n, c, height, _), rows = sizes_of(image), sizes_of(g)[2]
    stride = window.strides[0]
    shifts = [divmod(tap * window.dilations[0] - window.before[0], stride) for tap in range(window.kernel[0])]
    phases = [-(-(height - phase) // stride) for phase in range(stride)]
    above = max(0, *(shift for shift, _ in shifts))
    below = max(0, *(phases[phase] - shift - rows for shift, phase in shifts))
    padded, order = rows + above + below, [1, 2, 0, 3]
    left = _moved(_windows(g, blocks, above, below), [n, c, padded, blocks.count * blocks.reach], order)
    right = _moved(_blocks(image, blocks), [n, c, height, blocks.count * blocks.width], order)
    left, right = op.Reshape(left, [c, padded, -1]), op.Reshape(right, [c, height, -1])
    products = []
    for shift, phase in shifts:
        met = right if stride == 1 else op.Slice(right, [phase], [height], [1], [stride])
        meeting = op.Slice(left, [above - shift], [above - shift + phases[phase]], [1])
        columns = op.Reshape(meeting, [c, -1, blocks.reach]), op.Reshape(met, [c, -1, blocks.width])
        product = op.MatMul(op.Transpose(columns[0], perm=[0, 2, 1]), columns[1])
        products.append(op.Reshape(product, [c, 1, -1]))
    return _along_diagonals(
        op.Concat(*products, axis=1) if len(products) > 1 else products[0], window, blocks
    )


def _blocks(image: Tensor, blocks: _Blocks) -> Tensor:
    """Return the image with its columns padded to whole blocks."""
    missing = blocks.count * blocks.width - sizes_of(image)[3]
    return op.Pad(image, [0, 0, 0, 0, 0, 0, 0, missing], 0.0) if missing else image


def _windows(g: Tensor, blocks: _Blocks, above: int, below: int) -> Tensor:
    """Return the windows of the gradient's columns, of its rows with zeros above and below."""
    n, c, rows, out = sizes_of(g)
    beyond = blocks.reach - blocks.step if blocks.count > 1 else 0
    count = blocks.count + (beyond > 0)
    before, after = -blocks.first, count * blocks.step + blocks.first - out if blocks.count > 1 else 0
    if above or below or before or after:
        # Columns before the first window or after the last one are cut: they meet no column of the image.
        g = op.Pad(g, [0, 0, above, before, 0, 0, below, after], 0.0)
    if not beyond:
        return g
    parts = op.Reshape(g, [n, c, rows + above + below, count, blocks.step])
    begun, ended = op.Slice(parts, [0], [count - 1], [3]), op.Slice(parts, [1, 0], [count, beyond], [3, 4])
    windows: Tensor = op.Concat(begun, ended, axis=4)
    return windows


def _moved(x: Tensor, shape: list[int], order: list[int]) -> Tensor:
    """Return `x`, of `shape`, with its axes in this order; those of size 1 need no move."""
    axes = [axis for axis in range(len(shape)) if shape[axis] > 1]
    wanted = [axis for axis in order if shape[axis] > 1]
    if axes == wanted:
        return x
    bare = op.Reshape(x, [shape[axis] for axis in axes])
    moved: Tensor = op.Transpose(bare, perm=[axes.index(axis) for axis in wanted])
    return moved


def _along_diagonals(products: Tensor, window: Window, blocks: _Blocks) -> Tensor:
    """Return the sums of the products of columns that meet in each tap."""
    met = _meetings(products, window, 1, blocks.first, blocks.reach, blocks.width)
    sums: Tensor = op.MatMul(products, met)
    return sums


def _meetings(like: Tensor, window: Window, axis: int, first: int, n_out: int, n_in: int) -> np.ndarray:
    """Return a table with ones where places of the result and of the image meet in a tap, else zeros."""
    stride, dilation, before = window.strides[axis], window.dilations[axis], window.before[axis]
    places = np.arange(first, first + n_out)[:, None, None] * stride - before
    met = places + np.arange(window.kernel[axis]) * dilation == np.arange(n_in)[:, None]
    table: np.ndarray = met.reshape(n_out * n_in, -1).astype(like.known_dtype.numpy())
    return table
