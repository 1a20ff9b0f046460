"""The gradient of Resize.

Resizing is linear in the image, one axis after the other: y = M x with a small matrix M for each axis, which
is known when the sizes are. The gradient multiplies by the transpose of each. Where pixels are repeated, it
is a sum over the copies, of images of any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .call import Call, Rules
from .tensor import Tensor, op

__all__ = ["RESIZE"]


def _resized(n: Call) -> Tensor:
    """Multiply the gradient by the transposed matrix of each axis that changes its size."""
    factors = _repeats(n)
    if factors is not None:
        return _summed(n, factors)
    g = n.dy
    for axis, (size, out, scale) in enumerate(_sizes(n)):
        if size != out or scale != 1.0:
            g = _along(g, _matrix(n, size, out, scale), axis, n.rank)
    return g


def _repeats(n: Call) -> list[int] | None:
    """Return how often each pixel of an image is repeated along each axis, if that is all that is done."""
    scales = _scales(n)
    factors = [int(scales.get(axis, 1.0)) for axis in range(n.rank)]
    if len(scales) < n.rank or factors != [scales[axis] for axis in range(n.rank)]:
        return None
    if n.attribute("mode", "nearest") != "nearest" or factors[:2] != [1, 1] or len(factors) < 3:
        return None
    plain = all((_matrix(n, 4, 4 * k, k) == np.repeat(np.eye(4), k, axis=0)).all() for k in factors)
    return factors if plain else None


def _summed(n: Call, factors: list[int]) -> Tensor:
    """Sum the gradient over the copies of each pixel."""
    mean: Tensor = op.AveragePool(n.dy, kernel_shape=factors[2:], strides=factors[2:])
    return mean.known_as(n.x.dims) * math.prod(factors)


def _along(g: Tensor, matrix: np.ndarray, axis: int, rank: int) -> Tensor:
    """Return `g` multiplied along `axis` by the transpose of `matrix`."""
    assert g.dtype is not None
    m = g.emitter.constant(matrix.astype(g.dtype.numpy()))
    if axis == rank - 1:
        product: Tensor = op.MatMul(g, m)
        return product
    order = [*range(axis), *range(axis + 1, rank), axis]
    back = np.argsort(order).tolist()
    return op.Transpose(op.MatMul(op.Transpose(g, perm=order), m), perm=back)


def _sizes(n: Call) -> list[tuple[int, int, float]]:
    """Return the size, the size after, and the scale of each axis; an axis of any size keeps it."""
    before, after = n.x.dims, n.y.dims
    if before is None or after is None:
        raise n.refuse(f"needs an input {n.x.value.name!r} of known rank")
    if n.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise n.refuse("has a gradient rule for keep_aspect_ratio_policy='stretch' only")
    scales = _scales(n)
    found = []
    for axis, (size, out) in enumerate(zip(before, after, strict=True)):
        if isinstance(size, int) and isinstance(out, int):
            found.append((size, out, scales.get(axis, out / size)))
        elif size == out or scales.get(axis) == 1.0:
            found.append((1, 1, 1.0))
        else:
            raise n.refuse(f"needs a known size of axis {axis} of its input {n.x.value.name!r}")
    return found


def _scales(n: Call) -> dict[int, float]:
    """Return the scales that are given, by axis."""
    scales = n.constant(2) if n.optional(2) is not None else None
    axes = [axis % n.rank for axis in n.attribute("axes", range(n.rank))]
    return {} if scales is None or not scales.size else dict(zip(axes, scales.tolist(), strict=True))


def _matrix(n: Call, size: int, out: int, scale: float) -> np.ndarray:
    """Return the matrix, of shape (out, size), by which Resize multiplies one axis."""
    x = _coordinates(n, size, out, scale)
    mode = n.attribute("mode", "nearest")
    if mode == "nearest":
        return np.eye(size)[np.clip(_nearest(n, x), 0, size - 1)]
    kernel = _triangle if mode == "linear" else _cubic(n.attribute("cubic_coeff_a", -0.75))
    shrink = min(scale, 1.0) if n.attribute("antialias", 0) else 1.0
    reach = int(np.ceil((1 if mode == "linear" else 2) / shrink))
    places = np.floor(x)[:, None].astype(int) + np.arange(-reach, reach + 1)
    weights = kernel(np.abs(places - x[:, None]) * shrink)
    if n.attribute("exclude_outside", 0):
        weights = weights * ((places >= 0) & (places < size))
    matrix = np.zeros((out, size))
    rows = np.arange(out)[:, None]
    np.add.at(matrix, (rows, np.clip(places, 0, size - 1)), weights / weights.sum(axis=1, keepdims=True))
    return matrix


def _coordinates(n: Call, size: int, out: int, scale: float) -> np.ndarray:
    """Return where the centre of each element of the result lies in the input."""
    i, whole = np.arange(out), scale * size
    mode = n.attribute("coordinate_transformation_mode", "half_pixel")
    half_pixel = (i + 0.5) / scale - 0.5
    if mode == "half_pixel":
        return half_pixel
    if mode == "half_pixel_symmetric":
        return half_pixel + size / 2 * (1 - out / whole)
    if mode == "pytorch_half_pixel":
        return half_pixel if whole != 1 else np.full(out, -0.5)
    if mode == "asymmetric":
        return i / scale
    if mode == "align_corners":
        return i * (size - 1) / (whole - 1) if whole != 1 else np.zeros(out)
    raise n.refuse(f"with coordinate_transformation_mode={mode!r} has no gradient rule")


def _nearest(n: Call, x: np.ndarray) -> np.ndarray:
    mode = n.attribute("nearest_mode", "round_prefer_floor")
    rounded = {
        "round_prefer_floor": np.ceil(x - 0.5),
        "round_prefer_ceil": np.floor(x + 0.5),
        "floor": np.floor(x),
        "ceil": np.ceil(x),
    }
    found: np.ndarray = rounded[mode].astype(int)
    return found


def _triangle(distance: np.ndarray) -> np.ndarray:
    return np.maximum(1 - distance, 0)


def _cubic(a: float) -> Callable[[np.ndarray], np.ndarray]:
    def kernel(distance: np.ndarray) -> np.ndarray:
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((distance - 5) * distance + 8) * distance * a - 4 * a
        return np.where(distance <= 1, near, far * (distance < 2))

    return kernel


RESIZE: Rules = {"Resize": (_resized, None, None, None)}
