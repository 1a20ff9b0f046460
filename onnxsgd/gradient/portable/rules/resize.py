"""The gradient of Resize.

Resizing is linear in the image, one axis after the other: y = M x with a small matrix M for each axis, which
is known when the sizes are, and computed in the graph otherwise. The gradient multiplies by the transpose of
each. Where pixels are repeated, it is a sum over the copies, of images of any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxsgd.gradient.portable.rules.resize_identity import resized_identity
from onnxsgd.gradient.portable.writing.broadcasting import zeros_like
from onnxsgd.gradient.portable.writing.call import Call, Rules
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["RESIZE"]

#: Distance in pixels to a tie below which single precision decides: coordinates are less than 2^10 or so.
_TIE = 1e-3


def _resized(n: Call) -> Tensor:
    """Multiply the gradient by the transposed matrix of each axis that changes."""
    factors = _repeats(n)
    if factors is not None:
        return _summed(n, factors)
    axes, g = _axes(n), n.dy
    if axes is None or any(axis.size != axis.out and _rounds_at_a_tie(n, axis) for axis in axes):
        return _resized_at_run_time(n)
    if any(axis.out == 0 for axis in axes):
        return zeros_like(n.x)
    if not _crops(n) and all(axis.size == axis.out for axis in axes):
        # Runtimes copy the image, even with a scale that is not 1.
        return g
    for place, axis in enumerate(axes):
        if axis.changes and not (n.attribute("antialias", 0) and axis.size == axis.out):
            g = _along(g, _constant(g, _matrix(n, axis)), place, n.rank)
    return g


def _resized_at_run_time(n: Call) -> Tensor:
    """Multiply by matrices that the graph computes."""
    places, scales, g = _places(n), _given(n, 2), n.dy
    if n.attribute("keep_aspect_ratio_policy", "stretch") != "stretch" and n.optional(3) is not None:
        raise n.refuse("that keeps the aspect ratio needs constant sizes, and those of its input known")
    if n.rank < 2:
        raise n.refuse("of one axis needs constant scales, and the sizes of its input known")
    for axis in places:
        same = n.x.dims is not None and n.y.dims is not None and n.x.dims[axis] == n.y.dims[axis]
        if not (same or scales.get(axis) == 1.0):
            g = _along(g, resized_identity(n, axis, places), axis, n.rank)
    return g


def _repeats(n: Call) -> list[int] | None:
    """Return the repeats of each pixel along each axis; None if the operator does not just repeat."""
    scales = _given(n, 2)
    factors = [int(scales.get(axis, 1.0)) for axis in range(n.rank)]
    if _crops(n) or len(scales) < n.rank or factors != [scales[axis] for axis in range(n.rank)]:
        return None
    if n.attribute("mode", "nearest") != "nearest" or factors[:2] != [1, 1] or len(factors) < 3:
        return None
    plain = all((_matrix(n, _Axis(4, 4 * k, k)) == np.repeat(np.eye(4), k, axis=0)).all() for k in factors)
    return factors if plain else None


def _summed(n: Call, factors: list[int]) -> Tensor:
    """Sum the gradient over the copies of each pixel."""
    mean: Tensor = op.AveragePool(n.dy, kernel_shape=factors[2:], strides=factors[2:])
    return mean.known_as(n.x.dims) * math.prod(factors)


def _constant(like: Tensor, matrix: np.ndarray) -> Tensor:
    return like.emitter.constant(matrix.astype(like.known_dtype.numpy()))


def _along(g: Tensor, matrix: Tensor, axis: int, rank: int) -> Tensor:
    """Return `g` multiplied along `axis` by the transpose of `matrix`."""
    if axis == rank - 1:
        product: Tensor = op.MatMul(g, matrix)
        return product
    order = [*range(axis), *range(axis + 1, rank), axis]
    back = np.argsort(order).tolist()
    return op.Transpose(op.MatMul(op.Transpose(g, perm=order), matrix), perm=back)


@dataclass(frozen=True)
class _Axis:
    """One axis of the image: its size before and after, the scale, and the part that is cut out."""

    size: int
    out: int
    scale: float
    part: tuple[float, float] = (0.0, 1.0)

    @property
    def changes(self) -> bool:
        return self.size != self.out or self.scale != 1.0 or self.part != (0.0, 1.0)


def _axes(n: Call) -> list[_Axis] | None:
    """Return all axes of the image, unknown ones that keep their size as of size 1; None if unknown."""
    before, after = n.x.dims, n.y.dims
    if before is None or after is None:
        raise n.refuse(f"needs an input {n.x.value.name!r} of known rank")
    scales, parts, resized = _scales(n, before), _parts(n), _places(n)
    if scales is None or parts is None:
        return None
    found = []
    for axis, (size, out) in enumerate(zip(before, after, strict=True)):
        part = parts.get(axis, (0.0, 1.0))
        if part != (0.0, 1.0) and size == out:
            raise n.refuse(f"cuts out a part of axis {axis}, but keeps its size: runtimes copy it whole")
        if isinstance(size, int) and isinstance(out, int):
            found.append(_Axis(size, out, scales.get(axis, out / size if size else 1.0), part))
        elif (size == out or axis not in resized or scales.get(axis) == 1.0) and part == (0.0, 1.0):
            found.append(_Axis(1, 1, 1.0))
        else:
            return None
    return found


def _scales(n: Call, sizes: Sequence[int | str]) -> dict[int, float] | None:
    """Return the given scales, or those that keep the aspect ratio, by axis; None if not known."""
    policy = n.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch" or n.optional(3) is None:
        return None if n.optional(2) is not None and n.constant(2) is None else _given(n, 2)
    wanted, ratios = _given(n, 3), {}
    for axis, out in wanted.items():
        size = sizes[axis]
        if isinstance(size, int):
            ratios[axis] = out / size
    if not ratios or len(ratios) < len(wanted):
        return None
    common = min(ratios.values()) if policy == "not_larger" else max(ratios.values())
    return dict.fromkeys(ratios, common)


def _given(n: Call, index: int) -> dict[int, float]:
    """Return the numbers of a constant input, which has one for each axis that is resized."""
    numbers = n.constant(index)
    return {} if numbers is None or not numbers.size else dict(zip(_places(n), numbers.tolist(), strict=True))


def _places(n: Call) -> list[int]:
    return [axis % n.rank for axis in n.attribute("axes", range(n.rank))]


def _crops(n: Call) -> bool:
    return bool(n.attribute("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize")


def _parts(n: Call) -> dict[int, tuple[float, float]] | None:
    """Return the start and the end of the part that is cut out, by axis; None if they are not known."""
    if not _crops(n):
        return {}
    region = n.constant(1)
    if region is None:
        return None
    starts, ends = np.split(region.astype(float), 2)
    return dict(zip(_places(n), zip(starts.tolist(), ends.tolist(), strict=True), strict=True))


def _matrix(n: Call, axis: _Axis) -> np.ndarray:
    """Return the matrix, of shape (out, size), by which Resize multiplies one axis."""
    x, size = _coordinates(n, axis), axis.size
    # Beyond the part that is cut out and the image, the result is a constant.
    inside = ((x >= 0) & (x <= size - 1))[:, None] if _crops(n) else 1.0
    mode = n.attribute("mode", "nearest")
    if mode == "nearest":
        return inside * np.eye(size)[np.clip(_nearest(n, x), 0, size - 1)]
    kernel = _triangle if mode == "linear" else _cubic(n.attribute("cubic_coeff_a", -0.75))
    shrink = min(axis.scale, 1.0) if n.attribute("antialias", 0) else 1.0
    reach = int(np.ceil((1 if mode == "linear" else 2) / shrink))
    places = np.floor(x)[:, None].astype(int) + np.arange(-reach, reach + 1)
    weights = kernel(np.abs(places - x[:, None]) * shrink)
    if n.attribute("exclude_outside", 0):
        weights = weights * ((places >= 0) & (places < size))
    matrix = np.zeros((axis.out, size))
    rows = np.arange(axis.out)[:, None]
    total = weights.sum(axis=1, keepdims=True)
    np.add.at(matrix, (rows, np.clip(places, 0, size - 1)), inside * weights / np.where(total, total, 1.0))
    return matrix


def _coordinates(n: Call, axis: _Axis) -> np.ndarray:
    """Return the place in the input of the centre of each element of the result.

    Single precision, as in runtimes, gives their rounding and their choice of places inside.
    """
    size, out, scale = axis.size, axis.out, np.float32(axis.scale)
    i, last = np.arange(out, dtype=np.float32), np.float32(size - 1)
    mode = n.attribute("coordinate_transformation_mode", "half_pixel")
    half_pixel = (i + 0.5) / scale - 0.5
    if mode == "half_pixel":
        return half_pixel
    if mode == "half_pixel_symmetric":
        offset = np.float32(size / 2) * (1 - np.float32(out) / (scale * np.float32(size)))
        places: np.ndarray = offset + (i.astype(float) + 0.5) / float(scale) - 0.5
        return places.astype(np.float32)
    if mode == "pytorch_half_pixel":
        return half_pixel if out > 1 else np.zeros(out)
    if mode == "asymmetric":
        return i / scale
    if mode == "align_corners":
        return i * last / (out - 1) if out > 1 else np.zeros(out)
    if mode == "tf_crop_and_resize":
        start, end = (np.float32(bound) for bound in axis.part)
        if out == 1:
            return np.full(1, np.float32(0.5) * (start + end) * last)
        return start * last + i * (end - start) * last / (out - 1)
    raise n.refuse(f"with coordinate_transformation_mode={mode!r} has no gradient rule")


def _rounds_at_a_tie(n: Call, axis: _Axis) -> bool:
    """Return whether the runtime may round a coordinate to another pixel than :func:`_nearest`.

    It computes symmetric coordinates in an order of its own, whose rounding decides where two pixels are
    equally near.
    """
    mode = n.attribute("coordinate_transformation_mode", "half_pixel")
    if n.attribute("mode", "nearest") != "nearest" or mode != "half_pixel_symmetric":
        return False
    tie = 0.5 if n.attribute("nearest_mode", "round_prefer_floor").startswith("round") else 0.0
    distance = _coordinates(n, axis) - tie
    return bool((np.abs(distance - np.round(distance)) < _TIE).any())


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
