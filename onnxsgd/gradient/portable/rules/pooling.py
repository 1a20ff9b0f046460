"""Gradients of pooling operators.

A global maximum is shared evenly by all places that reach it; see :mod:`.maxima` for those of windows.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxsgd.gradient.portable.rules.convolution_image import spread
from onnxsgd.gradient.portable.rules.max_pool import maximum
from onnxsgd.gradient.portable.rules.windows import Window, read_window, spatial
from onnxsgd.gradient.portable.writing.broadcasting import size_of, zeros_like
from onnxsgd.gradient.portable.writing.call import Call, Rules
from onnxsgd.gradient.portable.writing.known_shapes import is_static
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["POOLING"]


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
    channels = _channels(n)
    ones = n.emitter.constant(np.ones((channels, 1, *window.kernel), dtype=n.x.known_dtype.numpy()))
    return spread(g, ones, window, channels, n.x)


def _average(n: Call) -> Tensor:
    window = _window(n)
    return _spread_evenly(n, n.dy / _counts(n, window), window)


def _counts(n: Call, window: Window) -> Tensor | int:
    """Return the number of elements that each window averages."""
    padded = any(window.before) or any(window.after)
    whole = n.attribute("count_include_pad", 0) and not n.attribute("ceil_mode", 0)
    if whole or not padded:
        return math.prod(window.kernel)
    places = [() if t.dims is None else t.dims[2:] for t in (n.x, n.y)]
    if not n.attribute("ceil_mode", 0) and not all(dims and is_static(dims) for dims in places):
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


def _power_mean(n: Call) -> Tensor:
    """Return the gradient of (sum |x|^p)^(1/p): sign(x) |x|^(p-1) times window sums of dy y^(1-p)."""
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
    "MaxPool": (maximum,),
}
