"""The gradient of a convolution with respect to its weight: the correlation of its image with its result.

As a formula, for a group of channels c of the image and m of the result ::

    dW[m, c, tap] = sum over images n and places p of  g[n, m, p] image[n, c, p stride + tap dilation - pad]

No standard operator computes that. Runtimes are fastest at products of matrices, so each formula here
writes the sum as such products; they differ in the copies that these need.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnxsgd.gradient.portable.rules.channels_last_weight import has_short_rows, tap_by_tap_of_rows
from onnxsgd.gradient.portable.rules.depthwise_weight import correlate_channels, has_single_channels
from onnxsgd.gradient.portable.rules.patch_weight import correlate_tiles, has_tiles
from onnxsgd.gradient.portable.rules.sequence_windows import correlate_windows, moves_over_sequences
from onnxsgd.gradient.portable.rules.tap_weight import (
    all_taps_at_once,
    all_taps_of_the_gradient,
    has_few_channels,
    has_few_results,
    has_few_taps,
    tap_by_tap,
)
from onnxsgd.gradient.portable.rules.windows import Window
from onnxsgd.gradient.portable.writing.tensor import Tensor, op

__all__ = ["correlate"]


def correlate(image: Tensor, g: Tensor, window: Window, group: int) -> Tensor:
    """Return the gradient of the weight of a convolution of `image` whose result has the gradient `g`.

    Parameters
    ----------
    image : Tensor of shape [N, C, ...]
        The convolved image.
    g : Tensor of shape [N, M, ...]
        The gradient of the result.
    window : Window
        The moves of the weight.
    group : int
        The number of groups.

    Returns
    -------
    Tensor of shape [M, C / group, ...]
        The gradient of the weight.
    """
    call = image, g, window, group
    return next(formula for requires, formula in _FORMULAS if requires(*call))(*call)


def _exchanged(image: Tensor, g: Tensor, window: Window, group: int) -> Tensor:
    """Convolve the image by the gradient, batch and channels exchanged, strides and dilations too.

    In groups, the channels of a group stay beside their batch.
    """
    swapped = [1, 0, *window.axes]
    long = op.Conv(
        op.Transpose(_grouped(image, group), perm=swapped),
        op.Transpose(g, perm=swapped),
        strides=list(window.dilations),
        dilations=list(window.strides),
        pads=[*window.before, *window.after],
        group=group,
    )
    exact = op.Slice(long, [0] * len(window.kernel), list(window.kernel), window.axes)
    weight: Tensor = op.Transpose(exact, perm=swapped)
    return weight


def _grouped(image: Tensor, group: int) -> Tensor:
    """Return `image` with the groups of its channels moved into the batch: (group * N, C / group, ...)."""
    if group == 1:
        return image
    channels = int(image.known_dims[1]) // group
    split = op.Reshape(image, _with_sizes(image, [0, group, channels]))
    turned = op.Transpose(split, perm=[1, 0, *range(2, len(image.known_dims) + 1)])
    return op.Reshape(turned, _with_sizes(image, [-1, channels]))


def _with_sizes(image: Tensor, lead: list[int]) -> Tensor | list[int]:
    """Return `lead` followed by the spatial sizes of `image`."""
    sizes = image.known_dims[2:]
    if all(isinstance(size, int) for size in sizes):
        return lead + [int(size) for size in sizes]
    start = image.emitter.constant(np.array(lead, dtype=np.int64))
    shape: Tensor = op.Concat(start, op.Slice(op.Shape(image), [2], [len(image.known_dims)]), axis=0)
    return shape


def _always(*_: object) -> bool:
    return True


#: The requirement of each formula, and the formula; the first that fits is taken.
_FORMULAS: tuple[tuple[Callable[..., bool], Callable[[Tensor, Tensor, Window, int], Tensor]], ...] = (
    (has_single_channels, correlate_channels),
    (moves_over_sequences, correlate_windows),
    (has_tiles, correlate_tiles),
    (has_few_results, all_taps_of_the_gradient),
    (has_few_channels, all_taps_at_once),
    (has_short_rows, tap_by_tap_of_rows),
    (has_few_taps, tap_by_tap),
    (_always, _exchanged),
)
