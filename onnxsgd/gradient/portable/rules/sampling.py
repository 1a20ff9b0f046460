"""The gradient of GridSample: each place of the grid reads a few pixels, with weights that depend on it.

Along each axis a place x reads the pixels floor(x) + t, each weighted by a polynomial in f = x - floor(x) ::

    linear     1 - f, f                                         for t = 0, 1
    cubic      the convolution kernel of Keys with a = -0.75    for t = -1, 0, 1, 2
    nearest    1                                                for the pixel at round(x), halves to even

The image takes the gradient of each pixel that was read times its weights; the grid takes the derivatives of
the weights times the pixels. Beyond the image each pixel is 0, that of the border, or that in the mirror, as
in onnxruntime and torch. At the kinks, where x is a pixel, the slope towards the next pixel counts; with
"nearest" the slope is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import mul

import numpy as np
import onnx_ir as ir
from numpy.polynomial import Polynomial

from onnxsgd.gradient.portable.writing.broadcasting import dim_of, reshape_to, vector, zeros_like
from onnxsgd.gradient.portable.writing.call import Call, Rules
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["GRID_SAMPLE"]


def _keys(a: float = -0.75) -> list[Polynomial]:
    """Return the weights of four neighbours as polynomials in the distance to the second one."""
    d = Polynomial([0.0, 1.0])
    near, far = (a + 2) * d**3 - (a + 3) * d**2 + 1, a * (d**3 - 5 * d**2 + 8 * d - 4)
    return [far(1 + d), near, near(1 - d), far(2 - d)]


#: For each mode the first pixel read, and the weights of all.
_WEIGHTS: dict[str, tuple[int, list[Polynomial]]] = {
    "nearest": (0, [Polynomial([1.0])]),
    "linear": (0, [Polynomial([1.0, -1.0]), Polynomial([0.0, 1.0])]),
    "cubic": (-1, _keys()),
}


@dataclass(frozen=True)
class _Axis:
    """The pixels that are read along one axis of the image, of shape (N, 1 .. taps .. 1, places).

    ``slope`` is the derivative of the weights with respect to the grid.
    """

    size: Tensor
    pixel: Tensor
    weight: Tensor
    slope: Tensor


def _axes(n: Call) -> list[_Axis]:
    return [_axis(n, axis, n.rank - 2) for axis in range(n.rank - 2)]


def _mode(n: Call) -> str:
    mode: str = n.attribute("mode", "linear").removeprefix("bi")
    return mode


def _axis(n: Call, axis: int, count: int) -> _Axis:
    size = vector(n.x, dim_of(n.x, 2 + axis))
    # The last coordinate of a place is that along the first axis.
    grid = op.Reshape(op.Gather(n.b, [count - 1 - axis], axis=-1), [0, *[1] * count, -1])
    x, scale = _place(n, grid, size.cast(n.b.dtype))
    base = op.Round(x) if _mode(n) == "nearest" else op.Floor(x)
    first, weights = _WEIGHTS[_mode(n)]
    taps = np.arange(first, first + len(weights)).reshape(-1, *[1] * (count - axis))
    read = op.Add(base.cast(ir.DataType.INT64), n.emitter.constant(taps))
    pixel, inside = _within(n, read, size)
    weight, slope = (_polynomials(x - base, w, taps.shape) for w in (weights, [w.deriv() for w in weights]))
    return _Axis(size, pixel, weight * inside, slope * inside * scale)


def _place(n: Call, grid: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places along an axis in pixels, and their derivatives with respect to the grid.

    The order of the operations is that of runtimes, so that the same places are rounded up.
    """
    if n.attribute("align_corners", 0):
        return (grid + 1) / 2 * (length - 1), (length - 1) / 2
    return ((grid + 1) * length - 1) / 2, length / 2


def _within(n: Call, read: Tensor, size: Tensor) -> tuple[Tensor, Tensor | int]:
    """Return the pixels of the image for the positions `read`, and a mask of those that count."""
    last, padding = op.Sub(size, 1), n.attribute("padding_mode", "zeros")
    pixel: Tensor = op.Min(op.Max(read, 0), last)
    if padding == "reflection":
        aligned = n.attribute("align_corners", 0)
        # The image and its mirror image; with corners aligned they share the pixels at the borders.
        end = op.Mul(last, 2) if aligned else op.Sub(op.Mul(size, 2), 1)
        place = op.Mod(read, op.Max(end, 1) if aligned else op.Mul(size, 2))
        return op.Min(place, op.Sub(end, place)), 1
    return pixel, 1 if padding == "border" else op.Equal(pixel, read).cast(n.x.dtype)


def _polynomials(f: Tensor, weights: list[Polynomial], shape: tuple[int, ...]) -> Tensor:
    """Return the values at `f` of some polynomials, along a new axis."""
    rows = np.zeros((len(weights), max(len(w.coef) for w in weights)))
    for row, weight in zip(rows, weights, strict=True):
        row[: len(weight.coef)] = weight.coef
    powers = [f.emitter.constant(c.reshape(shape).astype(f.known_dtype.numpy())) for c in rows.T]
    return reduce(lambda value, coefficient: value * f + coefficient, powers[-2::-1], powers[-1] + 0 * f)


def _reads(n: Call) -> tuple[list[_Axis], Tensor]:
    """Return the axes, and the places in the flattened image of all pixels that are read."""
    axes = _axes(n)
    place = axes[0].pixel
    for axis in axes[1:]:
        place = op.Add(op.Mul(place, axis.size), axis.pixel)
    channels = op.Concat([1], vector(n.x, dim_of(n.x, 1)), [1] * (n.rank - 1), axis=0)
    every = op.Expand(op.Unsqueeze(place, [1]), channels)
    return axes, op.Reshape(every, [0, 0, -1])


def _spread_dy(n: Call) -> Tensor:
    """Return the gradient of the result, of shape (N, channels, 1 .. 1, places)."""
    dy: Tensor = op.Reshape(n.dy, [0, 0, *[1] * (n.rank - 2), -1])
    return dy


def _image(n: Call) -> Tensor:
    axes, places = n.once("reads", _reads)
    weight = op.Unsqueeze(reduce(mul, [axis.weight for axis in axes]), [1])
    updates = op.Reshape(_spread_dy(n) * weight, [0, 0, -1])
    flat = op.Reshape(zeros_like(n.x), [0, 0, -1])
    return reshape_to(op.ScatterElements(flat, places, updates, axis=2, reduction="add"), n.x)


def _grid(n: Call) -> Tensor:
    if _mode(n) == "nearest":
        return zeros_like(n.b)
    axes, places = n.once("reads", _reads)
    pixels = op.GatherElements(op.Reshape(n.x, [0, 0, -1]), places, axis=2)
    taps = [len(_WEIGHTS[_mode(n)][1])] * (n.rank - 2)
    reached = op.ReduceSum(op.Reshape(pixels, [0, 0, *taps, -1]) * _spread_dy(n), [1], keepdims=0)
    parts = []
    for axis in reversed(axes):
        slope = reduce(mul, [axis.slope if other is axis else other.weight for other in axes])
        total = op.ReduceSum(reached * slope, list(range(1, n.rank - 1)), keepdims=0)
        parts.append(op.Unsqueeze(total, [-1]))
    return reshape_to(op.Concat(*parts, axis=-1), n.b)


GRID_SAMPLE: Rules = {"GridSample": (_image, _grid)}
