"""Gradients of convolutions.

A convolution's gradients are convolutions: with respect to its input a transposed one, with respect to its
weight one of the input by the output's gradient, in which strides and dilations exchange their places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .call import Call, Rules
from .shapes import to_shape
from .tensor import Tensor, op

__all__ = ["CONVOLUTION", "Window", "bare_window", "read_window", "spatial", "spread"]


@dataclass(frozen=True)
class Window:
    """How a window of weights moves over an image: one number for each spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def extent(self) -> tuple[int, ...]:
        """How far the window reaches."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def axes(self) -> list[int]:
        """The spatial axes of the image."""
        return list(range(2, 2 + len(self.kernel)))


def bare_window(n: Call, kernel: Sequence[int]) -> Window:
    """Return the window of a convolution or pooling, without padding; `kernel` is its size."""
    rank = len(kernel)
    strides, dilations = (tuple(n.attribute(name, (1,) * rank)) for name in ("strides", "dilations"))
    return Window(tuple(kernel), strides, dilations, (0,) * rank, (0,) * rank)


def read_window(n: Call, image: Tensor, result: Tensor, kernel: Sequence[int]) -> Window:
    """Return the window of a convolution or pooling of `image` to `result`, with its padding."""
    window = bare_window(n, kernel)
    auto = n.attribute("auto_pad", "NOTSET")
    if auto == "VALID":
        return window
    if auto == "NOTSET":
        rank = len(kernel)
        pads = n.attribute("pads", (0,) * (2 * rank))
        return replace(window, before=tuple(pads[:rank]), after=tuple(pads[rank:]))
    sizes = zip(spatial(n, image), spatial(n, result), window.strides, window.extent, strict=True)
    totals = [max((out - 1) * stride + extent - size, 0) for size, out, stride, extent in sizes]
    small, large = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
    return replace(window, before=before, after=after)


def spatial(n: Call, image: Tensor) -> list[int]:
    """Return the sizes of the spatial axes of `image`, which must be known."""
    sizes = () if image.dims is None else image.dims[2:]
    if not sizes or not all(isinstance(size, int) for size in sizes):
        raise n.refuse(f"needs known spatial sizes of {image.value.name!r}, not {to_shape(image.dims)}")
    return [int(size) for size in sizes]


def kernel_of(n: Call, weight: Tensor) -> tuple[int, ...]:
    """Return the spatial sizes of a weight."""
    return tuple(n.attribute("kernel_shape") or spatial(n, weight))


def spread(g: Tensor, weight: Tensor, window: Window, group: int, image: Tensor) -> Tensor:
    """Return the transposed convolution of `g` that has the spatial sizes of `image`.

    The output padding makes up for what the strides left over; where the image's sizes are not known, the
    largest one is taken and the rest cut off at run time.
    """
    rank = len(window.kernel)
    attributes = {"strides": list(window.strides), "dilations": list(window.dilations), "group": group}
    sizes = image.dims[2:] if image.dims is not None else ()
    if sizes and all(isinstance(size, int) for size in sizes):
        over = [
            (int(size) + low + high - extent) % stride
            for size, low, high, extent, stride in zip(
                sizes, window.before, window.after, window.extent, window.strides, strict=True
            )
        ]
        attributes["pads"] = [*window.before, *window.after]
        spread: Tensor = op.ConvTranspose(g, weight, output_padding=over, **attributes)
        return spread
    attributes["pads"] = [*window.before, *[0] * rank]
    whole = op.ConvTranspose(
        g, weight, output_padding=[stride - 1 for stride in window.strides], **attributes
    )
    return op.Slice(whole, [0] * rank, op.Slice(op.Shape(image), [2], [2 + rank]), window.axes)


def correlate(image: Tensor, g: Tensor, window: Window, group: int) -> Tensor:
    """Return the gradient of the weight of a convolution of `image` whose result has the gradient `g`.

    It is the convolution of the image by the gradient, batch and channels exchanged, with strides and
    dilations exchanged too. In groups, the channels of a group stay beside their batch.
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
    assert image.dims is not None
    channels = int(image.dims[1]) // group
    split = op.Reshape(image, _with_sizes(image, [0, group, channels]))
    turned = op.Transpose(split, perm=[1, 0, *range(2, len(image.dims) + 1)])
    return op.Reshape(turned, _with_sizes(image, [-1, channels]))


def _with_sizes(image: Tensor, lead: list[int]) -> Tensor | list[int]:
    """Return `lead` followed by the spatial sizes of `image`."""
    assert image.dims is not None
    sizes = image.dims[2:]
    if all(isinstance(size, int) for size in sizes):
        return lead + [int(size) for size in sizes]
    start = image.emitter.constant(np.array(lead, dtype=np.int64))
    shape: Tensor = op.Concat(start, op.Slice(op.Shape(image), [2], [len(image.dims)]), axis=0)
    return shape


def _conv_x(n: Call) -> Tensor:
    window = read_window(n, n.x, n.y, kernel_of(n, n.b))
    return spread(n.dy, n.b, window, n.attribute("group", 1), n.x)


def _conv_w(n: Call) -> Tensor:
    window = read_window(n, n.x, n.y, kernel_of(n, n.b))
    return correlate(n.x, n.dy, window, n.attribute("group", 1))


def _bias(n: Call) -> Tensor:
    total: Tensor = op.ReduceSum(n.dy, [0, *range(2, n.rank)], keepdims=0)
    return total


def _transpose_window(n: Call) -> Window:
    if n.attribute("output_shape") is not None or n.attribute("auto_pad", "NOTSET").startswith("SAME"):
        raise n.refuse("has a gradient rule for given pads only, not for output_shape or auto_pad 'SAME_...'")
    window = read_window(n, n.y, n.x, kernel_of(n, n.b))
    over = n.attribute("output_padding", (0,) * len(window.kernel))
    if any(extra >= stride for extra, stride in zip(over, window.strides, strict=True)):
        raise n.refuse(
            f"has output_padding {list(over)}, which is not below its strides {list(window.strides)}"
        )
    return window


def _transpose_x(n: Call) -> Tensor:
    window = _transpose_window(n)
    narrowed: Tensor = op.Conv(
        n.dy,
        n.b,
        strides=list(window.strides),
        dilations=list(window.dilations),
        pads=[*window.before, *window.after],
        group=n.attribute("group", 1),
    )
    return narrowed


def _transpose_w(n: Call) -> Tensor:
    return correlate(n.dy, n.x, _transpose_window(n), n.attribute("group", 1))


CONVOLUTION: Rules = {
    "Conv": (_conv_x, _conv_w, _bias),
    "ConvTranspose": (_transpose_x, _transpose_w, _bias),
}
