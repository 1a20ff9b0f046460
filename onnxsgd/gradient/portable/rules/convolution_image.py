"""The gradient of a convolution with respect to its image: every window spreads the gradient of its result.

That is a transposed convolution. Written as a plain convolution, where possible, it is faster: less than half
of the time with one channel in each group, four fifths of it with many.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from onnxsgd.gradient.portable.rules.sequence_windows import moves_over_sequences, spread_windows
from onnxsgd.gradient.portable.rules.windows import Window, sizes_of
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["spread"]

#: The largest number of weights, for each element of the image, that it pays to reverse.
#: ``benchmarks/constants.py``, 128 channels of one image: 1.91 of the time at 18 weights for each element,
#: 1.13 at 4.5, 0.88 at 2, 0.75 at 1.1. The limit stays above that: another formula rounds differently.
_WEIGHTS_PER_ELEMENT = 8

#: The largest window that is reversed by a product with a matrix of that width, which grows with its square.
#: ``benchmarks/constants.py``: 0.76 of the time of a transposed convolution at 3 x 3, 0.80 at 7 x 7, 0.87 at
#: 11 x 11.
_MATRIX = 64


@dataclass(frozen=True)
class _Spread:
    """A convolution, seen from its result."""

    g: Tensor
    weight: Tensor
    window: Window
    group: int
    image: Tensor

    @property
    def is_static(self) -> bool:
        """True if all sizes are known."""
        return self.g.is_static and self.weight.is_static and self.image.is_static

    @property
    def stretched(self) -> list[int]:
        """The sizes of the gradient with zeros between its elements, and after the last one."""
        return [out * stride for out, stride in zip(sizes_of(self.g)[2:], self.window.strides, strict=True)]

    @property
    def pads(self) -> list[int]:
        """The padding of the stretched gradient for a convolution that returns the sizes of the image."""
        before = [e - 1 - low for e, low in zip(self.window.extent, self.window.before, strict=True)]
        sizes = zip(sizes_of(self.image)[2:], self.window.extent, before, self.stretched, strict=True)
        return [*before, *(size + e - 1 - low - length for size, e, low, length in sizes)]


def spread(g: Tensor, weight: Tensor, window: Window, group: int, image: Tensor) -> Tensor:
    """Return the transposed convolution of `g` that has the spatial sizes of `image`.

    Parameters
    ----------
    g : Tensor of shape [N, M, ...]
        The gradient of the result of a convolution of `image`.
    weight : Tensor of shape [M, C / group, ...]
        The weight of the convolution.
    window : Window
        Its moves.
    group : int
        The number of groups.
    image : Tensor of shape [N, C, ...]
        The convolved image; only its shape counts.
    """
    call = _Spread(g, weight, window, group, image)
    return next(formula for requires, formula in _FORMULAS if requires(call))(call)


def _moves_by_one(c: _Spread) -> bool:
    return max(c.window.strides) == 1 and _is_convolution(c)


def _is_convolution(c: _Spread) -> bool:
    """Return whether a convolution by the reversed weight is possible, and faster.

    It copies the part of the gradient that it reads, the transposed one the part of the image that it writes;
    so the channels of the result should not outnumber those of the image, unless nothing is copied. Sequences
    are copied slowly by the transposed one: 133 against 18 us at 8 x 16 x 32 (``benchmarks/networks.py``,
    conv1d).
    """
    if not c.is_static or min(c.pads) < 0:
        return False
    places, (n_out, n_in) = math.prod(c.window.kernel), sizes_of(c.weight)[:2]
    few_channels = places == 1 or len(c.window.kernel) == 1 or 2 * n_out // c.group <= 3 * n_in
    n_weights, n_elements = math.prod(sizes_of(c.weight)), math.prod(sizes_of(c.image))
    return few_channels and places <= _MATRIX and n_weights <= _WEIGHTS_PER_ELEMENT * n_elements


def _convolved(c: _Spread) -> Tensor:
    """Return the convolution by the weight with its window reversed and its channels exchanged."""
    convolved: Tensor = op.Conv(
        c.g, _turned(c), group=c.group, dilations=list(c.window.dilations), pads=c.pads
    )
    return convolved


def _turned(c: _Spread) -> Tensor:
    n_out, n_in = sizes_of(c.weight)[0] // c.group, sizes_of(c.weight)[1]
    places = math.prod(c.window.kernel)
    turned: Tensor = op.Reshape(c.weight, [c.group, n_out, n_in, *([places] if places > 1 else [])])
    if places > 1:
        backwards = np.ascontiguousarray(np.eye(places, dtype=c.weight.known_dtype.numpy())[::-1])
        turned = op.MatMul(turned, backwards)
    if min(n_out, n_in) > 1:
        turned = op.Transpose(turned, perm=[0, 2, 1, *range(3, 3 + (places > 1))])
    return op.Reshape(turned, [c.group * n_in, n_out, *c.window.kernel])


def _skips_rows_of_single_channels(c: _Spread) -> bool:
    alone = c.weight.is_static and sizes_of(c.weight)[:2] == [c.group, 1]
    return alone and len(c.window.strides) > 1 and c.window.strides[-1] == 1 and _is_convolution(c)


def _stretched(c: _Spread) -> Tensor:
    """Return the convolution of the gradient with zeros between its rows: whole rows are quickly moved."""
    n, m, *out = sizes_of(c.g)
    rank = len(out)
    apart = op.Reshape(c.g, [n, m, *(size for o in out for size in (o, 1))])
    zeros = [0] * (2 + 2 * rank) + [0, 0, *(size for s in c.window.strides for size in (0, s - 1))]
    wide = op.Reshape(op.Pad(apart, zeros, 0.0), [n, m, *c.stretched])
    return _convolved(replace(c, g=wide, window=replace(c.window, strides=(1,) * rank)))


def _moves_over_sequences(c: _Spread) -> bool:
    return c.weight.is_static and moves_over_sequences(c.image, c.g, c.window, c.group)


def _of_windows(c: _Spread) -> Tensor:
    return spread_windows(c.g, c.weight, c.window, c.image)


def _transposed(c: _Spread) -> Tensor:
    """Return the transposed convolution as the operator computes it.

    The output padding is the remainder of the strides; where the image's sizes are not known, the largest one
    is taken and the rest cut off at run time.
    """
    window, rank = c.window, len(c.window.kernel)
    attributes = {"strides": list(window.strides), "dilations": list(window.dilations), "group": c.group}
    sizes = c.image.dims[2:] if c.image.dims is not None else ()
    if sizes and all(isinstance(size, int) for size in sizes):
        over = [
            (int(size) + low + high - extent) % stride
            for size, low, high, extent, stride in zip(
                sizes, window.before, window.after, window.extent, window.strides, strict=True
            )
        ]
        attributes["pads"] = [*window.before, *window.after]
        exact: Tensor = op.ConvTranspose(c.g, c.weight, output_padding=over, **attributes)
        return exact
    attributes["pads"] = [*window.before, *[0] * rank]
    whole = op.ConvTranspose(
        c.g, c.weight, output_padding=[stride - 1 for stride in window.strides], **attributes
    )
    cut: Tensor = op.Slice(whole, [0] * rank, op.Slice(op.Shape(c.image), [2], [2 + rank]), window.axes)
    return cut


def _always(_: _Spread) -> bool:
    return True


#: The requirement of each formula, and the formula; the first that fits is taken.
_FORMULAS: tuple[tuple[Callable[[_Spread], bool], Callable[[_Spread], Tensor]], ...] = (
    (_moves_by_one, _convolved),
    (_skips_rows_of_single_channels, _stretched),
    (_moves_over_sequences, _of_windows),
    (_always, _transposed),
)
