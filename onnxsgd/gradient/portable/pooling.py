"""Gradients of pooling operators.

Where the maximum of a window is reached several times, the first place takes the whole gradient, as the
operator's own index output tells; a global maximum is shared evenly by all places that reach it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import onnx_ir as ir

from .broadcasting import dim_of, number, reshape_to, size_of, vector, zeros_like
from .call import Call, Rules
from .indexing import ADDING_SCATTER
from .spreading import spread
from .tensor import Tensor, op
from .windows import Window, bare_window, read_window, spatial

__all__ = ["POOLING"]

_END = np.iinfo(np.int64).max


def _window(n: Call) -> Window:
    """Return the window of a pooling; one that reaches past the end (ceil_mode) is padded that far."""
    window = read_window(n, n.x, n.y, n.attribute("kernel_shape"))
    if not n.attribute("ceil_mode", 0):
        return window
    reach = [
        (out - 1) * stride + extent - size - low
        for size, out, stride, extent, low in zip(
            spatial(n, n.x), spatial(n, n.y), window.strides, window.extent, window.before, strict=True
        )
    ]
    after = tuple(max(high, r) for high, r in zip(window.after, reach, strict=True))
    return replace(window, after=after)


def _channels(n: Call) -> int:
    channels = n.x.dims[1] if n.x.dims is not None else None
    if not isinstance(channels, int):
        raise n.refuse("needs a known number of channels")
    return channels


def _spread_evenly(n: Call, g: Tensor, window: Window) -> Tensor:
    """Return, for each element of the input, the sum of `g` over the windows that it is in."""
    assert n.x.dtype is not None
    channels = _channels(n)
    ones = n.emitter.constant(np.ones((channels, 1, *window.kernel), dtype=n.x.dtype.numpy()))
    return spread(g, ones, window, channels, n.x)


def _average(n: Call) -> Tensor:
    window = _window(n)
    return _spread_evenly(n, n.dy / _counts(n, window), window)


def _counts(n: Call, window: Window) -> Tensor | int:
    """Return how many elements each window averages."""
    padded = any(window.before) or any(window.after)
    whole = n.attribute("count_include_pad", 0) and not n.attribute("ceil_mode", 0)
    if whole or not padded:
        return math.prod(window.kernel)
    if not n.x.is_static and not n.attribute("ceil_mode", 0):
        return _counts_at_run_time(n, window)
    counts = np.ones((1, 1))
    for axis, (size, out) in enumerate(zip(spatial(n, n.x), spatial(n, n.y), strict=True)):
        counts = counts[..., None] * _counts_along(n, window, axis, size, out)
    return n.emitter.constant(counts.astype((n.x.dtype or ir.DataType.FLOAT).numpy()))


def _counts_at_run_time(n: Call, window: Window) -> Tensor:
    """Return the counts as the sums of ones over the windows, zeros being padded around them."""
    image = zeros_like(op.Slice(n.x, [0, 0], [1, 1])) + 1
    attributes = n.attributes("kernel_shape", "strides", "pads", "dilations")
    mean: Tensor = op.AveragePool(image, count_include_pad=1, **attributes)
    return (mean * math.prod(window.kernel)).known_as(None if n.y.dims is None else (1, 1, *n.y.dims[2:]))


def _counts_along(n: Call, window: Window, axis: int, size: int, out: int) -> np.ndarray:
    first = np.arange(out)[:, None] * window.strides[axis] - window.before[axis]
    places = first + np.arange(window.kernel[axis]) * window.dilations[axis]
    low, high = 0, size
    if n.attribute("count_include_pad", 0):
        pads = n.attribute("pads", (0,) * (2 * len(window.kernel)))
        low, high = -window.before[axis], size + pads[axis + len(window.kernel)]
    counts: np.ndarray = ((places >= low) & (places < high)).sum(axis=1)
    return counts


def _maximum(n: Call) -> Tensor:
    """Put the gradient where the index output says that the maximum was: a place in the flattened input."""
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
    """Return the places that `indices` give in column-major order as those in row-major order."""
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
    total = None
    for starts in product(*(range(step) for step in apart)):
        chosen = [op.Reshape(op.Slice(t, list(starts), ends, axes, apart), [-1]) for t in both]
        part = op.ScatterElements(flat, *chosen)
        total = part if total is None else total + part
    assert total is not None
    return total


def _power_mean(n: Call) -> Tensor:
    """Return the gradient of (sum |x|^p)^(1/p): sign(x) |x|^(p-1) times what reaches it of dy y^(1-p)."""
    p, window = n.attribute("p", 2), _window(n)
    safe = n.y + op.Equal(n.y, 0.0).cast(n.y.dtype)
    return op.Sign(n.x) * op.Abs(n.x) ** (p - 1) * _spread_evenly(n, n.dy * safe ** (1 - p), window)


def _global_average(n: Call) -> Tensor:
    return n.g / size_of(n.x, range(2, n.rank))


def _global_maximum(n: Call) -> Tensor:
    hits = op.Equal(n.x, n.y).cast(n.x.dtype)
    return n.g * hits / op.ReduceSum(hits, list(range(2, n.rank)), keepdims=1)


def _global_power_mean(n: Call) -> Tensor:
    p = n.attribute("p", 2)
    safe = n.y + op.Equal(n.y, 0.0).cast(n.y.dtype)
    return op.Sign(n.x) * op.Abs(n.x) ** (p - 1) * (n.g * safe ** (1 - p))


POOLING: Rules = {
    "AveragePool": (_average,),
    "GlobalAveragePool": (_global_average,),
    "GlobalLpPool": (_global_power_mean,),
    "GlobalMaxPool": (_global_maximum,),
    "LpPool": (_power_mean,),
    "MaxPool": (_maximum,),
}
