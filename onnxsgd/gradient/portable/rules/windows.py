"""Windows of convolutions and poolings: kernel, strides, dilations, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxsgd.gradient.portable.writing.call import Call
from onnxsgd.gradient.portable.writing.known_shapes import to_shape
from onnxsgd.gradient.portable.writing.tensor import Tensor

__all__ = ["Window", "bare_window", "kernel_of", "read_window", "sizes_of", "spatial", "transposed_pads"]


@dataclass(frozen=True)
class Window:
    """Size and moves of a window of weights over an image: one number for each spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def extent(self) -> tuple[int, ...]:
        """The reach of the window, dilations included."""
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


def transposed_pads(n: Call, kernel: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the padding of the convolution that a ConvTranspose transposes: before and after its image.

    The image is the result of the ConvTranspose. The padding after it is negative if the image is larger than
    the windows reach, due to `output_padding` or `output_shape`.
    """
    window, rank = bare_window(n, kernel), len(kernel)
    over = n.attribute("output_padding", (0,) * rank)
    auto, shape = n.attribute("auto_pad", "NOTSET"), n.attribute("output_shape")
    if shape is not None:
        sizes = zip(spatial(n, n.x), window.strides, window.extent, shape[-rank:], strict=True)
        spare = [stride * (size - 1) + extent - out for size, stride, extent, out in sizes]
        totals = [max(space + extra, 0) for space, extra in zip(spare, over, strict=True)]
    elif auto.startswith("SAME"):
        sums = zip(window.extent, over, window.strides, strict=True)
        totals = [max(extent + extra - stride, 0) for extent, extra, stride in sums]
        spare = [total - extra for total, extra in zip(totals, over, strict=True)]
    else:
        pads = n.attribute("pads", (0,) * (2 * rank)) if auto == "NOTSET" else (0,) * (2 * rank)
        return tuple(pads[:rank]), tuple(high - extra for high, extra in zip(pads[rank:], over, strict=True))
    before = tuple(total // 2 if auto == "SAME_UPPER" else total - total // 2 for total in totals)
    return before, tuple(space - low for space, low in zip(spare, before, strict=True))


def spatial(n: Call, image: Tensor) -> list[int]:
    """Return the sizes of the spatial axes of `image`, which must be known."""
    sizes = () if image.dims is None else image.dims[2:]
    if not sizes or not all(isinstance(size, int) for size in sizes):
        raise n.refuse(f"needs known spatial sizes of {image.value.name!r}, not {to_shape(image.dims)}")
    return [int(size) for size in sizes]


def kernel_of(n: Call, weight: Tensor) -> tuple[int, ...]:
    """Return the spatial sizes of a weight."""
    return tuple(n.attribute("kernel_shape") or spatial(n, weight))


def sizes_of(x: Tensor) -> list[int]:
    """Return the shape of a tensor whose sizes are all known."""
    return [int(size) for size in x.known_dims]
